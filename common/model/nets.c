// nets.c - the networks, as in torchvision and the papers.
#include "model/nets.h"
#include "check.h"

#include <math.h>
#include <string.h>

static const char *const arch_names = "lenet|convnet|resnet18|resnet50|gpt";

// The defaults of a gpt. With them the words take a minute on two cores.
static const char gpt_defaults[] =
    "data = words\noptim = adamw\nbetas = 0.9,0.99\nbatch-size = 32\nschedule = cosine\n"
    "warmup-steps = 100\nprint-freq = 100";
static const char words_defaults[] =
    "layers = 3\nwidth = 64\nblock = 16\nlr = 0.005\nepochs = 8";

void model_options(Args *args, const char **arch, GptConfig *gpt)
{
    args_preset(args, "arch", "gpt", gpt_defaults);
    args_preset(args, "data", "words", words_defaults);
    *gpt = (GptConfig){ .layers = 4, .heads = 4, .width = 128 };
    args_add(args, ARGS_ROWS(
        { "arch", 'a', ARG_CHOICE, arch, arch_names, "the network" },
        { "layers", 0, ARG_INT, &gpt->layers, "N", "gpt: blocks of attention and MLP", .min = 1,
          .max = 48, .needs = "arch gpt" },
        { "heads", 0, ARG_INT, &gpt->heads, "N", "gpt: heads of each attention", .min = 1,
          .max = 256, .needs = "arch gpt" },
        { "width", 0, ARG_INT, &gpt->width, "N", "gpt: numbers of a token, a multiple of --heads",
          .min = 1, .max = 8192, .needs = "arch gpt" },
        { "dropout", 0, ARG_DOUBLE, &gpt->dropout, "P", "gpt: part of the activations dropped",
          .min = 0, .max = 0.99, .needs = "arch gpt" }));
}

void model_check_options(const Args *args, const GptConfig *gpt)
{
    if (gpt->width % gpt->heads != 0)
        args_reject(args, "width", "%d is not a multiple of --heads %d", gpt->width, gpt->heads);
}

// LeNet-5 with ReLU and max pooling, as in PyTorch's tutorials: 61,706 parameters at 1x32x32.
static void build_lenet(Net *net, int classes)
{
    int x = net_maxpool(net, net_relu(net, net_conv(net, 0, "conv1", 6, 5, 1, 0, true)), 2, 2, 0);
    x = net_maxpool(net, net_relu(net, net_conv(net, x, "conv2", 16, 5, 1, 0, true)), 2, 2, 0);
    x = net_relu(net, net_linear(net, x, "fc1", 120));
    x = net_relu(net, net_linear(net, x, "fc2", 84));
    net_linear(net, x, "fc3", classes);
}

// Two convolutions and a linear layer: 29,034 parameters at 1x28x28.
static void build_convnet(Net *net, int classes)
{
    int x = net_norm(net, net_conv(net, 0, "conv1", 16, 5, 1, 2, true), -1, "bn1", true);
    x = net_maxpool(net, x, 2, 2, 0);
    x = net_norm(net, net_conv(net, x, "conv2", 32, 5, 1, 2, true), -1, "bn2", true);
    x = net_maxpool(net, x, 2, 2, 0);
    net_linear(net, x, "fc", classes);
}

typedef struct Block {
    char prefix[32];        // "layer1.0"
    int width, stride, expansion;
} Block;

static int block_conv(Net *net, const Block *b, int in, const char *part, int channels, int kernel,
                      int stride)
{
    char name[56];
    snprintf(name, sizeof name, "%s.%s", b->prefix, part);
    int out = net_conv(net, in, name, channels, kernel, stride, kernel / 2, false);
    net->layers[net->layer_count - 1].normal_init = true;
    return out;
}

static int block_norm(Net *net, const Block *b, int in, int residual, const char *part, bool relu)
{
    char name[56];
    snprintf(name, sizeof name, "%s.%s", b->prefix, part);
    return net_norm(net, in, residual, name, relu);
}

// The shortcut around a block: the input itself, or a 1x1 convolution if the size changes.
static int shortcut(Net *net, const Block *b, int x)
{
    int channels = b->width * b->expansion;
    if (b->stride == 1 && net->extents[x].c == channels)
        return x;
    int y = block_conv(net, b, x, "downsample.0", channels, 1, b->stride);
    return block_norm(net, b, y, -1, "downsample.1", false);
}

//   x -> conv3x3 -> norm, relu -> conv3x3 -> norm + shortcut(x), relu
static int basic_block(Net *net, const Block *b, int x)
{
    int y = block_conv(net, b, x, "conv1", b->width, 3, b->stride);
    y = block_norm(net, b, y, -1, "bn1", true);
    y = block_conv(net, b, y, "conv2", b->width, 3, 1);
    return block_norm(net, b, y, shortcut(net, b, x), "bn2", true);
}

