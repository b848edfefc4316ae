// kernels_layers.cu - pooling, and images from bytes.
#include "cuda/kernels.cuh"

namespace {

// --- pooling -------------------------------------------------------------------------------------

template <int V> struct alignas(V) Bytes {
    uint8_t v[V];
};

__device__ size_t elements(const Shape &s) { return (size_t)s.n * s.c * s.h * s.w; }

// Thread i's pixel of an (n, h, w, c) activation: V of its channels.
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

// The maximum of each window and its place in the window: the first of several. NaN is largest.
template <class T, int V> __global__ void __launch_bounds__(THREADS)
maxpool_forward_kernel(PoolSpec s, Shape out, const T *__restrict__ x, T *__restrict__ y,
                       uint8_t *__restrict__ index)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= elements(out) / V)
        return;
    Pixel<V> to(i, out.h, out.w, out.c);
    Pack<T, V> best = {};
    Bytes<V> where = {};
    bool first = true;
    for (int kh = 0; kh < s.kernel; kh++)
        for (int kw = 0; kw < s.kernel; kw++) {
            int h = to.h * s.stride - s.pad + kh, w = to.w * s.stride - s.pad + kw;
            if (h < 0 || h >= s.x.h || w < 0 || w >= s.x.w)
                continue;
            Pack<T, V> in = load<V>(x + offset_of(to.n, h, w, to.c, s.x.h, s.x.w, s.x.c));
            for (int v = 0; v < V; v++)
                if (first || in[v] > best[v] || in[v] != in[v]) {
                    best.v[v] = in.v[v];
                    where.v[v] = (uint8_t)(kh * s.kernel + kw);
                }
            first = false;
        }
    size_t at = (size_t)i * V;
    store<V>(y + at, best);
    *reinterpret_cast<Bytes<V> *>(index + at) = where;
}

// Each input pixel adds up the gradients of the windows whose maximum it was, so no two threads
// write to the same place.
template <class T, int V> __global__ void __launch_bounds__(THREADS)
maxpool_backward_kernel(PoolSpec s, Shape out, const uint8_t *__restrict__ index,
                        const T *__restrict__ dy1, const T *__restrict__ dy2, T *__restrict__ dx)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= elements(s.x) / V)
        return;
    Pixel<V> to(i, s.x.h, s.x.w, s.x.c);
    int bottom = to.h + s.pad, right = to.w + s.pad; // with padding, windows begin at 0, stride, ..
    int first_h = bottom < s.kernel ? 0 : (bottom - s.kernel) / s.stride + 1;
    int first_w = right < s.kernel ? 0 : (right - s.kernel) / s.stride + 1;
    float sum[V] = {};
    for (int h = first_h; h <= bottom / s.stride && h < out.h; h++)
        for (int w = first_w; w <= right / s.stride && w < out.w; w++) {
            int tap = (bottom - h * s.stride) * s.kernel + right - w * s.stride;
            size_t at = offset_of(to.n, h, w, to.c, out.h, out.w, out.c);
            Bytes<V> where = *reinterpret_cast<const Bytes<V> *>(index + at);
            Pack<float, V> d = sum_of<V>(dy1, dy2, at);
            for (int v = 0; v < V; v++)
                sum[v] += where.v[v] == tap ? d[v] : 0;
        }
    Pack<T, V> rounded;
    for (int v = 0; v < V; v++)
        rounded.set(v, sum[v]);
    store<V>(dx + (size_t)i * V, rounded);
}

template <class T> __global__ void __launch_bounds__(THREADS)
avgpool_forward_kernel(Shape x, const T *__restrict__ in, T *__restrict__ out)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x, pixels = x.h * x.w;
    if (i >= (unsigned)(x.n * x.c))
        return;
    const T *from = in + (size_t)(i / x.c) * pixels * x.c + i % x.c;
    float sum = 0;
    for (unsigned p = 0; p < pixels; p++)
        sum += widen(from[(size_t)p * x.c]);
    out[i] = narrow<T>(sum / pixels);
}

