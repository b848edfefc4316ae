// kernels.cu - our own kernels.
//
// All of them are bound by memory, not by arithmetic, so what matters is that neighbouring threads
// read neighbouring addresses, four floats at a time where they can, and that few kernels are
// launched.
//
// Sums are the same bits every time: each thread adds up in a fixed order, threads and then blocks
// are combined in a fixed order, and nothing is added atomically. The last block of a kernel to
// finish combines what all blocks have found, which saves a second launch.
#include "cuda/kernels.h"
#include "rng.h"

namespace {

constexpr int THREADS = 256;            // of a block
constexpr int WARP = 32;
constexpr int TILE = 32;                // columns of a matrix that one block works on
constexpr int MAX_BLOCKS = 1024;        // enough to fill the largest GPU several times

// --- vectors -------------------------------------------------------------------------------------

// V neighbouring floats, loaded and stored at once.
template <int V> struct alignas(4 * V) Pack {
    float v[V];
};
template <int V> struct alignas(V) Bytes {
    uint8_t v[V];
};

template <int V> __device__ Pack<V> load(const float *from)
{
    return *reinterpret_cast<const Pack<V> *>(from);
}

template <int V> __device__ void store(float *to, const Pack<V> &pack)
{
    *reinterpret_cast<Pack<V> *>(to) = pack;
}

// Can all of these (some may be NULL) be read four floats at a time, rows of `channels` floats
// apart?
template <class... Pointers> bool packed(size_t channels, Pointers... pointers)
{
    uintptr_t bits = 0;
    for (uintptr_t one : { (uintptr_t)pointers... })
        bits |= one;
    return channels % 4 == 0 && bits % 16 == 0;
}

unsigned blocks_for(size_t threads, size_t most = 16 * MAX_BLOCKS)
{
    size_t blocks = (threads + THREADS - 1) / THREADS;
    return (unsigned)(blocks == 0 ? 1 : blocks < most ? blocks : most);
}

// --- matrices: rows are pixels, columns are channels ---------------------------------------------

// How a matrix is cut up: block (i, j) of the grid works on columns [i * TILE, ..) of rows
// [j * rows_per_block, ..).
struct Matrix {
    int64_t rows;
    int channels;
    int64_t rows_per_block;
};

// A thread's place: V columns from `channel`; rows begin, begin + STEP, ... before end.
template <int V> struct Place {
    static constexpr int LANES = TILE / V;
    static constexpr int STEP = THREADS / LANES;
    int channel;
    int64_t begin, end;

    __device__ explicit Place(const Matrix &m)
    {
        int64_t first = blockIdx.y * m.rows_per_block, last = first + m.rows_per_block;
        channel = blockIdx.x * TILE + threadIdx.x % LANES * V;
        begin = first + threadIdx.x / LANES;
        end = channel < m.channels ? (last < m.rows ? last : m.rows) : begin;
    }
};

// Cuts the matrix up for blocks whose threads read `group` rows before they use them.
template <int V> dim3 cut(Matrix *m, int group)
{
    constexpr int STEP = Place<V>::STEP;
    int64_t tiles = (m->channels + TILE - 1) / TILE, most = MAX_BLOCKS / tiles;
    int64_t blocks = (m->rows + STEP * group - 1) / (STEP * group);
    blocks = blocks > most ? most : blocks;
    blocks = blocks < 1 ? 1 : blocks;
    m->rows_per_block = (m->rows + blocks - 1) / blocks;
    blocks = (m->rows + m->rows_per_block - 1) / m->rows_per_block;
    return dim3((unsigned)tiles, (unsigned)(blocks < 1 ? 1 : blocks));
}

// --- reductions ----------------------------------------------------------------------------------

// Mean and sum of squared distances from it of n values. Two sets are merged without ever forming
// the difference of two large sums (Chan, Golub, LeVeque 1979), so a mean far from zero costs no
// digits.
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

template <class T> struct Sums {
    T a, b;

    template <class F> __device__ static Sums from(const Sums<F> &o)
    {
        return Sums{ (T)o.a, (T)o.b };
    }
    __device__ void merge(const Sums &o)
    {
        a += o.a;
        b += o.b;
    }
};

// Merges cells[..rows)[c] into cells[0][c] by halves; rows is a power of two.
template <class Cell> __device__ void merge_rows(Cell (*cells)[TILE], int rows)
{
    for (int half = rows / 2; half > 0; half /= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < half * TILE; i += THREADS)
            cells[i / TILE][i % TILE].merge(cells[i / TILE + half][i % TILE]);
    }
    __syncthreads();
}

// True, for all threads of the block, in the last of `blocks` blocks to come here: it sees what the
// others have written. The ticket is then zero again, ready for the next kernel.
__device__ bool last_block(unsigned *ticket, unsigned blocks)
{
    __shared__ bool last;
    __threadfence();            // what this block wrote comes before its ticket
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ticket, 1) == blocks - 1;
        if (last)
            *ticket = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

