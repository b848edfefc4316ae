// attention_cpu.c - causal self-attention: oneDNN multiplies, and ops/attention.h has the rest.
//
// Each thread computes one head of one sample at a time, so that its T x T matrices can stay in
// the cache:
//
//   P = softmax(q k^T / sqrt(d))   H = dropout(P)   y = H v
//   dv = H^T dy   dH = dy v^T   dP = dropout'(dH)   dS = P * (dP - sum(P * dP)) / sqrt(d)
//   dq = dS k   dk = dS^T q
//
// Forward does not save P; backward recomputes P. P and dH are f32. H and dS, which are factors
// of products, have the activations' type, or f32 if that type is emulated.
#include "check.h"
#include "cpu/ops_cpu.h"
#include "ops/attention.h"

#include <omp.h>
#include <stdlib.h>

enum { SCORES, VALUES, D_VALUES, D_PROBS, D_QUERIES, D_KEYS, PRODUCTS };

// The products and the memory of one thread.
typedef struct Head {
    DnnPrimitive product[PRODUCTS];
    float *probs, *dprobs;      // (T, stride_of)
    void *factor;               // (T, stride_of): at first H, then dS
    void *scratch;
} Head;

typedef struct Attention {
    Ops *ops;
    OpSpec spec;                // the caller's, but x.type is f32 if the caller's type is emulated
    Type type;                  // the type of the caller's x, y and gradients
    int samples, c, d;          // c: width of a token; d: width of a head (c / heads)
    int threads;
    Head *heads;
    void *memory;
} Attention;

