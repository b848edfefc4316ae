// kernels_norm.cu - batch normalisation.
//
// An activation is a matrix: a row for each pixel, a column for each channel. Statistics and
// parameters are f32, whatever the type of the activation.
#include "cuda/kernels.cuh"

#include <stdlib.h>

// If processes share the batch, this one's statistics go to `mine`. Once all processes' are in
// `all`, a kernel merges them.
struct NormShared {
    int size;               // processes
    double *mine;           // (1 + 2 * channels) count, means, squares; or 0 and two sums
    double *all;            // (size, 1 + 2 * channels), by rank
    double *count;          // the number of rows of all
    float *dgamma, *dbeta;  // (channels) of all
};

struct Norm {
    Ops *ops;
    NormSpec spec;
    int64_t rows;           // pixels
    NormShared shared;      // size 0 until processes share a batch
};

namespace {

// --- batch normalisation -------------------------------------------------------------------------

constexpr float EPSILON = 1e-5f;
constexpr double MOMENTUM = 0.1;        // of the running statistics

// The mean of n values, and the sum of their squared distances from it. Merging two sets never
// subtracts two large sums (Chan, Golub, LeVeque 1979), so a mean far from zero costs no digits.
template <class T> struct Moments {
    T n, mean, m2;

    template <class F> __device__ static Moments from(const Moments<F> &o)
    {
        return Moments{ (T)o.n, (T)o.mean, (T)o.m2 };
    }
    __device__ void merge(const Moments &o)
    {
        if (o.n == 0)
            return;
        T all = n + o.n, delta = o.mean - mean, share = o.n / all;
        mean += delta * share;
        m2 += o.m2 + delta * delta * n * share;
        n = all;
    }
};

// Stores one channel's statistics for backward, and updates the running ones.
__device__ void set_statistics(const NormTensors &t, int c, const Moments<double> &all)
{
    double unbiased = all.n > 1 ? all.m2 / (all.n - 1) : all.m2;
    t.mean[c] = all.mean;
    t.inv_std[c] = 1 / sqrt(all.m2 / all.n + (double)EPSILON);
    t.running_mean[c] = (1 - MOMENTUM) * t.running_mean[c] + MOMENTUM * all.mean;
    t.running_var[c] = (1 - MOMENTUM) * t.running_var[c] + MOMENTUM * unbiased;
}

// Column c in the message to the other processes: two numbers, after one for all columns.
__device__ void write_message(double *mine, int channels, int c, double n, double a, double b)
{
    if (c == 0)
        mine[0] = n;
    mine[1 + c] = a;
    mine[1 + channels + c] = b;
}

// Mean and variance of each column, to `mine`, or to t if that is NULL. The first row is subtracted
// from all rows, so that a mean far from zero costs no digits.
template <class T, int V> __global__ void __launch_bounds__(THREADS, 2)
norm_statistics_kernel(Matrix m, Partials partials, NormTensors t, const T *__restrict__ x,
                       double *mine)
{
    constexpr int GROUP = 8, STEP = Place<V>::STEP;
    Place<V> place(m);
    Moments<float> own[V] = {};
    Pack<T, V> origin = {};
    if (place.begin < place.end)
        origin = load<V>(x + place.channel);
    for (int64_t row = place.begin; row < place.end; row += GROUP * STEP) {
        Pack<T, V> in[GROUP];
        float count = 0, sum[V] = {}, mean[V], squares[V] = {};
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (row + i * STEP < place.end) {
                in[i] = load<V>(x + (row + i * STEP) * m.channels + place.channel);
                count++;
            }
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < V; v++)
                sum[v] += i < count ? in[i][v] - origin[v] : 0;
        for (int v = 0; v < V; v++)
            mean[v] = sum[v] / count;
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < V; v++) {
                float d = i < count ? in[i][v] - origin[v] - mean[v] : 0;
                squares[v] += d * d;
            }
        for (int v = 0; v < V; v++)
            own[v].merge(Moments<float>{ count, mean[v], squares[v] });
    }

    Moments<double> all;
    if (!reduce_columns<V>(m, own, partials, &all))
        return;
    int c = blockIdx.x * TILE + threadIdx.x;
    all.mean += widen(x[c]);
    if (!mine) {
        set_statistics(t, c, all);
        return;
    }
    write_message(mine, m.channels, c, all.n, all.mean, all.m2);
}