// Combines what all threads have found about the columns of their tile: own[v] is about column
// channel + v. True in one thread for each column, in one block; there *total is the column's.
template <int V, template <class> class Cell>
__device__ bool reduce_columns(const Matrix &m, const Cell<float> (&own)[V], const Launch &launch,
                               Cell<double> *total)
{
    constexpr int STEP = Place<V>::STEP, PARTS = THREADS / TILE;
    __shared__ Cell<float> cells[STEP][TILE];
    __shared__ Cell<double> sums[PARTS][TILE];
    Cell<float> *partials = static_cast<Cell<float> *>(launch.partials);
    int row = threadIdx.x / Place<V>::LANES, first = threadIdx.x % Place<V>::LANES * V;
    int column = threadIdx.x % TILE, part = threadIdx.x / TILE;
    int channel = blockIdx.x * TILE + column;

    for (int v = 0; v < V; v++)
        cells[row][first + v] = own[v];
    merge_rows(cells, STEP);
    if (part == 0 && channel < m.channels)
        partials[(int64_t)blockIdx.y * m.channels + channel] = cells[0][column];
    if (!last_block(&launch.tickets[blockIdx.x], gridDim.y))
        return false;

    Cell<double> sum = {};
    for (unsigned b = part; channel < m.channels && b < gridDim.y; b += PARTS)
        sum.merge(Cell<double>::from(partials[(int64_t)b * m.channels + channel]));
    sums[part][column] = sum;
    merge_rows(sums, PARTS);
    *total = sums[0][column];
    return part == 0 && channel < m.channels;
}

// --- batch normalisation -------------------------------------------------------------------------

constexpr float EPSILON = 1e-5f;
constexpr double MOMENTUM = 0.1;        // of the running statistics

// One channel's statistics, for backward, and the running ones move.
__device__ void set_statistics(const NormTensors &t, int c, const Moments<double> &all)
{
    double unbiased = all.n > 1 ? all.m2 / (all.n - 1) : all.m2;
    t.mean[c] = (float)all.mean;
    t.inv_std[c] = (float)(1 / sqrt(all.m2 / all.n + (double)EPSILON));
    t.running_mean[c] = (float)((1 - MOMENTUM) * t.running_mean[c] + MOMENTUM * all.mean);
    t.running_var[c] = (float)((1 - MOMENTUM) * t.running_var[c] + MOMENTUM * unbiased);
}

// What a process tells the others of column c: two numbers, behind one that is of all columns.
static __device__ void tell_others(double *mine, int channels, int c, double n, double a, double b)
{
    if (c == 0)
        mine[0] = n;
    mine[1 + c] = a;
    mine[1 + channels + c] = b;
}

// Mean and variance of each column: to t, or to `mine` unless that is NULL. All is counted from the
// first row, so that a mean far from zero does not cost the digits of what little the rows differ
// by.
template <int V> __global__ void __launch_bounds__(THREADS)
norm_statistics_kernel(Matrix m, Launch launch, NormTensors t, const float *__restrict__ x,
                       double *mine)
{
    constexpr int GROUP = 8, STEP = Place<V>::STEP;
    Place<V> place(m);
    Moments<float> own[V] = {};
    Pack<V> origin = {};
    if (place.begin < place.end)
        origin = load<V>(x + place.channel);
    for (int64_t row = place.begin; row < place.end; row += GROUP * STEP) {
        Pack<V> in[GROUP];
        float count = 0, sum[V] = {}, squares[V] = {};
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (row + i * STEP < place.end) {
                in[i] = load<V>(x + (row + i * STEP) * m.channels + place.channel);
                count++;
            }
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < V; v++)
                sum[v] += i < count ? in[i].v[v] - origin.v[v] : 0;
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            for (int v = 0; v < V; v++) {
                float d = i < count ? in[i].v[v] - origin.v[v] - sum[v] / count : 0;
                squares[v] += d * d;
            }
        for (int v = 0; v < V; v++)
            own[v].merge(Moments<float>{ count, sum[v] / count, squares[v] });
    }

    Moments<double> all;
    if (!reduce_columns<V>(m, own, launch, &all))
        return;
    int c = blockIdx.x * TILE + threadIdx.x;
    all.mean += x[c];
    if (!mine) {
        set_statistics(t, c, all);
        return;
    }
    tell_others(mine, m.channels, c, all.n, all.mean, all.m2);
}

// Everybody's statistics together, always in the order of the ranks: the same bits on all of them.
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

