// loops.cuh - the loops of ops/loops.h as kernels. An operation is a C++ type, which is a parameter
// of a kernel's template.
//
// Memory, not arithmetic, limits these kernels. So neighbouring threads read neighbouring
// addresses, up to 16 bytes at a time.
#pragma once
#include "cuda/cuda_internal.h"
#include "ops/packs.h"

constexpr int THREADS = 256;            // threads per block
constexpr int WARP = 32;

inline unsigned blocks_for(size_t threads, size_t most = INT32_MAX)
{
    size_t blocks = (threads + THREADS - 1) / THREADS;
    return (unsigned)(blocks == 0 ? 1 : blocks < most ? blocks : most);
}

template <class... Parameters, class... Arguments>
void launch(const Stream *stream, dim3 grid, void (*kernel)(Parameters...), Arguments... arguments)
{
    device_use(stream->device);
    kernel<<<grid, THREADS, 0, stream->handle>>>(arguments...);
    cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess)
        cuda_failed(status, "a kernel's launch", __FILE__, __LINE__);
}

template <Type T> struct Number {
    static constexpr Type type = T;
};

struct AllTypes {
    template <class F> static void each_type(Type type, F f)
    {
        if (type == TYPE_F32)
            f(Number<TYPE_F32>());
        else if (type == TYPE_BF16)
            f(Number<TYPE_BF16>());
        else
            f(Number<TYPE_F16>());
    }
};
struct OnlyF32 {
    template <class F> static void each_type(Type, F f) { f(Number<TYPE_F32>()); }
};

// A thread's share of a loop: calls f(i) for i = first, first + step, ... below end. Between the
// GROUP calls of a group there is no branch, so all their loads wait for memory together.
constexpr int GROUP = 4;
template <class F> __device__ void for_share(size_t first, size_t step, size_t end, F f)
{
    size_t left = first < end ? (end - first + step - 1) / step : 0, i = first;
    for (; left >= GROUP; left -= GROUP, i += GROUP * step)
#pragma unroll
        for (int k = 0; k < GROUP; k++)
            f(i + k * step);
    for (; left > 0; left--, i += step)
        f(i);
}

#define OPERATION(fn, Job_, Types)                                                              \
    struct fn##_op : Types {                                                                    \
        typedef Job_ Job;                                                                       \
        template <class... A> static __device__ void call(A... a) { fn(a...); }                 \
    };

// --- cells ---------------------------------------------------------------------------------------

#define CELLS(fn, Job) OPERATION(fn, Job, AllTypes)
#define CELLS_F32(fn, Job) OPERATION(fn, Job, OnlyF32)
#define RUN_CELLS(fn, stream, matrix, job) cells_run<fn##_op>(stream, matrix, *(job))

// Each thread computes one of `count` packs of up to `width` elements. width: LANES, or 1 if not
// all rows begin at multiples of LANES elements.
template <class Op, Type T> __global__ void __launch_bounds__(THREADS)
cells_loop(const __grid_constant__ typename Op::Job job, unsigned packs, size_t columns,
             unsigned width, unsigned count)
{
    unsigned p = blockIdx.x * THREADS + threadIdx.x;
    if (p >= count)
        return;
    size_t row = p / packs, column = (size_t)(p % packs) * width, left = columns - column;
    size_t i = row * columns + column;
    if (width == LANES && left >= LANES)
        Op::call(&job, T, At{ row, column, i, LANES });
    else
        Op::call(&job, T, At{ row, column, i, (int)(left < width ? left : width) });
}

template <class Op> void cells_run(Stream *stream, const Matrix &m, typename Op::Job job)
{
    unsigned width = m.is_array || m.columns % LANES == 0 ? LANES : 1;
    size_t packs = (m.columns + width - 1) / width, count = m.rows * packs;
    CHECK(count < UINT32_MAX - THREADS, "choose a smaller batch (-b)",
          "an operation on %zu x %zu numbers: too many for a kernel's 32-bit indices", m.rows,
          m.columns);
    Op::each_type(m.type, [&](auto number) {
        launch(stream, blocks_for(count), cells_loop<Op, number.type>, job, (unsigned)packs,
               m.columns, width, (unsigned)count);
    });
}

// --- rows: a team is a warp ----------------------------------------------------------------------

#define ROWS(fn, Job) OPERATION(fn, Job, AllTypes)
#define ROWS_F32(fn, Job) OPERATION(fn, Job, OnlyF32)
#define RUN_ROWS(fn, stream, matrix, job) rows_run<fn##_op>(stream, matrix, *(job))

// A thread has one lane, k = 0.
enum { TEAM = 1 };
#define FOR_ROW(i, k, count)                                                                    \
    _Pragma("unroll 4")                                                                         \
    for (int i = threadIdx.x % WARP, k = 0; k < TEAM && i < (count); i += WARP)
#define FOR_PACKS(first, k, count) FOR_ROW(first, k, count)     // no lane is beyond the end
#define FIRST_OF_TEAM (threadIdx.x % WARP == 0)

