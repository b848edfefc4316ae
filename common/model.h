// model.h - a network: its layers, and one arena each for parameters, gradients and buffers.
//
// Parameters are in the arena in the order in which backward finishes their gradients: last layer
// first. So the gradients that are ready always form one range, (offset, count). Weights that only
// ever multiply padding come after all others. Their gradients are zero, and are not stored. At
// 32x32 pixels, 62 % of ResNet-18's weights are of this kind.
#pragma once
#include "ops.h"

typedef struct GptConfig {
    int layers, heads, width;
    double dropout;
} GptConfig;

typedef struct ModelConfig {
    const char *arch;       // lenet, convnet, resnet18, resnet50, gpt
    int channels, height, width, classes;
    int batch;              // maximum number of rows in a batch
    int pass;               // maximum number of rows in one forward pass; 0: the whole batch
    Type type;              // type of images, activations (but logits are f32), convolution weights
    int per_row;            // tokens of a sample; 0 or 1: samples are images
    GptConfig gpt;
    const char *vocabulary; // for a text: Data's vocabulary (data.h)
} ModelConfig;
// Sets the defaults and adds the options.
void model_options(Args *args, const char **arch, GptConfig *gpt);

typedef enum { MODEL_WEIGHT, MODEL_VECTOR, MODEL_BUFFER, MODEL_COUNTER } ModelKind;

// A tensor, with the name that it has in torchvision's ResNets or karpathy's minGPT.
typedef struct ModelTensor {
    char name[56];          // for example, "layer1.0.conv1.weight"
    ModelKind kind;         // weights and vectors are parameters; a counter is num_batches_tracked
    int ndim;
    int64_t shape[4];       // in torch's layout
    int64_t count;
    size_t offset;          // where the tensor begins in the arena of parameters, or of buffers
    int layer;
} ModelTensor;

typedef struct Net Net;

// Called by model_backward when the gradients [offset, offset + count) are final.
typedef void (*GradReady)(void *arg, size_t offset, size_t count);

enum { MODEL_SPARE = 16 };

typedef struct Model {
    ModelConfig config;
    Device *device;
    Ops *ops;
    Shape input;            // the shape of a full batch, as forward reads it
    int per_row;            // labels and rows of logits per sample: 1 for an image, or 1 per token
    float *params;          // f32 master copy, which the optimizer updates
    void *weights;          // read by convolutions: the masters, or their 16-bit copies
    float *grads;           // gradients, then MODEL_SPARE floats that callers may average with them
    float *buffers;         // running means and variances
    size_t param_count;     // floats in params, including gaps for alignment
    size_t grad_count;      // floats in grads: the gradients of params[0] to params[grad_count - 1]
    size_t ready_count;     // floats for which backward calls `ready`: grad_count + MODEL_SPARE
    size_t buffer_count;
    float *logits;          // (batch * per_row, classes); a smaller batch uses only the first rows
    float *dlogits;         // as logits
    ModelTensor *tensors;   // in the order of the layers
    int tensor_count;

    Net *net;               // layers, activations and plans: private to model/
    int64_t torch_params;   // number of parameters, as PyTorch counts them
    size_t activation_bytes; // bytes of the activations that forward saves, and of their gradients
} Model;

// Ends the program if there is no such network, or if the network does not fit the data.
Model *model_new(Device *device, Ops *ops, const ModelConfig *config);
void model_free(Model *model);
// Initialises each layer as PyTorch does, a ResNet as torchvision does, and a gpt as minGPT does.
// The random numbers are keyed by seed, tensor and element.
void model_init(Model *model, int64_t seed);

// Updates a 16-bit model's copies of the weights, on the compute stream; an f32 model has none.
// Call it after changing the masters: initialising, loading, receiving or updating them.
void model_cast_weights(Model *model);

// inputs -> logits. inputs has the layout of model->input, with `rows` rows; for a gpt, it has keys
// and tokens, as one_hot() reads them. training: normalises with the batch's statistics, updates
// the running statistics, and applies dropout; otherwise uses the running statistics.
void model_forward(Model *model, const void *inputs, int rows, bool training);
// dlogits -> grads, which are overwritten, for the rows of the last forward. Calls ready (unless
// NULL) for each range of gradients when the range is final, front to back. The last range includes
// the MODEL_SPARE floats.
void model_backward(Model *model, GradReady ready, void *arg);

// Returns the score of a test in percent: for images the accuracy, for text e^-loss.
double model_score(const Model *model, const Stats *test);

// Converts one tensor between torch's layout and a copy of an arena in host memory. The arena is
// params or one of the optimizer's; for a MODEL_BUFFER it is buffers. It may also be grads, if the
// copy is extended with zeros to param_count.
void model_export(const Model *model, const ModelTensor *tensor, const float *arena, float *torch);
void model_import(const Model *model, const ModelTensor *tensor, float *arena, const float *torch);

// Returns the FNV-1a hash of the f32 parameters' words, tensor by tensor in name order, in torch's
// layout. Two models with the same hash have, almost surely, the same parameters bit for bit, even
// if their backends, numbers of ranks or internal layouts differ.
uint64_t model_hash(const Model *model);
