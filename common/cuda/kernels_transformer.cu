// kernels_transformer.cu - the layers of a transformer, except the products (attention_cuda.c).
//
// In a matrix whose rows are tokens or a head's probabilities, one warp works on a row at a time.
#include "cuda/kernels.cuh"

namespace {

constexpr int WARPS = THREADS / WARP;

// Calls fn(row) for this warp's share of the rows.
template <class F> __device__ void for_each_row(int64_t rows, F fn)
{
    int64_t stride = (int64_t)gridDim.x * WARPS;
    for (int64_t row = blockIdx.x * WARPS + threadIdx.x / WARP; row < rows; row += stride)
        fn(row);
}

__device__ int lane() { return threadIdx.x % WARP; }

// --- dropout -------------------------------------------------------------------------------------

// The dropout of a layer. limit 0: nothing is dropped.
struct Masks {
    const uint64_t *keys;       // (samples)
    int layer;
    uint32_t limit;
    float scale;

    Masks(Dropout d, const uint64_t *keys)
        : keys(keys), layer(d.layer), limit(keys ? dropout_limit(d.rate) : 0),
          scale(keys ? 1 / (1 - d.rate) : 1)
    {
    }
    __device__ uint64_t stream(int64_t sample) const
    {
        return limit ? dropout_stream(keys[sample], layer) : 0;
    }
    __device__ float apply(uint64_t stream, uint32_t position, float value) const
    {
        return dropout_keeps(stream, position, limit) ? value * scale : 0;
    }
};

// Samples of `each` numbers follow each other; a pack belongs to one sample.
template <class T, int V> __global__ void __launch_bounds__(THREADS)
add_forward_kernel(size_t count, unsigned each, Masks masks, const T *a, const T *b, T *y)
{
    for_each_pack<V>(count, [&](auto width, size_t at) {
        constexpr int N = decltype(width)::value;
        uint64_t stream = masks.stream((unsigned)at / each);
        Pack<T, N> sum = {}, add = load<N>(b + at);
        if (a)
            sum = load<N>(a + at);
        for (int v = 0; v < N; v++)
            sum.set(v, sum[v] + masks.apply(stream, (unsigned)at % each + v, add[v]));
        store<N>(y + at, sum);
    });
}

template <class T, int V> __global__ void __launch_bounds__(THREADS)
add_backward_kernel(size_t count, unsigned each, Masks masks, const T *dy1, const T *dy2, T *da,
                    T *db)
{
    for_each_pack<V>(count, [&](auto width, size_t at) {
        constexpr int N = decltype(width)::value;
        uint64_t stream = masks.stream((unsigned)at / each);
        Pack<float, N> sum = sum_of<N>(dy1, dy2, at);
        Pack<T, N> d;
        for (int v = 0; v < N; v++)
            d.set(v, sum[v]);
        if (da)
            store<N>(da + at, d);
        for (int v = 0; v < N; v++)
            d.set(v, masks.apply(stream, (unsigned)at % each + v, d[v]));
        store<N>(db + at, d);
    });
}

// --- embedding -----------------------------------------------------------------------------------

template <class T> __global__ void __launch_bounds__(THREADS)
one_hot_kernel(OneHotSpec s, const int32_t *__restrict__ batch, T *__restrict__ out,
               uint64_t *__restrict__ keys)
{
    int width = s.vocab + s.T;
    for_each_row((int64_t)s.samples * s.T, [&](int64_t row) {
        int64_t sample = row / s.T;
        int t = row % s.T;
        const int32_t *from = batch + sample * (2 + s.T);
        for (int i = lane(); i < width; i += WARP)
            out[row * width + i] = narrow<T>(i == from[2 + t] || i == s.vocab + t ? 1 : 0);
        if (t == 0 && lane() == 0)
            keys[sample] = (uint32_t)from[0] | (uint64_t)(uint32_t)from[1] << 32;
    });
}

// --- layer normalisation -------------------------------------------------------------------------

// Calls fn(i) for every V-th number of a row, divided among a warp.
template <int V, class F> __device__ void for_each_column(int columns, F fn)
{
    for (int i = lane() * V; i < columns; i += WARP * V)
        fn(i);
}

template <class T, int V> __global__ void __launch_bounds__(THREADS)
layer_norm_forward_kernel(int64_t rows, int c, NormTensors t, const T *__restrict__ x,
                          T *__restrict__ y)
{
    for_each_row(rows, [&](int64_t row) {
        const T *from = x + row * c;
        float sum = 0, squares = 0;
        for_each_column<V>(c, [&](int i) {
            Pack<T, V> in = load<V>(from + i);
            for (int v = 0; v < V; v++)
                sum += in[v];
        });
        float mean = warp_sum(sum) / c;
        for_each_column<V>(c, [&](int i) {
            Pack<T, V> in = load<V>(from + i);
            for (int v = 0; v < V; v++)
                squares += (in[v] - mean) * (in[v] - mean);
        });
        float inv_std = 1 / sqrtf(warp_sum(squares) / c + 1e-5f);
        for_each_column<V>(c, [&](int i) {
            Pack<T, V> out = load<V>(from + i);
            Pack<float, V> gamma = load<V>(t.gamma + i), beta = load<V>(t.beta + i);
            for (int v = 0; v < V; v++)
                out.set(v, gamma[v] * (out[v] - mean) * inv_std + beta[v]);
            store<V>(y + row * c + i, out);
        });
        if (lane() == 0) {
            t.mean[row] = mean;
            t.inv_std[row] = inv_std;
        }
    });
}

// With g = gamma * dy and xhat = (x - mean) * inv_std:
//   dx = inv_std * (g - mean(g) - xhat * mean(g * xhat))
template <class T, int V> __global__ void __launch_bounds__(THREADS)
layer_norm_backward_kernel(int64_t rows, int c, NormTensors t, const T *__restrict__ x,
                           const T *__restrict__ dy, T *__restrict__ dx)
{
    for_each_row(rows, [&](int64_t row) {
        const T *in = x + row * c, *gradient = dy + row * c;
        float sum = 0, dot = 0, mean = t.mean[row], inv_std = t.inv_std[row];
        for_each_column<V>(c, [&](int i) {
            Pack<T, V> one = load<V>(in + i), d = load<V>(gradient + i);
            Pack<float, V> gamma = load<V>(t.gamma + i);
            for (int v = 0; v < V; v++) {
                sum += gamma[v] * d[v];
                dot += gamma[v] * d[v] * (one[v] - mean) * inv_std;
            }
        });
        sum = warp_sum(sum);
        dot = warp_sum(dot);
        for_each_column<V>(c, [&](int i) {
            Pack<T, V> one = load<V>(in + i), d = load<V>(gradient + i);
            Pack<float, V> gamma = load<V>(t.gamma + i);
            for (int v = 0; v < V; v++) {
                float hat = (one[v] - mean) * inv_std;
                d.set(v, inv_std * (gamma[v] * d[v] - (sum + hat * dot) / c));
            }
            store<V>(dx + row * c + i, d);
        });
    });
}

template <class T, int V> __global__ void __launch_bounds__(THREADS)
layer_norm_gradients_kernel(Matrix m, Partials partials, NormTensors t, const T *__restrict__ x,
                            const T *__restrict__ dy)
{
    Place<V> place(m);
    Sums<float> own[V] = {};
#pragma unroll 4
    for (int64_t row = place.begin; row < place.end; row += Place<V>::STEP) {
        int64_t at = row * m.channels + place.channel;
        Pack<T, V> in = load<V>(x + at), d = load<V>(dy + at);
        for (int v = 0; v < V; v++) {
            own[v].a += d[v] * (in[v] - t.mean[row]) * t.inv_std[row];
            own[v].b += d[v];
        }
    }
    Sums<double> all;
    if (reduce_columns<V>(m, own, partials, &all)) {
        t.dgamma[blockIdx.x * TILE + threadIdx.x] = all.a;
        t.dbeta[blockIdx.x * TILE + threadIdx.x] = all.b;
    }
}

// --- GELU ----------------------------------------------------------------------------------------

// Since (1 + tanh(u)) / 2 = 1 / (1 + e^-2u), y = x * sigmoid(2u) with u = a * (x + b x^3). dy NULL:
// out is y, else dx.
template <class T, int V> __global__ void __launch_bounds__(THREADS)
gelu_kernel(size_t count, const T *x, const T *dy, T *out)
{
    const float a = 0.7978845608f, b = 0.044715f;
    for_each_pack<V>(count, [&](auto width, size_t at) {
        constexpr int N = decltype(width)::value;
        Pack<T, N> in = load<N>(x + at), d = {};
        if (dy)
            d = load<N>(dy + at);
        for (int k = 0; k < N; k++) {
            float v = in[k], sigmoid = 1 / (1 + expf(-2 * a * (v + b * v * v * v)));
            float slope = 2 * a * (1 + 3 * b * v * v);
            float dydx = sigmoid + v * sigmoid * (1 - sigmoid) * slope;
            d.set(k, dy ? d[k] * dydx : v * sigmoid);
        }
        store<N>(out + at, d);
    });
}

// --- attention -----------------------------------------------------------------------------------

// Copies between rows of tokens (samples, T, parts, heads, d) and matrices of heads (parts,
// samples, heads, T, d); `split`: to the heads.
template <class T, int V> __global__ void __launch_bounds__(THREADS)
heads_kernel(AttentionSpec s, int parts, bool split, const T *__restrict__ from, T *__restrict__ to)
{
    const unsigned d = s.qkv.c / 3 / s.heads, tokens = s.T, heads = s.heads;
    const unsigned samples = s.qkv.n / s.T;
    for_each_pack<V>((size_t)parts * s.qkv.n * heads * d, [&](auto width, size_t at) {
        constexpr int N = decltype(width)::value;
        unsigned row = (unsigned)at / d, head = row / tokens, sample = head / heads;
        unsigned token = sample % samples * tokens + row % tokens, part = sample / samples;
        size_t other = ((token * parts + part) * heads + head % heads) * d + at % d;
        store<N>(to + (split ? at : other), load<N>(from + (split ? other : at)));
    });
}

// A row of a head's (T, T) matrices: P, the softmax of the scores up to column t, and its dropout.
struct HeadRow {
    Masks masks;
    const float *scores;
    uint64_t stream;
    uint32_t position;          // of its first number
    int t;
    float scale, most, share;