// All threads of the team get the result.
template <class T> __device__ T team_sum(const T *lane)
{
    T value = *lane;
    for (int far = WARP / 2; far > 0; far /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, far);
    return value;
}

inline __device__ float team_max(const float *lane)
{
    float value = *lane;
    for (int far = WARP / 2; far > 0; far /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, value, far);
        value = other > value ? other : value;
    }
    return value;
}

template <class Op, Type T> __global__ void __launch_bounds__(THREADS)
rows_loop(const __grid_constant__ typename Op::Job job, size_t rows)
{
    size_t row = ((size_t)blockIdx.x * THREADS + threadIdx.x) / WARP;
    if (row < rows)
        Op::call(&job, T, row);
}

template <class Op> void rows_run(Stream *stream, const Matrix &m, typename Op::Job job)
{
    Op::each_type(m.type, [&](auto number) {
        launch(stream, blocks_for(m.rows * WARP), rows_loop<Op, number.type>, job, m.rows);
    });
}

// --- items ---------------------------------------------------------------------------------------

#define ITEMS(fn, Job) OPERATION(fn, Job, OnlyF32)
#define RUN_ITEMS(fn, stream, count, job) items_run<fn##_op>(stream, count, *(job))

template <class Op> __global__ void __launch_bounds__(THREADS)
items_loop(const __grid_constant__ typename Op::Job job, size_t count)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count)
        Op::call(&job, i);
}

template <class Op> void items_run(Stream *stream, size_t count, typename Op::Job job)
{
    launch(stream, blocks_for(count), items_loop<Op>, job, count);
}

// --- sums over blocks ----------------------------------------------------------------------------
//
// The sums of threads, and then those of blocks, are combined in a fixed order. The last block to
// finish combines the blocks' results, which saves a second launch.

constexpr int MAX_BLOCKS = 1024;        // about as many blocks as an H100 can run at once

// True in the last of `blocks` blocks that call this. The last block sees what the others have
// written. Resets the ticket to zero for the next kernel.
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

// The memory in which the blocks of one kernel exchange results. The kernels of a stream, which run
// one after another, share this memory.
struct Partials {
    void *results;              // up to RESULT bytes for each block
    unsigned *tickets;          // (TICKETS) zero between kernels
};
constexpr size_t TICKETS = 1024, RESULT = 256;

inline Partials partials_of(Stream *stream)
{
    size_t bytes = TICKETS * sizeof(unsigned);
    char *memory = static_cast<char *>(stream_scratch(stream, bytes + 2 * MAX_BLOCKS * RESULT));
    return Partials{ memory + bytes, reinterpret_cast<unsigned *>(memory) };
}

// --- columns -------------------------------------------------------------------------------------

#define COLUMNS(fn, end_, Job_)                                                                 \
    struct fn##_op : AllTypes {                                                                 \
        typedef Job_ Job;                                                                       \
        template <class... A> static __device__ void call(A... a) { fn(a...); }                 \
        static __device__ void end(const Job *j, size_t column, const double *sums)             \
        {                                                                                       \
            end_(j, column, sums);                                                              \
        }                                                                                       \
    };
#define RUN_COLUMNS(fn, stream, matrix, job) columns_run<fn##_op>(stream, matrix, *(job))

constexpr int TILE = 32;                // columns per block
constexpr size_t COLUMN_BLOCKS = 256;   // about two on each multiprocessor of an H100

// Adds cells[1..rows)[c] to cells[0][c], halving the rows each time; rows is a power of two.
template <class T> __device__ void add_rows(T (*cells)[2 * TILE], int rows)
{
    for (int half = rows / 2; half > 0; half /= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < half * 2 * TILE; i += THREADS)
            cells[i / (2 * TILE)][i % (2 * TILE)] += cells[i / (2 * TILE) + half][i % (2 * TILE)];
    }
    __syncthreads();
}

// Block (x, y) adds up at most TILE columns from x * TILE on, over at most `share` rows from
// y * share on. A thread has W of these columns.
template <class Op, Type T, int W> __global__ void __launch_bounds__(THREADS, 2)
columns_loop(const __grid_constant__ typename Op::Job job, size_t rows, unsigned columns,
               size_t share, Partials partials)
{
    constexpr int ACROSS = TILE / W, STEP = THREADS / ACROSS, PARTS = THREADS / (2 * TILE);
    __shared__ float cells[STEP][2 * TILE];
    __shared__ double parts[PARTS][2 * TILE];
    float *results = static_cast<float *>(partials.results);
    int across = threadIdx.x % ACROSS, line = threadIdx.x / ACROSS;
    unsigned column = blockIdx.x * TILE + across * W;
    size_t row = blockIdx.y * share + line, end = (blockIdx.y + 1) * share;
    end = end < rows ? end : rows;
    Pack own[2] = {};
    for_share(row, STEP, column < columns ? end : 0, [&](size_t r) {
        Op::call(&job, T, At{ r, column, r * columns + column, W }, own);
    });
    for (int s = 0; s < 2; s++)
        for (int k = 0; k < W; k++)
            cells[line][s * TILE + across * W + k] = own[s].v[k];
    add_rows(cells, STEP);
    double sum = 0;
    int place = threadIdx.x % (2 * TILE), part = threadIdx.x / (2 * TILE);
    if (gridDim.y == 1 && part == 0) {
        sum = cells[0][place];
    } else if (gridDim.y > 1) {
        size_t tiles = gridDim.x, tile = blockIdx.x;
        if (part == 0)
            results[(blockIdx.y * tiles + tile) * 2 * TILE + place] = cells[0][place];
        if (!last_block(&partials.tickets[tile], gridDim.y))
            return;
        for (unsigned b = part; b < gridDim.y; b += PARTS)
            sum += results[(b * tiles + tile) * 2 * TILE + place];
    }
    parts[part][place] = sum;
    add_rows(parts, PARTS);
    unsigned c = blockIdx.x * TILE + threadIdx.x;
    if (threadIdx.x < TILE && c < columns) {
        const double sums[2] = { parts[0][threadIdx.x], parts[0][TILE + threadIdx.x] };
        Op::end(&job, c, sums);
    }
}

