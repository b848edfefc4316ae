// nets.c - the networks, and their options.
#include "model/net_builder.h"
#include "check.h"

#include <math.h>
#include <string.h>

static const char *const arch_names = "lenet|convnet|resnet18|resnet50|gpt";

// With these defaults and only --arch gpt, a run takes about a minute on 2 cores.
static void check_options(Args *args, void *config)
{
    const GptConfig *gpt = config;
    if (args_is(args, "arch", "gpt")) {
        args_default(args, "data", "words");
        args_default(args, "optim", "adamw");
        args_default(args, "beta2", "0.99");
        args_default(args, "batch-size", "32");
        args_default(args, "schedule", "cosine");
        args_default(args, "warmup", "100steps");
        args_default(args, "print-freq", "100");
    }
    if (args_is(args, "data", "words")) {
        args_default(args, "layers", "3");
        args_default(args, "width", "64");
        args_default(args, "block", "16");
        args_default(args, "lr", "0.005");
        args_default(args, "epochs", "8");
    }
    if (args_is(args, "arch", "gpt") && gpt->width % gpt->heads != 0)
        args_reject(args, "width", "%d is not a multiple of --heads %d", gpt->width, gpt->heads);
}

void model_options(Args *args, const char **arch, GptConfig *gpt)
{
    *arch = "resnet18";
    *gpt = (GptConfig){ .layers = 4, .heads = 4, .width = 128 };
    args_add(args, ARGS_ROWS(
        { "arch", 'a', ARG_CHOICE, arch, arch_names, "the network", .first = true },
        { "layers", 0, ARG_INT, &gpt->layers, "N", "gpt: number of blocks (attention and MLP)",
          .min = 1, .max = 48, .needs = "arch=gpt" },
        { "heads", 0, ARG_INT, &gpt->heads, "N", "gpt: attention heads in each block", .min = 1,
          .max = 256, .needs = "arch=gpt" },
        { "width", 0, ARG_INT, &gpt->width, "N",
          "gpt: length of a token's vector, a multiple of --heads", .min = 1, .max = 8192,
          .needs = "arch=gpt" },
        { "dropout", 0, ARG_DOUBLE, &gpt->dropout, "P", "gpt: fraction of activations to drop",
          .min = 0, .max = 0.99, .needs = "arch=gpt" }));
    args_check(args, check_options, gpt);
}

// LeNet-5 with ReLU and max pooling: 61,706 parameters at 1x32x32 and 10 classes.
static void build_lenet(Net *net, int classes)
{
    int x = net_maxpool(net, net_relu(net, net_conv(net, 0, "conv1", 6, 5, 1, 0, true)), 2, 2, 0);
    x = net_maxpool(net, net_relu(net, net_conv(net, x, "conv2", 16, 5, 1, 0, true)), 2, 2, 0);
    x = net_relu(net, net_linear(net, x, "fc1", 120));
    x = net_relu(net, net_linear(net, x, "fc2", 84));
    net_linear(net, x, "fc3", classes);
}

// Two convolutions and a linear layer: 29,034 parameters at 1x28x28 and 10 classes.
static void build_convnet(Net *net, int classes)
{
    int x = net_norm(net, net_conv(net, 0, "conv1", 16, 5, 1, 2, true), -1, "bn1", true);
    x = net_maxpool(net, x, 2, 2, 0);
    x = net_norm(net, net_conv(net, x, "conv2", 32, 5, 1, 2, true), -1, "bn2", true);
    x = net_maxpool(net, x, 2, 2, 0);
    net_linear(net, x, "fc", classes);
}

// A convolution whose weights are normal with variance 2 / fan_out.
static int resnet_conv(Net *net, int in, const char *name, int channels, int kernel, int stride)
{
    int out = net_conv(net, in, name, channels, kernel, stride, kernel / 2, false);
    net->layers[net->layer_count - 1].deviation = sqrt(2.0 / (channels * kernel * kernel));
    return out;
}

// The shortcut around a block: its input or, if the block changes the shape, the input after a
// 1x1 convolution and norm.
static int shortcut(Net *net, int x, int channels, int stride)
{
    if (stride == 1 && net->extents[x].c == channels)
        return x;
    int y = resnet_conv(net, x, "downsample.0", channels, 1, stride);
    return net_norm(net, y, -1, "downsample.1", false);
}

//   x -> conv3x3 -> norm, relu -> conv3x3 -> norm + shortcut(x), relu
static int basic_block(Net *net, int x, int width, int stride)
{
    int y = resnet_conv(net, x, "conv1", width, 3, stride);
    y = net_norm(net, y, -1, "bn1", true);
    y = resnet_conv(net, y, "conv2", width, 3, 1);
    return net_norm(net, y, shortcut(net, x, width, stride), "bn2", true);
}

//   x -> conv1x1 -> norm, relu -> conv3x3 -> norm, relu -> conv1x1 -> norm + shortcut(x), relu
static int bottleneck(Net *net, int x, int width, int stride)
{
    int y = resnet_conv(net, x, "conv1", width, 1, 1);
    y = net_norm(net, y, -1, "bn1", true);
    y = resnet_conv(net, y, "conv2", width, 3, stride);
    y = net_norm(net, y, -1, "bn2", true);
    y = resnet_conv(net, y, "conv3", 4 * width, 1, 1);
    return net_norm(net, y, shortcut(net, x, 4 * width, stride), "bn3", true);
}