    __device__ HeadRow(const AttentionSpec &s, const Masks &m, const float *all, int64_t row)
        : masks(m), scores(all + row * s.T), stream(m.stream(row / s.T / s.heads)),
          position(row % (s.heads * s.T) * s.T), t(row % s.T),
          scale(1 / sqrtf(s.qkv.c / 3 / s.heads)), most(-INFINITY)
    {
        float sum = 0;
        for (int i = lane(); i <= t; i += WARP)
            most = scores[i] > most ? scores[i] : most;
        most = warp_merge(most, [](float a, float b) { return a > b ? a : b; });
        for (int i = lane(); i <= t; i += WARP)
            sum += expf((scores[i] - most) * scale);
        share = 1 / warp_sum(sum);
    }
    __device__ float p(int i) const { return expf((scores[i] - most) * scale) * share; }
    __device__ float drop(int i, float value) const
    {
        return masks.apply(stream, position + i, value);
    }
};

// H = dropout(P); and unless d_dropped is NULL, dS = P * (dP - sum(P * dP)) * scale with
// dP = dropout'(dH).
template <class T> __global__ void __launch_bounds__(THREADS)
softmax_kernel(AttentionSpec s, Masks masks, const float *scores, T *dropped,
               const float *d_dropped, T *d_scores)
{
    for_each_row((int64_t)s.qkv.n * s.heads, [&](int64_t row) {
        HeadRow r(s, masks, scores, row);
        float dot = 0;
        for (int i = lane(); d_dropped && i <= r.t; i += WARP)
            dot += r.p(i) * r.drop(i, d_dropped[row * s.T + i]);
        dot = warp_sum(dot);
        for (int i = lane(); i < s.T; i += WARP) {
            int64_t at = row * s.T + i;
            bool seen = i <= r.t;
            float p = seen ? r.p(i) : 0;
            dropped[at] = narrow<T>(r.drop(i, p));
            if (d_dropped)
                d_scores[at] =
                    narrow<T>(seen ? p * (r.drop(i, d_dropped[at]) - dot) * r.scale : 0);
        }
    });
}

unsigned blocks_for_rows(int64_t rows) { return blocks_for((size_t)rows * WARP); }

} // namespace