template <class T, int V> __global__ void __launch_bounds__(THREADS)
avgpool_backward_kernel(Shape x, const T *__restrict__ dout, T *__restrict__ dx)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x, pixels = x.h * x.w;
    if (i >= elements(x) / V)
        return;
    Pixel<V> to(i, x.h, x.w, x.c);
    Pack<T, V> share = load<V>(dout + (size_t)to.n * x.c + to.c);
    for (int v = 0; v < V; v++)
        share.set(v, share[v] / pixels);
    store<V>(dx + (size_t)i * V, share);
}

// --- images --------------------------------------------------------------------------------------

// The arguments of images_load in ops.h.
struct ImagesJob {
    const uint8_t *images;      // (n, channels, h, w)
    int n, channels;
    float mean[3], std[3];
    void *out;
    Shape shape;
};

// One block per image; rows after the last image become zeros.
template <class T> __global__ void __launch_bounds__(THREADS)
images_load_kernel(const __grid_constant__ ImagesJob job)
{
    T *out = static_cast<T *>(job.out);
    int pixels = job.shape.h * job.shape.w, block = job.shape.block, i = blockIdx.x;
    const uint8_t *image = job.images + (size_t)i * job.channels * pixels;
    for (int p = threadIdx.x; p < pixels; p += THREADS) {
        for (int c = 0; c < job.channels; c++) {
            size_t plane = (size_t)i * (job.channels / block) + c / block;
            out[(plane * pixels + p) * block + c % block] = narrow<T>(
                i < job.n ? (image[c * pixels + p] / 255.0f - job.mean[c]) / job.std[c] : 0);
        }
    }
}

} // namespace

// --- ops.h ---------------------------------------------------------------------------------------

void maxpool_forward(Ops *ops, const PoolSpec *spec, const void *x, void *y, uint8_t *index)
{
    Shape out = pool_output(spec);
    // A kernel has 32-bit indices. An activation of 2^31 floats would take 8 GB.
    CHECK(shape_count(spec->x) < INT32_MAX, "a smaller batch (-b) needs less", "max pooling of "
          "(%d, %d, %d, %d): more than 2^31 elements", spec->x.n, spec->x.c, spec->x.h, spec->x.w);
    by_type(out.type, packed(out.type, out.c, x, y, index), [&](auto number, auto width) {
        launch(&ops->device->compute, blocks_for(shape_count(out) / width.value),
               maxpool_forward_kernel<decltype(number), width.value>, *spec, out, x, y, index);
    });
}

void maxpool_backward(Ops *ops, const PoolSpec *spec, const uint8_t *index, const void *dy1,
                      const void *dy2, void *dx)
{
    Shape out = pool_output(spec);
    bool wide = packed(out.type, out.c, index, dy1, dy2, dx);
    by_type(out.type, wide, [&](auto number, auto width) {
        launch(&ops->device->compute, blocks_for(shape_count(spec->x) / width.value),
               maxpool_backward_kernel<decltype(number), width.value>, *spec, out, index, dy1, dy2,
               dx);
    });
}

void avgpool_forward(Ops *ops, Shape x, const void *in, void *out)
{
    by_type(x.type, false, [&](auto number, auto) {
        launch(&ops->device->compute, blocks_for((size_t)x.n * x.c),
               avgpool_forward_kernel<decltype(number)>, x, in, out);
    });
}

void avgpool_backward(Ops *ops, Shape x, const void *dout, void *dx)
{
    by_type(x.type, packed(x.type, x.c, dout, dx), [&](auto number, auto width) {
        launch(&ops->device->compute, blocks_for(shape_count(x) / width.value),
               avgpool_backward_kernel<decltype(number), width.value>, x, dout, dx);
    });
}

void images_load(Stream *stream, const uint8_t *images, int n, int channels, const float mean[3],
                 const float std[3], void *out, Shape shape)
{
    ImagesJob job = { images, n, channels, { mean[0], mean[1], mean[2] },
                      { std[0], std[1], std[2] }, out, shape };
    by_type(shape.type, false, [&](auto number, auto) {
        launch(stream, shape.n, images_load_kernel<decltype(number)>, job);
    });
}
