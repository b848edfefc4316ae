// ops_cpu.c - one device's libraries, batch normalisation and pooling.
//
// An activation is [n][c / block][h * w][block]. The innermost loops run over the block, which is
// what one vector instruction holds, so the compiler turns them into vector code: once for each
// type of activation (BY_TYPE). All compute in f32.
#include "check.h"
#include "cpu/ops_cpu.h"
#include "cpu/short_types.h"

#include <math.h>
#include <omp.h>
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

// --- batch normalisation -------------------------------------------------------------------------

struct Norm {
    Ops *ops;
    NormSpec spec;
    int blocks, block, pixels;  // the activation as [n][blocks][pixels][block]
    double *parts;              // (threads, 2 * c) two sums per channel over each thread's images
    double count;               // pixels of the batch, over all processes that share it
    double *mine;               // (1 + 2 * c) this process's count, means, squares; or 0, two sums
    double *all;                // (processes, 1 + 2 * c) `mine` of all processes by rank, or NULL
    float *scale, *shift;       // (c) y = x * scale + shift
    float *k0, *k1;             // (c) dx = scale * dy + k1 * x + k0
};

// The arrays of one loop over the activation.
typedef struct NormPass {
    const float *mean;                  // (c)
    const void *x, *residual;           // forward: residual may be NULL
    const void *y, *dy1, *dy2;          // backward: y is NULL without a ReLU; dy2 may be NULL
    void *out;
} NormPass;

// All layouts of a single pixel are equal: the widest block that divides the channels.
static int widest_block(int channels)
{
    int block = LANES;
    while (channels % block != 0)
        block /= 2;
    return block;
}

Norm *norm_new(Ops *ops, const NormSpec *spec)
{
    Norm *norm = xcalloc(1, sizeof *norm);
    const Shape *x = &spec->x;
    size_t channels = x->c;
    norm->ops = ops;
    norm->spec = *spec;
    norm->block = x->h == 1 && x->w == 1 ? widest_block(x->c) : x->block;
    norm->blocks = x->c / norm->block;
    norm->pixels = x->h * x->w;
    norm->parts = xmalloc((size_t)device_threads(ops->device) * 2 * channels * sizeof(double));
    norm->scale = xmalloc(4 * channels * sizeof(float));
    norm->shift = norm->scale + channels;
    norm->k0 = norm->shift + channels;
    norm->k1 = norm->k0 + channels;
    norm->mine = device_alloc(ops->device, (1 + 2 * channels) * sizeof(double));
    return norm;
}

void norm_free(Norm *norm)
{
    if (!norm)
        return;
    free(norm->parts);
    free(norm->scale);
    device_free(norm->ops->device, norm->mine);
    device_free(norm->ops->device, norm->all);
    free(norm);
}

void ops_share_norms(Ops *ops, int size, OpsGather gather, void *arg)
{
    ops->norm_processes = size;
    ops->norm_gather = gather;
    ops->norm_gather_arg = arg;
}

// The norm->mine of all processes, by rank.
static const double *gathered(Norm *norm)
{
    Ops *ops = norm->ops;
    size_t count = 1 + 2 * (size_t)norm->spec.x.c;
    if (ops->norm_processes == 1)
        return norm->mine;
    if (!norm->all)
        norm->all = device_alloc(ops->device, (size_t)ops->norm_processes * count * sizeof(double));
    ops->norm_gather(ops->norm_gather_arg, norm->mine, norm->all, count);
    return norm->all;
}

// sum and sum of squares of x - mean; `mean` is the origin that batch_statistics chooses.
SPECIALIZED void plane_moments(Type type, int block, const Norm *norm, NormPass a, int plane,
                               float *sums, float *squares)
{
    const float *origin = a.mean + plane % norm->blocks * block;
    size_t begin = (size_t)plane * norm->pixels * block, end = begin + norm->pixels * block;
    float sum[LANES], square[LANES];    // local, so that they stay in registers
    for (int i = 0; i < block; i++)
        sum[i] = square[i] = 0;
    for (size_t at = begin; at < end; at += block)
#pragma omp simd
        for (int i = 0; i < block; i++) {
            float d = load(type, a.x, at + i) - origin[i];
            sum[i] += d;
            square[i] += d * d;
        }
    memcpy(sums, sum, block * sizeof *sum);
    memcpy(squares, square, block * sizeof *square);
}