template <int V> __global__ void __launch_bounds__(THREADS)
norm_apply_kernel(Matrix m, NormTensors t, const float *x, const float *residual, float *y,
                  bool relu, bool training)
{
    constexpr int GROUP = 4, STEP = Place<V>::STEP;
    Place<V> place(m);
    if (place.begin >= place.end)
        return;
    float mean[V], scale[V], beta[V];
    for (int v = 0; v < V; v++) {
        int c = place.channel + v;
        mean[v] = training ? t.mean[c] : t.running_mean[c];
        scale[v] = t.gamma[c] * (training ? t.inv_std[c] : 1 / sqrtf(t.running_var[c] + EPSILON));
        beta[v] = t.beta[c];
    }
    for (int64_t row = place.begin; row < place.end; row += GROUP * STEP) {
        Pack<V> in[GROUP], add[GROUP] = {};
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (row + i * STEP < place.end) {
                int64_t at = (row + i * STEP) * m.channels + place.channel;
                in[i] = load<V>(x + at);
                if (residual)
                    add[i] = load<V>(residual + at);
            }
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (row + i * STEP < place.end) {
                Pack<V> out;
                for (int v = 0; v < V; v++) {
                    float value = (in[i].v[v] - mean[v]) * scale[v] + beta[v] + add[i].v[v];
                    out.v[v] = relu && value < 0 ? 0 : value;
                }
                store<V>(y + (row + i * STEP) * m.channels + place.channel, out);
            }
    }
}

// What arrives at the normalisation from behind: d = (dy1 + dy2) where y > 0.
struct Arriving {
    const float *y, *dy1, *dy2;         // y, dy2 may be NULL
};

template <int V> __device__ Pack<V> arriving(const Arriving &from, int64_t at)
{
    Pack<V> d = load<V>(from.dy1 + at);
    if (from.dy2) {
        Pack<V> more = load<V>(from.dy2 + at);
        for (int v = 0; v < V; v++)
            d.v[v] += more.v[v];
    }
    if (from.y) {
        Pack<V> y = load<V>(from.y + at);
        for (int v = 0; v < V; v++)
            d.v[v] = y.v[v] > 0 ? d.v[v] : 0;
    }
    return d;
}

// dbeta = sum(d), dgamma = sum(d * (x - mean)) * inv_std. d goes to `keep` unless that is NULL, and
// the sums to `mine`, likewise. keep may be dy1 or dy2: each element is read before it is written,
// by the thread that writes it.
template <int V> __global__ void __launch_bounds__(THREADS)
norm_gradients_kernel(Matrix m, Launch launch, NormTensors t, const float *x, Arriving from,
                      float *keep, double *mine)
{
    constexpr int GROUP = 4, STEP = Place<V>::STEP;
    Place<V> place(m);
    Sums<float> own[V] = {};
    float mean[V];
    for (int v = 0; v < V; v++)
        mean[v] = place.begin < place.end ? t.mean[place.channel + v] : 0;
    for (int64_t row = place.begin; row < place.end; row += GROUP * STEP) {
        Pack<V> in[GROUP], d[GROUP];
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (row + i * STEP < place.end) {
                int64_t at = (row + i * STEP) * m.channels + place.channel;
                in[i] = load<V>(x + at);
                d[i] = arriving<V>(from, at);
            }
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (row + i * STEP < place.end) {
                if (keep)
                    store<V>(keep + (row + i * STEP) * m.channels + place.channel, d[i]);
                for (int v = 0; v < V; v++) {
                    own[v].a += d[i].v[v];
                    own[v].b += d[i].v[v] * (in[i].v[v] - mean[v]);
                }
            }
    }

    Sums<double> all;
    if (!reduce_columns<V>(m, own, launch, &all))
        return;
    int c = blockIdx.x * TILE + threadIdx.x;
    t.dbeta[c] = (float)all.a;
    t.dgamma[c] = (float)(all.b * t.inv_std[c]);
    if (mine)
        tell_others(mine, m.channels, c, 0, all.a, all.b);
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
    shared.dbeta[c] = (float)all.a;
    shared.dgamma[c] = (float)(all.b * t.inv_std[c]);
}

// With xhat = (x - mean) * inv_std:
//   dx = gamma * inv_std * (d - dbeta / rows - xhat * dgamma / rows)
// rows: those of m, or *count unless that is NULL; dgamma and dbeta are then sums over as many.
template <int V> __global__ void __launch_bounds__(THREADS)
norm_input_gradient_kernel(Matrix m, NormTensors t, const float *x, Arriving from, float *dx,
                           const double *count)
{
    constexpr int GROUP = 4, STEP = Place<V>::STEP;
    Place<V> place(m);
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
    for (int64_t row = place.begin; row < place.end; row += GROUP * STEP) {
        Pack<V> in[GROUP], d[GROUP];
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (row + i * STEP < place.end) {
                int64_t at = (row + i * STEP) * m.channels + place.channel;
                in[i] = load<V>(x + at);
                d[i] = arriving<V>(from, at);
            }
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (row + i * STEP < place.end) {
                Pack<V> out;
                for (int v = 0; v < V; v++)
                    out.v[v] =
                        scale[v] * (d[i].v[v] - shift[v] - (in[i].v[v] - mean[v]) * slope[v]);
                store<V>(dx + (row + i * STEP) * m.channels + place.channel, out);
            }
    }
}

// --- bias of a convolution or linear layer -------------------------------------------------------

