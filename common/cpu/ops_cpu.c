// ops_cpu.c - one device's libraries and scratch memory, for ops.h.
#include "check.h"
#include "cpu/ops_cpu.h"

#include <stdlib.h>

Ops *ops_new(Device *device, const OpsConfig *config)
{
    Ops *ops = xcalloc(1, sizeof *ops);
    ops->device = device;
    DNN_CHECK(dnnl_engine_create(&ops->engine, dnnl_cpu, 0));
    DNN_CHECK(dnnl_stream_create(&ops->stream, ops->engine, dnnl_stream_default_flags));
    return ops;
}

void ops_free(Ops *ops)
{
    device_free(ops->device, ops->scratch);
    device_free(ops->device, ops->wide);
    DNN_CHECK(dnnl_stream_destroy(ops->stream));
    DNN_CHECK(dnnl_engine_destroy(ops->engine));
    free(ops);
}

static bool has(dnnl_cpu_isa_t wanted) { return (dnnl_get_effective_cpu_isa() & wanted) == wanted; }

// With AMX, and on AMD with AVX-512's instructions for bf16, a step is faster in bf16 than in f32.
// On Intel, AVX-512's instructions for bf16 are slower than those for f32 (docs/benchmarks.md).
Type ops_best_type(const Device *device)
{
    bool pays = has(dnnl_cpu_isa_avx512_core_amx);
#ifdef __x86_64__
    pays |= has(dnnl_cpu_isa_avx512_core_bf16) && __builtin_cpu_is("amd");
#endif
    return pays ? TYPE_BF16 : TYPE_F32;
}

bool ops_emulates(const Device *device, Type type)
{
    return type == TYPE_F16 || (type == TYPE_BF16 && !has(dnnl_cpu_isa_avx512_core_bf16));
}

const bool ops_beside = false;

void ops_join(Ops *ops) { }

static void need(Ops *ops, float **memory, size_t *has, size_t count)
{
    if (count <= *has)
        return;
    device_free(ops->device, *memory);
    *memory = device_alloc(ops->device, count * sizeof(float));
    *has = count;
}

void ops_need_scratch(Ops *ops, size_t count)
{
    need(ops, &ops->scratch, &ops->scratch_count, count);
}

void ops_need_wide(Ops *ops, size_t count) { need(ops, &ops->wide, &ops->wide_count, count); }
