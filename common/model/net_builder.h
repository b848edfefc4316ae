// net_builder.h - the calls with which nets.c describes a network, layer by layer.
#pragma once
#include "model.h"

// A layer reads the value `in` (and `residual`) and writes the value `out`. Values are numbered as
// they are added; value 0 is the batch of images, or of tokens as one-hot rows.
typedef struct Layer {
    OpKind kind;
    char name[33];                  // the layer's name in torch: "layer1.0.conv1"
    int in, residual, out;          // residual: -1 if there is none
    int in_part, residual_part;     // which parts of its inputs' gradients this layer writes
    int channels, kernel_h, kernel_w, stride, pad; // output channels; the rest: conv and max pool
    bool bias, relu, linear;
    bool embeds;                    // the weights are embeddings of tokens and of positions
    double deviation;               // of the normal initial weights, whose biases are 0.
                                    // A deviation of 0: both are uniform, see model.c.
    int heads;
    size_t begin, end;              // range of the parameters with gradients in the arena
    size_t dead_at;                 // where in the arena weights that have no gradients begin
    size_t bias_at;                 // where the bias or beta begins; weights or gamma: at `begin`
    size_t mean_at, var_at;         // where in the arena of buffers these statistics begin
} Layer;

// The size of a value for one image or token.
typedef struct Extent {
    int c, h, w;
} Extent;

enum { NET_MAX_LAYERS = 512, NET_MAX_VALUES = 512 };
struct Net {
    Layer layers[NET_MAX_LAYERS];
    int layer_count;
    char prefix[32];                // prefix of the next layers' names: "layer1.0."
    Extent extents[NET_MAX_VALUES];
    int readers[NET_MAX_VALUES];    // number of layers that read each value
    int value_count;

    struct Value *values;           // from here on private to model.c and plan.c
    struct Plan *plans;             // a list; its first plan has the most rows
    const struct Plan *current;     // the plan of the last forward
    uint64_t *keys;                 // of the last forward's samples, for dropout; NULL for images
    const uint64_t *dropout;        // in the last forward: `keys`, or NULL if nothing was dropped
    void *activations;              // memory of all values but value 0
    void *gradients;                // memory that all parts of the values' gradients share
};

// Each adds a layer at the end and returns the index of its output value. At most two layers may
// read the batch, or a value of net_norm, net_maxpool or net_add; at most one may read any other.
int net_conv(Net *net, int in, const char *name, int channels, int kernel, int stride, int pad,
             bool bias);
int net_linear(Net *net, int in, const char *name, int outputs);
int net_norm(Net *net, int in, int residual, const char *name, bool relu);
int net_relu(Net *net, int in);
int net_maxpool(Net *net, int in, int kernel, int stride, int pad);
int net_avgpool(Net *net, int in);
// For rows of tokens. net_add: a + dropout(b), or only dropout(b) if a is -1.
int net_row_norm(Net *net, int in, const char *name);
int net_gelu(Net *net, int in);
int net_attention(Net *net, int in, int heads);
int net_add(Net *net, int a, int b);

// The extent of value 0; smaller images get a black frame. Fails if --arch cannot take these
// samples.
Extent net_canvas(const ModelConfig *config);
void net_build(Net *net, const ModelConfig *config, Extent canvas);