template <int V> __global__ void __launch_bounds__(THREADS)
bias_add_kernel(Matrix m, const float *__restrict__ bias, float *y)
{
    Place<V> place(m);
    if (place.begin >= place.end)
        return;
    Pack<V> add;
    for (int v = 0; v < V; v++)
        add.v[v] = bias[place.channel + v];
#pragma unroll 4
    for (int64_t row = place.begin; row < place.end; row += Place<V>::STEP) {
        float *at = y + row * m.channels + place.channel;
        Pack<V> sum = load<V>(at);
        for (int v = 0; v < V; v++)
            sum.v[v] += add.v[v];
        store<V>(at, sum);
    }
}

template <int V> __global__ void __launch_bounds__(THREADS)
bias_gradient_kernel(Matrix m, Launch launch, const float *__restrict__ dy, float *dbias)
{
    Place<V> place(m);
    Sums<float> own[V] = {};
#pragma unroll 4
    for (int64_t row = place.begin; row < place.end; row += Place<V>::STEP) {
        Pack<V> d = load<V>(dy + row * m.channels + place.channel);
        for (int v = 0; v < V; v++)
            own[v].a += d.v[v];
    }
    Sums<double> all;
    if (reduce_columns<V>(m, own, launch, &all))
        dbias[blockIdx.x * TILE + threadIdx.x] = (float)all.a;
}

// --- ReLU and pooling ----------------------------------------------------------------------------

__global__ void relu_forward_kernel(size_t count, const float *x, float *y)
{
    size_t stride = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride)
        y[i] = x[i] < 0 ? 0 : x[i];
}

__global__ void relu_backward_kernel(size_t count, const float *y, const float *dy, float *dx)
{
    size_t stride = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride)
        dx[i] = y[i] > 0 ? dy[i] : 0;
}

__device__ size_t elements(const Shape &s) { return (size_t)s.n * s.c * s.h * s.w; }

// Thread i's pixel of an (n, h, w, c) activation, V channels of it.
template <int V> struct Pixel {
    int n, h, w, c;

    __device__ Pixel(unsigned i, int height, int width, int channels)
    {
        unsigned packs = channels / V;
        c = i % packs * V;
        i /= packs;
        w = i % width;
        i /= width;
        h = i % height;
        n = i / height;
    }
};

__device__ size_t offset_of(int n, int h, int w, int c, int height, int width, int channels)
{
    return (((size_t)n * height + h) * width + w) * channels + c;
}

// The first of the largest in each window, and where in the window it stood. NaN counts as largest.
template <int V> __global__ void __launch_bounds__(THREADS)
maxpool_forward_kernel(PoolSpec s, Shape out, const float *__restrict__ x, float *__restrict__ y,
                uint8_t *__restrict__ index)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= elements(out) / V)
        return;
    Pixel<V> to(i, out.h, out.w, out.c);
    Pack<V> best = {};
    Bytes<V> where = {};
    bool first = true;
    for (int kh = 0; kh < s.kernel; kh++)
        for (int kw = 0; kw < s.kernel; kw++) {
            int h = to.h * s.stride - s.pad + kh, w = to.w * s.stride - s.pad + kw;
            if (h < 0 || h >= s.x.h || w < 0 || w >= s.x.w)
                continue;
            Pack<V> in = load<V>(x + offset_of(to.n, h, w, to.c, s.x.h, s.x.w, s.x.c));
            for (int v = 0; v < V; v++)
                if (first || in.v[v] > best.v[v] || in.v[v] != in.v[v]) {
                    best.v[v] = in.v[v];
                    where.v[v] = (uint8_t)(kh * s.kernel + kw);
                }
            first = false;
        }
    size_t at = (size_t)i * V;
    store<V>(y + at, best);
    *reinterpret_cast<Bytes<V> *>(index + at) = where;
}

// Each input pixel gathers the gradients of the windows that it was the maximum of, so no two
// threads write to one place.
template <int V> __global__ void __launch_bounds__(THREADS)
maxpool_backward_kernel(PoolSpec s, Shape out, const uint8_t *__restrict__ index,
                        const float *__restrict__ dy1, const float *__restrict__ dy2,
                        float *__restrict__ dx)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= elements(s.x) / V)
        return;
    Pixel<V> to(i, s.x.h, s.x.w, s.x.c);
    int bottom = to.h + s.pad, right = to.w + s.pad; // with padding, windows begin at 0, stride, ..
    int first_h = bottom < s.kernel ? 0 : (bottom - s.kernel) / s.stride + 1;
    int first_w = right < s.kernel ? 0 : (right - s.kernel) / s.stride + 1;
    Pack<V> sum = {};
    for (int h = first_h; h <= bottom / s.stride && h < out.h; h++)
        for (int w = first_w; w <= right / s.stride && w < out.w; w++) {
            int tap = (bottom - h * s.stride) * s.kernel + right - w * s.stride;
            size_t at = offset_of(to.n, h, w, to.c, out.h, out.w, out.c);
            Bytes<V> where = *reinterpret_cast<const Bytes<V> *>(index + at);
            Pack<V> d = arriving<V>(Arriving{ NULL, dy1, dy2 }, at);
            for (int v = 0; v < V; v++)
                sum.v[v] += where.v[v] == tap ? d.v[v] : 0;
        }
    store<V>(dx + (size_t)i * V, sum);
}

