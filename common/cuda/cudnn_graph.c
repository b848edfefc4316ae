// cudnn_graph.c - convolutions through cuDNN's graph API.
//
// The objects of this API are descriptors. A descriptor is created, receives its attributes one at
// a time, is finalized, and is then used, often by other descriptors:
//
//   tensors x, w, y  <-  operation  <-  graph  <-  heuristic  ->  engine configurations
//   convolution      <-'                           (best first)           |
//                                                                      plan
#include "cuda/cudnn_graph.h"
#include "cuda/cuda_internal.h"

#include <math.h>
#include <string.h>

#if CUDNN_VERSION < 90800
#error "cuDNN 9.8 or newer is needed: older versions cannot plan for a described device"
#endif

typedef cudnnBackendDescriptor_t Descriptor;

enum { MAX_ENGINES = 64, MAX_RACERS = 16 };
enum { WORKSPACE_LIMIT = 1 << 30 };     // bytes of scratch memory
enum { UID_X = 'x', UID_W = 'w', UID_Y = 'y' };

// --- geometry ------------------------------------------------------------------------------------

Shape conv_output_shape(const OpSpec *spec)
{
    int h = window_count(spec->x.h, spec->kernel_h, spec->stride, spec->pad);
    int w = window_count(spec->x.w, spec->kernel_w, spec->stride, spec->pad);
    return (Shape){ spec->x.n, spec->out_channels, h, w, spec->out_channels,
                    spec->f32_out ? TYPE_F32 : spec->x.type };
}

// At output o, a tap reads input o * stride - pad + tap. It is dead if it reads above the image
// even at the last output, or below the image even at the first. The live taps are [first, end):
//   first = max(0, pad - (outputs - 1) * stride)      end = min(kernel, size + pad)
static void live_range(int size, int outputs, int kernel, int stride, int pad, int *first,
                       int *count)
{
    int lift = (outputs - 1) * stride, end = kernel < size + pad ? kernel : size + pad;
    *first = pad > lift ? pad - lift : 0;
    *count = end - *first;
}

LiveTaps conv_live_taps(const OpSpec *spec)
{
    Shape y = conv_output_shape(spec);
    LiveTaps live;
    live_range(spec->x.h, y.h, spec->kernel_h, spec->stride, spec->pad, &live.row, &live.rows);
    live_range(spec->x.w, y.w, spec->kernel_w, spec->stride, spec->pad, &live.col, &live.cols);
    return live;
}

// The padding after the image: the same as before it if that gives as many outputs, because this is
// the usual case; else as much as the last output needs.
static int padding_after(int size, int outputs, int kernel, int stride, int pad)
{
    if (window_count(size, kernel, stride, pad) == outputs)
        return pad;
    int needed = (outputs - 1) * stride + kernel - size - pad;
    return needed > 0 ? needed : 0;
}

ConvProblem conv_problem(const OpSpec *spec, cudnnDataType_t dtype)
{
    Shape x = spec->x, y = conv_output_shape(spec);
    LiveTaps live = conv_live_taps(spec);
    int pad_h = spec->pad - live.row, pad_w = spec->pad - live.col;
    return (ConvProblem){
        .dtype = dtype,
        .n = x.n, .c = x.c, .h = x.h, .w = x.w,
        .k = y.c, .r = live.rows, .s = live.cols,
        .p = y.h, .q = y.w,
        .stride = spec->stride,
        .pad = { pad_h, pad_w },
        .pad_after = { padding_after(x.h, y.h, live.rows, spec->stride, pad_h),
                       padding_after(x.w, y.w, live.cols, spec->stride, pad_w) },
    };
}

bool conv_is_product(const ConvProblem *problem)
{
    return problem->p == 1 && problem->q == 1 && problem->r == problem->h &&
           problem->s == problem->w;
}

// --- descriptors ---------------------------------------------------------------------------------

// A new descriptor, one of the plan's parts.
static Descriptor make(ConvPlan *plan, cudnnBackendDescriptorType_t type)
{
    const int most = sizeof plan->parts / sizeof *plan->parts;
    CHECK(plan->part_count < most, "", "a cuDNN plan has more than %d parts", most);
    CUDNN(cudnnBackendCreateDescriptor(type, &plan->parts[plan->part_count]));
    return plan->parts[plan->part_count++];
}

static void set(Descriptor to, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values)
{
    CUDNN(cudnnBackendSetAttribute(to, name, type, count, values));
}

static void set_ints(Descriptor to, cudnnBackendAttributeName_t name, int64_t count,
                     const int64_t *values)
{
    set(to, name, CUDNN_TYPE_INT64, count, values);
}