// --- for attention_cuda.c ------------------------------------------------------------------------

void heads_copy(Ops *ops, const AttentionSpec *s, int parts, bool split, const void *from, void *to)
{
    size_t count = (size_t)parts * s->qkv.n * (s->qkv.c / 3);
    bool wide = packed(s->qkv.type, s->qkv.c / 3 / s->heads, from, to);
    by_type(s->qkv.type, wide, [&](auto number, auto width) {
        launch(&ops->device->compute, blocks_for(count / width.value),
               heads_kernel<decltype(number), width.value>, *s, parts, split, from, to);
    });
}

void softmax(Ops *ops, const AttentionSpec *s, const uint64_t *keys, const float *scores,
             void *dropped, const float *d_dropped, void *d_scores)
{
    by_type(s->qkv.type, false, [&](auto number, auto) {
        launch(&ops->device->compute, blocks_for_rows((int64_t)s->qkv.n * s->heads),
               softmax_kernel<decltype(number)>, *s, Masks(s->dropout, keys), scores, dropped,
               d_dropped, d_scores);
    });
}

// --- ops.h ---------------------------------------------------------------------------------------

void one_hot(Ops *ops, const OneHotSpec *spec, const int32_t *batch, void *out, uint64_t *keys)
{
    by_type(spec->type, false, [&](auto number, auto) {
        launch(&ops->device->compute, blocks_for_rows((int64_t)spec->samples * spec->T),
               one_hot_kernel<decltype(number)>, *spec, batch, out, keys);
    });
}

