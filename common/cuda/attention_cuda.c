// attention_cuda.c - causal self-attention: batches of matrix products, with kernels for the rest.
//
//   forward    S = q k^T    H = dropout(softmax(S / sqrt(d)))    y = H v
//   backward   S, H again   dH = dy v^T   dS from dH (softmax_gradient in ops/attention.h)
//              dq = dS k   dk = dS^T q   dv = H^T dy
//
// All (T, T) matrices of a batch are in memory; attention_fused.c stores none of them. S and dH
// are f32; H and dS, which are multiplied, have the activations' type. Nothing is kept from forward
// to backward, so all layers share this memory.
#include "cuda/cuda_internal.h"

#include <stdlib.h>

// If matrices are row-major, the products of a head are:
enum {
    SCORES,     // (T, T) = a (T, d) times b (T, d) transposed
    ROWS,       // (T, d) = a (T, T) times b (T, d)
    COLUMNS,    // (T, d) = a (T, T) transposed, times b (T, d)
    PRODUCTS
};

// Parts of scratch memory. S to DS are matrices (T, T) of all heads. Q to DV are matrices (T, d) of
// all heads, each part right after the one before. In forward, DY holds y.
enum { S, DH, H, DS, Q, K, V, DY, DQ, DK, DV, PARTS };

typedef struct Attention {
    Ops *ops;
    OpSpec spec;
    Fused *fused;               // fused attention; NULL: the members below are used
    Gemm products[PRODUCTS];
    size_t at[PARTS];           // where each part begins in scratch memory
} Attention;

void *attention_new(const Op *op)
{
    Ops *ops = op->ops;
    const OpSpec *spec = &op->spec;
    Attention *a = xcalloc(1, sizeof *a);
    Type type = spec->x.type;
    int T = spec->T, samples = spec->x.n / T, d = spec->x.c / 3 / spec->heads;
    size_t squares = (size_t)samples * spec->heads * T * T, next = 0;
    // Kernels have 32-bit indices.
    CHECK(shape_count(spec->x) < INT32_MAX, "choose a smaller batch (-b)",
          "attention reads %d x %d numbers, but the maximum is 2^31 - 2", spec->x.n, spec->x.c);
    device_use(ops->device);
    a->ops = ops;
    a->spec = *spec;
    a->fused = fused_new(op);
    if (a->fused)
        return a;
    // As in conv_cuda.c, cuBLAS sees each matrix transposed: swap the factors.
    const GemmProblem shapes[PRODUCTS] = {
        [SCORES] = { .m = T, .n = T, .k = d, .transpose_a = true },
        [ROWS] = { .m = d, .n = T, .k = T },
        [COLUMNS] = { .m = d, .n = T, .k = T, .transpose_b = true },
    };
    for (int i = 0; i < PRODUCTS; i++) {
        GemmProblem problem = shapes[i];
        bool tf32 = type == TYPE_F32 && ops->config.tf32;
        problem.batch = samples * spec->heads;
        problem.dtype = cuda_type(type);
        problem.result = i == SCORES ? CUDA_R_32F : cuda_type(type);
        problem.compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
        gemm_new(&a->products[i], ops->blas, &problem);
        if (a->products[i].workspace > next)
            next = a->products[i].workspace;
    }
    next = round_up(next, 256);
    for (int i = 0; i < PARTS; i++) {
        a->at[i] = next;
        next += i < H   ? round_up(squares * sizeof(float), 256)
                : i < Q ? round_up(squares * type_size(type), 256)
                        : shape_bytes(spec->x) / 3;
    }
    lane_need_scratch(&ops->main, next);
    return a;
}

void attention_free(void *own)
{
    Attention *a = own;
    for (int i = 0; i < PRODUCTS; i++)
        gemm_free(&a->products[i]);
    if (a->fused)
        fused_free(a->fused);
    free(a);
}

static void *scratch(const Attention *a, int part)
{
    return (char *)a->ops->main.scratch + a->at[part];
}

static void multiply(const Attention *a, int product, int x, int y, int z)
{
    gemm_run(&a->products[product], a->ops->blas, &a->ops->main, scratch(a, y), scratch(a, x),
             scratch(a, z));
}

void attention_forward(const Op *op, const OpArgs *args)
{
    const Attention *a = op->own;
    if (a->fused) {
        fused_forward(a->fused, args);
        return;
    }
    heads_copy(a->ops, &a->spec, 3, true, args->x, scratch(a, Q));
    multiply(a, SCORES, Q, K, S);
    softmax_rows(a->ops, &a->spec, args->keys, scratch(a, S), scratch(a, H), NULL, NULL);
    multiply(a, ROWS, H, V, DY);
    heads_copy(a->ops, &a->spec, 1, false, scratch(a, DY), args->y);
}

void attention_backward(const Op *op, const OpArgs *args)
{
    const Attention *a = op->own;
    if (a->fused) {
        fused_backward(a->fused, args);
        return;
    }
    heads_copy(a->ops, &a->spec, 3, true, args->x, scratch(a, Q));
    heads_copy(a->ops, &a->spec, 1, true, args->dy1, scratch(a, DY));
    multiply(a, SCORES, Q, K, S);
    multiply(a, SCORES, DY, V, DH);
    softmax_rows(a->ops, &a->spec, args->keys, scratch(a, S), scratch(a, H), scratch(a, DH),
                 scratch(a, DS));
    multiply(a, ROWS, DS, K, DQ);
    multiply(a, COLUMNS, DS, Q, DK);
    multiply(a, COLUMNS, H, DY, DV);
    heads_copy(a->ops, &a->spec, 3, false, scratch(a, DQ), args->dx);
}
