// usage.h - samples this process's use of processor, memory, disk and GPU.
#pragma once

typedef struct Usage Usage;

// A thread calls emit(arg, members) every `ms` milliseconds, and once more when it stops. members:
// the inside of a JSON object, without the braces:
//   "t":1.50,"cpu":187.2,"machine_cpu":96.0,"rss_mb":812.0,"read_mb":147.2
//   and with a GPU: ,"gpu":93,"gpu_mb":5230,"gpu_watt":412,"gpu_mhz":1755,"gpu_celsius":61
// t: s since the start. cpu: % of one core. machine_cpu: % of all cores, all processes. gpu: % of
// the time in which any kernel ran, even one that uses little of the GPU.
Usage *usage_start(int ms, void (*emit)(void *arg, const char *members), void *arg);
void usage_stop(Usage *usage);

// The GPU to sample, by its UUID: CUDA_VISIBLE_DEVICES renumbers GPUs. Call it once.
void usage_of_gpu(const char *uuid);
