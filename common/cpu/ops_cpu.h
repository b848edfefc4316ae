// ops_cpu.h - what the files of the CPU backend share.
#pragma once
#include "cpu/onednn.h"
#include "ops.h"

struct Ops {
    Device *device;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int vector;             // the block that this processor likes: 16 with AVX-512, else 8
    float *scratch;         // for one operation at a time: reordered weights
    size_t scratch_count;
    float *wide;            // for one emulated operation at a time: all it reads and writes, in f32
    size_t wide_count;

    int norm_processes;     // that share the batches of normalisations; 0, 1: each has its own
    OpsGather norm_gather;
    void *norm_gather_arg;
};

// Makes ops->scratch at least count floats long. Only while setting up: pointers to it go stale.
void ops_need_scratch(Ops *ops, size_t count);
void ops_need_wide(Ops *ops, size_t count);     // the same for ops->wide

// From f32, times a factor, to the type; back; and both, which leaves of f32 what the type holds.
void ops_narrow(Type type, size_t count, const float *from, float factor, void *to);
void ops_widen(Type type, size_t count, const void *from, float *to);
void ops_round(Type type, size_t count, const float *from, float *to);
