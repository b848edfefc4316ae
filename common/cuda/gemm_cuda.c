// gemm_cuda.c - matrix products through cuBLASLt.
//
// cuBLASLt proposes an algorithm once, in gemm_new. Each gemm_run uses it, so that the same inputs
// give the same bits.
#include "cuda/cuda_internal.h"

#include <string.h>

enum { GEMM_WORKSPACE = 32 << 20 };     // bytes: what NVIDIA recommends for Hopper
enum { GEMM_ALIGNMENT = 16 };           // bytes: alignment of a matrix, or of the first in a batch

// A matrix (rows, columns), stored as it is or transposed; or `batch` of them.
static cublasLtMatrixLayout_t layout_new(cudaDataType_t dtype, bool transposed, int rows,
                                         int columns, int32_t batch)
{
    cublasLtMatrixLayout_t layout;
    uint64_t first = (uint64_t)(transposed ? columns : rows);
    uint64_t second = (uint64_t)(transposed ? rows : columns);
    int64_t distance = (int64_t)(first * second);
    CUBLAS(cublasLtMatrixLayoutCreate(&layout, dtype, first, second, (int64_t)first));
    if (batch > 0) {
        CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                sizeof batch));
        CUBLAS(cublasLtMatrixLayoutSetAttribute(layout,
                                                CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &distance, sizeof distance));
    }
    return layout;
}

// The bytes to which all matrices are aligned. In a batch, the matrices' sizes limit the alignment.
static uint32_t alignment_of(const GemmProblem *p)
{
    size_t m = (size_t)p->m, n = (size_t)p->n, k = (size_t)p->k;
    size_t sizes = p->batch > 0 ? (m * k | k * n | m * n) * (p->dtype == CUDA_R_32F ? 4 : 2) : 0;
    size_t bits = sizes | GEMM_ALIGNMENT;
    return (uint32_t)(bits & -bits);    // the lowest bit that is set
}

static void choose_algorithm(Gemm *gemm, cublasLtHandle_t blas, const GemmProblem *p)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    };
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    uint64_t workspace = GEMM_WORKSPACE;
    uint32_t alignment = alignment_of(p), reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    int found = 0;
    CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    CUBLAS(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++)
        CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment,
                                                    sizeof alignment));
    if (p->result != CUDA_R_32F)    // keeps partial sums in f32, too
        reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    CUBLAS(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions));
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        blas, gemm->desc, gemm->a, gemm->b, gemm->d, gemm->d, preference, 1, &result, &found);
    CHECK(status == CUBLAS_STATUS_SUCCESS && found == 1, "",
          "cuBLASLt has no algorithm for a product of (%d, %d) and (%d, %d): %s", p->m, p->k, p->k,
          p->n, cublasLtGetStatusString(status));
    CUBLAS(cublasLtMatmulPreferenceDestroy(preference));
    gemm->algorithm = result.algo;
    gemm->workspace = result.workspaceSize;
}

void gemm_new(Gemm *gemm, cublasLtHandle_t blas, const GemmProblem *p)
{
    cublasOperation_t op_a = p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_b = p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    CUBLAS(cublasLtMatmulDescCreate(&gemm->desc, p->compute, CUDA_R_32F));
    CUBLAS(cublasLtMatmulDescSetAttribute(gemm->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_a,
                                          sizeof op_a));
    CUBLAS(cublasLtMatmulDescSetAttribute(gemm->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_b,
                                          sizeof op_b));
    gemm->a = layout_new(p->dtype, p->transpose_a, p->m, p->k, p->batch);
    gemm->b = layout_new(p->dtype, p->transpose_b, p->k, p->n, p->batch);
    gemm->d = layout_new(p->result, false, p->m, p->n, p->batch);
    choose_algorithm(gemm, blas, p);
}

void gemm_free(Gemm *gemm)
{
    if (!gemm->desc)
        return;
    CUBLAS(cublasLtMatrixLayoutDestroy(gemm->d));
    CUBLAS(cublasLtMatrixLayoutDestroy(gemm->b));
    CUBLAS(cublasLtMatrixLayoutDestroy(gemm->a));
    CUBLAS(cublasLtMatmulDescDestroy(gemm->desc));
    memset(gemm, 0, sizeof *gemm);
}

void gemm_run(const Gemm *gemm, cublasLtHandle_t blas, const Lane *lane, const void *a,
              const void *b, void *d)
{
    const float alpha = 1, beta = 0;
    CUBLAS(cublasLtMatmul(blas, gemm->desc, &alpha, a, gemm->a, b, gemm->b, &beta, d, gemm->d,
                          d, gemm->d, &gemm->algorithm, lane->scratch,
                          gemm->workspace, lane->stream->handle));
}
