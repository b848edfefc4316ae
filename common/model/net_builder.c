// net_builder.c - builds a network layer by layer.
#include "model/net_builder.h"
#include "check.h"
#include <string.h>

// Does the layer's backward add up the gradients of two readers?
static bool adds_gradients(const Layer *layer)
{
    return layer->kind == OP_NORM || layer->kind == OP_MAXPOOL || layer->kind == OP_ADD;
}

// Counts a new reader of the value. Returns the part of the gradient that this reader writes.
static int next_part(Net *net, int value)
{
    int most = value == 0 || adds_gradients(&net->layers[value - 1]) ? 2 : 1;
    CHECK(net->readers[value] < most,
          "see docs/your_network.md for the outputs that two layers may read",
          "more than %d layer%s of the network read%s output %d (0: the batch)", most,
          most > 1 ? "s" : "", most > 1 ? "" : "s", value);
    return net->readers[value]++;
}

static Layer *add_layer(Net *net, OpKind kind, int in, const char *name, Extent extent)
{
    CHECK(net->layer_count < NET_MAX_LAYERS && net->value_count < NET_MAX_VALUES,
          "raise NET_MAX_LAYERS and NET_MAX_VALUES in common/model/net_builder.h",
          "the network has too many layers: %d or more", NET_MAX_LAYERS);
    CHECK(in > 0 || kind == OP_CONV, "begin with net_conv or net_linear",
          "only a convolution or a linear layer can read the batch");
    Layer *layer = &net->layers[net->layer_count++];
    layer->kind = kind;
    layer->in = in;
    layer->in_part = next_part(net, in);
    layer->residual = -1;
    layer->out = net->value_count;
    layer->channels = extent.c;
    CHECK(strlen(net->prefix) + strlen(name) < sizeof layer->name, "use a shorter name or prefix",
          "layer %s%s: the name may have %zu bytes", net->prefix, name, sizeof layer->name - 1);
    stpcpy(stpcpy(layer->name, net->prefix), name);
    for (const Layer *other = net->layers; name[0] && other < layer; other++)
        CHECK(strcmp(other->name, layer->name) != 0, "in a block's function, set net->prefix",
              "two layers of the network are called %s", layer->name);
    net->extents[net->value_count++] = extent;
    return layer;
}

// The layer also adds this value.
static void add_residual(Net *net, Layer *layer, int residual)
{
    Extent x = net->extents[layer->in], y = net->extents[residual];
    CHECK(x.c == y.c && x.h == y.h && x.w == y.w,
          "let the shortcut change the shape, too: see shortcut() in common/model/nets.c",
          "the network adds output %d, %dx%dx%d, to output %d, %dx%dx%d", residual, y.c, y.h, y.w,
          layer->in, x.c, x.h, x.w);
    layer->residual = residual;
    layer->residual_part = residual > 0 ? next_part(net, residual) : 0;
}

int net_conv(Net *net, int in, const char *name, int channels, int kernel, int stride, int pad,
             bool bias)
{
    Extent x = net->extents[in];
    Extent y = { channels, window_count(x.h, kernel, stride, pad),
                 window_count(x.w, kernel, stride, pad) };
    Layer *layer = add_layer(net, OP_CONV, in, name, y);
    layer->kernel_h = layer->kernel_w = kernel;
    layer->stride = stride;
    layer->pad = pad;
    layer->bias = bias;
    return layer->out;
}

int net_linear(Net *net, int in, const char *name, int outputs)
{
    Layer *layer = add_layer(net, OP_CONV, in, name, (Extent){ outputs, 1, 1 });
    layer->kernel_h = net->extents[in].h;
    layer->kernel_w = net->extents[in].w;
    layer->stride = 1;
    layer->bias = layer->linear = true;
    return layer->out;
}

int net_norm(Net *net, int in, int residual, const char *name, bool relu)
{
    Layer *layer = add_layer(net, OP_NORM, in, name, net->extents[in]);
    if (residual >= 0)
        add_residual(net, layer, residual);
    layer->relu = relu;
    layer->bias = true;
    return layer->out;
}

int net_row_norm(Net *net, int in, const char *name)
{
    Layer *layer = add_layer(net, OP_ROW_NORM, in, name, net->extents[in]);
    layer->bias = true;
    return layer->out;
}

int net_gelu(Net *net, int in) { return add_layer(net, OP_GELU, in, "", net->extents[in])->out; }

int net_attention(Net *net, int in, int heads)
{
    Extent y = { net->extents[in].c / 3, 1, 1 };
    Layer *layer = add_layer(net, OP_ATTENTION, in, "", y);
    layer->heads = heads;
    return layer->out;
}

int net_add(Net *net, int a, int b)
{
    Layer *layer = add_layer(net, OP_ADD, b, "", net->extents[b]);
    if (a >= 0)
        add_residual(net, layer, a);
    return layer->out;
}

int net_relu(Net *net, int in) { return add_layer(net, OP_RELU, in, "", net->extents[in])->out; }

int net_maxpool(Net *net, int in, int kernel, int stride, int pad)
{
    CHECK(kernel <= 16, "use net_avgpool, or pool twice", "max pooling over %dx%d pixels: at most "
          "16x16, because a position in the window has 8 bits", kernel, kernel);
    Extent x = net->extents[in];
    Extent y = { x.c, window_count(x.h, kernel, stride, pad),
                 window_count(x.w, kernel, stride, pad) };
    Layer *layer = add_layer(net, OP_MAXPOOL, in, "", y);
    layer->kernel_h = layer->kernel_w = kernel;
    layer->stride = stride;
    layer->pad = pad;
    return layer->out;
}

int net_avgpool(Net *net, int in)
{
    return add_layer(net, OP_AVGPOOL, in, "", (Extent){ net->extents[in].c, 1, 1 })->out;
}