// out = the gradient of the ReLU's input, (dy1 + dy2) where y > 0, stored for the second loop; and
// the sums of out and out * (x - mean) of this plane.
SPECIALIZED void plane_gradient(Type type, int block, const Norm *norm, NormPass a, int plane,
                                float *sums, float *dots)
{
    const float *mean = a.mean + plane % norm->blocks * block;
    size_t begin = (size_t)plane * norm->pixels * block, end = begin + norm->pixels * block;
    float sum[LANES], dot[LANES];
    for (int i = 0; i < block; i++)
        sum[i] = dot[i] = 0;
    for (size_t at = begin; at < end; at += block)
#pragma omp simd
        for (int i = 0; i < block; i++) {
            float g = load(type, a.dy1, at + i);
            g = a.dy2 ? rounded(type, g + load(type, a.dy2, at + i)) : g;
            g = !a.y || load(type, a.y, at + i) > 0 ? g : 0;
            store_exact(type, a.out, at + i, g);
            sum[i] += g;
            dot[i] += g * (load(type, a.x, at + i) - mean[i]);
        }
    memcpy(sums, sum, block * sizeof *sum);
    memcpy(dots, dot, block * sizeof *dot);
}

// Two sums per channel over the batch, in norm->mine from 1 on: the gradient's, or the moments. A
// plane is short enough for f32's precision. Planes are added in double, images by the same thread
// and threads in the same order each time.
static void channel_sums(Norm *norm, bool gradient, NormPass pass)
{
    int block = norm->block, blocks = norm->blocks, channels = norm->spec.x.c, n = norm->spec.x.n;
    int threads = device_threads(norm->ops->device);
    Type type = norm->spec.x.type;
#pragma omp parallel num_threads(threads)
    {
        int me = omp_get_thread_num(), end = n * (me + 1) / threads * blocks;
        double *sums = norm->parts + (size_t)me * 2 * channels;
        float a[LANES], b[LANES];
        memset(sums, 0, 2 * channels * sizeof *sums);
        for (int p = n * me / threads * blocks; p < end; p++) {
            double *to = sums + p % blocks * block;
            if (gradient)
                BY_BLOCK(type, block, plane_gradient, norm, pass, p, a, b);
            else
                BY_BLOCK(type, block, plane_moments, norm, pass, p, a, b);
            for (int i = 0; i < block; i++) {
                to[i] += a[i];
                to[channels + i] += b[i];
            }
        }
    }
    for (int i = 0; i < 2 * channels; i++) {
        norm->mine[1 + i] = 0;
        for (int t = 0; t < threads; t++)
            norm->mine[1 + i] += norm->parts[(size_t)t * 2 * channels + i];
    }
}

// --- forward

static void statistics_set(const NormTensors *t, int c, double count, double mean, double var)
{
    double unbiased = count > 1 ? var * count / (count - 1) : var;
    t->mean[c] = mean;
    t->inv_std[c] = 1 / sqrt(var + 1e-5);
    t->running_mean[c] = 0.9 * t->running_mean[c] + 0.1 * mean;
    t->running_var[c] = 0.9 * t->running_var[c] + 0.1 * unbiased;
}

// Merges the statistics of all processes. Merging avoids the difference of two large sums (Chan,
// Golub, LeVeque 1979) and goes in the order of the ranks, so that all processes get the same
// bits.
static void merge_statistics(Norm *norm, const NormTensors *t)
{
    int channels = norm->spec.x.c;
    const double *all = gathered(norm);
    for (int c = 0; c < channels; c++) {
        double count = 0, mean = 0, squares = 0;
        const double *rank = all;
        for (int r = 0; r < norm->ops->norm_processes; r++, rank += 1 + 2 * channels) {
            if (rank[0] == 0)
                continue;
            double together = count + rank[0], delta = rank[1 + c] - mean;
            double share = rank[0] / together;
            mean += delta * share;
            squares += rank[1 + channels + c] + delta * delta * count * share;
            count = together;
        }
        statistics_set(t, c, count, mean, squares / count);
        norm->count = count;
    }
}

// Computes moments around the first pixel of the batch, which keeps the variance accurate when a
// mean is far from zero. Meanwhile t->mean holds that origin.
static void batch_statistics(Norm *norm, const NormTensors *t, const void *x)
{
    int channels = norm->spec.x.c, block = norm->block;
    double *means = norm->mine + 1, *squares = means + channels;
    double count = (double)norm->spec.x.n * norm->pixels;
    for (int c = 0; c < channels; c++)
        t->mean[c] = load(norm->spec.x.type, x,
                          (size_t)(c / block) * norm->pixels * block + c % block);
    channel_sums(norm, false, (NormPass){ .mean = t->mean, .x = x });
    norm->mine[0] = count;
    for (int c = 0; c < channels; c++) {
        double mean = means[c] / count, var = squares[c] / count - mean * mean;
        var = var > 0 ? var : var == var ? 0 : var;     // not below zero, but let NaN through
        means[c] = mean + t->mean[c];
        squares[c] = var * count;
    }
    merge_statistics(norm, t);
}