// c = a b. Raises *scratch, in bytes, to what the product needs.
static DnnPrimitive head_product(Ops *ops, DnnMd a, DnnMd b, DnnMd c, size_t *scratch)
{
    dnnl_primitive_attr_t attr = dnn_own_scratch();
    dnnl_primitive_desc_t desc = dnn_product_desc(ops->engine, a, b, NULL, c, attr);
    DnnMd own = dnn_md_copy(dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    size_t bytes = dnnl_memory_desc_get_size(own);
    DnnPrimitive p = dnn_primitive(
        ops->engine, desc, 4,
        (int[]){ DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD },
        (DnnMd[]){ a, b, c, own });
    dnn_md_free(own);
    DNN_CHECK(dnnl_primitive_attr_destroy(attr));
    *scratch = bytes > *scratch ? bytes : *scratch;
    return p;
}

// The row stride of a T x T matrix, in elements: T rounded up to whole packs.
static int stride_of(const Attention *a) { return (int)round_up(a->spec.T, TEAM); }

static void plan_head(Attention *a, Head *head, size_t *scratch)
{
    const int T = a->spec.T, d = a->d, c = a->c;
    const dnnl_data_type_t type = a->spec.x.type == TYPE_F32 ? dnnl_f32 : dnnl_bf16;
    DnnMd in = dnn_matrix(T, d, 3 * c, 1, type), in_turned = dnn_matrix(d, T, 1, 3 * c, type);
    const int stride = stride_of(a);
    DnnMd square = dnn_matrix(T, T, stride, 1, type);
    DnnMd square_turned = dnn_matrix(T, T, 1, stride, type);
    DnnMd out = dnn_matrix(T, d, c, 1, type), sums = dnn_matrix(T, T, stride, 1, dnnl_f32);
    const DnnMd factors[PRODUCTS][3] = {
        [SCORES] = { in, in_turned, sums },      [VALUES] = { square, in, out },
        [D_VALUES] = { square_turned, out, in }, [D_PROBS] = { out, in_turned, sums },
        [D_QUERIES] = { square, in, in },        [D_KEYS] = { square_turned, in, in },
    };
    for (int i = 0; i < PRODUCTS; i++)
        head->product[i] = head_product(a->ops, factors[i][0], factors[i][1], factors[i][2],
                                        scratch);
    DnnMd all[] = { in, in_turned, square, square_turned, out, sums };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dnn_md_free(all[i]);
}

void *attention_new(const Op *op)
{
    Ops *ops = op->ops;
    const OpSpec *spec = &op->spec;
    Attention *a = xcalloc(1, sizeof *a);
    *a = (Attention){ .ops = ops, .spec = *spec, .type = spec->x.type,
                      .samples = spec->x.n / spec->T, .c = spec->x.c / 3,
                      .d = spec->x.c / 3 / spec->heads,
                      .threads = device_threads(ops->device) };
    if (ops_emulates(ops->device, a->type)) {
        a->spec.x.type = TYPE_F32;
        ops_need_wide(ops, 2 * shape_count(spec->x) + (size_t)spec->x.n * a->c);
    }
    size_t scratch = 0, square = round_up((size_t)spec->T * stride_of(a) * sizeof(float), 64);
    a->heads = xcalloc(a->threads, sizeof *a->heads);
    omp_set_num_threads(1);     // each product runs in one thread
    for (int i = 0; i < a->threads; i++)
        plan_head(a, &a->heads[i], &scratch);
    omp_set_num_threads(a->threads);
    size_t each = 3 * square + round_up(scratch, 64);
    char *at = a->memory = device_alloc(ops->device, a->threads * each);
    for (int i = 0; i < a->threads; i++, at += each) {
        a->heads[i].probs = (float *)at;
        a->heads[i].dprobs = (float *)(at + square);
        a->heads[i].factor = at + 2 * square;
        a->heads[i].scratch = at + 3 * square;
    }
    return a;
}

void attention_free(void *own)
{
    Attention *a = own;
    for (int i = 0; i < a->threads; i++)
        for (int k = 0; k < PRODUCTS; k++)
            dnn_primitive_free(&a->heads[i].product[k]);
    device_free(a->ops->device, a->memory);
    free(a->heads);
    free(a);
}

static void multiply(const Attention *a, const Head *head, int product, const void *x,
                     const void *y, void *z)
{
    dnn_run(&head->product[product], a->ops->stream,
            (void *[]){ (void *)x, (void *)y, z, head->scratch });
}

ROWS(softmax, SoftmaxJob)
ROWS(softmax_gradient, SoftmaxJob)

static void *number(const Attention *a, const void *numbers, size_t i)
{
    return (char *)numbers + i * type_size(a->spec.x.type);
}

// head_in: the address of a head in part 0, 1 or 2 (q, k or v) of qkv or dqkv. head_out: in y or
// dy. Heads are counted over all samples.
static void *head_in(const Attention *a, const void *qkv, int head, int part)
{
    size_t n = head / a->spec.heads, h = head % a->spec.heads;
    return number(a, qkv, n * a->spec.T * 3 * a->c + part * a->c + h * a->d);
}

static void *head_out(const Attention *a, const void *y, int head)
{
    size_t n = head / a->spec.heads, h = head % a->spec.heads;
    return number(a, y, n * a->spec.T * a->c + h * a->d);
}

static void head_rows(const Attention *a, ItemsPart *const parts[], const Head *own, int head,
                      const uint64_t *keys)
{
    size_t first = (size_t)head * a->spec.T;
    SoftmaxJob job = softmax_job(&a->spec, keys, first);
    job.stride = stride_of(a);
    job.p = own->probs;
    job.dp = own->dprobs;
    job.h = job.ds = own->factor;
    parts[a->spec.x.type](&job, first, first + a->spec.T);
}

static void head_forward(const Attention *a, const Head *own, const void *qkv, int head,
                         const uint64_t *keys)
{
    multiply(a, own, SCORES, head_in(a, qkv, head, 0), head_in(a, qkv, head, 1), own->probs);
    head_rows(a, softmax_parts[loops_wide()], own, head, keys);
}

static void head_backward(const Attention *a, const Head *own, const void *qkv, const void *dy,
                          int head, const uint64_t *keys, void *dqkv)
{
    const void *q = head_in(a, qkv, head, 0), *k = head_in(a, qkv, head, 1);
    const void *v = head_in(a, qkv, head, 2), *d = head_out(a, dy, head);
    head_forward(a, own, qkv, head, keys);
    multiply(a, own, D_VALUES, own->factor, d, head_in(a, dqkv, head, 2));
    multiply(a, own, D_PROBS, d, v, own->dprobs);
    head_rows(a, softmax_gradient_parts[loops_wide()], own, head, keys);
    multiply(a, own, D_QUERIES, own->factor, k, head_in(a, dqkv, head, 0));
    multiply(a, own, D_KEYS, own->factor, q, head_in(a, dqkv, head, 1));
}

void attention_forward(const Op *op, const OpArgs *args)
{
    const Attention *a = op->own;
    size_t count = shape_count(a->spec.x);
    const bool emulated = a->type != a->spec.x.type;
    float *room = a->ops->wide;
    const void *qkv = ops_widened(a->ops, emulated, a->type, count, args->x, &room);
    void *to = emulated ? room : args->y;
#pragma omp parallel for schedule(static) num_threads(a->threads)
    for (int i = 0; i < a->samples * a->spec.heads; i++) {
        const Head *own = &a->heads[omp_get_thread_num()];
        head_forward(a, own, qkv, i, args->keys);
        multiply(a, own, VALUES, own->factor, head_in(a, qkv, i, 2), head_out(a, to, i));
    }
    if (emulated)
        values_narrow(compute(a->ops), a->type, count / 3, room, 1, args->y);
}

void attention_backward(const Op *op, const OpArgs *args)
{
    const Attention *a = op->own;
    size_t count = shape_count(a->spec.x);
    const bool emulated = a->type != a->spec.x.type;
    float *room = a->ops->wide;
    const void *qkv = ops_widened(a->ops, emulated, a->type, count, args->x, &room);
    const void *dy = ops_widened(a->ops, emulated, a->type, count / 3, args->dy1, &room);
    void *to = emulated ? room : args->dx;
#pragma omp parallel for schedule(static) num_threads(a->threads)
    for (int i = 0; i < a->samples * a->spec.heads; i++)
        head_backward(a, &a->heads[omp_get_thread_num()], qkv, dy, i, args->keys, to);
    if (emulated)
        values_narrow(compute(a->ops), a->type, count, room, 1, args->dx);
}
