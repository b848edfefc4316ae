// cudnn_graph.h - convolutions through cuDNN's graph API (cuDNN calls it the backend API).
//
// cuDNN takes a graph of operations (here always one) and offers engines that can run it, best
// guess first. An engine that is ready to run on a device is an execution plan. A plan can also be
// made for a described device, which is how plans are tested without a GPU.
#pragma once
#include "check.h"
#include "ops/op.h"

#include <cudnn.h>

// y (n, k, p, q) = x (n, c, h, w) convolved with w (k, c, r, s). All are stored as NHWC; for the
// weights that is KRSC.
typedef struct ConvProblem {
    cudnnDataType_t dtype;              // of x, w and y; sums are always f32
    int n, c, h, w;
    int k, r, s;
    int p, q;
    int stride;
    int pad[2], pad_after[2];           // of rows and columns: above and left, below and right
} ConvProblem;

// The convolution of spec, reduced to its live taps; all tensors of one type.
ConvProblem conv_problem(const OpSpec *spec, cudnnDataType_t dtype);
typedef enum { PASS_FORWARD, PASS_DATA, PASS_WEIGHTS, PASS_COUNT } ConvPass;

typedef struct ConvPlan {
    cudnnBackendDescriptor_t plan;
    int64_t workspace;                  // bytes
    unsigned notes;                     // cuDNN's, one bit each (CUDNN_NUMERICAL_NOTE_...)
    cudnnBackendDescriptor_t parts[12]; // the descriptors live as long as the plan
    int part_count;
} ConvPlan;

typedef struct PlanRules {
    cudnnHandle_t handle;               // of the device that will run the plan; or NULL,
    cudnnBackendDescriptor_t profile;   // and this describes the device
    bool tf32, deterministic;           // as in OpsConfig
    float (*time)(const ConvPlan *plan, void *arg); // returns ms, infinite if it fails; or NULL
    void *time_arg;
} PlanRules;

// Makes a plan from cuDNN's first guess that the rules allow. With rules->time: from the fastest of
// the first such guesses. False: there is no plan, and err has the reason.
bool conv_plan_new(ConvPlan *plan, const ConvProblem *problem, ConvPass pass,
                   const PlanRules *rules, Error *err);
void conv_plan_free(ConvPlan *plan);

// Reads two of x, w and y and writes the third, on handle's stream.
void conv_plan_run(const ConvPlan *plan, cudnnHandle_t handle, void *x, void *w, void *y,
                   void *workspace);
// The same; false if the engine fails, as some do on some GPUs.
bool conv_plan_try(const ConvPlan *plan, cudnnHandle_t handle, void *x, void *w, void *y,
                   void *workspace);
