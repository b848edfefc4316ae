// simt.h - lets a C++ compiler compile the source of a kernel for the host (see fake.h).
// simt.cc runs it. CMakeLists.txt turns kernel<<<grid, threads, 0, stream>>>(arguments) into
// simt_launch(kernel, grid, threads, 0, stream)(arguments).
#pragma once
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __shared__ static       // blocks run one after the other
#include <cuda_runtime_api.h>
#undef __launch_bounds__
#define __launch_bounds__(...)

#include <cmath>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>

using std::isfinite;
using std::isnan;

extern uint3 threadIdx, blockIdx;
extern dim3 gridDim, blockDim;

void simt_barrier();            // of the block
// Shows this lane's value to the rest of its warp, and reads the value of lane `other`.
void simt_shuffle(const void *mine, void *theirs, size_t bytes, int other);
// Queues a kernel whose threads call thread(job) with a copy of the job.
void simt_queue(dim3 grid, unsigned threads, cudaStream_t stream, void (*thread)(const void *job), const void *job,
                size_t bytes);

inline void __syncthreads() { simt_barrier(); }
inline void __threadfence() { }
template <class T> T __ldg(const T *p) { return *p; }

template <class T> T __shfl_xor_sync(unsigned, T value, int mask)
{
    T other;
    simt_shuffle(&value, &other, sizeof value, (int)(threadIdx.x % 32) ^ mask);
    return other;
}

template <class T> T atomicAdd(T *at, std::common_type_t<T> value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}

template <class... Parameters>
auto simt_launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, int, cudaStream_t stream)
{
    struct Job {
        void (*kernel)(Parameters...);
        std::tuple<Parameters...> arguments;
        static void thread(const void *job)
        {
            const Job *j = static_cast<const Job *>(job);
            std::apply(j->kernel, j->arguments);
        }
    };
    return [=](Parameters... arguments) {
        Job job = { kernel, { arguments... } };
        simt_queue(grid, threads, stream, Job::thread, &job, sizeof job);
    };
}