static void build_resnet(Net *net, int classes, const int blocks[4], bool deep)
{
    int x = resnet_conv(net, 0, "conv1", 64, 7, 2);
    x = net_maxpool(net, net_norm(net, x, -1, "bn1", true), 3, 2, 1);
    for (int stage = 0; stage < 4; stage++)
        for (int i = 0; i < blocks[stage]; i++) {
            int width = 64 << stage, stride = stage > 0 && i == 0 ? 2 : 1;
            snprintf(net->prefix, sizeof net->prefix, "layer%d.%d.", stage + 1, i);
            x = deep ? bottleneck(net, x, width, stride) : basic_block(net, x, width, stride);
        }
    net->prefix[0] = '\0';
    net_linear(net, net_avgpool(net, x), "fc", classes);
}

static int gpt_linear(Net *net, int in, const char *name, int outputs, bool bias, double deviation)
{
    int out = net_linear(net, in, name, outputs);
    Layer *layer = &net->layers[net->layer_count - 1];
    layer->bias = bias;
    layer->deviation = deviation;
    return out;
}

//   z = x + dropout(linear(attention(linear(norm(x)))))
//   output = z + dropout(linear(GELU(linear(norm(z)))))
static int gpt_block(Net *net, const GptConfig *c, int x)
{
    double residual = 0.02 / sqrt(2.0 * c->layers);     // 2 * layers such outputs are added to x
    int y = net_row_norm(net, x, "ln_1");
    y = gpt_linear(net, y, "attn.c_attn", 3 * c->width, true, 0.02);
    y = net_attention(net, y, c->heads);
    x = net_add(net, x, gpt_linear(net, y, "attn.c_proj", c->width, true, residual));
    y = net_row_norm(net, x, "ln_2");
    y = net_gelu(net, gpt_linear(net, y, "mlp.c_fc", 4 * c->width, true, 0.02));
    return net_add(net, x, gpt_linear(net, y, "mlp.c_proj", c->width, true, residual));
}

// karpathy's minGPT. The last layer has its own weights, and does not share the embedding's.
static void build_gpt(Net *net, const GptConfig *c, int classes)
{
    int x = gpt_linear(net, 0, "transformer", c->width, false, 0.02);
    net->layers[0].embeds = true;
    x = net_add(net, -1, x);
    for (int i = 0; i < c->layers; i++) {
        snprintf(net->prefix, sizeof net->prefix, "transformer.h.%d.", i);
        x = gpt_block(net, c, x);
    }
    net->prefix[0] = '\0';
    x = net_row_norm(net, x, "transformer.ln_f");
    gpt_linear(net, x, "lm_head", classes, false, 0.02);
}

// The size of the network's input. For all networks except convnet, images of 28x28 (MNIST's) to
// 32x32 pixels get a black frame up to 32x32.
Extent net_canvas(const ModelConfig *config)
{
    if (strcmp(config->arch, "gpt") == 0)
        return (Extent){ config->classes + config->per_row, 1, 1 };
    int h = config->height, w = config->width;
    bool small = h >= 28 && h <= 32 && w >= 28 && w <= 32;
    if (strcmp(config->arch, "convnet") != 0 && small)
        h = w = 32;
    if (strcmp(config->arch, "lenet") == 0 && (h != 32 || w != 32))
        FAIL_USAGE("use --arch resnet18", "lenet takes images of 28x28 to 32x32 pixels; these have "
                   "%dx%d", config->height, config->width);
    return (Extent){ config->channels, h, w };
}

void net_build(Net *net, const ModelConfig *config, Extent canvas)
{
    net->extents[0] = canvas;
    net->value_count = 1;
    if (strcmp(config->arch, "lenet") == 0)
        build_lenet(net, config->classes);
    else if (strcmp(config->arch, "convnet") == 0)
        build_convnet(net, config->classes);
    else if (strcmp(config->arch, "resnet18") == 0)
        build_resnet(net, config->classes, (int[]){ 2, 2, 2, 2 }, false);
    else if (strcmp(config->arch, "resnet50") == 0)
        build_resnet(net, config->classes, (int[]){ 3, 4, 6, 3 }, true);
    else if (strcmp(config->arch, "gpt") == 0)
        build_gpt(net, &config->gpt, config->classes);
    else
        FAIL("in net_build, call the network's function (docs/your_network.md)",
             "arch_names has %s, but net_build does not build this network", config->arch);
    const Layer *last = &net->layers[net->layer_count - 1];
    CHECK(last->linear && last->channels == config->classes,
          "end it with net_linear(net, x, name, classes)",
          "the last layer of %s must be linear, with %d outputs", config->arch, config->classes);
    for (int i = 0; i < last->out; i++)
        CHECK(net->readers[i] > 0, "pass it to a later layer, or remove the layer that computes it",
              "no layer of %s reads output %d (0: the batch)", config->arch, i);
}