__global__ void __launch_bounds__(THREADS)
avgpool_forward_kernel(Shape x, const float *__restrict__ in, float *__restrict__ out)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x, pixels = x.h * x.w;
    if (i >= (unsigned)(x.n * x.c))
        return;
    const float *from = in + (size_t)(i / x.c) * pixels * x.c + i % x.c;
    float sum = 0;
    for (unsigned p = 0; p < pixels; p++)
        sum += from[(size_t)p * x.c];
    out[i] = sum / pixels;
}

__global__ void __launch_bounds__(THREADS)
avgpool_backward_kernel(Shape x, const float *__restrict__ dout, float *__restrict__ dx)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x, pixels = x.h * x.w;
    if (i >= elements(x))
        return;
    unsigned image = i / (pixels * x.c);
    dx[i] = dout[(size_t)image * x.c + i % x.c] / pixels;
}

// --- loss ----------------------------------------------------------------------------------------

// What a row, a block, and at last the batch add to the statistics.
struct LossPart {
    double loss;
    int correct1, correct5, not_finite;

    __device__ void add(const LossPart &o)
    {
        loss += o.loss;
        correct1 += o.correct1;
        correct5 += o.correct5;
        not_finite += o.not_finite;
    }
};

// Merges `value` over the lanes of a warp, always in the same order; all lanes get the result.
template <class T, class Merge> __device__ T warp_merge(T value, Merge merge)
{
    for (int far = WARP / 2; far > 0; far /= 2)
        value = merge(value, __shfl_xor_sync(0xffffffffu, value, far));
    return value;
}

template <class T> __device__ T warp_sum(T value)
{
    return warp_merge(value, [](T a, T b) { return a + b; });
}

// One warp, one row: loss = log(sum(exp(z))) - z[label], and dz = scale * (softmax(z) -
// onehot(label)). A row is correct at k if fewer than k classes stand before its label, ties going
// to the lower index. A label that is not a class has a loss that is not a number.
__device__ LossPart row_loss(const float *z, int classes, int label, double scale, float *dz)
{
    int lane = threadIdx.x % WARP, before = 0;
    float top = -INFINITY, mine = label < classes ? z[label] : NAN;
    double sum = 0;
    for (int j = lane; j < classes; j += WARP)
        top = z[j] > top ? z[j] : top;
    top = warp_merge(top, [](float a, float b) { return a > b ? a : b; });
    for (int j = lane; j < classes; j += WARP) {
        sum += exp((double)z[j] - top);
        before += j != label && !(z[j] < mine || (z[j] == mine && j > label));
    }
    sum = warp_sum(sum);
    before = warp_sum(before);
    for (int j = lane; dz && j < classes; j += WARP)
        dz[j] = (float)(scale * (exp((double)z[j] - top) / sum - (j == label)));
    double loss = log(sum) + top - mine;
    bool finite = isfinite(loss);
    return LossPart{ loss, finite && before < 1, finite && before < 5, !finite };
}

__global__ void __launch_bounds__(THREADS)
cross_entropy_kernel(Launch launch, int rows, int classes, const float *__restrict__ logits,
              const int32_t *__restrict__ labels, const Scalars *__restrict__ scalars, Stats *stats,
              float *dlogits)
{
    constexpr int WARPS = THREADS / WARP;
    __shared__ LossPart parts[WARPS];
    LossPart *partials = static_cast<LossPart *>(launch.partials);
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, count = 0;
    for (int i = 0; i < rows; i += THREADS)
        count += __syncthreads_count(i + (int)threadIdx.x < rows && labels[i + threadIdx.x] >= 0);
    double scale = count ? (double)scalars->loss_scale / count : 0;

    LossPart own = {};
    for (int row = blockIdx.x * WARPS + warp; row < rows; row += gridDim.x * WARPS) {
        const float *z = logits + (size_t)row * classes;
        float *dz = dlogits ? dlogits + (size_t)row * classes : NULL;
        if (labels[row] >= 0)
            own.add(row_loss(z, classes, labels[row], scale, dz));
        else
            for (int j = lane; dz && j < classes; j += WARP)
                dz[j] = 0;
    }
    if (lane == 0)
        parts[warp] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < WARPS; i++)
            own.add(parts[i]);
        partials[blockIdx.x] = own;
    }
    if (!last_block(&launch.tickets[0], gridDim.x) || warp > 0)
        return;

    LossPart all = {};
    for (unsigned b = lane; b < gridDim.x; b += WARP)
        all.add(partials[b]);
    all.loss = warp_sum(all.loss);
    all.correct1 = warp_sum(all.correct1);
    all.correct5 = warp_sum(all.correct5);
    all.not_finite = warp_sum(all.not_finite);
    if (lane > 0)
        return;
    stats->batch_loss_sum = all.loss;
    stats->batch_count = count;
    stats->batch_correct1 = all.correct1;
    stats->loss_sum += all.loss;
    stats->count += count;
    stats->correct1 += all.correct1;
    stats->correct5 += all.correct5;
    stats->not_finite += all.not_finite;
}

