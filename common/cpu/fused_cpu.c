// fused_cpu.c - convolutions for inference: normalisation, addition and ReLU are part of them.
//
// Three ways, by what the convolution is: in f32 Winograd's (winograd.c), else a product with one
// matrix (dense_cpu.c says when), else oneDNN's convolution. All read weights of their own, in the
// order that suits them. What is emulated goes the long way: convolution, rounding, normalisation.
#include "check.h"
#include "cpu/dense_cpu.h"
#include "cpu/winograd.h"

#include <math.h>
#include <stdlib.h>

struct Fused {
    Ops *ops;
    FusedSpec spec;
    const ConvSpec *conv;
    Shape y;
    bool is_emulated;           // and what follows is empty
    bool is_dense;
    bool relu_behind;           // ReLU is an operation of its own
    Winograd *winograd;         // not NULL: and what follows is empty
    DnnMd w;                    // order of the weights that `run` reads
    DnnPrimitive run;
    DnnPrimitive import;        // torch's OIHW, or the dense matrix -> w
};

// --- making it -----------------------------------------------------------------------------------

static dnnl_data_type_t type_of(Type type) { return type == TYPE_F32 ? dnnl_f32 : dnnl_bf16; }

// Takes desc and the descriptors over; given: the weights as fused_fold has them.
static void plan(Fused *f, dnnl_primitive_desc_t desc, DnnMd x, DnnMd bias, DnnMd y, DnnMd given)
{
    int arguments[] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST };
    f->w = dnn_md_copy(dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0));
    f->run = dnn_primitive(f->ops->engine, desc, 4, arguments, (DnnMd[]){ x, f->w, bias, y });
    f->import = dnn_reorder(f->ops->engine, given, f->w);
    DnnMd all[] = { x, bias, y, given };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dnn_md_free(all[i]);
}

static void plan_conv(Fused *f, const Fused *like, DnnAfter after)
{
    const ConvSpec *s = f->conv;
    const dnnl_dims_t dims = { s->out_channels, s->x.c, s->kernel_h, s->kernel_w };
    DnnMd any = dnn_md(4, dims, type_of(s->x.type), dnnl_format_tag_any);
    DnnConv d = { .x = activation_md(s->x),
                  .w = like ? like->w : any,
                  .bias = dnn_md(1, (dnnl_dims_t){ s->out_channels }, dnnl_f32, dnnl_a),
                  .y = activation_md(f->y),
                  .strides = { s->stride, s->stride },
                  .pad = { s->pad, s->pad } };
    plan(f, dnn_inference_desc(f->ops->engine, &d, after), d.x, d.bias, d.y,
         dnn_md(4, dims, dnnl_f32, dnnl_oihw));
    dnn_md_free(any);
}

static void plan_product(Fused *f, const Fused *like, DnnAfter after)
{
    const ConvSpec *s = f->conv;
    int n = s->x.n, in = s->x.c * s->x.h * s->x.w, out = f->y.c * f->y.h * f->y.w;
    DnnMd any = dnn_md(2, (dnnl_dims_t){ in, out }, type_of(s->x.type), dnnl_format_tag_any);
    DnnMd x = dnn_md(2, (dnnl_dims_t){ n, in }, type_of(s->x.type), dnnl_ab);
    DnnMd bias = dnn_md(2, (dnnl_dims_t){ 1, out }, dnnl_f32, dnnl_ab);
    DnnMd y = dnn_md(2, (dnnl_dims_t){ n, out }, type_of(f->y.type), dnnl_ab);
    plan(f, dnn_biased_product_desc(f->ops->engine, x, like ? like->w : any, bias, y, after), x,
         bias, y, dnn_md(2, (dnnl_dims_t){ in, out }, dnnl_f32, dnnl_ba));
    dnn_md_free(any);
}

Fused *fused_new(Ops *ops, const FusedSpec *spec, const Fused *like)
{
    Fused *f = xcalloc(1, sizeof *f);
    DnnAfter after = { spec->add, spec->relu };
    CHECK(spec->norm || !spec->add, "", "without a normalisation, nothing is added");
    f->ops = ops;
    f->spec = *spec;
    f->conv = conv_spec(spec->conv);
    f->y = conv_output(spec->conv);
    f->is_emulated = ops_emulates(ops->device, f->conv->x.type);
    if (f->is_emulated)
        return f;
    if (winograd_fits(ops, f->conv, f->y)) {
        f->winograd = winograd_new(ops, f->conv, f->y, spec->relu);
    } else if (dense_fits(f->conv, f->y)) {
        f->is_dense = true;
        plan_product(f, like, after);
    } else {
        // behind images that are not in blocks oneDNN takes long over its own
        f->relu_behind = spec->relu && f->y.block == 1;
        after.relu = spec->relu && !f->relu_behind;
        plan_conv(f, like, after);
    }
    return f;
}

