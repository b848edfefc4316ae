// ops_cpu.c - one device's libraries and scratch memory, for ops.h.
#include "check.h"
#include "cpu/ops_cpu.h"

#include <stdlib.h>

Ops *ops_new(Device *device, const OpsConfig *config)
{
    Ops *ops = xcalloc(1, sizeof *ops);
    ops->device = device;
    ops->norm_processes = 1;
    DNN_CHECK(dnnl_engine_create(&ops->engine, dnnl_cpu, 0));
    DNN_CHECK(dnnl_stream_create(&ops->stream, ops->engine, dnnl_stream_default_flags));
    return ops;
}

void ops_free(Ops *ops)
{
    device_free(ops->device, ops->scratch.memory);
    device_free(ops->device, ops->wide.memory);
    DNN_CHECK(dnnl_stream_destroy(ops->stream));
    DNN_CHECK(dnnl_engine_destroy(ops->engine));
    free(ops);
}

static bool has(dnnl_cpu_isa_t wanted) { return (dnnl_get_effective_cpu_isa() & wanted) == wanted; }

// With instructions for bf16, a step in bf16 is faster than in f32 (docs/benchmarks.md).
Type ops_best_type(const Device *device)
{
    return has(dnnl_cpu_isa_avx512_core_bf16) ? TYPE_BF16 : TYPE_F32;
}

bool ops_emulates(const Device *device, Type type)
{
    return type == TYPE_F16 || (type == TYPE_BF16 && !has(dnnl_cpu_isa_avx512_core_bf16));
}

const bool ops_beside = false;

Stream *ops_fork(Ops *ops) { return compute(ops); }

void ops_join(Ops *ops) { }

static void need(Ops *ops, Room *room, size_t bytes)
{
    if (bytes <= room->bytes)
        return;
    device_free(ops->device, room->memory);
    *room = (Room){ device_alloc(ops->device, bytes), bytes };
}

void ops_need_scratch(Ops *ops, size_t bytes) { need(ops, &ops->scratch, bytes); }

void *ops_scratch(const Ops *ops) { return ops->scratch.memory; }

void ops_need_wide(Ops *ops, size_t count) { need(ops, &ops->wide, count * sizeof(float)); }

int ops_together(const Ops *ops, int count, size_t bytes)
{
    const size_t cache = 1 << 18;       // bytes that a core keeps well
    size_t each = bytes < cache ? cache / bytes : 1, all = each * device_threads(ops->device);
    return all < (size_t)count ? (int)all : count;
}
