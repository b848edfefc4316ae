// attention_fused.c - causal self-attention as one kernel for each pass, which cuDNN compiles. No
// (T, T) matrix is stored. Off without DDP_ATTENTION=fused: this code has never run on a GPU.
//
//   forward    S = q k^T / sqrt(d)   P = exp(S - max) / sum   stats = max + log(sum)   y = P v
//   backward   S again   P = exp(S - stats)   dv = P^T dy   dots = sum(dy * y)
//              dS = P * (dy v^T - dots) / sqrt(d)   dk = dS^T q   dq = dS k
//
// max and the sums are over rows; for later tokens, S is -FLT_MAX. The tables below list these
// steps; keep their order, by which cuDNN recognises attention. Forward saves stats for backward.
#include "cuda/cuda_internal.h"
#include "cuda/cudnn_graph.h"
#include "progress.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// --- graphs --------------------------------------------------------------------------------------

// The tensors of both graphs; the numbers are their UIDs in cuDNN. Forward has memory for Q to
// LOWEST, backward for Q to DQ_SUMS. DOTS and DQ_SUMS are scratch memory.
enum { Q = 1, K, V, Y, STATS, SCALE, LOWEST, DY, DQ, DK, DV, DOTS, DQ_SUMS,
       V_TURNED, QK, SCALED, LOG_P, ROW, COLUMN, SEEN, S, MAX, SHIFTED, EXP, SUM, LOG_SUM, P,
       P_ROUNDED, DY_Y, DOT, P_TURNED, DP, DP_LESS, DS_ALL, DS, DS_TURNED, K_ROWS, TENSORS };

// How a tensor (samples, heads, rows, columns) is stored. x has q, k and v.
typedef enum { SQUARE, SQUARE_TURNED, ROWS, DENSE, IN_X, IN_X_TURNED, IN_Y, ONE } Form;

enum { OWN = -1 };              // the data type of x

static const struct Tensor {    // a tensor without an entry: square, f32, virtual
    Form form;
    int dtype;
    TensorKind kind;
} tensors[TENSORS] = {
    [Q] = { IN_X, OWN, TENSOR_IN_MEMORY },
    [K] = { IN_X_TURNED, OWN, TENSOR_IN_MEMORY },
    [V] = { IN_X, OWN, TENSOR_IN_MEMORY },
    [V_TURNED] = { IN_X_TURNED, OWN, TENSOR_IN_MEMORY },
    [Y] = { IN_Y, OWN, TENSOR_IN_MEMORY },
    [STATS] = { ROWS, CUDNN_DATA_FLOAT, TENSOR_IN_MEMORY },
    [SCALE] = { ONE, CUDNN_DATA_FLOAT, TENSOR_SCALAR },
    [LOWEST] = { ONE, CUDNN_DATA_FLOAT, TENSOR_SCALAR },
    [DY] = { IN_Y, OWN, TENSOR_IN_MEMORY },
    [DQ] = { IN_X, OWN, TENSOR_IN_MEMORY },
    [DK] = { IN_X, OWN, TENSOR_IN_MEMORY },
    [DV] = { IN_X, OWN, TENSOR_IN_MEMORY },
    [DOTS] = { ROWS, CUDNN_DATA_FLOAT, TENSOR_IN_MEMORY },
    [DQ_SUMS] = { DENSE, CUDNN_DATA_FLOAT, TENSOR_IN_MEMORY },
    [ROW] = { SQUARE, CUDNN_DATA_INT32 },
    [COLUMN] = { SQUARE, CUDNN_DATA_INT32 },
    [SEEN] = { SQUARE, CUDNN_DATA_BOOLEAN },
    [MAX] = { ROWS }, [SUM] = { ROWS }, [LOG_SUM] = { ROWS }, [DOT] = { ROWS },
    [DY_Y] = { DENSE },
    [P_ROUNDED] = { SQUARE, OWN }, [DS] = { SQUARE, OWN },
    [P_TURNED] = { SQUARE_TURNED, OWN }, [DS_TURNED] = { SQUARE_TURNED, OWN },
    [K_ROWS] = { IN_X, OWN },
};

typedef enum { MATMUL, POINTWISE, REDUCTION, RESHAPE } StepKind;

typedef struct Step {
    StepKind kind;
    int mode;
    int x, b, y;                // y = x MODE b
    int choice;                 // BINARY_SELECT: y = choice ? x : b
    int64_t axis;               // GEN_INDEX: y = each element's index along axis
} Step;

