// kernels.cuh - vectors of any type, for the kernels that are not loops of loops.cuh.
//
// Memory, not arithmetic, limits these kernels. So neighbouring threads read neighbouring
// addresses, 16 bytes at a time where possible. Whatever the type in memory, kernels compute in
// f32 and round what they store.
#pragma once
#include "cuda/cuda_internal.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = 256;            // of a block

// --- numbers of a type ---------------------------------------------------------------------------

inline __device__ float widen(float value) { return value; }
inline __device__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
inline __device__ float widen(__half value) { return __half2float(value); }

// To the nearest number, ties to even; infinite beyond f16's range.
template <class T> __device__ T narrow(float value);
template <> inline __device__ float narrow<float>(float value) { return value; }
template <> inline __device__ __nv_bfloat16 narrow<__nv_bfloat16>(float value)
{
    return __float2bfloat16_rn(value);
}
template <> inline __device__ __half narrow<__half>(float value) { return __float2half_rn(value); }

// --- vectors -------------------------------------------------------------------------------------

// How many numbers of a type fill 16 bytes, the most that a thread loads at once.
template <class T> constexpr int WIDE = 16 / sizeof(T);

// V neighbours in memory, loaded and stored together.
template <class T, int V> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) Pack {
    T v[V];

    __device__ float operator[](int i) const { return widen(v[i]); }
    __device__ void set(int i, float value) { v[i] = narrow<T>(value); }
};

template <int V, class T> __device__ Pack<T, V> load(const T *from)
{
    return *reinterpret_cast<const Pack<T, V> *>(from);
}

template <int V, class T> __device__ void store(T *to, const Pack<T, V> &pack)
{
    *reinterpret_cast<Pack<T, V> *>(to) = pack;
}

// a + b in f32; b may be NULL.
template <int V, class T> __device__ Pack<float, V> sum_of(const T *a, const T *b, int64_t at)
{
    Pack<T, V> one = load<V>(a + at);
    Pack<float, V> sum;
    for (int v = 0; v < V; v++)
        sum.v[v] = one[v];
    if (b) {
        one = load<V>(b + at);
        for (int v = 0; v < V; v++)
            sum.v[v] += one[v];
    }
    return sum;
}

// --- launching -----------------------------------------------------------------------------------

// Runs kernel(arguments...) on a stream, in blocks of THREADS threads. A void pointer becomes a
// pointer to what the kernel takes.
template <class... Parameters, class... Arguments>
void launch(const Stream *stream, dim3 grid, void (*kernel)(Parameters...), Arguments... arguments)
{
    device_use(stream->device);
    kernel<<<grid, THREADS, 0, stream->handle>>>(static_cast<Parameters>(arguments)...);
    cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess)
        cuda_failed(status, "a kernel's launch", __FILE__, __LINE__);
}

template <int N> struct Width {
    static constexpr int value = N;
};

// Calls fn(number, width): the first has the C++ type of `type`. The second is 1 or, if `wide`, as
// many of them as fill 16 bytes.
template <class F> void by_type(Type type, bool wide, F fn)
{
    auto by_width = [&](auto number) {
        if (wide)
            fn(number, Width<WIDE<decltype(number)>>());
        else
            fn(number, Width<1>());
    };
    if (type == TYPE_F32)
        by_width(float());
    else if (type == TYPE_BF16)
        by_width(__nv_bfloat16());
    else
        by_width(__half());
}

// Are all of these aligned to 16 bytes? (NULL is.)
template <class... Pointers> bool aligned(Pointers... pointers)
{
    uintptr_t bits = 0;
    for (uintptr_t one : { (uintptr_t)pointers... })
        bits |= one;
    return bits % 16 == 0;
}

// The same for matrices with rows of `channels` numbers: are all rows aligned?
template <class... Pointers> bool packed(Type type, int channels, Pointers... pointers)
{
    return channels * type_size(type) % 16 == 0 && aligned(pointers...);
}

inline unsigned blocks_for(size_t threads) { return (unsigned)((threads + THREADS - 1) / THREADS); }
