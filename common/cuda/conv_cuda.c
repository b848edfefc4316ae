// conv_cuda.c - convolutions and linear layers, through cuDNN or as one matrix product.
//
// The arena has the live weights (ops/op.h) in the order that cuDNN prefers for NHWC images.
//
// With 16-bit types, a convolution reads a 16-bit copy of the live weights. Where a library's type
// is not the one ops.h promises, a CUDA kernel converts the data from or to scratch memory.
//
// A small convolution leaves most of a large GPU idle, and no layer's backward needs the gradients
// of other layers' weights. So gradients of weights have their own stream; ops_join waits for it.
#include "progress.h"
#include "cuda/cuda_internal.h"
#include "cuda/cudnn_graph.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct Conv {
    Ops *ops;
    OpSpec spec;
    Shape y;
    size_t live_count;              // the number of live weights
    bool is_product;                // the live taps cover the whole image: y = x w^T
    Gemm products[PASS_COUNT];
    const CudnnPlan *plans[PASS_COUNT]; // if not is_product; shared by layers with equal problems
    Type results[PASS_COUNT];       // the types that the library writes
    size_t aside_at[PASS_COUNT];    // where our part of scratch memory begins, after the library's
} Conv;

static cudnnDataType_t cudnn_type(Type type)
{
    return type == TYPE_F32    ? CUDNN_DATA_FLOAT
           : type == TYPE_BF16 ? CUDNN_DATA_BFLOAT16
                               : CUDNN_DATA_HALF;
}

static Lane *lane_of(Ops *ops, ConvPass pass)
{
    return pass == PASS_WEIGHTS ? &ops->beside : &ops->main;
}

// --- plans ---------------------------------------------------------------------------------------

struct TunedPlan {
    ConvProblem problem;
    ConvPass pass;
    CudnnPlan plan;
    struct TunedPlan *next;
};

typedef struct Trial {
    const Lane *lane;
    void *x, *w, *y;
} Trial;

enum { TRIAL_RUNS = 5 };

// Records TRIAL_RUNS runs in a CUDA graph, since steps usually run in one. False: the engine fails.
static bool record_plan(const CudnnPlan *plan, const Trial *t, void *workspace,
                        cudaGraphExec_t *runs)
{
    cudaStream_t stream = t->lane->stream->handle;
    cudaGraph_t graph = NULL;
    bool works = true;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < TRIAL_RUNS; i++)
        works = works && conv_plan_try(plan, t->lane->cudnn, t->x, t->w, t->y, workspace);
    works = cudaStreamEndCapture(stream, &graph) == cudaSuccess && works;
    works = works && cudaGraphInstantiateWithFlags(runs, graph, 0) == cudaSuccess;
    if (graph)
        CUDA(cudaGraphDestroy(graph));
    return works;
}

// Returns the milliseconds of one run; infinite if the engine fails, or memory for it is missing.
static float time_plan(const CudnnPlan *plan, void *arg)
{
    const Trial *t = arg;
    cudaStream_t stream = t->lane->stream->handle;
    void *workspace = NULL;
    cudaGraphExec_t runs;
    cudaEvent_t begin, end;
    float ms = INFINITY;
    if (cudaMalloc(&workspace, plan->workspace > 0 ? (size_t)plan->workspace : 1) == cudaSuccess &&
        conv_plan_try(plan, t->lane->cudnn, t->x, t->w, t->y, workspace) && // loads its kernels
        record_plan(plan, t, workspace, &runs)) {
        CUDA(cudaEventCreateWithFlags(&begin, cudaEventDefault));
        CUDA(cudaEventCreateWithFlags(&end, cudaEventDefault));
        CUDA(cudaGraphLaunch(runs, stream));                                // warms the caches
        CUDA(cudaEventRecord(begin, stream));
        CUDA(cudaGraphLaunch(runs, stream));
        CUDA(cudaEventRecord(end, stream));
        CUDA(cudaEventSynchronize(end));
        CUDA(cudaEventElapsedTime(&ms, begin, end));
        CUDA(cudaGraphExecDestroy(runs));
        CUDA(cudaEventDestroy(end));
        CUDA(cudaEventDestroy(begin));
    }
    (void)cudaGetLastError();   // clears the error of an engine that failed
    CUDA(cudaFree(workspace));
    return ms / TRIAL_RUNS;
}

static bool is_same(ConvProblem a, ConvProblem b) { return memcmp(&a, &b, sizeof a) == 0; }