// Merges all processes' statistics in the order of the ranks, so all get the same bits.
__global__ void norm_merge_statistics_kernel(int channels, NormTensors t, NormShared shared)
{
    int c = blockIdx.x * THREADS + threadIdx.x;
    if (c >= channels)
        return;
    Moments<double> all = {};
    const double *rank = shared.all;
    for (int r = 0; r < shared.size; r++, rank += 1 + 2 * (size_t)channels)
        all.merge(Moments<double>{ rank[0], rank[1 + c], rank[1 + channels + c] });
    set_statistics(t, c, all);
    if (c == 0)
        *shared.count = all.n;
}

template <class T, int V> __global__ void __launch_bounds__(THREADS, 2)
norm_apply_kernel(Matrix m, NormTensors t, const T *x, const T *residual, T *y, bool relu,
                  bool training)
{
    constexpr int GROUP = 4;
    Place<V> place(m);
    Pack<T, V> in[GROUP], add[GROUP] = {};
    if (place.begin >= place.end)
        return;
    float mean[V], scale[V], beta[V];
    for (int v = 0; v < V; v++) {
        int c = place.channel + v;
        mean[v] = training ? t.mean[c] : t.running_mean[c];
        scale[v] = t.gamma[c] * (training ? t.inv_std[c] : 1 / sqrtf(t.running_var[c] + EPSILON));
        beta[v] = t.beta[c];
    }
    auto read = [&](int i, int64_t at) {
        in[i] = load<V>(x + at);
        if (residual)
            add[i] = load<V>(residual + at);
    };
    for_each_group<GROUP>(m, place, read, [&](int i, int64_t at) {
        Pack<T, V> out;
        for (int v = 0; v < V; v++) {
            float value = (in[i][v] - mean[v]) * scale[v] + beta[v] + add[i][v];
            out.set(v, relu && value < 0 ? 0 : value);
        }
        store<V>(y + at, out);
    });
}

// The gradient of the normalisation's output: d = dy1 + dy2 where y > 0, else 0.
template <class T> struct OutputGradient {
    const T *y, *dy1, *dy2;             // y, dy2 may be NULL
};

// Rounded, because it may be stored: both passes must see the same value.
template <int V, class T>
__device__ Pack<T, V> output_gradient(const OutputGradient<T> &from, int64_t at)
{
    Pack<T, V> d = load<V>(from.dy1 + at);
    if (from.dy2) {
        Pack<T, V> more = load<V>(from.dy2 + at);
        for (int v = 0; v < V; v++)
            d.set(v, d[v] + more[v]);
    }
    if (from.y) {
        Pack<T, V> y = load<V>(from.y + at);
        for (int v = 0; v < V; v++)
            if (!(y[v] > 0))
                d.set(v, 0);
    }
    return d;
}

