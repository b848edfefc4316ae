// product_cpu.c - products of matrices on oneDNN. All threads compute one product together. In a
// batch, each thread computes one product at a time, so that the bits do not depend on the number
// of threads.
#include "check.h"
#include "cpu/ops_cpu.h"

#include <omp.h>
#include <stdlib.h>

struct Product {
    Ops *ops;
    ProductSpec spec;
    bool emulates;              // then `run` is in f32
    int copies;                 // of `run`: in a batch, each thread has its own
    DnnPrimitive *run;
    char *scratch;              // in a batch: oneDNN's scratch memory for each copy
    size_t scratch_bytes;       // of a copy
};

static DnnMd matrix(int rows, int columns, bool turned, Type type)
{
    return dnn_md(2, (dnnl_dims_t){ rows, columns }, dnn_type(type), turned ? dnnl_ba : dnnl_ab);
}

static void plan(Product *p, DnnPrimitive *run)
{
    const ProductSpec *s = &p->spec;
    const bool one = s->batch == 0;
    dnnl_engine_t engine = p->ops->engine;
    Type in = p->emulates ? TYPE_F32 : s->in, out = p->emulates ? TYPE_F32 : s->out;
    DnnMd a = matrix(s->m, s->k, s->a_turned, in), b = matrix(s->k, s->n, s->b_turned, in);
    DnnMd c = matrix(s->m, s->n, false, out);
    DnnMd bias = s->bias ? matrix(1, s->n, false, TYPE_F32) : NULL;
    dnnl_primitive_desc_t desc = dnn_product_desc(engine, a, b, bias, c, !one);
    DnnMd scratch = dnn_md_copy(dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    int arguments[] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                        one ? DNNL_ARG_BIAS : DNNL_ARG_SCRATCHPAD };
    p->scratch_bytes = round_up(dnnl_memory_desc_get_size(scratch), 64);
    *run = dnn_primitive(engine, desc, one && !bias ? 3 : 4, arguments,
                         (DnnMd[]){ a, b, c, one ? bias : scratch });
    DnnMd all[] = { a, b, c, bias, scratch };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dnn_md_free(all[i]);
}

static size_t count_of(const ProductSpec *s, int rows, int columns)
{
    return (size_t)(s->batch > 0 ? s->batch : 1) * rows * columns;
}

Product *product_new(Ops *ops, const ProductSpec *s)
{
    const int threads = device_threads(ops->device);
    Product *p = xcalloc(1, sizeof *p);
    p->ops = ops;
    p->spec = *s;
    p->emulates = ops_emulates(ops->device, s->in);
    if (p->emulates)
        ops_need_wide(ops, count_of(s, s->m, s->k) + count_of(s, s->k, s->n)
                               + count_of(s, s->m, s->n));
    p->copies = s->batch > 0 ? threads : 1;
    p->run = xcalloc(p->copies, sizeof *p->run);
    omp_set_num_threads(s->batch > 0 ? 1 : threads);
    for (int i = 0; i < p->copies; i++)
        plan(p, &p->run[i]);
    omp_set_num_threads(threads);
    if (s->batch > 0)
        p->scratch = device_alloc(ops->device, p->copies * p->scratch_bytes);
    return p;
}

void product_free(Product *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->copies; i++)
        dnn_primitive_free(&p->run[i]);
    device_free(p->ops->device, p->scratch);
    free(p->run);
    free(p);
}

static void run_batch(const Product *p, const char *a, const char *b, char *c)
{
    const ProductSpec *s = &p->spec;
    const size_t in = type_size(p->emulates ? TYPE_F32 : s->in);
    const size_t out = type_size(p->emulates ? TYPE_F32 : s->out);
    const size_t a_bytes = (size_t)s->m * s->k * in, b_bytes = (size_t)s->k * s->n * in;
    const size_t c_bytes = (size_t)s->m * s->n * out;
#pragma omp parallel for schedule(static) num_threads(p->copies)
    for (int i = 0; i < s->batch; i++) {
        int copy = omp_get_thread_num();
        dnn_run(&p->run[copy], p->ops->stream,
                (void *[]){ (void *)(a + i * a_bytes), (void *)(b + i * b_bytes), c + i * c_bytes,
                            p->scratch + copy * p->scratch_bytes });
    }
}

void product_run(const Product *p, const void *a, const void *b, const float *bias, void *c)
{
    const ProductSpec *s = &p->spec;
    const bool narrows = p->emulates && s->out != TYPE_F32;
    float *room = p->ops->wide.memory;
    a = ops_widened(p->ops, p->emulates, s->in, count_of(s, s->m, s->k), a, &room);
    b = ops_widened(p->ops, p->emulates, s->in, count_of(s, s->k, s->n), b, &room);
    void *sums = narrows ? room : c;
    if (s->batch > 0)
        run_batch(p, a, b, sums);
    else
        dnn_run(p->run, p->ops->stream, (void *[]){ (void *)a, (void *)b, sums, (void *)bias });
    if (narrows)
        values_narrow(p->ops, compute(p->ops), s->out, count_of(s, s->m, s->n), sums, 1, c);
}