// The plan for a pass over this problem: from an earlier call, or new. cuDNN only guesses which of
// its engines is the fastest. In a race, its best guesses are timed.
//
// There is no race if bits must be the same in every run, because each run may have a different
// winner; if other processes slow down the engines; or for a second batch size, because memory may
// be short by then.
static const CudnnPlan *find_plan(Ops *ops, const ConvProblem *p, ConvPass pass)
{
    bool race = !ops->config.deterministic && !ops->device->takes_turns;
    struct TunedPlan *tuned;
    for (tuned = ops->plans; tuned; tuned = tuned->next) {
        ConvProblem other = tuned->problem;
        if (tuned->pass != pass)
            continue;
        if (is_same(other, *p))
            return &tuned->plan;
        other.n = p->n;
        race = race && !is_same(other, *p);
    }
    size_t each = p->dtype == CUDNN_DATA_FLOAT ? sizeof(float) : sizeof(uint16_t);
    Trial trial = { .lane = lane_of(ops, pass) };
    const PlanRules rules = {
        .handle = trial.lane->cudnn,
        .tf32 = ops->config.tf32,
        .deterministic = ops->config.deterministic,
        .time = race ? time_plan : NULL,
        .time_arg = &trial,
    };
    Error err;
    if (race) {
        trial.x = device_alloc(ops->device, each * p->n * p->h * p->w * p->c);
        trial.w = device_alloc(ops->device, each * p->k * p->r * p->s * p->c);
        trial.y = device_alloc(ops->device, each * p->n * p->p * p->q * p->k);
    }
    tuned = xcalloc(1, sizeof *tuned);
    tuned->problem = *p;
    tuned->pass = pass;
    if (!conv_plan_new(&tuned->plan, p, pass, &rules, &err))
        FAIL_ERROR(&err);
    tuned->next = ops->plans;
    ops->plans = tuned;
    device_free(ops->device, trial.x);
    device_free(ops->device, trial.w);
    device_free(ops->device, trial.y);
    return &tuned->plan;
}

// --- making a convolution ------------------------------------------------------------------------

// If each image of x is one row of `features` numbers and matrices are row-major:
//
//   forward  y  (n, k)        = x  (n, features)  times w (k, features) transposed
//   data     dx (n, features) = dy (n, k)         times w (k, features)
//   weights  dw (k, features) = dy (n, k) transposed, times x (n, features)
//
// cuBLAS is column-major and so sees each matrix transposed: swap the factors.
static GemmProblem product_problem(const ConvProblem *c, ConvPass pass)
{
    int n = c->n, k = c->k, features = c->r * c->s * c->c;
    switch (pass) {
    case PASS_FORWARD:          // y' (k, n) = w (k, features) x' (features, n)
        return (GemmProblem){ .m = k, .n = n, .k = features, .transpose_a = true };
    case PASS_DATA:             // dx' (features, n) = w' (features, k) dy' (k, n)
        return (GemmProblem){ .m = features, .n = n, .k = k };
    default:                    // dw' (features, k) = x' (features, n) dy (n, k)
        return (GemmProblem){ .m = features, .n = k, .k = n, .transpose_b = true };
    }
}

// Bytes that a pass stores in scratch memory: y before the bias is added, dy rounded from f32, or
// dw as cuDNN rounds it.
static size_t aside_bytes(const Conv *conv, ConvPass pass)
{
    Type type = conv->spec.x.type, y = conv->y.type, result = conv->results[pass];
    if (pass == PASS_FORWARD)
        return result == y ? 0 : shape_count(conv->y) * type_size(result);
    if (pass == PASS_WEIGHTS && result != TYPE_F32)
        return conv->live_count * type_size(result);
    return type == y ? 0 : shape_count(conv->y) * type_size(type);
}

static void need_scratch(Conv *conv, ConvPass pass, size_t workspace)
{
    conv->aside_at[pass] = round_up(workspace, 256);
    lane_need_scratch(lane_of(conv->ops, pass), conv->aside_at[pass] + aside_bytes(conv, pass));
}

// The type of a product: f32 if a bias is still to be added, or if ops.h wants f32.
static Type product_result(const Conv *conv, ConvPass pass)
{
    if (pass == PASS_DATA)
        return conv->spec.x.type;
    return pass == PASS_WEIGHTS || conv->spec.bias ? TYPE_F32 : conv->y.type;
}

// With --tf32, f32 products use TF32, but not in the last layer (f32_out).
static void make_products(Conv *conv, const ConvProblem *problem)
{
    bool f32 = conv->spec.x.type == TYPE_F32;
    bool tf32 = f32 && conv->ops->config.tf32 && !conv->spec.f32_out;
    for (ConvPass pass = 0; pass < PASS_COUNT; pass++) {
        if (pass == PASS_DATA && !conv->spec.needs_dx)
            continue;
        GemmProblem product = product_problem(problem, pass);
        conv->results[pass] = product_result(conv, pass);
        product.dtype = cuda_type(conv->spec.x.type);
        product.result = cuda_type(conv->results[pass]);
        product.compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
        gemm_new(&conv->products[pass], conv->ops->blas, &product);
        need_scratch(conv, pass, conv->products[pass].workspace);
    }
}

