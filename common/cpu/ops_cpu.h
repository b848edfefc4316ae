// ops_cpu.h - the CPU backend's Ops (ops.h): libraries and scratch memory.
#pragma once
#include "cpu/onednn.h"
#include "ops/op.h"

// Memory that grows.
typedef struct Room {
    void *memory;
    size_t bytes;
} Room;

struct Ops {
    Device *device;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    Room scratch;           // for one operation at a time
    Room wide;              // for one emulated product or convolution at a time: its inputs and
                            // outputs, in f32

    int norm_processes;     // processes that share BatchNorm's statistics
    OpsGather norm_gather;
    void *norm_gather_arg;
};

static inline Stream *compute(const Ops *ops) { return device_stream(ops->device); }

static inline dnnl_data_type_t dnn_type(Type type)
{
    return type == TYPE_F32 ? dnnl_f32 : dnnl_bf16;
}

// Makes ops->wide at least `count` floats long. The memory may move: call it in op_new.
void ops_need_wide(Ops *ops, size_t count);

// Returns the values, or if the operation is emulated, an f32 copy of them. The copy is made at
// *room, a place in ops->wide, and *room then moves past the copy.
static inline const void *ops_widened(Ops *ops, bool emulated, Type type, size_t count,
                                      const void *values, float **room)
{
    float *copy = *room;
    if (!emulated)
        return values;
    values_widen(ops, compute(ops), type, count, values, copy);
    *room += count;
    return copy;
}
