// kernels_present.cu - asks CUDA whether this program contains code for the current device.
#include "cuda/cuda_internal.h"

__global__ void any_kernel() { }

cudaError_t kernels_present(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, any_kernel);
}
