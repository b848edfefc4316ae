// product_cuda.c - products of matrices through cuBLASLt.
//
// cuBLASLt proposes an algorithm once, in product_new. Each product_run uses it, so that equal
// inputs give equal bits.
//
// cuBLASLt counts columns first. So it sees each of our matrices transposed, and the product of
// transposed matrices has its factors in the other order: c' (n, m) = b' (n, k) a' (k, m).
#include "progress.h"
#include "cuda/cuda_internal.h"

#include <stdlib.h>

enum { PRODUCT_WORKSPACE = 32 << 20 };  // bytes: what NVIDIA recommends for Hopper

struct Product {
    Ops *ops;
    ProductSpec spec;
    Type sums;                          // what cuBLASLt writes: f32 if a bias is still to be added
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
};

static cudaDataType_t type_of(Type type)
{
    return type == TYPE_F32 ? CUDA_R_32F : type == TYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

// A matrix of which `rows` rows of `columns` numbers are stored; or `batch` of them.
static cublasLtMatrixLayout_t layout_new(Type type, int rows, int columns, int32_t batch)
{
    cublasLtMatrixLayout_t layout;
    int64_t distance = (int64_t)rows * columns;
    CUBLAS(cublasLtMatrixLayoutCreate(&layout, type_of(type), (uint64_t)columns, (uint64_t)rows,
                                      columns));
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
static uint32_t alignment_of(const ProductSpec *s)
{
    size_t m = (size_t)s->m, n = (size_t)s->n, k = (size_t)s->k;
    size_t sizes = s->batch > 0 ? (m * k | k * n | m * n) * type_size(s->in) : 0;
    size_t bits = sizes | CUDA_ALIGNMENT;
    return (uint32_t)(bits & -bits);    // the lowest bit
}

static void choose_algorithm(Product *p)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    };
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    uint64_t workspace = PRODUCT_WORKSPACE;
    uint32_t alignment = alignment_of(&p->spec), reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    int found = 0;
    CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    CUBLAS(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++)
        CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment,
                                                    sizeof alignment));
    if (p->sums != TYPE_F32)            // partial sums also stay f32
        reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    CUBLAS(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions));
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        p->ops->blas, p->desc, p->b, p->a, p->c, p->c, preference, 1, &result, &found);
    CHECK(status == CUBLAS_STATUS_SUCCESS && found == 1, "",
          "cuBLASLt has no algorithm for a product of (%d, %d) and (%d, %d): %s", p->spec.m,
          p->spec.k, p->spec.k, p->spec.n, cublasLtGetStatusString(status));
    CUBLAS(cublasLtMatmulPreferenceDestroy(preference));
    p->algorithm = result.algo;
    p->workspace = result.workspaceSize;
}

static Lane *lane_of(const Product *p)
{
    return p->spec.beside ? &p->ops->beside : &p->ops->main;
}

static size_t result_count(const ProductSpec *s)
{
    return (size_t)(s->batch > 0 ? s->batch : 1) * s->m * s->n;
}

Product *product_new(Ops *ops, const ProductSpec *s)
{
    Product *p = xcalloc(1, sizeof *p);
    bool tf32 = s->in == TYPE_F32 && ops->config.tf32 && !s->exact;
    cublasOperation_t op_a = s->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t op_b = s->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    PROGRESS_DOING("loading", "cuBLAS");
    device_use(ops->device);
    cuda_check_type(ops->device, s->in);
    p->ops = ops;
    p->spec = *s;
    p->sums = s->bias ? TYPE_F32 : s->out;
    CUBLAS(cublasLtMatmulDescCreate(
        &p->desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLAS(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_b,
                                          sizeof op_b));
    CUBLAS(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_a,
                                          sizeof op_a));
    p->a = s->a_turned ? layout_new(s->in, s->k, s->m, s->batch)
                       : layout_new(s->in, s->m, s->k, s->batch);
    p->b = s->b_turned ? layout_new(s->in, s->n, s->k, s->batch)
                       : layout_new(s->in, s->k, s->n, s->batch);
    p->c = layout_new(p->sums, s->m, s->n, s->batch);
    choose_algorithm(p);
    lane_need(lane_of(p), &lane_of(p)->workspace, p->workspace);
    if (p->sums != s->out)
        lane_need(lane_of(p), &lane_of(p)->scratch, result_count(s) * sizeof(float));
    return p;
}

void product_free(Product *p)
{
    if (!p)
        return;
    CUBLAS(cublasLtMatrixLayoutDestroy(p->c));
    CUBLAS(cublasLtMatrixLayoutDestroy(p->b));
    CUBLAS(cublasLtMatrixLayoutDestroy(p->a));
    CUBLAS(cublasLtMatmulDescDestroy(p->desc));
    free(p);
}

void product_run(const Product *p, const void *a, const void *b, const float *bias, void *c)
{
    const ProductSpec *s = &p->spec;
    const Lane *lane = lane_of(p);
    const float alpha = 1, beta = 0;
    void *sums = p->sums == s->out ? c : lane->scratch.memory;
    if (s->batch == 0)                  // else see alignment_of
        cuda_check_aligned(a, b, c);
    device_use(p->ops->device);
    CUBLAS(cublasLtMatmul(p->ops->blas, p->desc, &alpha, b, p->b, a, p->a, &beta, sums, p->c, sums,
                          p->c, &p->algorithm, lane->workspace.memory, p->workspace,
                          lane->stream->handle));
    if (s->bias)
        bias_add(p->ops, s->out, s->m, s->n, bias, p->sums, sums, c);
}