#define OF(mode) POINTWISE, CUDNN_POINTWISE_##mode
#define REDUCE(mode) REDUCTION, CUDNN_REDUCE_TENSOR_##mode
#define WITHOUT_LATER_TOKENS(scores)                                                               \
    { OF(GEN_INDEX), scores, 0, ROW, .axis = 2 }, { OF(GEN_INDEX), scores, 0, COLUMN, .axis = 3 }, \
    { OF(CMP_GE), ROW, COLUMN, SEEN }, { OF(BINARY_SELECT), scores, LOWEST, S, .choice = SEEN }

static const Step forward[] = {
    { MATMUL, 0, Q, K, QK },
    { OF(MUL), QK, SCALE, SCALED },
    WITHOUT_LATER_TOKENS(SCALED),
    { REDUCE(MAX), S, 0, MAX },
    { OF(SUB), S, MAX, SHIFTED },
    { OF(EXP), SHIFTED, 0, EXP },
    { REDUCE(ADD), EXP, 0, SUM },
    { OF(LOG), SUM, 0, LOG_SUM },
    { OF(ADD), MAX, LOG_SUM, STATS },
    { OF(DIV), EXP, SUM, P_ROUNDED },
    { MATMUL, 0, P_ROUNDED, V, Y },
};

static const Step backward[] = {
    { OF(MUL), DY, Y, DY_Y },
    { REDUCE(ADD), DY_Y, 0, DOT },
    { OF(IDENTITY), DOT, 0, DOTS },
    { MATMUL, 0, Q, K, QK },
    { OF(MUL), QK, SCALE, SCALED },
    { OF(SUB), SCALED, STATS, LOG_P },
    WITHOUT_LATER_TOKENS(LOG_P),
    { OF(EXP), S, 0, P },
    { RESHAPE, 0, P, 0, P_TURNED },
    { MATMUL, 0, P_TURNED, DY, DV },
    { MATMUL, 0, DY, V_TURNED, DP },
    { OF(SUB), DP, DOTS, DP_LESS },
    { OF(MUL), DP_LESS, P, DS_ALL },
    { OF(MUL), DS_ALL, SCALE, DS },
    { RESHAPE, 0, DS, 0, DS_TURNED },
    { MATMUL, 0, DS_TURNED, Q, DK },
    { RESHAPE, 0, K, 0, K_ROWS },
    { MATMUL, 0, DS, K_ROWS, DQ_SUMS },
    { OF(IDENTITY), DQ_SUMS, 0, DQ },
};

enum { MOST_STEPS = sizeof backward / sizeof *backward };

typedef struct Graph {
    CudnnPlan *plan;
    const FusedProblem *f;
    Descriptor tensors[TENSORS], steps[MOST_STEPS];
} Graph;

static Descriptor tensor(Graph *g, int id)
{
    const int64_t n = g->f->samples, heads = g->f->heads, T = g->f->T, d = g->f->d, c = heads * d;
    const struct {
        int64_t dims[4], strides[4];
    } forms[] = {
        [SQUARE] = { { n, heads, T, T }, { heads * T * T, T * T, T, 1 } },
        [SQUARE_TURNED] = { { n, heads, T, T }, { heads * T * T, T * T, 1, T } },
        [ROWS] = { { n, heads, T, 1 }, { heads * T, T, 1, 1 } },
        [DENSE] = { { n, heads, T, d }, { T * c, T * d, d, 1 } },
        [IN_X] = { { n, heads, T, d }, { 3 * T * c, d, 3 * c, 1 } },
        [IN_X_TURNED] = { { n, heads, d, T }, { 3 * T * c, d, 1, 3 * c } },
        [IN_Y] = { { n, heads, T, d }, { T * c, d, c, 1 } },
        [ONE] = { { 1, 1, 1, 1 }, { 1, 1, 1, 1 } },
    };
    const struct Tensor *t = &tensors[id];
    cudnnDataType_t dtype = t->dtype == OWN ? g->f->dtype : (cudnnDataType_t)t->dtype;
    if (!g->tensors[id])
        g->tensors[id] = part_tensor(g->plan, t->kind, id == V_TURNED ? V : id, dtype,
                                     forms[t->form].dims, forms[t->form].strides);
    return g->tensors[id];
}