// dbeta = sum(d), dgamma = sum(d * (x - mean)) * inv_std. Unless they are NULL, `keep` receives d,
// and `mine` the sums. keep may be dy1 or dy2: each thread reads an element before it writes it.
template <class T, int V> __global__ void __launch_bounds__(THREADS, 2)
norm_gradients_kernel(Matrix m, Partials partials, NormTensors t, const T *x,
                      OutputGradient<T> from, T *keep, double *mine)
{
    constexpr int GROUP = 4;
    Place<V> place(m);
    Pack<T, V> in[GROUP], d[GROUP];
    Sums<float> own[V] = {};
    float mean[V];
    for (int v = 0; v < V; v++)
        mean[v] = place.begin < place.end ? t.mean[place.channel + v] : 0;
    auto read = [&](int i, int64_t at) {
        in[i] = load<V>(x + at);
        d[i] = output_gradient<V>(from, at);
    };
    for_each_group<GROUP>(m, place, read, [&](int i, int64_t at) {
        if (keep)
            store<V>(keep + at, d[i]);
        for (int v = 0; v < V; v++) {
            own[v].a += d[i][v];
            own[v].b += d[i][v] * (in[i][v] - mean[v]);
        }
    });

    Sums<double> all;
    if (!reduce_columns<V>(m, own, partials, &all))
        return;
    int c = blockIdx.x * TILE + threadIdx.x;
    t.dbeta[c] = all.a;
    t.dgamma[c] = all.b * t.inv_std[c];
    if (mine)
        write_message(mine, m.channels, c, 0, all.a, all.b);
}

__global__ void norm_merge_gradients_kernel(int channels, NormTensors t, NormShared shared)
{
    int c = blockIdx.x * THREADS + threadIdx.x;
    if (c >= channels)
        return;
    Sums<double> all = {};
    const double *rank = shared.all;
    for (int r = 0; r < shared.size; r++, rank += 1 + 2 * (size_t)channels)
        all.merge(Sums<double>{ rank[1 + c], rank[1 + channels + c] });
    shared.dbeta[c] = all.a;
    shared.dgamma[c] = all.b * t.inv_std[c];
}

// With xhat = (x - mean) * inv_std:
//   dx = gamma * inv_std * (d - dbeta / rows - xhat * dgamma / rows)
// rows: *count, or those of m if count is NULL; dgamma and dbeta are sums over that many rows.
template <class T, int V> __global__ void __launch_bounds__(THREADS, 2)
norm_input_gradient_kernel(Matrix m, NormTensors t, const T *x, OutputGradient<T> from, T *dx,
                           const double *count)
{
    constexpr int GROUP = 4;
    Place<V> place(m);
    Pack<T, V> in[GROUP], d[GROUP];
    if (place.begin >= place.end)
        return;
    float mean[V], scale[V], slope[V], shift[V], rows = count ? (float)*count : (float)m.rows;
    for (int v = 0; v < V; v++) {
        int c = place.channel + v;
        float inv_std = t.inv_std[c];
        mean[v] = t.mean[c];
        scale[v] = t.gamma[c] * inv_std;
        slope[v] = inv_std * t.dgamma[c] / rows;
        shift[v] = t.dbeta[c] / rows;
    }
    auto read = [&](int i, int64_t at) {
        in[i] = load<V>(x + at);
        d[i] = output_gradient<V>(from, at);
    };
    for_each_group<GROUP>(m, place, read, [&](int i, int64_t at) {
        Pack<T, V> out;
        for (int v = 0; v < V; v++)
            out.set(v, scale[v] * (d[i][v] - shift[v] - (in[i][v] - mean[v]) * slope[v]));
        store<V>(dx + at, out);
    });
}

// --- the messages of processes that share a batch ------------------------------------------------

// NULL if the process has its batch for itself. The first batch allocates memory; that is possible
// because the first step is never recorded.
const NormShared *shared_of(Norm *norm)
{
    size_t c = norm->spec.x.c, size = norm->ops->norm_processes, each = 1 + 2 * c;
    if (size <= 1)
        return NULL;
    if (norm->shared.size == 0) {
        size_t doubles = (1 + size) * each + 1 + c;
        double *memory =
            static_cast<double *>(device_alloc(norm->ops->device, doubles * sizeof *memory));
        float *floats = reinterpret_cast<float *>(memory + (1 + size) * each + 1);
        norm->shared = NormShared{ (int)size, memory, memory + each, memory + (1 + size) * each,
                                   floats, floats + c };
    }
    return &norm->shared;
}

void gather_all(const Norm *norm)
{
    const Ops *ops = norm->ops;
    ops->norm_gather(ops->norm_gather_arg, norm->shared.mine, norm->shared.all,
                     1 + 2 * (size_t)norm->spec.x.c);
}

