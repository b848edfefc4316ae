// shim.h - CUDA and NCCL on a laptop: their rules, carried out by this project's CPU backend.
//
//   cuda_shim.c    each stream has a thread (device.h). The host faults if it touches device memory, as with a GPU
//   nccl_shim.c    each communicator has a thread for collectives and, for each rank, one that sends and one that
//                  receives; comm.h does the work
//
// A process has one GPU and calls CUDA and NCCL from one thread, and all its communicators have the same ranks.
//
//   GPU_SLOW=compute:MS | nccl:MS   delays every copy, fill and host function, or every collective, send and receive
//   GPU_TIMEOUT=S                   ends the run if, for S seconds (default 30; 0: no limit), a rank makes no call and
//                                   does not wait, or all ranks wait. Prints what these ranks did last
//   GPU_TRACE=FILE                  a timeline of all streams and ranks, for https://ui.perfetto.dev
#pragma once
#include "check.h"
#include "cuda_runtime.h"
#include "device.h"

extern Device *shim_gpu;
void *shim_memory(const void *memory, size_t bytes);    // to access device or pinned memory; NULL: it is neither
Stream *shim_enter(cudaStream_t stream);        // checks the caller and the stream; returns where to enqueue its work
void shim_order(Stream *first, Stream *then);   // later work of `then` waits for all of `first`
// Begins a span of the timeline, then delays as GPU_SLOW says: names that begin with nccl by nccl:MS, others by
// compute:MS. Call it before each piece of work, in the thread of this work, and trace_end afterwards.
void shim_begin(const char *name);

// For an error, CUDA and NCCL only return a number. REFUSE also prints the reason.
#define REFUSE(error, ...) (WARN("", __VA_ARGS__), error)