static void add(Graph *g, int index, const Step *s)
{
    static const struct Names {
        cudnnBackendDescriptorType_t type, how;         // how: descriptor of mode and precision
        cudnnBackendAttributeName_t link, x, b, y;      // an operation's attributes; link: to `how`
        cudnnBackendAttributeName_t math, mode;         // attributes of `how`
        cudnnBackendAttributeType_t mode_type;
    } names[] = {
        [MATMUL] = { CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_BACKEND_MATMUL_DESCRIPTOR,
                     CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_ATTR_OPERATION_MATMUL_ADESC,
                     CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_ATTR_OPERATION_MATMUL_CDESC,
                     CUDNN_ATTR_MATMUL_COMP_TYPE },
        [POINTWISE] = { CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                        CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                        CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                        CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                        CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_ATTR_POINTWISE_MATH_PREC,
                        CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE },
        [REDUCTION] = { CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                        CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC,
                        CUDNN_ATTR_OPERATION_REDUCTION_XDESC, 0,
                        CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_ATTR_REDUCTION_COMP_TYPE,
                        CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE },
        [RESHAPE] = { CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                      .x = CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
                      .y = CUDNN_ATTR_OPERATION_RESHAPE_YDESC },
    };
    const struct Names *n = &names[s->kind];
    bool compares = s->mode == CUDNN_POINTWISE_CMP_GE;
    cudnnDataType_t math = compares ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
    Descriptor operation = part_new(g->plan, n->type);
    if (s->kind != RESHAPE) {
        Descriptor how = part_new(g->plan, n->how);
        part_set(how, n->math, CUDNN_TYPE_DATA_TYPE, 1, &math);
        if (s->kind != MATMUL)
            part_set(how, n->mode, n->mode_type, 1, &s->mode);
        if (s->axis > 0)
            part_set_ints(how, CUDNN_ATTR_POINTWISE_AXIS, 1, &s->axis);
        CUDNN(cudnnBackendFinalize(how));
        part_link(operation, n->link, how);
    }
    part_link(operation, n->x, tensor(g, s->x));
    if (s->b)
        part_link(operation, n->b, tensor(g, s->b));
    if (s->choice)
        part_link(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensor(g, s->choice));
    part_link(operation, n->y, tensor(g, s->y));
    CUDNN(cudnnBackendFinalize(operation));
    g->steps[index] = operation;
}

bool fused_plan_new(CudnnPlan *plan, const FusedProblem *f, bool is_backward,
                    const PlanRules *rules)
{
    const Step *steps = is_backward ? backward : forward;
    int count = is_backward ? MOST_STEPS : (int)(sizeof forward / sizeof *forward);
    Graph g = { .plan = plan, .f = f };
    memset(plan, 0, sizeof *plan);
    for (int i = 0; i < count; i++)
        add(&g, i, &steps[i]);
    return graph_plan(plan, g.steps, count, f->dtype, rules);
}

// --- plans of a network --------------------------------------------------------------------------

struct FusedPlans {
    FusedProblem problem;
    CudnnPlan passes[2];        // forward, backward
    bool made;                  // both passes have a plan
    struct FusedPlans *next;
};

struct Fused {
    Ops *ops;
    const struct FusedPlans *plans;
    float *stats;
    size_t dots_at, sums_at;    // where DOTS and DQ_SUMS begin in scratch memory
};

// cuDNN takes about a second to compile a plan, so equal layers share one.
static const struct FusedPlans *find_plans(Ops *ops, const FusedProblem *f)
{
    const PlanRules rules = { .handle = ops->main.cudnn };
    struct FusedPlans *plans = ops->fused;
    while (plans && memcmp(&plans->problem, f, sizeof *f) != 0)
        plans = plans->next;
    if (plans)
        return plans;
    PROGRESS_DOING("compiling", "attention");
    plans = xcalloc(1, sizeof *plans);
    plans->problem = *f;
    plans->made = fused_plan_new(&plans->passes[0], f, false, &rules) &&
                  fused_plan_new(&plans->passes[1], f, true, &rules);
    plans->next = ops->fused;
    ops->fused = plans;
    return plans;
}

void fused_plans_free(Ops *ops)
{
    for (struct FusedPlans *plans = ops->fused, *next; plans; plans = next) {
        next = plans->next;
        cudnn_plan_free(&plans->passes[0]);
        cudnn_plan_free(&plans->passes[1]);
        free(plans);
    }
}

