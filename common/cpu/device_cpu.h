// device_cpu.h - what the CPU's loops ask its streams.
#pragma once
#include "device.h"

// May several threads work on this stream's loops? OpenMP's threads belong to the compute stream:
// if a worker of the loader also used them, there would be more threads than cores.
bool stream_has_team(const Stream *stream);