void layer_norm_forward(Ops *ops, Shape s, const NormTensors *t, const void *x, void *y)
{
    by_type(s.type, packed(s.type, s.c, x, y, t->gamma, t->beta), [&](auto number, auto width) {
        launch(&ops->device->compute, blocks_for_rows(s.n),
               layer_norm_forward_kernel<decltype(number), width.value>, s.n, s.c, *t, x, y);
    });
}

void layer_norm_backward(Ops *ops, Shape s, const NormTensors *t, const void *x, const void *dy,
                         void *dx)
{
    by_type(s.type, packed(s.type, s.c, x, dy, dx, t->gamma), [&](auto number, auto width) {
        typedef decltype(number) T;
        Matrix m = divide<width.value>(s.n, s.c, 4);
        launch(&ops->device->compute, m.grid(), layer_norm_gradients_kernel<T, width.value>, m,
               ops->partials, *t, x, dy);
        launch(&ops->device->compute, blocks_for_rows(s.n),
               layer_norm_backward_kernel<T, width.value>, s.n, s.c, *t, x, dy, dx);
    });
}

void gelu_backward(Ops *ops, Shape shape, const void *x, const void *dy, void *dx)
{
    size_t count = shape_count(shape);
    by_type(shape.type, aligned(x, dy, dx), [&](auto number, auto width) {
        launch(&ops->device->compute, blocks_for(count / width.value),
               gelu_kernel<decltype(number), width.value>, count, x, dy, dx);
    });
}

void gelu_forward(Ops *ops, Shape shape, const void *x, void *y)
{
    gelu_backward(ops, shape, x, nullptr, y);
}

void add_forward(Ops *ops, const AddSpec *s, const void *a, const void *b, const uint64_t *keys,
                 void *y)
{
    size_t count = shape_count(s->shape);
    unsigned each = s->T * s->shape.c;
    by_type(s->shape.type, packed(s->shape.type, each, a, b, y), [&](auto number, auto width) {
        launch(&ops->device->compute, blocks_for(count / width.value),
               add_forward_kernel<decltype(number), width.value>, count, each,
               Masks(s->dropout, keys), a, b, y);
    });
}

void add_backward(Ops *ops, const AddSpec *s, const void *dy1, const void *dy2,
                  const uint64_t *keys, void *da, void *db)
{
    size_t count = shape_count(s->shape);
    unsigned each = s->T * s->shape.c;
    bool wide = packed(s->shape.type, each, dy1, dy2, da, db);
    by_type(s->shape.type, wide, [&](auto number, auto width) {
        launch(&ops->device->compute, blocks_for(count / width.value),
               add_backward_kernel<decltype(number), width.value>, count, each,
               Masks(s->dropout, keys), dy1, dy2, da, db);
    });
}
