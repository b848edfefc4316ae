// conv_cuda.c - convolution and linear layers: cuDNN, or one matrix product where that is all there
// is.
//
// Weights lie in the arena as cuDNN likes them for NHWC, KRSC: out channel, row, column, in
// channel. A kernel of which only a part ever meets the image (LiveTaps in cudnn_graph.h) lies
// there in two pieces:
//
//   [ live taps (k, live.rows, live.cols, c) ][ dead taps ]
//
// so that the live piece is a smaller convolution with its weights in one place. The dead piece is
// only looked after: its gradient is zero, and the optimizer treats it like any other weight.
#include "cuda/cuda_internal.h"
#include "cuda/cudnn_graph.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct Conv {
    Ops *ops;
    ConvSpec spec;
    Shape y;
    LiveTaps live;
    size_t live_count, dead_count;  // weights
    bool is_product;                // the live kernel covers the whole image: y = x w^T
    Gemm products[PASS_COUNT];
    ConvPlan plans[PASS_COUNT];     // if it is not
};

// --- making it -----------------------------------------------------------------------------------

// With the image of x seen as one row of `features` numbers, and row-major matrices:
//
//   forward  y  (n, k)        = x  (n, features)  times w (k, features) transposed
//   data     dx (n, features) = dy (n, k)         times w (k, features)
//   weights  dw (k, features) = dy (n, k) transposed, times x (n, features)
//
// cuBLAS is column-major, where each of these is its own transpose: so the factors trade places.
static GemmProblem product_problem(const ConvProblem *c, ConvPass pass)
{
    int n = c->n, k = c->k, features = c->r * c->s * c->c;
    switch (pass) {
    case PASS_FORWARD:          // y' (k, n) = w (k, features) x' (features, n)
        return (GemmProblem){ .m = k, .n = n, .k = features, .transpose_a = true,
                              .ld_a = features, .ld_b = features, .ld_d = k };
    case PASS_DATA:             // dx' (features, n) = w' (features, k) dy' (k, n)
        return (GemmProblem){ .m = features, .n = n, .k = k,
                              .ld_a = features, .ld_b = k, .ld_d = features };
    default:                    // dw' (features, k) = x' (features, n) dy (n, k)
        return (GemmProblem){ .m = features, .n = k, .k = n, .transpose_b = true,
                              .ld_a = features, .ld_b = k, .ld_d = features };
    }
}

// PyTorch allows TF32 in convolutions but not in linear layers; here that is a layer with a bias.
static void make_products(Conv *conv, const ConvProblem *problem)
{
    bool tf32 = conv->ops->config.tf32 && !conv->spec.bias;
    for (ConvPass pass = 0; pass < PASS_COUNT; pass++) {
        if (pass == PASS_DATA && !conv->spec.needs_dx)
            continue;
        GemmProblem product = product_problem(problem, pass);
        product.dtype = CUDA_R_32F;
        product.compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
        gemm_new(&conv->products[pass], conv->ops->blas, &product);
        ops_need_scratch(conv->ops, conv->products[pass].workspace);
    }
}

static void make_plans(Conv *conv, const ConvProblem *problem)
{
    const PlanRules rules = {
        .handle = conv->ops->cudnn,
        .tf32 = conv->ops->config.tf32,
        .deterministic = conv->ops->config.deterministic,
        .workspace_limit = CONV_WORKSPACE_LIMIT,
    };
    for (ConvPass pass = 0; pass < PASS_COUNT; pass++) {
        Error err;
        if (pass == PASS_DATA && !conv->spec.needs_dx)
            continue;
        if (!conv_plan_new(&conv->plans[pass], problem, pass, &rules, &err))
            FAIL_ERROR(&err);
        ops_need_scratch(conv->ops, (size_t)conv->plans[pass].workspace);
    }
}

Conv *conv_new(Ops *ops, const ConvSpec *spec, const Conv *like)
{
    Conv *conv = xcalloc(1, sizeof *conv);
    ConvProblem problem = conv_problem(spec, CUDNN_DATA_FLOAT);
    device_use(ops->device);
    ops_check_type(spec->x.type);
    CHECK(problem.r > 0 && problem.s > 0, "", "a %dx%d kernel that meets nothing but padding",
          spec->kernel_h, spec->kernel_w);
    CHECK(spec->x.block == spec->x.c, "", "convolution of an image in blocks of %d of %d channels: "
          "on a GPU images are NHWC", spec->x.block, spec->x.c);
    CHECK(spec->out_channels <= KERNEL_MAX_CHANNELS, "", "convolution to %d channels, at most %d",
          spec->out_channels, KERNEL_MAX_CHANNELS);
    conv->ops = ops;
    conv->spec = *spec;
    conv->y = conv_output_shape(spec);
    conv->live = conv_live_taps(spec);
    conv->live_count = (size_t)problem.k * problem.r * problem.s * problem.c;
    conv->dead_count =
        (size_t)problem.k * spec->kernel_h * spec->kernel_w * problem.c - conv->live_count;
    CHECK(!like || memcmp(&like->live, &conv->live, sizeof conv->live) == 0, "",
          "convolutions of %dx%d and %dx%d pixels cannot share weights", like->spec.x.h,
          like->spec.x.w, spec->x.h, spec->x.w);
    conv->is_product = conv_is_product(&problem);
    if (conv->is_product)
        make_products(conv, &problem);
    else
        make_plans(conv, &problem);
    return conv;
}