static void set_part(Descriptor to, cudnnBackendAttributeName_t name, Descriptor part)
{
    set(to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

// Writes at most `most` values, and returns how many there are.
static int64_t get(Descriptor from, cudnnBackendAttributeName_t name,
                   cudnnBackendAttributeType_t type, int64_t most, void *values)
{
    int64_t count = 0;
    CUDNN(cudnnBackendGetAttribute(from, name, type, most, &count, values));
    return count;
}

// A tensor with cuDNN's dimensions (n, c, h, w), stored as NHWC.
static Descriptor make_tensor(ConvPlan *plan, int64_t uid, cudnnDataType_t dtype, int n, int c,
                              int h, int w)
{
    int64_t dims[4] = { n, c, h, w };
    int64_t strides[4] = { (int64_t)h * w * c, 1, (int64_t)w * c, c };
    int64_t alignment = 16;     // bytes, for vector loads and tensor cores
    Descriptor tensor = make(plan, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_ints(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, 1, &uid);
    set(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &dtype);
    set_ints(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, 4, dims);
    set_ints(tensor, CUDNN_ATTR_TENSOR_STRIDES, 4, strides);
    set_ints(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1, &alignment);
    CUDNN(cudnnBackendFinalize(tensor));
    return tensor;
}

static Descriptor make_convolution(ConvPlan *plan, const ConvProblem *problem)
{
    int64_t dims = 2, dilations[2] = { 1, 1 };
    int64_t strides[2] = { problem->stride, problem->stride };
    int64_t before[2] = { problem->pad[0], problem->pad[1] };
    int64_t after[2] = { problem->pad_after[0], problem->pad_after[1] };
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    Descriptor conv = make(plan, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set_ints(conv, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 1, &dims);
    set(conv, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    set(conv, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set_ints(conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 2, strides);
    set_ints(conv, CUDNN_ATTR_CONVOLUTION_DILATIONS, 2, dilations);
    set_ints(conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 2, before);
    set_ints(conv, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 2, after);
    CUDNN(cudnnBackendFinalize(conv));
    return conv;
}

// cuDNN has one operation per pass; only the names of the attributes differ.
static const struct OperationNames {
    cudnnBackendDescriptorType_t type;
    const char *text;
    cudnnBackendAttributeName_t conv, x, w, y, alpha, beta;
} operation_names[PASS_COUNT] = {
    [PASS_FORWARD] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                       "the convolution",
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA },
    [PASS_DATA] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                    "the convolution's data gradient",
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA },
    [PASS_WEIGHTS] = { CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                       "the convolution's weight gradient",
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA },
};

static Descriptor make_graph(ConvPlan *plan, const ConvProblem *c, ConvPass pass,
                             const PlanRules *rules)
{
    const struct OperationNames *names = &operation_names[pass];
    float alpha = 1, beta = 0;  // result = alpha * new + beta * old
    Descriptor conv = make_convolution(plan, c);
    Descriptor x = make_tensor(plan, UID_X, c->dtype, c->n, c->c, c->h, c->w);
    Descriptor w = make_tensor(plan, UID_W, c->dtype, c->k, c->c, c->r, c->s);
    Descriptor y = make_tensor(plan, UID_Y, c->dtype, c->n, c->k, c->p, c->q);
    Descriptor operation = make(plan, names->type);
    set_part(operation, names->conv, conv);
    set_part(operation, names->x, x);
    set_part(operation, names->w, w);
    set_part(operation, names->y, y);
    set(operation, names->alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    set(operation, names->beta, CUDNN_TYPE_FLOAT, 1, &beta);
    CUDNN(cudnnBackendFinalize(operation));

    Descriptor graph = make(plan, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set_part(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
    if (rules->handle)
        set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &rules->handle);
    CUDNN(cudnnBackendFinalize(graph));
    return graph;
}

// --- choosing a plan -----------------------------------------------------------------------------

static unsigned engine_notes(ConvPlan *plan, Descriptor configuration)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    unsigned all = 0;
    Descriptor engine = make(plan, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    get(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    int64_t count = get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                        CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
    for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        all |= 1u << notes[i];
    return all;
}

// With f32 tensors, an engine that uses tensor cores rounds its inputs to TF32: allowed only with
// --tf32 1. Never allowed: with f32 tensors, engines that may "convert inputs down" to 16 bits;
// with 16-bit tensors, engines that may keep partial sums in 16 bits ("reduced precision
// reduction").
static bool notes_allowed(unsigned notes, cudnnDataType_t dtype, const PlanRules *rules)
{
    const unsigned converts = 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    const unsigned tensor_core = 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    const unsigned random = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    const unsigned short_sums = 1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
    unsigned refused = rules->deterministic ? random : 0;
    if (dtype != CUDNN_DATA_FLOAT)
        refused |= short_sums;
    else
        refused |= rules->tf32 ? converts : converts | tensor_core;
    return (notes & refused) == 0;
}

static void keep_parts(ConvPlan *plan, int first)
{
    while (plan->part_count > first)
        cudnnBackendDestroyDescriptor(plan->parts[--plan->part_count]);
}

// Makes a plan from one engine configuration. False (and what it made is freed) if that fails, the
// rules refuse the engine, or the plan needs more scratch memory than WORKSPACE_LIMIT.
static bool try_configuration(ConvPlan *plan, Descriptor configuration, cudnnDataType_t dtype,
                              const PlanRules *rules)
{
    int begin = plan->part_count;
    plan->notes = engine_notes(plan, configuration);
    if (notes_allowed(plan->notes, dtype, rules)) {
        plan->plan = make(plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        set_part(plan->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
        if (rules->handle)
            set(plan->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &rules->handle);
        else
            set_part(plan->plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, rules->profile);
        if (cudnnBackendFinalize(plan->plan) == CUDNN_STATUS_SUCCESS) {
            get(plan->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                &plan->workspace);
            if (plan->workspace <= WORKSPACE_LIMIT)
                return true;
        }
    }
    keep_parts(plan, begin);
    return false;
}

// Asks one of cuDNN's heuristics for engines. Of the first few that the rules allow it takes the
// fastest, or without rules->time simply the first. False: there is none.
static bool try_heuristic(ConvPlan *plan, Descriptor graph, cudnnBackendHeurMode_t mode,
                          cudnnDataType_t dtype, const PlanRules *rules)
{
    Descriptor offers[MAX_ENGINES];
    int64_t offered = 0;
    int made = 0, most = rules->time ? MAX_RACERS : 1;
    float best = INFINITY;
    Descriptor heuristic = make(plan, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_part(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!rules->handle)
        set_part(heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, rules->profile);
    for (int i = 0; i < MAX_ENGINES; i++)
        CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &offers[i]));
    if (cudnnBackendFinalize(heuristic) != CUDNN_STATUS_SUCCESS ||
        cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_ENGINES, &offered,
                                 offers) != CUDNN_STATUS_SUCCESS)
        offered = 0;
    const int shared = plan->part_count;
    for (int i = 0; i < MAX_ENGINES; i++) {
        ConvPlan next = *plan;
        next.part_count = shared;
        if (i >= offered || made == most || !try_configuration(&next, offers[i], dtype, rules)) {
            cudnnBackendDestroyDescriptor(offers[i]);
            continue;
        }
        made++;
        next.parts[next.part_count++] = offers[i];
        float time = rules->time ? rules->time(&next, rules->time_arg) : 0;
        keep_parts(time < best ? plan : &next, shared);
        if (time < best) {
            *plan = next;
            best = time;
        }
    }
    return made > 0;
}

bool conv_plan_new(ConvPlan *plan, const ConvProblem *problem, ConvPass pass,
                   const PlanRules *rules, Error *err)
{
    memset(plan, 0, sizeof *plan);
    Descriptor graph = make_graph(plan, problem, pass, rules);
    if (try_heuristic(plan, graph, CUDNN_HEUR_MODE_A, problem->dtype, rules) ||
        try_heuristic(plan, graph, CUDNN_HEUR_MODE_FALLBACK, problem->dtype, rules))
        return true;
    conv_plan_free(plan);
    bool more_with_tf32 = problem->dtype == CUDNN_DATA_FLOAT && !rules->tf32;
    return error_set(err, more_with_tf32 ? "try --tf32 1" : "",
                     "cuDNN has no engine for %s of x (%d, %d, %d, %d), w (%d, %d, %d, %d), "
                     "stride %d%s", operation_names[pass].text, problem->n, problem->c, problem->h,
                     problem->w, problem->k, problem->c, problem->r, problem->s, problem->stride,
                     rules->deterministic ? ", with --deterministic" : "");
}

void conv_plan_free(ConvPlan *plan)
{
    keep_parts(plan, 0);
    memset(plan, 0, sizeof *plan);
}

// --- running a plan ------------------------------------------------------------------------------

void conv_plan_run(const ConvPlan *plan, cudnnHandle_t handle, void *x, void *w, void *y,
                   void *workspace)
{
    const int64_t uids[3] = { UID_X, UID_W, UID_Y };
    void *const pointers[3] = { x, w, y };
    Descriptor pack;
    CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    set_ints(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, 3, uids);
    set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers);
    set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    CUDNN(cudnnBackendFinalize(pack));
    CUDNN(cudnnBackendExecute(handle, plan->plan, pack));
    CUDNN(cudnnBackendDestroyDescriptor(pack));
}