//   x -> conv1x1 -> norm, relu -> conv3x3 -> norm, relu -> conv1x1 -> norm + shortcut(x), relu
static int bottleneck(Net *net, const Block *b, int x)
{
    int y = block_conv(net, b, x, "conv1", b->width, 1, 1);
    y = block_norm(net, b, y, -1, "bn1", true);
    y = block_conv(net, b, y, "conv2", b->width, 3, b->stride);
    y = block_norm(net, b, y, -1, "bn2", true);
    y = block_conv(net, b, y, "conv3", b->width * b->expansion, 1, 1);
    return block_norm(net, b, y, shortcut(net, b, x), "bn3", true);
}

static void build_resnet(Net *net, int classes, const int blocks[4], bool deep)
{
    int x = net_conv(net, 0, "conv1", 64, 7, 2, 3, false);
    net->layers[0].normal_init = true;
    x = net_maxpool(net, net_norm(net, x, -1, "bn1", true), 3, 2, 1);
    for (int stage = 0; stage < 4; stage++)
        for (int i = 0; i < blocks[stage]; i++) {
            Block b = { .width = 64 << stage, .stride = stage > 0 && i == 0 ? 2 : 1,
                        .expansion = deep ? 4 : 1 };
            snprintf(b.prefix, sizeof b.prefix, "layer%d.%d", stage + 1, i);
            x = deep ? bottleneck(net, &b, x) : basic_block(net, &b, x);
        }
    net_linear(net, net_avgpool(net, x), "fc", classes);
}

// Its weights are normal with this deviation.
static int gpt_linear(Net *net, const char *block, const char *part, int in, int outputs, bool bias,
                      double deviation)
{
    char name[56];
    snprintf(name, sizeof name, "%s%s", block, part);
    int out = net_linear(net, in, name, outputs);
    Layer *layer = &net->layers[net->layer_count - 1];
    layer->bias = bias;
    layer->deviation = deviation;
    return out;
}

static int gpt_norm(Net *net, const char *block, const char *part, int in)
{
    char name[56];
    snprintf(name, sizeof name, "%s%s", block, part);
    return net_row_norm(net, in, name);
}

//   x -> norm -> qkv -> attention -> linear -> + x  ->  norm -> linear, GELU, linear -> + itself
static int gpt_block(Net *net, const GptConfig *c, const char *block, int x)
{
    double residual = 0.02 / sqrt(2.0 * c->layers);     // 2 * layers such sums
    int y = gpt_linear(net, block, "attn.c_attn", gpt_norm(net, block, "ln_1", x), 3 * c->width,
                       true, 0.02);
    y = net_attention(net, y, c->heads);
    x = net_add(net, x, gpt_linear(net, block, "attn.c_proj", y, c->width, true, residual));
    y = gpt_linear(net, block, "mlp.c_fc", gpt_norm(net, block, "ln_2", x), 4 * c->width, true,
                   0.02);
    y = gpt_linear(net, block, "mlp.c_proj", net_gelu(net, y), c->width, true, residual);
    return net_add(net, x, y);
}

// karpathy's minGPT: normalisation before each part, and a last layer of its own.
static void build_gpt(Net *net, const GptConfig *c, int classes)
{
    int x = gpt_linear(net, "", "transformer", 0, c->width, false, 0.02);
    net->layers[0].embeds = true;
    x = net_add(net, -1, x);
    for (int i = 0; i < c->layers; i++) {
        char block[32];
        snprintf(block, sizeof block, "transformer.h.%d.", i);
        x = gpt_block(net, c, block, x);
    }
    gpt_linear(net, "", "lm_head", gpt_norm(net, "", "transformer.ln_f", x), classes, false, 0.02);
}

// MNIST and Fashion-MNIST are 28x28; LeNet and ResNet need 32x32, so they get a black frame.
Extent net_canvas(const ModelConfig *config)
{
    bool gpt = strcmp(config->arch, "gpt") == 0, text = config->per_row > 1;
    if (gpt != text)
        FAIL_USAGE("choose another --arch or --data", "a %s does not learn %s", config->arch,
                   text ? "text" : "images");
    if (gpt)
        return (Extent){ config->classes + config->per_row, 1, 1 };
    int h = config->height, w = config->width;
    bool small = h >= 28 && h <= 32 && w >= 28 && w <= 32;
    if (strcmp(config->arch, "convnet") != 0 && small)
        h = w = 32;
    if (strcmp(config->arch, "lenet") == 0)
        CHECK(h == 32 && w == 32, "use --arch resnet18",
              "lenet takes images of 28x28 to 32x32 pixels, these have %dx%d",
              config->height, config->width);
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
        FAIL("give one of these to --arch", "unknown network %s: %s", config->arch, arch_names);
}