void conv_free(Conv *conv)
{
    if (!conv)
        return;
    for (ConvPass pass = 0; pass < PASS_COUNT; pass++) {
        gemm_free(&conv->products[pass]);
        conv_plan_free(&conv->plans[pass]);
    }
    free(conv);
}

Shape conv_output(const Conv *conv) { return conv->y; }

// --- weights -------------------------------------------------------------------------------------

size_t conv_weight_count(const Conv *conv) { return conv->live_count + conv->dead_count; }

// Where in the arena the weights stand, for all of OIHW in that order.
static void arena_order(const Conv *conv, size_t *order)
{
    const ConvSpec *s = &conv->spec;
    LiveTaps live = conv->live;
    size_t dead = conv->live_count, next = 0;
    for (int k = 0; k < s->out_channels; k++)
        for (int c = 0; c < s->x.c; c++)
            for (int row = 0; row < s->kernel_h; row++)
                for (int col = 0; col < s->kernel_w; col++) {
                    int r = row - live.row, q = col - live.col;
                    bool is_live = r >= 0 && r < live.rows && q >= 0 && q < live.cols;
                    size_t at = (((size_t)k * live.rows + r) * live.cols + q) * s->x.c + c;
                    order[next++] = is_live ? at : dead++;
                }
}

void conv_weights_import(const Conv *conv, float *arena, const float *oihw)
{
    size_t count = conv_weight_count(conv), *order = xmalloc(count * sizeof *order);
    arena_order(conv, order);
    for (size_t i = 0; i < count; i++)
        arena[order[i]] = oihw[i];
    free(order);
}

void conv_weights_export(const Conv *conv, float *oihw, const float *arena)
{
    size_t count = conv_weight_count(conv), *order = xmalloc(count * sizeof *order);
    arena_order(conv, order);
    for (size_t i = 0; i < count; i++)
        oihw[i] = arena[order[i]];
    free(order);
}

// Short copies come with the short types.
size_t conv_copy_bytes(const Conv *conv)
{
    (void)conv;
    return 0;
}

void conv_weights_cast(Conv *conv, const float *arena, void *copy)
{
    (void)arena;
    (void)copy;
    ops_check_type(conv->spec.x.type);
}

// --- computing -----------------------------------------------------------------------------------

// Pass by pass, the same three tensors; the pass says which of them is written.
static void run_pass(Conv *conv, ConvPass pass, const void *x, const void *w, const void *y)
{
    Ops *ops = conv->ops;
    CHECK(((uintptr_t)x | (uintptr_t)w | (uintptr_t)y) % 16 == 0, "",
          "a convolution's tensors must be aligned to 16 bytes: x %p, w %p, y %p", x, w, y);
    device_use(ops->device);
    void *px = (void *)(uintptr_t)x, *pw = (void *)(uintptr_t)w, *py = (void *)(uintptr_t)y;
    if (!conv->is_product) {
        void *scratch = ops->scratch ? ops->scratch->memory : NULL;
        CUDNN(conv_plan_run(&conv->plans[pass], ops->cudnn, px, pw, py, scratch));
    } else if (pass == PASS_FORWARD) {
        gemm_run(&conv->products[pass], ops, pw, px, py);
    } else if (pass == PASS_DATA) {
        gemm_run(&conv->products[pass], ops, pw, py, px);
    } else {
        gemm_run(&conv->products[pass], ops, px, py, pw);
    }
}

// The output as a matrix: a row for each pixel, a column for each channel.
static int64_t output_rows(const Conv *conv) { return (int64_t)conv->y.n * conv->y.h * conv->y.w; }

void conv_forward(Conv *conv, const void *x, const void *w, const float *bias, void *y)
{
    run_pass(conv, PASS_FORWARD, x, w, y);
    if (conv->spec.bias)
        CUDA(kernel_bias_add(conv->ops->launch.stream, output_rows(conv), conv->y.c, bias, y));
}

void conv_backward_data(Conv *conv, const void *dy, const void *w, void *dx)
{
    CHECK(conv->spec.needs_dx, "", "a convolution made without needs_dx was asked for dx");
    run_pass(conv, PASS_DATA, dx, w, dy);
}

void conv_backward_weights(Conv *conv, const void *x, const void *dy, float *dw, float *dbias)
{
    run_pass(conv, PASS_WEIGHTS, x, dw, dy);
    if (conv->dead_count > 0)
        fill_zero(&conv->ops->device->compute, dw + conv->live_count,
                  conv->dead_count * sizeof *dw);
    if (conv->spec.bias)
        CUDA(kernel_bias_gradient(&conv->ops->launch, output_rows(conv), conv->y.c, dy, dbias));
}