void fused_free(Fused *f)
{
    if (!f)
        return;
    winograd_free(f->winograd);
    dnn_primitive_free(&f->run);
    dnn_primitive_free(&f->import);
    dnn_md_free(f->w);
    free(f);
}

bool fused_in_place(const Fused *f) { return !f->is_emulated; }

// --- folding -------------------------------------------------------------------------------------

// In `folded`, behind the weights: a number for each channel, or for each column of the product.
static size_t bias_at(const Fused *f)
{
    size_t bytes = f->winograd ? winograd_bytes(f->winograd) : dnnl_memory_desc_get_size(f->w);
    return (bytes + 63) / 64 * 64;
}

static float *bias_of(const Fused *f, const FusedTensors *t)
{
    return (float *)((char *)t->folded + bias_at(f));
}

size_t fused_bytes(const Fused *f)
{
    if (f->is_emulated)
        return 0;
    size_t pixels = f->is_dense ? (size_t)f->y.h * f->y.w : 1;
    return bias_at(f) + (size_t)f->y.c * pixels * sizeof(float);
}

// Multiplies the weights of each output channel by its factor, and fills `bias`. Returns false if
// not all of them are finite.
static bool fold_channels(const Fused *f, const FusedTensors *t, float *oihw, float *bias)
{
    size_t each = (size_t)f->conv->x.c * f->conv->kernel_h * f->conv->kernel_w;
    const NormTensors *n = &t->norm;
    bool finite = true;
#pragma omp parallel for schedule(static) reduction(&& : finite)
    for (int c = 0; c < f->y.c; c++) {
        double factor = f->spec.norm ? n->gamma[c] / sqrt(n->running_var[c] + 1e-5) : 1, sum = 0;
        bias[c] = f->conv->bias ? t->bias[c] : 0;
        if (f->spec.norm)
            bias[c] = (float)(n->beta[c] + ((double)bias[c] - n->running_mean[c]) * factor);
        for (size_t i = 0; i < each; i++) {
            oihw[c * each + i] = (float)(oihw[c * each + i] * factor);
            sum += fabsf(oihw[c * each + i]);
        }
        finite = finite && isfinite(sum) && isfinite(bias[c]);
    }
    return finite;
}

static void import(const Fused *f, const float *oihw, void *w)
{
    const float *from = oihw;
    float *matrix = NULL;
    if (f->is_dense) {
        matrix = xmalloc(dense_matrix_count(f->conv, f->y) * sizeof *matrix);
        dense_matrix(f->conv, f->y, oihw, matrix);
        from = matrix;
    }
    dnn_run(&f->import, f->ops->stream, (void *[]){ (void *)from, w });
    free(matrix);
}

bool fused_fold(Fused *f, const FusedTensors *t)
{
    if (f->is_emulated)
        return true;
    size_t each = (size_t)f->conv->x.c * f->conv->kernel_h * f->conv->kernel_w;
    float *oihw = xmalloc((size_t)f->y.c * each * sizeof *oihw);
    float *bias = xmalloc((size_t)f->y.c * sizeof *bias);
    conv_weights_export(f->spec.conv, oihw, t->params);
    bool finite = fold_channels(f, t, oihw, bias);
    if (f->winograd)
        winograd_import(f->winograd, oihw, t->folded);
    else
        import(f, oihw, t->folded);
    Shape channels = f->y;
    if (!f->is_dense)
        channels.h = channels.w = 1;
    dense_row(channels, bias, bias_of(f, t));
    free(bias);
    free(oihw);
    return finite;
}

// --- running -------------------------------------------------------------------------------------

static void emulate(const Fused *f, const FusedTensors *t, const void *x, const void *residual,
                    void *y)
{
    conv_forward(f->spec.conv, x, t->w, t->bias, y);
    if (f->spec.norm)
        norm_forward(f->spec.norm, &t->norm, y, residual, y, false);
    else if (f->spec.relu)
        relu_forward(f->ops, f->y, y, y);
}

void fused_forward(Fused *f, const FusedTensors *t, const void *x, const void *residual, void *y)
{
    if (f->is_emulated)
        emulate(f, t, x, residual, y);
    else if (f->winograd)
        winograd_forward(f->winograd, x, t->folded, bias_of(f, t), residual, y);
    else
        dnn_run(&f->run, f->ops->stream,
                (void *[]){ (void *)x, t->folded, bias_of(f, t), y });
    if (f->relu_behind)
        relu_forward(f->ops, f->y, y, y);
}
