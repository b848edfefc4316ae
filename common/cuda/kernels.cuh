// kernels.cuh - what the kernels share: vectors of any type, arrays and matrices divided among
// threads, and sums.
//
// Memory, not arithmetic, limits all of these kernels. So neighbouring threads read neighbouring
// addresses, 16 bytes at a time where possible, and there are few launches. Whatever the type in
// memory, kernels compute in f32 and round what they store.
//
// Sums have the same bits every time: threads and then blocks are combined in a fixed order,
// without atomic additions. The last block of a kernel to finish combines the results of all
// blocks, which saves a second launch.
#pragma once
#include "cuda/cuda_internal.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = 256;            // of a block
constexpr int WARP = 32;
constexpr int TILE = 32;                // columns of a matrix that one block works on
constexpr int MAX_BLOCKS = 1024;        // enough to fill the largest GPU several times

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

inline unsigned blocks_for(size_t threads, size_t most = 16 * MAX_BLOCKS)
{
    size_t blocks = (threads + THREADS - 1) / THREADS;
    return (unsigned)(blocks == 0 ? 1 : blocks < most ? blocks : most);
}

// --- arrays --------------------------------------------------------------------------------------

// This thread's share of an array: calls fn(Width<V>, at) for V numbers at a time, and
// fn(Width<1>, at) for the rest at the end.
template <int V, class F> __device__ void for_each_pack(size_t count, F fn)
{
    size_t thread = (size_t)blockIdx.x * THREADS + threadIdx.x;
    size_t stride = (size_t)gridDim.x * THREADS * V, whole = count - count % V;
    for (size_t at = thread * V; at < whole; at += stride)
        fn(Width<V>(), at);
    if (thread < count - whole)
        fn(Width<1>(), whole + thread);
}

// --- matrices: rows are pixels, columns are channels ---------------------------------------------

// How a matrix is divided: block (i, j) of the grid works on columns [i * TILE, ..) of rows
// [j * rows_per_block, ..).
struct Matrix {
    int64_t rows;
    int channels;
    int64_t rows_per_block;

    dim3 grid() const
    {
        int64_t tiles = (channels + TILE - 1) / TILE, blocks = 1;
        if (rows_per_block > 0)
            blocks = (rows + rows_per_block - 1) / rows_per_block;
        return dim3((unsigned)tiles, (unsigned)blocks);
    }
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

// Divides a matrix among blocks whose threads take V columns, and read `group` rows before they use
// them.
template <int V> Matrix divide(int64_t rows, int channels, int group)
{
    constexpr int STEP = Place<V>::STEP;
    int64_t tiles = (channels + TILE - 1) / TILE, most = MAX_BLOCKS / tiles;
    int64_t blocks = (rows + STEP * group - 1) / (STEP * group);
    blocks = blocks > most ? most : blocks;
    blocks = blocks < 1 ? 1 : blocks;
    return Matrix{ rows, channels, (rows + blocks - 1) / blocks };
}

// Calls read(i, at) for GROUP of this thread's rows, whose loads then wait for memory together, and
// use(i, at) for the same rows; and so on for all its rows. at: of a row's first number.
template <int GROUP, int V, class Read, class Use>
__device__ void for_each_group(const Matrix &m, const Place<V> &place, Read read, Use use)
{
    constexpr int STEP = Place<V>::STEP;
    for (int64_t row = place.begin; row < place.end; row += GROUP * STEP) {
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (row + i * STEP < place.end)
                read(i, (row + i * STEP) * m.channels + place.channel);
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (row + i * STEP < place.end)
                use(i, (row + i * STEP) * m.channels + place.channel);
    }
}

// --- sums ----------------------------------------------------------------------------------------

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

// Merges the values of a warp's lanes in a fixed order; all lanes get the result.
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

// Merges cells[..rows)[c] into cells[0][c], halving the rows each time; rows is a power of two.
template <class Cell> __device__ void merge_rows(Cell (*cells)[TILE], int rows)
{
    for (int half = rows / 2; half > 0; half /= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < half * TILE; i += THREADS)
            cells[i / TILE][i % TILE].merge(cells[i / TILE + half][i % TILE]);
    }
    __syncthreads();
}

// True in the last of `blocks` blocks to call this: it sees what the others have written. Resets
// the ticket to zero for the next kernel.
inline __device__ bool last_block(unsigned *ticket, unsigned blocks)
{
    __shared__ bool last;
    __threadfence();            // other blocks see this block's results before its ticket
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

// Merges all threads' results for their tile's columns; own[v] belongs to column channel + v.
// Returns true in one thread per column, of one block, where *total is the column's result.
template <int V, template <class> class Cell>
__device__ bool reduce_columns(const Matrix &m, const Cell<float> (&own)[V],
                               const Partials &partials, Cell<double> *total)
{
    constexpr int STEP = Place<V>::STEP, PARTS = THREADS / TILE;
    __shared__ Cell<float> cells[STEP][TILE];
    __shared__ Cell<double> sums[PARTS][TILE];
    Cell<float> *results = static_cast<Cell<float> *>(partials.results);
    int row = threadIdx.x / Place<V>::LANES, first = threadIdx.x % Place<V>::LANES * V;
    int column = threadIdx.x % TILE, part = threadIdx.x / TILE;
    int channel = blockIdx.x * TILE + column;

    for (int v = 0; v < V; v++)
        cells[row][first + v] = own[v];
    merge_rows(cells, STEP);
    if (part == 0 && channel < m.channels)
        results[(int64_t)blockIdx.y * m.channels + channel] = cells[0][column];
    if (!last_block(&partials.tickets[blockIdx.x], gridDim.y))
        return false;

    Cell<double> sum = {};
    for (unsigned b = part; channel < m.channels && b < gridDim.y; b += PARTS)
        sum.merge(Cell<double>::from(results[(int64_t)b * m.channels + channel]));
    sums[part][column] = sum;
    merge_rows(sums, PARTS);
    *total = sums[0][column];
    return part == 0 && channel < m.channels;
}
