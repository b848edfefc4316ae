// plan.h - a network for one number of rows, and where its values lie.
#pragma once
#include "model/net_builder.h"

// An activation, and its gradient: one part from each layer that reads it, at most two.
typedef struct Value {
    size_t count;           // for a full batch
    void *data;             // NULL for the images, which belong to the caller
    void *grad[2];
    uint8_t *index;         // max pooling: where each maximum was
    float *mean, *inv_std;  // normalisation: of this batch, kept for backward
} Value;

// The shapes and the libraries' plans for one number of rows.
typedef struct Plan {
    int rows;
    Shape shapes[NET_MAX_VALUES];
    Conv *convs[NET_MAX_LAYERS];
    Norm *norms[NET_MAX_LAYERS];
    struct Plan *next;
} Plan;

// The plan for so many rows; made when they are first seen.
Plan *plan_for(Model *model, int rows);
void plan_free(Plan *plan);
size_t aligned_bytes(size_t bytes);
// What value i takes, and its gradient, if activations are of this type: logits never are.
size_t value_bytes(const Net *net, int i, Type type);

// What of `layer` the operations want to know.
PoolSpec pool_spec(const Layer *layer, Shape x);
NormTensors norm_tensors(const Model *model, const Layer *layer);
const void *weights_of(const Model *model, const Layer *layer);

// Memory that is in use from one step to another, both included. Those whose lives do not meet may
// lie in the same place: each takes the lowest free one, the largest first. Returns the bytes that
// all take; lives are sorted on the way.
typedef struct Life {
    int value, part;        // whose it is; of a gradient, which of its parts
    size_t size, at;        // bytes
    int from, to;
} Life;
size_t place(Life *lives, int count);
