// ops_cpu.c - one device's libraries, and pooling.
//
// An activation is [n][c / block][h * w][block]. The innermost loops run over the block, which is
// what one vector instruction holds, so the compiler turns them into vector code: once for each
// type of activation (BY_TYPE). All compute in f32.
#include "check.h"
#include "cpu/ops_cpu.h"
#include "cpu/short_types.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// --- one device's libraries and scratch memory ---------------------------------------------------

Ops *ops_new(Device *device, const OpsConfig *config)
{
    Ops *ops = xcalloc(1, sizeof *ops);
    ops->device = device;
    ops->norm_processes = 1;
    DNN_CHECK(dnnl_engine_create(&ops->engine, dnnl_cpu, 0));
    DNN_CHECK(dnnl_stream_create(&ops->stream, ops->engine, dnnl_stream_default_flags));
    ops->block = dnn_best_block(ops->engine);
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

int ops_input_block(const Ops *ops, int channels)
{
    return 1;
}

static bool has_bf16(void)
{
    const unsigned isa = dnnl_get_effective_cpu_isa(), wanted = dnnl_cpu_isa_avx512_core_bf16;
    return (isa & wanted) == wanted;
}

Type ops_best_type(const Device *device)
{
    return has_bf16() ? TYPE_BF16 : TYPE_F32;
}

bool ops_emulates(const Device *device, Type type)
{
    return type == TYPE_F16 || (type == TYPE_BF16 && !has_bf16());
}

const bool ops_beside = false;

void ops_join(Ops *ops)
{
}

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

// --- types ---------------------------------------------------------------------------------------

enum { LANES = 16 };        // most channels of a block: what the widest vectors hold

SPECIALIZED void narrow(Type type, const float *from, float factor, void *to, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        store(type, to, i, from[i] * factor);
}

// --- pooling -------------------------------------------------------------------------------------

// The part of the window at output o that is inside the image: [begin, end).
static inline int window_begin(const PoolSpec *s, int o)
{
    int before = s->pad - o * s->stride;
    return before > 0 ? before : 0;
}

static inline int window_end(const PoolSpec *s, int o, int size)
{
    int left = size + s->pad - o * s->stride;
    return left < s->kernel ? left : s->kernel;
}

// One output pixel, all channels of a block: the largest value (the first, if several) and its
// position in the window. NaN wins, as in PyTorch.
SPECIALIZED void pool_pixel(Type type, int block, const PoolSpec *s, const void *x, int row,
                            int col, void *y, uint8_t *index)
{
    int r0 = window_begin(s, row), r1 = window_end(s, row, s->x.h);
    int c0 = window_begin(s, col), c1 = window_end(s, col, s->x.w);
    float best[LANES];
    int32_t where[LANES];
    for (int i = 0; i < block; i++) {
        best[i] = -INFINITY;
        where[i] = r0 * s->kernel + c0;
    }
    for (int r = r0; r < r1; r++)
        for (int c = c0; c < c1; c++) {
            int pixel = (row * s->stride - s->pad + r) * s->x.w + col * s->stride - s->pad + c;
            const void *from = at(type, x, (size_t)pixel * block);
#pragma omp simd
            for (int i = 0; i < block; i++) {
                float v = load(type, from, i);
                bool larger = v > best[i] || v != v;
                best[i] = larger ? v : best[i];
                where[i] = larger ? r * s->kernel + c : where[i];
            }
        }
#pragma omp simd
    for (int i = 0; i < block; i++) {
        store_exact(type, y, i, best[i]);
        index[i] = (uint8_t)where[i];
    }
}

// All output pixels of a plane of `block` channels.
SPECIALIZED void pool_plane(Type type, int block, const PoolSpec *s, Shape out, const void *x,
                            void *y, uint8_t *index)
{
    for (int row = 0; row < out.h; row++)
        for (int col = 0; col < out.w; col++) {
            size_t to = ((size_t)row * out.w + col) * block;
            pool_pixel(type, block, s, x, row, col, at(type, y, to), index + to);
        }
}

void maxpool_forward(Ops *ops, const PoolSpec *s, const void *x, void *y, uint8_t *index)
{
    Type type = s->x.type;
    Shape out = pool_output(s);
    int block = s->x.block, planes = s->x.n * (s->x.c / block);
    size_t in_plane = (size_t)s->x.h * s->x.w * block, out_plane = (size_t)out.h * out.w * block;
#pragma omp parallel for schedule(static)
    for (int p = 0; p < planes; p++)
        BY_BLOCK(type, block, pool_plane, s, out, at(type, x, p * in_plane),
                 at(type, y, p * out_plane), index + p * out_plane);
}

// Adds the gradient of one output pixel to the input pixel that was the largest in its window.
SPECIALIZED void unpool_pixel(Type type, int block, const PoolSpec *s, int row, int col,
                              const uint8_t *index, const void *dy1, const void *dy2, float *dx)
{
    int r0 = window_begin(s, row), r1 = window_end(s, row, s->x.h);
    int c0 = window_begin(s, col), c1 = window_end(s, col, s->x.w);
    float d[LANES];
    int32_t where[LANES];
    for (int i = 0; i < block; i++) {
        d[i] = dy2 ? load(type, dy1, i) + load(type, dy2, i) : load(type, dy1, i);
        where[i] = index[i];
    }
    for (int r = r0; r < r1; r++)
        for (int c = c0; c < c1; c++) {
            int pixel = (row * s->stride - s->pad + r) * s->x.w + col * s->stride - s->pad + c;
            float *to = dx + (size_t)pixel * block;
#pragma omp simd
            for (int i = 0; i < block; i++)
                to[i] += where[i] == r * s->kernel + c ? d[i] : 0;
        }
}

SPECIALIZED void unpool_plane(Type type, int block, const PoolSpec *s, Shape out,
                              const uint8_t *index, const void *dy1, const void *dy2, float *dx)
{
    for (int row = 0; row < out.h; row++)
        for (int col = 0; col < out.w; col++) {
            size_t from = ((size_t)row * out.w + col) * block;
            unpool_pixel(type, block, s, row, col, index + from, at(type, dy1, from),
                         dy2 ? at(type, dy2, from) : NULL, dx);
        }
}

// A pixel of dx may get gradients from several windows; they are added up in f32.
void maxpool_backward(Ops *ops, const PoolSpec *s, const uint8_t *index, const void *dy1,
                      const void *dy2, void *dx)
{
    Type type = s->x.type;
    Shape out = pool_output(s);
    int block = s->x.block, planes = s->x.n * (s->x.c / block);
    size_t in_plane = (size_t)s->x.h * s->x.w * block, out_plane = (size_t)out.h * out.w * block;
#pragma omp parallel
    {
        float *wide = type == TYPE_F32 ? NULL : xmalloc(in_plane * sizeof *wide);
#pragma omp for schedule(static)
        for (int p = 0; p < planes; p++) {
            size_t from = p * out_plane;
            float *to = wide ? wide : (float *)dx + p * in_plane;
            memset(to, 0, in_plane * sizeof *to);
            BY_BLOCK(type, block, unpool_plane, s, out, index + from, at(type, dy1, from),
                     dy2 ? at(type, dy2, from) : NULL, to);
            if (wide)
                BY_TYPE(type, narrow, wide, 1, at(type, dx, p * in_plane), in_plane);
        }
        free(wide);
    }
}

void avgpool_forward(Ops *ops, Shape x, const void *in, void *out)
{
    int block = x.block, pixels = x.h * x.w;
#pragma omp parallel for schedule(static)
    for (int p = 0; p < x.n * (x.c / block); p++)
        for (int i = 0; i < block; i++) {
            float sum = 0;
            for (int q = 0; q < pixels; q++)
                sum += load(x.type, in, ((size_t)p * pixels + q) * block + i);
            store(x.type, out, (size_t)p * block + i, sum / pixels);
        }
}

void avgpool_backward(Ops *ops, Shape x, const void *dout, void *dx)
{
    int block = x.block, pixels = x.h * x.w;
    float share = 1.0f / pixels;
#pragma omp parallel for schedule(static)
    for (int p = 0; p < x.n * (x.c / block); p++)
        for (int q = 0; q < pixels; q++)
            for (int i = 0; i < block; i++)
                store(x.type, dx, ((size_t)p * pixels + q) * block + i,
                      load(x.type, dout, (size_t)p * block + i) * share);
}
