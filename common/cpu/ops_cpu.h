// ops_cpu.h - the CPU backend's Ops (ops.h): libraries and scratch memory.
#pragma once
#include "cpu/onednn.h"
#include "ops/op.h"

struct Ops {
    Device *device;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    float *scratch;         // for one convolution at a time: its reordered or expanded weights
    size_t scratch_count;
    float *wide;            // for one emulated operation at a time: inputs and outputs, in f32
    size_t wide_count;

    int norm_processes;     // processes that share a BatchNorm batch; 0 or 1: it is not shared
    OpsGather norm_gather;
    void *norm_gather_arg;
};

static inline Stream *compute(const Ops *ops) { return device_stream(ops->device); }

// Makes ops->scratch at least count floats long. The memory may move, so call it only in op_new.
void ops_need_scratch(Ops *ops, size_t count);
void ops_need_wide(Ops *ops, size_t count);     // like ops_need_scratch, for ops->wide

// Returns the values, or if the operation is emulated, an f32 copy of them. The copy is at *room, a
// place in ops->wide, and *room then moves past it.
static inline const void *ops_widened(Ops *ops, bool emulated, Type type, size_t count,
                                      const void *values, float **room)
{
    float *copy = *room;
    if (!emulated)
        return values;
    values_widen(compute(ops), type, count, values, copy);
    *room += count;
    return copy;
}
