// The promises of model.h: the order of gradients, initialisation, the hash.
//
// ctest: BACKENDS cpu cuda fake
#include "arrays.h"
#include "model.h"

#include <math.h>

static Model *open_model(const char *arch, int channels, int size, int batch)
{
    return model_new(device, ops, &(ModelConfig){ arch, channels, size, size, 10, batch });
}

static float *random_images(const Model *model)
{
    return activation(model->input, random_numbers(TYPE_F32, shape_count(model->input), 3));
}

static float *floats_of(const float *there, size_t count) { return to_host(there, count * sizeof *there); }

static void seed_backward(Model *model, int rows)
{
    int count = rows * model->config.classes;
    float *host = host_memory((size_t)count * sizeof *host);
    for (int i = 0; i < count; i++)
        host[i] = (float)(i % 7 - 3) / (float)count;
    copy_to_device(device_stream(device), model->dlogits, host, (size_t)count * sizeof *host);
    stream_sync(device_stream(device));
}

// DDP may send a range of gradients as soon as it is announced. The ranges must cover the arena from front to back, and
// each must be final: in the second pass it must already equal the first pass's result.
typedef struct Progress {
    const Model *model;
    size_t next;
    const float *final;     // NULL in the first pass
    int calls, wrong;
} Progress;

static void on_ready(void *arg, size_t offset, size_t count)
{
    Progress *p = arg;
    EXPECT(offset == p->next, "range %d begins at %zu, the last one ended at %zu", p->calls, offset,
           p->next);
    p->next = offset + count;
    p->calls++;
    float *now = floats_of(p->model->grads + offset, count);
    p->wrong += p->final && memcmp(now, p->final + offset, count * sizeof *now) != 0;
}

static Progress pass(Model *model, const float *images, const float *final)
{
    Progress p = { .model = model, .final = final };
    fill_zero(device_stream(device), model->grads, model->grad_count * sizeof(float));
    model_forward(model, images, 4, true);
    seed_backward(model, 4);
    model_backward(model, on_ready, &p);
    EXPECT_EQ_INT(p.next, model->ready_count);
    // 20 convolutions and fc have a range each. So has each of 20 norms, unless (with ops_beside) it shares the range
    // before it.
    EXPECT_EQ_INT(p.calls, 20 + 1 + (ops_beside ? 0 : 20));
    return p;
}

TEST(gradients_are_final_and_front_to_back)
{
    Model *model = open_model("resnet18", 3, 32, 4);
    model_init(model, 1);
    float *images = random_images(model);
    pass(model, images, NULL);
    float *final = floats_of(model->grads, model->ready_count);
    EXPECT_EQ_INT(pass(model, images, final).wrong, 0);
    model_free(model);
    check_ends();
}

// Kernel taps that never meet a pixel are dead. In images of 32 pixels only layer4 has some: its first convolution
// halves images of 2x2, and 4 of 9 taps meet a pixel; in the other three only 1 does.
TEST(weights_on_padding_have_no_gradient)
{
    Model *model = open_model("resnet18", 3, 32, 1);
    int64_t dead = 256 * 512 * (9 - 4) + 3 * 512 * 512 * (9 - 1);
    int64_t padding = (int64_t)model->grad_count - (model->torch_params - dead);
    EXPECT(padding >= 0 && padding < 16 * model->tensor_count, "%zu gradients, not %lld", model->grad_count,
           (long long)(model->torch_params - dead));
    EXPECT_EQ_INT(model->param_count - model->grad_count, dead);
    model_free(model);
}

static double deviation_of(const Model *model, const char *name, double *largest)
{
    const ModelTensor *t = model->tensors;
    while (strcmp(t->name, name) != 0)
        t++;
    float *arena = floats_of(model->params, model->param_count);
    float *values = host_memory((size_t)t->count * sizeof *values);
    double sum = 0;
    model_export(model, t, arena, values);
    *largest = 0;
    for (int64_t i = 0; i < t->count; i++) {
        sum += (double)values[i] * values[i];
        *largest = fmax(*largest, fabs(values[i]));
    }
    return sqrt(sum / (double)t->count);
}

TEST(initialisation_is_pytorchs)
{
    double largest;
    Model *model = open_model("resnet18", 3, 32, 2);
    model_init(model, 1);
    EXPECT_NEAR(deviation_of(model, "layer3.1.conv2.weight", &largest), sqrt(2.0 / (256 * 9)),
                1e-4);
    EXPECT_NEAR(deviation_of(model, "conv1.weight", &largest), sqrt(2.0 / (64 * 49)), 1e-3);
    EXPECT_NEAR(deviation_of(model, "layer1.0.bn1.weight", &largest), 1, 0);
    EXPECT_NEAR(deviation_of(model, "layer1.0.bn1.bias", &largest), 0, 0);
    EXPECT_NEAR(deviation_of(model, "fc.weight", &largest), 1 / sqrt(512) / sqrt(3), 1e-3);
    EXPECT_NEAR(largest, 1 / sqrt(512), 1e-4);
    uint64_t first = model_hash(model);
    model_init(model, 2);
    EXPECT(model_hash(model) != first, "seeds 1 and 2 give the same weights");
    model_init(model, 1);
    EXPECT(model_hash(model) == first, "seed 1 gives different weights the second time");
    model_free(model);
    check_ends();
}

TEST_MAIN_ON_DEVICE(2, .deterministic = true)       // gradients are compared bit by bit
