// attention_cuda.c - causal self-attention: batches of matrix products, with kernels for the rest.
//
//   forward    S = q k^T    H = dropout(softmax(S))    y = H v
//   backward   S, H again   dH = dy v^T   dS = softmax'(dH)   dq = dS k   dk = dS^T q   dv = H^T dy
//
// All (T, T) matrices of a batch are in memory, and half of each is zero: fused attention, which
// keeps them in registers, is faster. S and dH are f32; H and dS, which are multiplied, have the
// activations' type. Nothing is kept from forward to backward, so all layers share this memory.
#include "cuda/cuda_internal.h"

#include <stdlib.h>

// If matrices are row-major, the products of a head are:
enum {
    SCORES,     // (T, T) = a (T, d) times b (T, d) transposed
    ROWS,       // (T, d) = a (T, T) times b (T, d)
    COLUMNS,    // (T, d) = a (T, T) transposed, times b (T, d)
    PRODUCTS
};

// The matrices (samples, heads, T, d), in scratch memory; DY is y in forward.
enum { Q, K, V, DY, DQ, DK, DV, MATRICES };

struct Attention {
    Ops *ops;
    AttentionSpec spec;
    Gemm products[PRODUCTS];
    size_t matrix_bytes;                    // of one of MATRICES, all heads
    size_t s_at, dh_at, h_at, ds_at, at;    // in scratch memory; at: of Q
};

// Returns where `bytes` of scratch memory begin, and moves on.
static size_t reserve(size_t *next, size_t bytes)
{
    size_t at = *next;
    *next = (at + bytes + 255) / 256 * 256;
    return at;
}

Attention *attention_new(Ops *ops, const AttentionSpec *spec)
{
    Attention *a = xcalloc(1, sizeof *a);
    Type type = spec->qkv.type;
    int T = spec->T, samples = spec->qkv.n / T, d = spec->qkv.c / 3 / spec->heads;
    size_t squares = (size_t)samples * spec->heads * T * T, workspace = 0, next = 0;
    // A kernel has 32-bit indices.
    CHECK(shape_count(spec->qkv) < INT32_MAX, "a smaller batch (-b) needs less",
          "attention of (%d, %d): more than 2^31 elements", spec->qkv.n, spec->qkv.c);
    device_use(ops->device);
    a->ops = ops;
    a->spec = *spec;
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
        if (a->products[i].workspace > workspace)
            workspace = a->products[i].workspace;
    }
    reserve(&next, workspace);
    a->s_at = reserve(&next, squares * sizeof(float));
    a->dh_at = reserve(&next, squares * sizeof(float));
    a->h_at = reserve(&next, squares * type_size(type));
    a->ds_at = reserve(&next, squares * type_size(type));
    a->matrix_bytes = shape_bytes(spec->qkv) / 3;
    a->at = reserve(&next, MATRICES * a->matrix_bytes);
    ops_need_scratch(ops, next);
    return a;
}

void attention_free(Attention *a)
{
    if (!a)
        return;
    for (int i = 0; i < PRODUCTS; i++)
        gemm_free(&a->products[i]);
    free(a);
}

static void *scratch(const Attention *a, size_t at) { return (char *)a->ops->scratch + at; }
static void *heads(const Attention *a, int which)
{
    return scratch(a, a->at + (size_t)which * a->matrix_bytes);
}

static void multiply(const Attention *a, int product, const void *x, const void *y, void *z)
{
    gemm_run(&a->products[product], a->ops, y, x, z);
}

void attention_forward(Attention *a, const void *qkv, const uint64_t *keys, void *y)
{
    void *h = scratch(a, a->h_at);
    heads_copy(a->ops, &a->spec, 3, true, qkv, heads(a, Q));
    multiply(a, SCORES, heads(a, Q), heads(a, K), scratch(a, a->s_at));
    softmax(a->ops, &a->spec, keys, scratch(a, a->s_at), h, NULL, NULL);
    multiply(a, ROWS, h, heads(a, V), heads(a, DY));
    heads_copy(a->ops, &a->spec, 1, false, heads(a, DY), y);
}

void attention_backward(Attention *a, const void *qkv, const uint64_t *keys, const void *dy,
                        void *dqkv)
{
    void *h = scratch(a, a->h_at), *ds = scratch(a, a->ds_at);
    heads_copy(a->ops, &a->spec, 3, true, qkv, heads(a, Q));
    heads_copy(a->ops, &a->spec, 1, true, dy, heads(a, DY));
    multiply(a, SCORES, heads(a, Q), heads(a, K), scratch(a, a->s_at));
    multiply(a, SCORES, heads(a, DY), heads(a, V), scratch(a, a->dh_at));
    softmax(a->ops, &a->spec, keys, scratch(a, a->s_at), h, scratch(a, a->dh_at), ds);
    multiply(a, ROWS, ds, heads(a, K), heads(a, DQ));
    multiply(a, COLUMNS, ds, heads(a, Q), heads(a, DK));
    multiply(a, COLUMNS, h, heads(a, DY), heads(a, DV));
    heads_copy(a->ops, &a->spec, 3, false, heads(a, DQ), dqkv);
}