// --- optimizer -----------------------------------------------------------------------------------

__global__ void scalars_set_kernel(Scalars *to, Scalars values) { *to = values; }

template <int V> __global__ void __launch_bounds__(THREADS)
sgd_kernel(size_t packs, float *__restrict__ params, const float *__restrict__ grads,
    float *__restrict__ velocity, const Scalars *__restrict__ scalars)
{
    const Scalars s = *scalars;
    size_t stride = (size_t)gridDim.x * THREADS;
    if (s.skip)
        return;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < packs; i += stride) {
        Pack<V> p = load<V>(params + i * V), g = load<V>(grads + i * V);
        Pack<V> v = load<V>(velocity + i * V);
        for (int k = 0; k < V; k++) {
            float gradient = g.v[k] + s.weight_decay * p.v[k];
            v.v[k] = s.momentum * v.v[k] + gradient;
            p.v[k] -= s.lr * (s.nesterov ? gradient + s.momentum * v.v[k] : v.v[k]);
        }
        store<V>(velocity + i * V, v);
        store<V>(params + i * V, p);
    }
}

template <int V> __global__ void __launch_bounds__(THREADS)
add_into_kernel(size_t packs, float *__restrict__ values, const float *__restrict__ more)
{
    size_t stride = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < packs; i += stride) {
        Pack<V> sum = load<V>(values + i * V), add = load<V>(more + i * V);
        for (int k = 0; k < V; k++)
            sum.v[k] += add.v[k];
        store<V>(values + i * V, sum);
    }
}

// Whoever finds the first bad gradient of a step counts it; all that comes after finds skip set.
template <int V> __global__ void __launch_bounds__(THREADS)
gradients_scale_kernel(size_t packs, float *__restrict__ grads, float factor, Scalars *scalars,
                       Stats *stats)
{
    size_t stride = (size_t)gridDim.x * THREADS;
    bool bad = false;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < packs; i += stride) {
        Pack<V> g = load<V>(grads + i * V);
        for (int k = 0; k < V; k++) {
            g.v[k] *= factor;
            bad |= !isfinite(g.v[k]);
        }
        store<V>(grads + i * V, g);
    }
    bool found = __syncthreads_or(bad) && threadIdx.x == 0;
    if (found && atomicExch(&scalars->skip, 1) == 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(&stats->bad_gradients), 1ull);
}

// --- images --------------------------------------------------------------------------------------

// A block for each image. The output pixel (row, col) is the pixel (row + down, col + right) of the
// image, mirrored first where there is a flip; outside of the image all is black.
__global__ void __launch_bounds__(THREADS) images_load_kernel(ImagesJob job)
{
    const Augment &augment = job.augment;
    int height = job.out_shape.h, width = job.out_shape.w, block = job.out_shape.block;
    int down = -((height - job.h) / 2), right = -((width - job.w) / 2), id = 0, i = blockIdx.x;
    bool there = i < job.n, flip = false;
    if (there) {
        id = job.ids[i];
        Jitter jitter = jitter_of(augment.seed, job.epoch, id, augment.padding);
        flip = augment.flip && jitter.flip;
        down += augment.crop ? jitter.y - augment.padding : 0;
        right += augment.crop ? jitter.x - augment.padding : 0;
    }
    if (threadIdx.x == 0)
        job.labels_out[i] = there ? job.labels[id] : -1;
    const uint8_t *image = job.images + (size_t)id * job.c * job.h * job.w;
    for (int p = threadIdx.x; p < height * width; p += THREADS) {
        int row = p / width + down, col = p % width;
        col = (flip ? width - 1 - col : col) + right;
        bool inside = row >= 0 && row < job.h && col >= 0 && col < job.w;
        for (int c = 0; c < job.c; c++) {
            float byte = there && inside ? image[(c * job.h + row) * job.w + col] : 0;
            size_t plane = (size_t)i * (job.c / block) + c / block;
            job.out[(plane * height * width + p) * block + c % block] =
                there ? (byte / 255.0f - augment.mean[c]) / augment.std[c] : 0;
        }
    }
}

} // namespace

// --- launching -----------------------------------------------------------------------------------

// Launches kernel<4> where everything can be read four floats at a time, else kernel<1>, on a
// matrix.
#define LAUNCH_ON_MATRIX(wide, kernel, group, stream, matrix, ...)                          \
    do {                                                                                    \
        if (wide) {                                                                         \
            dim3 grid_ = cut<4>(&(matrix), group);                                          \
            kernel<4><<<grid_, THREADS, 0, stream>>>(matrix, __VA_ARGS__);                  \
        } else {                                                                            \
            dim3 grid_ = cut<1>(&(matrix), group);                                          \
            kernel<1><<<grid_, THREADS, 0, stream>>>(matrix, __VA_ARGS__);                  \
        }                                                                                   \
    } while (0)

