// conv_cuda.c - convolutions through cuDNN, except those of ops/linear.c.
//
// The arena has the live weights (ops/op.h) in the order that cuDNN prefers for NHWC images.
//
// With 16-bit types, a convolution reads a 16-bit copy of the live weights. cuDNN has no engine
// that makes f32 gradients from 16-bit tensors. So, as in PyTorch, gradients are rounded to the
// tensors' type, and then widened. y is rounded, too, before a bias is added.
//
// A small convolution leaves most of a large GPU idle, and no layer's backward needs the gradients
// of other layers' weights. So gradients of weights have a stream of their own, until ops_join.
#include "progress.h"
#include "cuda/cuda_internal.h"
#include "cuda/cudnn_graph.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct Conv {
    const ConvPlan *plans[PASS_COUNT];  // shared by layers with the same convolution
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
    ConvPlan plan;
    struct TunedPlan *next;
};

typedef struct Trial {
    const Lane *lane;
    void *x, *w, *y;
} Trial;

enum { TRIAL_RUNS = 5 };

// Records TRIAL_RUNS runs (device.h), as steps usually are recorded. False: the engine fails.
static bool record_plan(const ConvPlan *plan, const Trial *t, void *workspace,
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

// Returns the milliseconds of one run; infinite if the engine fails, or its memory is not there.
static float time_plan(const ConvPlan *plan, void *arg)
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
    (void)cudaGetLastError();   // of an engine that has lost
    CUDA(cudaFree(workspace));
    return ms / TRIAL_RUNS;
}

// The plan for a pass over this problem: from an earlier call, or new. cuDNN only guesses which of
// its engines is the fastest. In a race, its best guesses are timed.
static const ConvPlan *find_plan(Ops *ops, const ConvProblem *p, ConvPass pass, bool race)
{
    struct TunedPlan *tuned;
    for (tuned = ops->plans; tuned; tuned = tuned->next)
        if (tuned->pass == pass && memcmp(&tuned->problem, p, sizeof *p) == 0)
            return &tuned->plan;
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

// There is no race if bits must be the same in every run, because each run may have a different
// winner. There is none for a second batch size either, as memory may be short, or if other
// processes slow down the engines.
static void find_plans(Conv *conv, const Op *op, bool is_first)
{
    Ops *ops = op->ops;
    ConvProblem problem = conv_problem(&op->spec, cudnn_type(op->spec.x.type));
    bool race = !ops->config.deterministic && is_first && !ops->device->takes_turns;
    for (ConvPass pass = 0; pass < PASS_COUNT; pass++) {
        if (pass == PASS_DATA && !op->spec.needs_dx)
            continue;
        Lane *lane = lane_of(ops, pass);
        conv->plans[pass] = find_plan(ops, &problem, pass, race);
        lane_need(lane, &lane->workspace, (size_t)conv->plans[pass]->workspace);
    }
}

void conv_plans_free(Ops *ops)
{
    for (struct TunedPlan *tuned = ops->plans, *next; tuned; tuned = next) {
        next = tuned->next;
        conv_plan_free(&tuned->plan);
        free(tuned);
    }
}

void *conv_new(const Op *op, const void *like)
{
    Conv *conv = xcalloc(1, sizeof *conv);
    const Type type = op->spec.x.type;
    Lane *beside = &op->ops->beside;
    device_use(op->ops->device);
    cuda_check_type(op->ops->device, type);
    PROGRESS_DOING("loading", "cuDNN's engines");    // the first plan loads them
    find_plans(conv, op, !like);
    if (type != TYPE_F32)
        lane_need(beside, &beside->scratch, conv_live_count(op) * type_size(type));
    return conv;
}

void conv_free(void *own) { free(own); }

// --- computing -----------------------------------------------------------------------------------

// A pass gets x, w and y, or gradients in their place, and writes one of the three.
static void run_pass(const Op *op, ConvPass pass, const void *x, const void *w, const void *y)
{
    const Conv *conv = op->own;
    const Lane *lane = lane_of(op->ops, pass);
    device_use(op->ops->device);
    cuda_check_aligned(x, w, y);
    conv_plan_run(conv->plans[pass], lane->cudnn, (void *)x, (void *)w, (void *)y,
                  lane->workspace.memory);
}

void conv_forward(const Op *op, const OpArgs *a)
{
    const Shape *y = &op->y;
    run_pass(op, PASS_FORWARD, a->x, a->w, a->y);
    if (op->spec.bias)
        bias_add(op->ops, y->type, shape_count(*y) / y->c, y->c, a->bias, y->type, a->y, a->y);
}

void conv_backward(const Op *op, const OpArgs *a)
{
    const Shape *y = &op->y;
    const bool rounds = y->type != TYPE_F32;
    void *dw = rounds ? op->ops->beside.scratch.memory : a->dw;
    Stream *beside = ops_fork(op->ops);
    run_pass(op, PASS_WEIGHTS, a->x, dw, a->dy1);
    if (rounds)
        values_widen(op->ops, beside, y->type, conv_live_count(op), dw, a->dw);
    if (op->spec.bias)
        bias_gradient(beside, y->type, shape_count(*y) / y->c, y->c, a->dy1, a->dbias);
    if (a->dx)
        run_pass(op, PASS_DATA, a->dx, a->w, a->dy1);
}
