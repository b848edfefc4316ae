// model.h - a network: its layers, and one arena each for parameters, gradients and buffers.
//
// Parameters lie in the arena in the order in which backward finishes their gradients (the last
// layer first), so a range of gradients that is ready is (offset, count), and stays so.
#pragma once
#include "ops.h"

typedef struct ModelConfig {
    const char *arch;       // lenet, convnet, resnet18, resnet50
    int channels, height, width, classes;
    int batch;              // most rows of a batch
    int pass;               // most rows that go through the layers at once; 0: the whole batch
    Type type;              // of images, activations, and the weights that convolutions read
} ModelConfig;
void model_options(Args *args, const char **arch);

typedef enum { MODEL_WEIGHT, MODEL_VECTOR, MODEL_BUFFER, MODEL_COUNTER } ModelKind;

// A named tensor as torchvision knows it.
typedef struct ModelTensor {
    char name[56];          // "layer1.0.conv1.weight"
    ModelKind kind;         // weights and vectors are parameters; a counter is num_batches_tracked
    int ndim;
    int64_t shape[4];       // in torch's layout
    int64_t count;          // product of shape
    size_t offset;          // into the arena of parameters, or of buffers
    int layer;
} ModelTensor;

typedef struct Net Net;

// Gradients [offset, offset + count) of the arena are final.
typedef void (*GradReady)(void *arg, size_t offset, size_t count);

enum { MODEL_SPARE = 16 };

typedef struct Model {
    ModelConfig config;
    Device *device;
    Ops *ops;
    Shape input;            // what forward reads, for a full batch
    float *params;          // masters, what the optimizer changes
    void *weights;          // what convolutions read: the masters themselves, or short copies
    float *grads;           // MODEL_SPARE floats behind them are free for what travels with them
    float *buffers;         // running means and variances
    size_t param_count;     // floats in params and grads, padding of the layouts included
    size_t buffer_count;
    int64_t batches_seen;   // num_batches_tracked: the training loop counts (a replayed step can't)
    float *logits;          // (batch, classes): forward writes them from the first row on
    float *dlogits;         // (batch, classes): backward reads them from the first row on
    ModelTensor *tensors;   // in the order of the layers
    int tensor_count;

    Net *net;               // layers, activations and plans: model.c's own
    int64_t torch_params;   // how many parameters PyTorch counts
} Model;

// Fails, with a clear line, on an unknown name or images that are too small.
Model *model_new(Device *device, Ops *ops, const ModelConfig *config);
void model_free(Model *model);
// As PyTorch initialises each layer (Kaiming's normal for ResNet's convolutions, uniform by fan-in
// elsewhere), from numbers keyed by seed, tensor and element.
void model_init(Model *model, int64_t seed);

// Makes the short copies of the weights anew, on the compute stream. In f32 there are none. For
// whoever has changed the masters: initialised, loaded, received or updated them.
void model_cast_weights(Model *model);
// Of what forward keeps for backward, and of the gradients of that; if they were of this type.
size_t model_activation_bytes(const Model *model, Type type);

// images (rows, ...) as model->input -> logits. training: batch statistics, and the running ones
// move; else the running statistics are used.
void model_forward(Model *model, const void *images, int rows, bool training);
// dlogits -> grads, overwriting them; rows as in the last forward. ready (or NULL) is told each
// range as it becomes final, front to back.
void model_backward(Model *model, GradReady ready, void *arg);

// One tensor between torch's layout and an arena's copy in host memory (of params, grads or
// momentum; of buffers for a MODEL_BUFFER).
void model_export(const Model *model, const ModelTensor *tensor, const float *arena, float *torch);
void model_import(const Model *model, const ModelTensor *tensor, float *arena, const float *torch);

// FNV-1a over the f32 parameters' words, tensor by tensor in name order, in torch's layout. Equal
// hashes mean equal bits, whatever the backend, the number of ranks or the layouts inside.
uint64_t model_hash(const Model *model);