cudaError_t kernels_present(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, scalars_set_kernel);
}

cudaError_t kernel_scalars_set(cudaStream_t stream, Scalars *to, Scalars values)
{
    scalars_set_kernel<<<1, 1, 0, stream>>>(to, values);
    return cudaGetLastError();
}

cudaError_t kernel_bias_add(cudaStream_t stream, int64_t rows, int channels, const float *bias,
                            float *y)
{
    Matrix m = { rows, channels, 0 };
    LAUNCH_ON_MATRIX(packed(channels, y), bias_add_kernel, 4, stream, m, bias, y);
    return cudaGetLastError();
}

cudaError_t kernel_bias_gradient(const Launch *launch, int64_t rows, int channels, const float *dy,
                                 float *dbias)
{
    Matrix m = { rows, channels, 0 };
    LAUNCH_ON_MATRIX(packed(channels, dy), bias_gradient_kernel, 4, launch->stream, m, *launch, dy,
                     dbias);
    return cudaGetLastError();
}

cudaError_t kernel_norm_statistics(const Launch *launch, int64_t rows, int channels,
                                   const NormTensors *t, const float *x, const NormShared *shared)
{
    Matrix m = { rows, channels, 0 };
    LAUNCH_ON_MATRIX(packed(channels, x), norm_statistics_kernel, 8, launch->stream, m, *launch, *t,
                     x, shared ? shared->mine : NULL);
    return cudaGetLastError();
}

cudaError_t kernel_norm_merge_statistics(cudaStream_t stream, int channels, const NormTensors *t,
                                         const NormShared *shared)
{
    norm_merge_statistics_kernel<<<blocks_for(channels), THREADS, 0, stream>>>(channels, *t,
                                                                               *shared);
    return cudaGetLastError();
}

cudaError_t kernel_norm_apply(cudaStream_t stream, int64_t rows, int channels, const NormTensors *t,
                              const float *x, const float *residual, float *y, bool relu,
                              bool training)
{
    Matrix m = { rows, channels, 0 };
    LAUNCH_ON_MATRIX(packed(channels, x, residual, y), norm_apply_kernel, 4, stream, m, *t, x,
                     residual, y, relu, training);
    return cudaGetLastError();
}

// The first pass's d is kept where there is a place for it and reading it again is less work than
// finding it again.
static float *place_to_keep(const NormBackward *b)
{
    return b->dresidual ? b->dresidual : b->dy2 ? b->dx : NULL;
}

static bool packed(int channels, const NormBackward *b)
{
    return packed(channels, b->x, b->y, b->dy1, b->dy2, b->dx, b->dresidual);
}

cudaError_t kernel_norm_gradients(const Launch *launch, int64_t rows, int channels,
                                  const NormTensors *t, const NormBackward *b,
                                  const NormShared *shared)
{
    Matrix m = { rows, channels, 0 };
    Arriving from = { b->y, b->dy1, b->dy2 };
    LAUNCH_ON_MATRIX(packed(channels, b), norm_gradients_kernel, 4, launch->stream, m, *launch, *t,
                     b->x, from, place_to_keep(b), shared ? shared->mine : NULL);
    return cudaGetLastError();
}

cudaError_t kernel_norm_merge_gradients(cudaStream_t stream, int channels, const NormTensors *t,
                                        const NormShared *shared)
{
    norm_merge_gradients_kernel<<<blocks_for(channels), THREADS, 0, stream>>>(channels, *t,
                                                                              *shared);
    return cudaGetLastError();
}

cudaError_t kernel_norm_input_gradient(cudaStream_t stream, int64_t rows, int channels,
                                       const NormTensors *t, const NormBackward *b,
                                       const NormShared *shared)
{
    Matrix m = { rows, channels, 0 };
    Arriving from = { b->y, b->dy1, b->dy2 };
    if (place_to_keep(b))
        from = Arriving{ NULL, place_to_keep(b), NULL };
    NormTensors all = *t;
    if (shared) {
        all.dgamma = shared->dgamma;
        all.dbeta = shared->dbeta;
    }
    LAUNCH_ON_MATRIX(packed(channels, b), norm_input_gradient_kernel, 4, stream, m, all, b->x, from,
                     b->dx, shared ? shared->count : NULL);
    return cudaGetLastError();
}

cudaError_t kernel_relu_forward(cudaStream_t stream, size_t count, const float *x, float *y)
{
    relu_forward_kernel<<<blocks_for(count), THREADS, 0, stream>>>(count, x, y);
    return cudaGetLastError();
}

