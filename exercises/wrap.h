// wrap.h - for an exercise's check.c. `build --wrap NAME` in its check.sh redirects the learner's calls
// of NAME to __wrap_NAME; __real_NAME is the original.
#pragma once

// Declares both with NAME's type, so that a check.c with an outdated signature does not compile.
#define WRAPPED(name) __typeof__(name) __real_##name, __wrap_##name