void batch_statistics(Norm *norm, const NormTensors *t, const void *x)
{
    Ops *ops = norm->ops;
    Type type = norm->spec.x.type;
    int channels = norm->spec.x.c;
    const NormShared *shared = shared_of(norm);
    by_type(type, packed(type, channels, x), [&](auto number, auto width) {
        Matrix m = divide<width.value>(norm->rows, channels, 8);
        launch(&ops->device->compute, m.grid(),
               norm_statistics_kernel<decltype(number), width.value>, m, ops->partials, *t, x,
               shared ? shared->mine : nullptr);
    });
    if (shared) {
        gather_all(norm);
        launch(&ops->device->compute, blocks_for(channels), norm_merge_statistics_kernel, channels,
               *t, *shared);
    }
}

} // namespace

// --- ops.h ---------------------------------------------------------------------------------------

Norm *norm_new(Ops *ops, const NormSpec *spec)
{
    Norm *norm = static_cast<Norm *>(xcalloc(1, sizeof *norm));
    norm->ops = ops;
    norm->spec = *spec;
    norm->rows = (int64_t)spec->x.n * spec->x.h * spec->x.w;
    return norm;
}

void norm_free(Norm *norm)
{
    if (!norm)
        return;
    device_free(norm->ops->device, norm->shared.mine);
    free(norm);
}

void ops_share_norms(Ops *ops, int size, OpsGather gather, void *arg)
{
    ops->norm_processes = size;
    ops->norm_gather = gather;
    ops->norm_gather_arg = arg;
}

void norm_forward(Norm *norm, const NormTensors *t, const void *x, const void *residual, void *y,
                  bool training)
{
    Shape shape = norm->spec.x;
    if (training)
        batch_statistics(norm, t, x);
    bool wide = packed(shape.type, shape.c, x, residual, y);
    by_type(shape.type, wide, [&](auto number, auto width) {
        Matrix m = divide<width.value>(norm->rows, shape.c, 4);
        launch(&norm->ops->device->compute, m.grid(),
               norm_apply_kernel<decltype(number), width.value>, m, *t, x, residual, y,
               norm->spec.relu, training);
    });
}

// Two passes: dgamma and dbeta, then dx. The first stores the gradient of the normalisation's
// output, if there is room for it and reading it is less work than computing it again.
void norm_backward(Norm *norm, const NormTensors *t, const void *x, const void *y, const void *dy1,
                   const void *dy2, void *dx, void *dresidual)
{
    Stream *stream = &norm->ops->device->compute;
    Shape shape = norm->spec.x;
    const NormShared *shared = shared_of(norm);
    void *keep = dresidual ? dresidual : dy2 ? dx : nullptr;
    if (!norm->spec.relu)
        y = nullptr;
    bool wide = packed(shape.type, shape.c, x, y, dy1, dy2, dx, dresidual);
    by_type(shape.type, wide, [&](auto number, auto width) {
        typedef decltype(number) T;
        Matrix m = divide<width.value>(norm->rows, shape.c, 4);
        OutputGradient<T> from = { (const T *)y, (const T *)dy1, (const T *)dy2 };
        NormTensors all = *t;
        launch(stream, m.grid(), norm_gradients_kernel<T, width.value>, m, norm->ops->partials, *t,
               x, from, keep, shared ? shared->mine : nullptr);
        if (shared) {
            gather_all(norm);
            launch(stream, blocks_for(shape.c), norm_merge_gradients_kernel, shape.c, *t, *shared);
            all.dgamma = shared->dgamma;
            all.dbeta = shared->dbeta;
        }
        if (keep)
            from = OutputGradient<T>{ nullptr, (const T *)keep, nullptr };
        launch(stream, m.grid(), norm_input_gradient_kernel<T, width.value>, m, all, x, from, dx,
               shared ? shared->count : nullptr);
    });
}