SPECIALIZED void plane_forward(Type type, int block, const Norm *norm, NormPass a, int plane)
{
    const float *scale = norm->scale + plane % norm->blocks * block;
    const float *shift = norm->shift + plane % norm->blocks * block;
    size_t begin = (size_t)plane * norm->pixels * block, end = begin + norm->pixels * block;
    bool relu = norm->spec.relu;
    for (size_t at = begin; at < end; at += block)
#pragma omp simd
        for (int i = 0; i < block; i++) {
            float v = load(type, a.x, at + i) * scale[i] + shift[i];
            v = a.residual ? v + load(type, a.residual, at + i) : v;
            store(type, a.out, at + i, relu && v < 0 ? 0 : v);
        }
}

void norm_forward(Norm *norm, const NormTensors *t, const void *x, const void *residual, void *y,
                  bool training)
{
    NormPass pass = { .x = x, .residual = residual, .out = y };
    if (training)
        batch_statistics(norm, t, x);
    for (int c = 0; c < norm->spec.x.c; c++) {
        float mean = training ? t->mean[c] : t->running_mean[c];
        float inv_std = training ? t->inv_std[c] : (float)(1 / sqrt(t->running_var[c] + 1e-5));
        norm->scale[c] = t->gamma[c] * inv_std;
        norm->shift[c] = t->beta[c] - mean * norm->scale[c];
    }
#pragma omp parallel for schedule(static)
    for (int plane = 0; plane < norm->spec.x.n * norm->blocks; plane++)
        BY_BLOCK(norm->spec.x.type, norm->block, plane_forward, norm, pass, plane);
}

// --- backward

// norm->mine = the sums over all processes, in the order of the ranks.
static void merge_sums(Norm *norm)
{
    int count = 1 + 2 * norm->spec.x.c;
    const double *all = gathered(norm);
    for (int i = 0; i < count; i++) {
        double sum = 0;
        for (int r = 0; r < norm->ops->norm_processes; r++)
            sum += all[(size_t)r * count + i];
        norm->mine[i] = sum;
    }
}

// With m = n * h * w, xhat = (x - mean) * inv_std:
//   dbeta = sum(d)   dgamma = sum(d * xhat)
//   dx = gamma * inv_std * (d - dbeta / m - xhat * dgamma / m)
// which is scale * d + k1 * x + k0 with constants of the channel. Where processes share the batch,
// dx needs the sums and m of all of them.
static void norm_parameters(Norm *norm, const NormTensors *t)
{
    int channels = norm->spec.x.c;
    double *sums = norm->mine + 1, *dots = sums + channels, m = norm->count;
    norm->mine[0] = 0;
    for (int c = 0; c < channels; c++) {
        t->dbeta[c] = sums[c];
        t->dgamma[c] = dots[c] * t->inv_std[c];
    }
    merge_sums(norm);
    for (int c = 0; c < channels; c++) {
        double inv_std = t->inv_std[c], scale = t->gamma[c] * inv_std;
        double dbeta = sums[c], dgamma = dots[c] * inv_std;
        double k1 = -scale * inv_std * dgamma / m;
        norm->scale[c] = scale;
        norm->k1[c] = k1;
        norm->k0[c] = -scale * dbeta / m;
    }
}

// dy1 is what plane_gradient has stored.
SPECIALIZED void plane_dx(Type type, int block, const Norm *norm, NormPass a, int plane)
{
    int c = plane % norm->blocks * block;
    const float *scale = norm->scale + c, *k1 = norm->k1 + c, *k0 = norm->k0 + c;
    const float *mean = a.mean + c;
    size_t begin = (size_t)plane * norm->pixels * block, end = begin + norm->pixels * block;
    for (size_t at = begin; at < end; at += block)
#pragma omp simd
        for (int i = 0; i < block; i++)
            store(type, a.out, at + i, scale[i] * load(type, a.dy1, at + i) +
                                  (k1[i] * (load(type, a.x, at + i) - mean[i]) + k0[i]));
}

void norm_backward(Norm *norm, const NormTensors *t, const void *x, const void *y, const void *dy1,
                   const void *dy2, void *dx, void *dresidual)
{
    void *d = dresidual ? dresidual : dx;
    NormPass first = { .mean = t->mean, .x = x, .y = norm->spec.relu ? y : NULL, .dy1 = dy1,
                       .dy2 = dy2, .out = d };
    NormPass second = { .mean = t->mean, .x = x, .dy1 = d, .out = dx };
    channel_sums(norm, true, first);
    norm_parameters(norm, t);
#pragma omp parallel for schedule(static)
    for (int plane = 0; plane < norm->spec.x.n * norm->blocks; plane++)
        BY_BLOCK(norm->spec.x.type, norm->block, plane_dx, norm, second, plane);
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