template <class Op> void columns_run(Stream *stream, const Matrix &m, typename Op::Job job)
{
    size_t tiles = (m.columns + TILE - 1) / TILE, most = (COLUMN_BLOCKS + tiles - 1) / tiles;
    static_assert(2 * TILE * sizeof(float) <= RESULT, "a block's results");
    CHECK(tiles <= TICKETS, "", "a layer has %zu channels or classes: the maximum is %zu",
          m.columns, TICKETS * TILE);
    unsigned blocks = blocks_for(m.rows * TILE / LANES / 4, most);  // about 4 rows a thread or more
    dim3 grid((unsigned)tiles, blocks);
    Op::each_type(m.type, [&](auto number) {
        auto kernel = m.columns % LANES == 0 ? columns_loop<Op, number.type, LANES>
                                             : columns_loop<Op, number.type, 1>;
        launch(stream, grid, kernel, job, m.rows, (unsigned)m.columns,
               (m.rows + blocks - 1) / blocks, partials_of(stream));
    });
}

// --- totals --------------------------------------------------------------------------------------

#define TOTALS(fn, end, Job, n) TOTALS_OF(fn, end, Job, n, 1)
#define ROW_TOTALS(fn, end, Job, n) TOTALS_OF(fn, end, Job, n, WARP)
#define TOTALS_OF(fn, end_, Job_, n, threads)                                                   \
    struct fn##_op {                                                                            \
        typedef Job_ Job;                                                                       \
        static constexpr int SUMS = n, ITEM = threads;  /* threads of an item */                \
        static __device__ void call(const Job *j, size_t i, double *one) { fn(j, i, one); }     \
        static __device__ void end(const Job *j, const double *totals) { end_(j, totals); }     \
    };
#define RUN_TOTALS(fn, stream, count, job) totals_run<fn##_op>(stream, count, *(job))
#define RUN_ROW_TOTALS(fn, stream, matrix, job) totals_run<fn##_op>(stream, (matrix).rows, *(job))

// Gives the block's first thread the sums of all threads' values.
template <int N> __device__ void block_sums(double *value)
{
    __shared__ double warps[THREADS / WARP][N];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    __syncthreads();            // all threads have read earlier sums
    for (int s = 0; s < N; s++) {
        value[s] = team_sum(&value[s]);
        if (lane == 0)
            warps[warp][s] = value[s];
    }
    __syncthreads();
    for (int s = 0; warp == 0 && s < N; s++) {
        value[s] = lane < THREADS / WARP ? warps[lane][s] : 0;
        value[s] = team_sum(&value[s]);
    }
}

template <class Op> __global__ void __launch_bounds__(THREADS)
totals_loop(const __grid_constant__ typename Op::Job job, size_t count, Partials partials)
{
    constexpr int N = Op::SUMS;
    static_assert(N * sizeof(double) <= RESULT, "a block's results");
    double *results = static_cast<double *>(partials.results), own[N] = {};
    size_t thread = (size_t)blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
    for_share(thread / Op::ITEM, step / Op::ITEM, count, [&](size_t i) {
        double one[N];
        Op::call(&job, i, one);
        for (int s = 0; s < N; s++)
            own[s] += thread % Op::ITEM == 0 ? one[s] : 0;
    });
    block_sums<N>(own);
    for (int s = 0; threadIdx.x == 0 && s < N; s++)
        results[blockIdx.x * N + s] = own[s];
    if (!last_block(&partials.tickets[0], gridDim.x))
        return;
    for (int s = 0; s < N; s++) {
        own[s] = 0;
        for (unsigned b = threadIdx.x; b < gridDim.x; b += THREADS)
            own[s] += results[b * N + s];
    }
    block_sums<N>(own);
    if (threadIdx.x == 0)
        Op::end(&job, own);
}

template <class Op> void totals_run(Stream *stream, size_t count, typename Op::Job job)
{
    size_t threads = Op::ITEM == 1 ? count / 4 : count * Op::ITEM;
    launch(stream, blocks_for(threads, MAX_BLOCKS), totals_loop<Op>, job, count,
           partials_of(stream));
}
