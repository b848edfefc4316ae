// wrap.h - for an exercise's check.c. `build --wrap NAME` in check.sh redirects the calls of NAME, in the
// learner's files and in common/, to __wrap_NAME. Calls in the file that defines NAME stay as they are.
// __real_NAME is the original.
#pragma once

// Declares both with NAME's type, so that a check.c with an outdated signature does not compile.
#define WRAPPED(name) __typeof__(name) __real_##name, __wrap_##name