cudaError_t kernel_relu_backward(cudaStream_t stream, size_t count, const float *y, const float *dy,
                                 float *dx)
{
    relu_backward_kernel<<<blocks_for(count), THREADS, 0, stream>>>(count, y, dy, dx);
    return cudaGetLastError();
}

cudaError_t kernel_maxpool_forward(cudaStream_t stream, const PoolSpec *spec, const float *x,
                                   float *y, uint8_t *index)
{
    Shape out = pool_output(spec);
    size_t count = shape_count(out);
    if (packed(out.c, x, y) && (uintptr_t)index % 4 == 0)
        maxpool_forward_kernel<4><<<blocks_for(count / 4, INT32_MAX), THREADS, 0, stream>>>(
            *spec, out, x, y, index);
    else
        maxpool_forward_kernel<1><<<blocks_for(count, INT32_MAX), THREADS, 0, stream>>>(
            *spec, out, x, y, index);
    return cudaGetLastError();
}

cudaError_t kernel_maxpool_backward(cudaStream_t stream, const PoolSpec *spec, const uint8_t *index,
                                    const float *dy1, const float *dy2, float *dx)
{
    Shape out = pool_output(spec);
    size_t count = shape_count(spec->x);
    if (packed(out.c, dy1, dy2, dx) && (uintptr_t)index % 4 == 0)
        maxpool_backward_kernel<4><<<blocks_for(count / 4, INT32_MAX), THREADS, 0, stream>>>(
            *spec, out, index, dy1, dy2, dx);
    else
        maxpool_backward_kernel<1><<<blocks_for(count, INT32_MAX), THREADS, 0, stream>>>(
            *spec, out, index, dy1, dy2, dx);
    return cudaGetLastError();
}

cudaError_t kernel_avgpool_forward(cudaStream_t stream, Shape x, const float *in, float *out)
{
    size_t count = (size_t)x.n * x.c;
    avgpool_forward_kernel<<<blocks_for(count, INT32_MAX), THREADS, 0, stream>>>(x, in, out);
    return cudaGetLastError();
}

cudaError_t kernel_avgpool_backward(cudaStream_t stream, Shape x, const float *dout, float *dx)
{
    size_t count = shape_count(x);
    avgpool_backward_kernel<<<blocks_for(count, INT32_MAX), THREADS, 0, stream>>>(x, dout, dx);
    return cudaGetLastError();
}

cudaError_t kernel_cross_entropy(const Launch *launch, int rows, int classes, const float *logits,
                                 const int32_t *labels, const Scalars *scalars, Stats *stats,
                                 float *dlogits)
{
    unsigned blocks = blocks_for((size_t)rows * WARP, MAX_BLOCKS);
    cross_entropy_kernel<<<blocks, THREADS, 0, launch->stream>>>(*launch, rows, classes, logits,
                                                                 labels, scalars, stats, dlogits);
    return cudaGetLastError();
}

// The last count % 4 elements of an arena, if there are any, are a second launch.
cudaError_t kernel_sgd(cudaStream_t stream, size_t count, float *params, const float *grads,
                       float *velocity, const Scalars *scalars)
{
    size_t packs = packed(4, params, grads, velocity) ? count / 4 : 0, rest = count - packs * 4;
    if (packs > 0)
        sgd_kernel<4><<<blocks_for(packs), THREADS, 0, stream>>>(packs, params, grads, velocity,
                                                                 scalars);
    if (rest > 0)
        sgd_kernel<1><<<blocks_for(rest), THREADS, 0, stream>>>(
            rest, params + packs * 4, grads + packs * 4, velocity + packs * 4, scalars);
    return cudaGetLastError();
}

cudaError_t kernel_add_into(cudaStream_t stream, size_t count, float *values, const float *more)
{
    size_t packs = packed(4, values, more) ? count / 4 : 0, rest = count - packs * 4;
    if (packs > 0)
        add_into_kernel<4><<<blocks_for(packs), THREADS, 0, stream>>>(packs, values, more);
    if (rest > 0)
        add_into_kernel<1><<<blocks_for(rest), THREADS, 0, stream>>>(rest, values + packs * 4,
                                                                     more + packs * 4);
    return cudaGetLastError();
}

cudaError_t kernel_gradients_scale(cudaStream_t stream, size_t count, float *grads, float factor,
                                   Scalars *scalars, Stats *stats)
{
    size_t packs = packed(4, grads) ? count / 4 : 0, rest = count - packs * 4;
    if (packs > 0)
        gradients_scale_kernel<4><<<blocks_for(packs), THREADS, 0, stream>>>(packs, grads, factor,
                                                                             scalars, stats);
    if (rest > 0)
        gradients_scale_kernel<1><<<blocks_for(rest), THREADS, 0, stream>>>(
            rest, grads + packs * 4, factor, scalars, stats);
    return cudaGetLastError();
}

cudaError_t kernel_images_load(cudaStream_t stream, const ImagesJob *job)
{
    images_load_kernel<<<job->out_shape.n, THREADS, 0, stream>>>(*job);
    return cudaGetLastError();
}
