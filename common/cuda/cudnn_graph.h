// cudnn_graph.h - convolutions and attention through cuDNN's graph API (cuDNN calls it the backend
// API).
//
// cuDNN takes a graph of operations (for a convolution, only one) and offers engines that can run
// the graph, best guess first. An engine that is ready to run on a device is an execution plan. A
// plan can also be made from the description of a device; tests do this without a GPU.
#pragma once
#include "check.h"
#include "ops/op.h"

#include <cudnn.h>

typedef cudnnBackendDescriptor_t Descriptor;

enum { PLAN_PARTS = 128 };

typedef struct CudnnPlan {
    Descriptor plan;
    int64_t workspace;                  // bytes
    unsigned notes;                     // cuDNN's notes, one bit each (CUDNN_NUMERICAL_NOTE_...)
    Descriptor parts[PLAN_PARTS];       // all descriptors of the graph; the plan frees them
    int part_count;
} CudnnPlan;

void cudnn_plan_free(CudnnPlan *plan);

typedef struct PlanRules {
    cudnnHandle_t handle;               // cuDNN's handle on the device that runs the plan, or NULL
    Descriptor profile;                 // describes the device if handle is NULL
    bool tf32, deterministic;           // as in OpsConfig
    float (*time)(const CudnnPlan *plan, void *arg); // ms of a run, INFINITY if it fails; or NULL
    void *time_arg;
} PlanRules;

// --- convolutions --------------------------------------------------------------------------------

// y (n, k, p, q) = x (n, c, h, w) convolved with w (k, c, r, s). All are stored as NHWC; for the
// weights that is KRSC.
typedef struct ConvProblem {
    cudnnDataType_t dtype;              // type of x, w and y; sums are always f32
    int n, c, h, w;
    int k, r, s;
    int p, q;
    int stride;
    int pad[2], pad_after[2];           // pad: above, left (rows, columns); pad_after: below, right
} ConvProblem;

// Returns the convolution of spec, reduced to its live taps; all tensors have one type.
ConvProblem conv_problem(const OpSpec *spec, cudnnDataType_t dtype);
// Does the kernel have only one position, in which it covers the whole image? Then y = x w^T, a
// product of two matrices.
bool conv_is_product(const ConvProblem *problem);

typedef enum { PASS_FORWARD, PASS_DATA, PASS_WEIGHTS, PASS_COUNT } ConvPass;

// Makes a plan from cuDNN's first guess that the rules allow. With rules->time: from the fastest of
// the first few such guesses. False: there is no plan, and err has the reason.
bool conv_plan_new(CudnnPlan *plan, const ConvProblem *problem, ConvPass pass,
                   const PlanRules *rules, Error *err);

// Reads two of x, w and y and writes the third, on handle's stream.
void conv_plan_run(const CudnnPlan *plan, cudnnHandle_t handle, void *x, void *w, void *y,
                   void *workspace);
// Like conv_plan_run, but returns false if the engine fails, as some do on some GPUs.
bool conv_plan_try(const CudnnPlan *plan, cudnnHandle_t handle, void *x, void *w, void *y,
                   void *workspace);

// --- attention: attention_fused.c ----------------------------------------------------------------

// q, k, v, y and their gradients are (samples, heads, T, d), as OP_ATTENTION stores them.
typedef struct FusedProblem {
    cudnnDataType_t dtype;              // 16 bits; sums are f32
    int samples, heads, T, d;
} FusedProblem;

// Makes a plan for one pass. False: cuDNN has no plan.
bool fused_plan_new(CudnnPlan *plan, const FusedProblem *problem, bool backward,
                    const PlanRules *rules);

// --- for code that makes graphs ------------------------------------------------------------------

// Makes a descriptor, which becomes one of the plan's parts.
Descriptor part_new(CudnnPlan *plan, cudnnBackendDescriptorType_t type);
void part_set(Descriptor to, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
              int64_t count, const void *values);
void part_set_ints(Descriptor to, cudnnBackendAttributeName_t name, int64_t count,
                   const int64_t *values);
void part_link(Descriptor to, cudnnBackendAttributeName_t name, Descriptor part);

// A virtual tensor only connects operations, and has no memory. A scalar is in host memory.
typedef enum { TENSOR_VIRTUAL, TENSOR_IN_MEMORY, TENSOR_SCALAR } TensorKind;
Descriptor part_tensor(CudnnPlan *plan, TensorKind kind, int64_t uid, cudnnDataType_t dtype,
                       const int64_t dims[4], const int64_t strides[4]);

// Makes the plan for a graph of these operations, as conv_plan_new does. False: cuDNN has no plan
// for the graph, and what *plan held is freed.
bool graph_plan(CudnnPlan *plan, const Descriptor *operations, int count, cudnnDataType_t dtype,
                const PlanRules *rules);
// Runs the plan, with the memory of each tensor that is not virtual.
cudnnStatus_t graph_run(const CudnnPlan *plan, cudnnHandle_t handle, int count, const int64_t *uids,
                        void *const *pointers, void *workspace);
