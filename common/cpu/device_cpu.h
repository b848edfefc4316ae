// device_cpu.h - what the CPU's loops may use: several threads, AVX-512.
#pragma once
#include "device.h"

// May a loop on this stream use several threads? Only on the compute stream: otherwise OpenMP would
// start a team for each of the loader's workers, and there would be more threads than cores.
bool stream_has_team(const Stream *stream);

// Should loops run their version for AVX-512 (loops_cpu.h)? Yes, if oneDNN uses AVX-512.
bool loops_wide(void);
