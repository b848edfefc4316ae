// device_cpu.h - what the CPU's loops may do on a stream: use several threads, use AVX-512.
#pragma once
#include "device.h"

// OpenMP's threads belong to the compute stream: if the loader's workers also used them, there
// would be more threads than cores.
bool stream_has_team(const Stream *stream);

// May loops use AVX-512? The processor and DNNL_MAX_CPU_ISA decide, as for oneDNN.
bool loops_wide(void);