// cuDNN has no engine that makes f32 gradients from 16-bit tensors. So, as in PyTorch, gradients
// are rounded to the tensors' type. y is rounded, too, before a bias is added.
static void find_plans(Conv *conv, const ConvProblem *problem)
{
    for (ConvPass pass = 0; pass < PASS_COUNT; pass++) {
        if (pass == PASS_DATA && !conv->spec.needs_dx)
            continue;
        conv->results[pass] = conv->spec.x.type;
        conv->plans[pass] = find_plan(conv->ops, problem, pass);
        need_scratch(conv, pass, (size_t)conv->plans[pass]->workspace);
    }
}

void conv_plans_free(Ops *ops)
{
    for (struct TunedPlan *tuned = ops->plans, *next; tuned; tuned = next) {
        next = tuned->next;
        cudnn_plan_free(&tuned->plan);
        free(tuned);
    }
}

void *conv_new(const Op *op)
{
    Conv *conv = xcalloc(1, sizeof *conv);
    const OpSpec *spec = &op->spec;
    ConvProblem problem = conv_problem(spec, cudnn_type(spec->x.type));
    CHECK(spec->x.type != TYPE_BF16 || op->ops->device->major >= 8, "--amp fp16 works on this GPU",
          "GPU %d (%s) has no instructions for bf16: they need compute capability 8.0",
          op->ops->device->index, op->ops->device->name);
    device_use(op->ops->device);
    conv->ops = op->ops;
    conv->spec = *spec;
    conv->y = op->y;
    conv->live_count = conv_live_count(op);
    conv->is_product = conv_is_product(&problem);
    PROGRESS_DOING("loading", "cuDNN's engines");    // the first plan loads the engines
    if (conv->is_product)
        make_products(conv, &problem);
    else
        find_plans(conv, &problem);
    return conv;
}

void conv_free(void *own)
{
    Conv *conv = own;
    for (ConvPass pass = 0; pass < PASS_COUNT; pass++)
        gemm_free(&conv->products[pass]);
    free(conv);
}

// --- computing -----------------------------------------------------------------------------------

// A pass gets x, w and y, or gradients in their place, and writes one of the three.
static void run_pass(Conv *conv, ConvPass pass, const void *x, const void *w, const void *y)
{
    const Ops *ops = conv->ops;
    const Lane *lane = lane_of(conv->ops, pass);
    void *px = (void *)x, *pw = (void *)w, *py = (void *)y;
    device_use(ops->device);
    if (!conv->is_product) {
        conv_plan_run(conv->plans[pass], lane->cudnn, px, pw, py, lane->scratch);
    } else if (pass == PASS_FORWARD) {
        gemm_run(&conv->products[pass], ops->blas, lane, pw, px, py);
    } else if (pass == PASS_DATA) {
        gemm_run(&conv->products[pass], ops->blas, lane, pw, py, px);
    } else {
        gemm_run(&conv->products[pass], ops->blas, lane, px, py, pw);
    }
}

static int64_t output_rows(const Conv *conv) { return (int64_t)conv->y.n * conv->y.h * conv->y.w; }

static void *aside(const Conv *conv, ConvPass pass)
{
    return (char *)lane_of(conv->ops, pass)->scratch + conv->aside_at[pass];
}

void conv_forward(const Op *op, const OpArgs *a)
{
    Conv *conv = op->own;
    Type type = conv->y.type, result = conv->results[PASS_FORWARD];
    void *sums = result == type ? a->y : aside(conv, PASS_FORWARD);
    run_pass(conv, PASS_FORWARD, a->x, a->w, sums);
    if (conv->spec.bias)
        bias_add(conv->ops, type, output_rows(conv), conv->y.c, a->bias, result, sums,
                 a->y);
}

// The gradient of y in the type of x: dy, or a rounded copy in scratch memory.
static const void *gradient(const Conv *conv, ConvPass pass, const void *dy)
{
    if (conv->y.type == conv->spec.x.type)
        return dy;
    values_narrow(lane_of(conv->ops, pass)->stream, conv->spec.x.type, shape_count(conv->y), dy, 1,
                  aside(conv, pass));
    return aside(conv, pass);
}

static void backward_weights(Conv *conv, const OpArgs *a)
{
    Type result = conv->results[PASS_WEIGHTS];
    void *sums = result == TYPE_F32 ? a->dw : aside(conv, PASS_WEIGHTS);
    ops_fork(conv->ops);
    run_pass(conv, PASS_WEIGHTS, a->x, sums, gradient(conv, PASS_WEIGHTS, a->dy1));
    if (result != TYPE_F32)
        values_widen(conv->ops->beside.stream, result, conv->live_count, sums, a->dw);
    if (conv->spec.bias)
        bias_gradient(conv->ops->beside.stream, conv->y.type, output_rows(conv), conv->y.c,
                      a->dy1, a->dbias);
}

void conv_backward(const Op *op, const OpArgs *a)
{
    Conv *conv = op->own;
    backward_weights(conv, a);
    if (a->dx)
        run_pass(conv, PASS_DATA, a->dx, a->w, gradient(conv, PASS_DATA, a->dy1));
}