// Why cuDNN's attention is not used, or NULL. cuDNN's backward adds up dq in no fixed order,
// and its dropout cannot use our keys. NVIDIA's cudnn-frontend refuses cuDNN 9.10.0 and 9.10.1,
// and, before 9.15.1, works around windows that are not multiples of 128.
static const char *why_not(const Ops *ops, const OpSpec *s, const FusedProblem *f)
{
    const size_t version = cudnnGetVersion();
    if (s->x.type == TYPE_F32)
        return "its inputs are f32";
    if (s->dropout.rate > 0)
        return "it has dropout";
    if (ops->config.deterministic)
        return "it would not be deterministic";
    if (ops->device->major < 8)
        return "the GPU's compute capability is below 8.0";
    if (f->d % 8 != 0 || f->d > 128)
        return "a head's width is not a multiple of 8 up to 128";
    if (f->T == 1)
        return "a window has only one token";
    if (version == 91000 || version == 91001)
        return "this version of cuDNN has a bug: use 9.10.2 or later";
    if (version <= 91500 && f->T % 128 != 0)
        return "before cuDNN 9.15.1, --block must be a multiple of 128";
    return NULL;
}

// On rank 0, prints whether attention is fused, and if not, the reason: at the first call, and
// after each change.
static void say(Ops *ops, const char *reason)
{
    const char *text = reason ? reason : "";
    if (ops->attention != text && own_rank() == 0)
        printf("[init] == attention: %s%s\n", reason ? "not fused: " : "fused by cuDNN", text);
    ops->attention = text;
}

Fused *fused_new(const Op *op)
{
    const OpSpec *s = &op->spec;
    const char *wanted = getenv("DDP_ATTENTION");
    if (!wanted || strcmp(wanted, "fused") != 0)
        return NULL;
    Ops *ops = op->ops;
    const FusedProblem f = {
        .dtype = s->x.type == TYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
        .samples = s->x.n / s->T, .heads = s->heads, .T = s->T, .d = s->x.c / 3 / s->heads,
    };
    const char *reason = why_not(ops, s, &f);
    const struct FusedPlans *plans = reason ? NULL : find_plans(ops, &f);
    if (plans && !plans->made)
        reason = "cuDNN has no plan for it, or no libnvrtc to compile one";
    say(ops, reason);
    if (reason)
        return NULL;
    Fused *fused = xcalloc(1, sizeof *fused);
    const int64_t forth = plans->passes[0].workspace, back = plans->passes[1].workspace;
    const size_t bytes = (size_t)f.samples * f.heads * f.T * sizeof(float);
    fused->ops = ops;
    fused->plans = plans;
    fused->stats = device_alloc(ops->device, bytes);
    fused->dots_at = round_up((size_t)(forth > back ? forth : back), 256);
    fused->sums_at = fused->dots_at + round_up(bytes, 256);
    lane_need_scratch(&ops->main, fused->sums_at + bytes * f.d);
    return fused;
}

void fused_free(Fused *fused)
{
    device_free(fused->ops->device, fused->stats);
    free(fused);
}

static void run(const Fused *fused, bool is_backward, const OpArgs *a)
{
    const Ops *ops = fused->ops;
    const FusedProblem *f = &fused->plans->problem;
    const size_t part = (size_t)f->heads * f->d * sizeof(uint16_t);
    const int count = is_backward ? DQ_SUMS : LOWEST;
    char *x = (char *)(uintptr_t)a->x, *dx = a->dx, *scratch = ops->main.scratch;
    float scale = 1 / sqrtf((float)f->d), lowest = -FLT_MAX;
    void *const memory[] = {
        [Q] = x, [K] = x + part, [V] = x + 2 * part, [Y] = a->y, [STATS] = fused->stats,
        [SCALE] = &scale, [LOWEST] = &lowest, [DY] = (void *)(uintptr_t)a->dy1,
        [DQ] = dx, [DK] = dx + part, [DV] = dx + 2 * part,
        [DOTS] = scratch + fused->dots_at, [DQ_SUMS] = scratch + fused->sums_at,
    };
    int64_t uids[DQ_SUMS];
    for (int i = 0; i < count; i++)
        uids[i] = Q + i;
    device_use(ops->device);
    CUDNN(graph_run(&fused->plans->passes[is_backward], ops->main.cudnn, count, uids, memory + Q,
                    scratch));
}

void fused_forward(const Fused *fused, const OpArgs *args) { run(fused, false, args); }

void fused_backward(const Fused *fused, const OpArgs *args) { run(fused, true, args); }
