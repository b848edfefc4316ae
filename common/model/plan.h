// plan.h - a network for one number of rows, and the memory of its values.
#pragma once
#include "model/net_builder.h"

// An activation, and its gradient: one part from each layer that reads it, at most two.
typedef struct Value {
    size_t count;           // for a full batch
    void *data;             // the images are the caller's: those of the last forward
    void *grad[2];
    uint8_t *index;         // max pooling: where each maximum was
    float *mean, *inv_std;  // normalisation: of this batch or row, kept for backward
} Value;

// The shapes and the libraries' plans for one number of rows.
typedef struct Plan {
    int rows;
    Shape shapes[NET_MAX_VALUES];
    Conv *convs[NET_MAX_LAYERS];
    Norm *norms[NET_MAX_LAYERS];
    Attention *attentions[NET_MAX_LAYERS];
    struct Plan *next;
} Plan;

// The plan for this number of rows, made at its first use.
Plan *plan_for(Model *model, int rows);
void plan_free(Plan *plan);
size_t aligned_bytes(size_t bytes);
// Bytes of value i, and of its gradient, if activations have this type; logits are always f32.
size_t value_bytes(const Net *net, int i, Type type);

// The parts of `layer` that the operations need.
PoolSpec pool_spec(const Layer *layer, Shape x);
AddSpec add_spec(const Model *model, const Plan *plan, const Layer *layer);
OneHotSpec one_hot_spec(const Model *model, const Plan *plan);
NormTensors norm_tensors(const Model *model, const Layer *layer);
const void *weights_of(const Model *model, const Layer *layer);

// Memory that is in use from one step to a later one, both included. Lives that do not overlap may
// share memory. place() puts the largest first, each at the lowest free place; it sorts the lives
// and returns the total bytes.
typedef struct Life {
    int value, part;        // its value; for a gradient, its part
    size_t size, at;        // bytes
    int from, to;
} Life;
size_t place(Life *lives, int count);
