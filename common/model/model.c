// model.c - a network in memory: arenas, tensor names, initial weights, forward, backward, hash.
#include "model.h"
#include "progress.h"
#include "check.h"
#include "model/plan.h"
#include "rng.h"
#include "trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// An activation, and the parts of its gradient: each layer that reads the activation writes one.
typedef struct Value {
    size_t count;           // elements for the largest forward's rows; for logits, a whole batch
    void *data;             // for images, value 0 points to the last model_forward's inputs
    void *grad[2];
    uint8_t *index;         // max pooling: where each maximum was
    float *mean, *inv_std;  // normalisation: statistics of this batch or row, for backward
} Value;

static size_t aligned(size_t count) { return round_up(count, PARAM_ALIGN); }

// --- the arenas ----------------------------------------------------------------------------------

static size_t weights_size(const Layer *layer, const Op *op)
{
    bool norm = layer->kind == OP_NORM || layer->kind == OP_ROW_NORM;
    return aligned(layer->kind == OP_CONV ? conv_live_count(op)
                   : norm                 ? (size_t)layer->channels
                                          : 0);
}

// Assigns parameters and buffers their offsets in the arenas, and allocates the arenas. The last
// layer's parameters come first, and weights that have no gradient come last.
static void lay_out_parameters(Model *model)
{
    Net *net = model->net;
    for (int i = net->layer_count - 1; i >= 0; i--) {
        Layer *layer = &net->layers[i];
        layer->begin = model->grad_count;
        layer->bias_at = layer->begin + weights_size(layer, net->plans->ops[i]);
        layer->end = layer->bias_at + (layer->bias ? aligned(layer->channels) : 0);
        model->grad_count = layer->end;
        if (layer->kind != OP_NORM)
            continue;
        layer->mean_at = model->buffer_count;
        layer->var_at = layer->mean_at + aligned(layer->channels);
        model->buffer_count = layer->var_at + aligned(layer->channels);
    }
    model->param_count = model->grad_count;
    for (int i = 0; i < net->layer_count; i++) {
        net->layers[i].dead_at = model->param_count;
        if (net->layers[i].kind == OP_CONV)
            model->param_count += aligned(conv_dead_count(net->plans->ops[i]));
    }
    model->params = device_alloc(model->device, model->param_count * sizeof(float));
    model->ready_count = model->grad_count + MODEL_SPARE;
    model->grads = device_alloc(model->device, model->ready_count * sizeof(float));
    model->buffers = device_alloc(model->device, model->buffer_count * sizeof(float));
    Type type = model->config.type;     // convolutions read the masters, or 16-bit copies of them
    model->weights = type == TYPE_F32
                         ? model->params
                         : device_alloc(model->device, model->grad_count * type_size(type));
}

// Bytes of value i, and of each part of its gradient. Logits are always f32.
static size_t value_bytes(const Model *model, int i)
{
    bool logits = i == model->net->value_count - 1;
    return round_up(model->net->values[i].count
                        * type_size(logits ? TYPE_F32 : model->config.type), 64);
}

// All layers' outputs are in one arena. No two share memory: backward reads most of them.
static void allocate_activations(Model *model)
{
    Net *net = model->net;
    net->values = xcalloc(net->value_count, sizeof *net->values);
    for (int i = 0; i < net->value_count; i++)
        net->values[i].count = shape_count(net->plans->shapes[i]);
    net->values[net->value_count - 1].count =
        (size_t)model->config.batch * model->per_row * model->config.classes;
    for (int i = 1; i < net->value_count; i++)
        model->activation_bytes += value_bytes(model, i);
    char *next = net->activations = device_alloc(model->device, model->activation_bytes);
    for (int i = 0; i < net->layer_count; i++) {
        const Layer *layer = &net->layers[i];
        Value *out = &net->values[layer->out];
        size_t statistics = layer->kind == OP_NORM       ? (size_t)layer->channels
                            : layer->kind == OP_ROW_NORM ? out->count / layer->channels
                                                         : 0;
        out->data = next;
        next += value_bytes(model, layer->out);
        if (layer->kind == OP_MAXPOOL) {
            out->index = device_alloc(model->device, out->count);
            model->activation_bytes += out->count;
        }
        if (statistics > 0) {
            out->mean = device_alloc(model->device, 2 * statistics * sizeof(float));
            out->inv_std = out->mean + statistics;
        }
    }
    if (model->per_row == 1)
        return;
    net->values[0].data =
        device_alloc(model->device, net->values[0].count * type_size(model->config.type));
    net->keys = device_alloc(model->device, (size_t)net->plans->rows * sizeof *net->keys);
}

// --- gradients of activations share memory -------------------------------------------------------
//
// A gradient is live from the step of backward that writes it to the step that reads it. Layer
// v - 1 makes value v, and reads its gradient.

typedef struct Life {
    int value, part;        // index of the value; which part of its gradient: grad[0] or grad[1]
    size_t size, at;        // the part's bytes, and its offset in the shared memory
    int from, to;           // the first and last step of backward that need the part
} Life;

static int by_size(const void *a, const void *b)
{
    size_t x = ((const Life *)a)->size, y = ((const Life *)b)->size;
    return (x < y) - (x > y);
}

static bool overlap(const Life *a, const Life *b)
{
    return a->from <= b->to && b->from <= a->to && a->at < b->at + b->size &&
           b->at < a->at + a->size;
}

// Assigns offsets, to the largest gradients first: the lowest offset that is free during a
// gradient's steps. Returns the memory's size.
static size_t place(Life *lives, int count)
{
    size_t end = 0;
    qsort(lives, count, sizeof *lives, by_size);
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++)
            if (overlap(&lives[i], &lives[j])) {
                lives[i].at = lives[j].at + lives[j].size;
                j = -1;                 // i has moved: compare with all earlier ones again
            }
        end = lives[i].at + lives[i].size > end ? lives[i].at + lives[i].size : end;
    }
    return end;
}

// The gradients of a convolution's weights may be computed in parallel with later steps of backward
// (ops_beside). The gradient of the convolution's output must then stay until backward reaches the
// next convolution.
static Life life_of(const Model *model, int value, int part, int step)
{
    const Net *net = model->net;
    int last = value - 1;   // the last layer in backward that needs the gradient
    if (ops_beside && net->layers[last].kind == OP_CONV)
        while (last > 0 && net->layers[last - 1].kind != OP_CONV)
            last--;
    return (Life){ value, part, value_bytes(model, value), 0, step, net->layer_count - 1 - last };
}

static void allocate_gradients(Model *model)
{
    Net *net = model->net;
    Life lives[2 * NET_MAX_VALUES];
    int count = 0;
    lives[count++] = life_of(model, net->value_count - 1, 0, -1);
    for (int step = 0; step < net->layer_count; step++) {
        const Layer *l = &net->layers[net->layer_count - 1 - step];
        if (l->in > 0)
            lives[count++] = life_of(model, l->in, l->in_part, step);
        if (l->residual > 0)
            lives[count++] = life_of(model, l->residual, l->residual_part, step);
    }
    size_t bytes = place(lives, count);
    char *memory = net->gradients = device_alloc(model->device, bytes);
    for (int i = 0; i < count; i++)
        net->values[lives[i].value].grad[lives[i].part] = memory + lives[i].at;
    model->activation_bytes += bytes;
}

// --- names ---------------------------------------------------------------------------------------

static void add_tensor(Model *model, int layer, const char *part, ModelKind kind, int ndim,
                       const int64_t *shape, size_t offset)
{
    ModelTensor *t = &model->tensors[model->tensor_count++];
    snprintf(t->name, sizeof t->name, "%s.%s", model->net->layers[layer].name, part);
    t->kind = kind;
    t->ndim = ndim;
    t->count = 1;
    for (int i = 0; i < ndim; i++)
        t->count *= t->shape[i] = shape[i];
    t->offset = offset;
    t->layer = layer;
    if (kind == MODEL_WEIGHT || kind == MODEL_VECTOR)
        model->torch_params += t->count;
}

// The offsets are those that the two embeddings would have if they were stored one after the other.
// copy_embedding computes an embedding's first column from its offset.
static void name_embeddings(Model *model, int layer)
{
    const Layer *l = &model->net->layers[layer];
    int64_t tokens[] = { model->config.classes, l->channels };
    int64_t positions[] = { model->per_row, l->channels };
    add_tensor(model, layer, "wte.weight", MODEL_WEIGHT, 2, tokens, l->begin);
    add_tensor(model, layer, "wpe.weight", MODEL_WEIGHT, 2, positions,
               l->begin + (size_t)tokens[0] * l->channels);
}

static void name_tensors(Model *model)
{
    Net *net = model->net;
    model->tensors = xcalloc(5 * (size_t)net->layer_count, sizeof *model->tensors);
    for (int i = 0; i < net->layer_count; i++) {
        const Layer *l = &net->layers[i];
        Extent x = net->extents[l->in];
        int64_t c = l->channels, oihw[] = { c, x.c, l->kernel_h, l->kernel_w };
        if (l->linear)
            oihw[1] *= (int64_t)x.h * x.w;
        if (l->embeds)
            name_embeddings(model, i);
        else if (l->kind == OP_CONV)
            add_tensor(model, i, "weight", MODEL_WEIGHT, l->linear ? 2 : 4, oihw, l->begin);
        if (l->kind == OP_NORM || l->kind == OP_ROW_NORM)
            add_tensor(model, i, "weight", MODEL_VECTOR, 1, &c, l->begin);
        if (l->bias)
            add_tensor(model, i, "bias", MODEL_VECTOR, 1, &c, l->bias_at);
        if (l->kind != OP_NORM)
            continue;
        add_tensor(model, i, "running_mean", MODEL_BUFFER, 1, &c, l->mean_at);
        add_tensor(model, i, "running_var", MODEL_BUFFER, 1, &c, l->var_at);
        add_tensor(model, i, "num_batches_tracked", MODEL_COUNTER, 0, NULL, 0);
    }
}

// Row r of an embedding is a column of the layer's weights.
static void copy_embedding(const Model *model, const ModelTensor *t, float *whole, float *torch,
                           Direction direction)
{
    const bool out = direction == TO_TORCH;
    const Layer *l = &model->net->layers[t->layer];
    size_t rows = t->shape[0], c = l->channels, first = (t->offset - l->begin) / c;
    size_t width = model->net->extents[0].c;
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < c; i++) {
            float *one = &torch[r * c + i], *other = &whole[i * width + first + r];
            *(out ? one : other) = *(out ? other : one);
        }
}

static void move_embedding(const Model *model, const ModelTensor *t, float *arena, float *torch,
                           Direction direction)
{
    const Op *conv = model->net->plans->ops[t->layer];
    const Layer *l = &model->net->layers[t->layer];
    float *whole = xmalloc((size_t)model->net->extents[0].c * l->channels * sizeof *whole);
    conv_weights_move(conv, arena + l->begin, NULL, whole, TO_TORCH);
    copy_embedding(model, t, whole, torch, direction);
    if (direction == FROM_TORCH)
        conv_weights_move(conv, arena + l->begin, NULL, whole, FROM_TORCH);
    free(whole);
}

static void move(const Model *model, const ModelTensor *t, float *arena, float *torch,
                 Direction direction)
{
    const bool out = direction == TO_TORCH;
    const Layer *layer = &model->net->layers[t->layer];
    float *here = arena + t->offset;
    if (layer->embeds)
        move_embedding(model, t, arena, torch, direction);
    else if (t->kind == MODEL_WEIGHT)
        conv_weights_move(model->net->plans->ops[t->layer], here, arena + layer->dead_at, torch,
                          direction);
    else
        memcpy(out ? torch : here, out ? here : torch, t->count * sizeof *torch);
}

void model_export(const Model *model, const ModelTensor *t, const float *arena, float *torch)
{
    move(model, t, (float *)arena, torch, TO_TORCH);
}

void model_import(const Model *model, const ModelTensor *t, float *arena, const float *torch)
{
    move(model, t, arena, (float *)torch, FROM_TORCH);
}

static float *host_copy(const Model *model, const float *arena, size_t count)
{
    float *host = host_alloc(count * sizeof *host);
    copy_to_host(device_stream(model->device), host, arena, count * sizeof *host);
    stream_sync(device_stream(model->device));
    return host;
}

static void host_copy_back(const Model *model, float *arena, float *host, size_t count)
{
    copy_to_device(device_stream(model->device), arena, host, count * sizeof *host);
    stream_sync(device_stream(model->device));
    host_free(host);
}

// --- creating and freeing ------------------------------------------------------------------------

Model *model_new(Device *device, Ops *ops, const ModelConfig *config)
{
    Model *model = xcalloc(1, sizeof *model);
    model->config = *config;
    model->device = device;
    model->ops = ops;
    model->net = xcalloc(1, sizeof *model->net);
    Extent canvas = net_canvas(config);
    model->input = (Shape){ config->batch, canvas.c, canvas.h, canvas.w, config->type };
    model->per_row = 1;
    if (config->per_row > 1) {
        model->per_row = config->per_row;
        model->input = (Shape){ config->batch, 2 + config->per_row, 1, 1, TYPE_F32 };
    }
    net_build(model->net, config, canvas);
    plan_for(model, config->pass > 0 ? config->pass : config->batch);
    lay_out_parameters(model);
    allocate_activations(model);
    allocate_gradients(model);
    name_tensors(model);
    const Value *last = &model->net->values[model->net->value_count - 1];
    model->logits = last->data;
    model->dlogits = last->grad[0];
    return model;
}

void model_free(Model *model)
{
    Net *net = model->net;
    for (int i = 0; i < net->value_count; i++) {
        device_free(model->device, net->values[i].index);
        device_free(model->device, net->values[i].mean);
    }
    if (net->keys)
        device_free(model->device, net->values[0].data);
    device_free(model->device, net->keys);
    device_free(model->device, net->gradients);
    device_free(model->device, net->activations);
    device_free(model->device, model->buffers);
    device_free(model->device, model->grads);
    if (model->config.type != TYPE_F32)
        device_free(model->device, model->weights);
    device_free(model->device, model->params);
    for (Plan *plan = net->plans, *next; plan; plan = next) {
        next = plan->next;
        plan_free(plan);
    }
    free(model->tensors);
    free(net->values);
    free(net);
    free(model);
}

// --- initialisation ------------------------------------------------------------------------------

// Four values of a parameter tensor: normal or, if deviation is 0, uniform.
static void init_four(Philox r, float bound, float deviation, float out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = bound * (2 * uniform_of(r.v[i]) - 1);
    if (deviation == 0)
        return;
    normal_pair(r.v[0], r.v[1], out);
    normal_pair(r.v[2], r.v[3], out + 2);
    for (int i = 0; i < 4; i++)
        out[i] *= deviation;
}

// torch.nn's defaults: weights and biases of convolutions and linear layers uniform within
// +-1 / sqrt(fan_in), gamma 1, beta 0. But ResNet's convolutions are normal with variance
// 2 / fan_out, and a gpt's matrices are normal, its biases 0.
static void init_tensor(const Model *model, const ModelTensor *t, uint64_t seed, uint64_t number,
                        float *values)
{
    const Layer *layer = &model->net->layers[t->layer];
    const char *part = strrchr(t->name, '.') + 1;
    bool norm = layer->kind == OP_NORM || layer->kind == OP_ROW_NORM;
    if (norm || (layer->deviation > 0 && t->kind == MODEL_VECTOR)) {
        for (int64_t i = 0; i < t->count; i++)
            values[i] =
                norm && (strcmp(part, "weight") == 0 || strcmp(part, "running_var") == 0);
        return;
    }
    int taps = layer->kernel_h * layer->kernel_w;
    float bound = 1 / sqrt((double)model->net->extents[layer->in].c * taps);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < t->count; i += 4) {
        float four[4];
        int64_t left = t->count - i < 4 ? t->count - i : 4;
        init_four(philox(seed, number, i), bound, layer->deviation, four);
        memcpy(values + i, four, left * sizeof *four);
    }
}

void model_init(Model *model, int64_t seed)
{
    float *params = host_copy(model, model->params, model->param_count);
    float *buffers = host_copy(model, model->buffers, model->buffer_count);
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        if (t->kind == MODEL_COUNTER)
            continue;
        progress_beat();
        float *values = xmalloc(t->count * sizeof *values);
        init_tensor(model, t, seed, i, values);
        model_import(model, t, t->kind == MODEL_BUFFER ? buffers : params, values);
        free(values);
    }
    host_copy_back(model, model->params, params, model->param_count);
    host_copy_back(model, model->buffers, buffers, model->buffer_count);
}

// --- forward and backward ------------------------------------------------------------------------

void model_cast_weights(Model *model)
{
    Type type = model->config.type;
    if (type != TYPE_F32)
        values_narrow(device_stream(model->device), type, model->grad_count, model->params, 1,
                      model->weights);
}

static NormTensors norm_tensors(const Model *model, const Layer *l)
{
    const Value *out = &model->net->values[l->out];
    return (NormTensors){
        .gamma = model->params + l->begin,
        .beta = model->params + l->bias_at,
        .running_mean = model->buffers + l->mean_at,
        .running_var = model->buffers + l->var_at,
        .mean = out->mean,
        .inv_std = out->inv_std,
        .dgamma = model->grads + l->begin,
        .dbeta = model->grads + l->bias_at,
    };
}

static OpArgs args_of(const Model *model, const Layer *l)
{
    const Net *net = model->net;
    const Value *in = &net->values[l->in], *out = &net->values[l->out];
    const Value *residual = l->residual < 0 ? NULL : &net->values[l->residual];
    return (OpArgs){
        .x = in->data,
        .residual = residual ? residual->data : NULL,
        .y = out->data,
        .dy1 = out->grad[0],
        .dy2 = out->grad[1],
        .dx = l->in > 0 ? in->grad[l->in_part] : NULL,
        .dresidual = l->residual > 0 ? residual->grad[l->residual_part] : NULL,
        .w = (const char *)model->weights + l->begin * type_size(model->config.type),
        .bias = model->params + l->bias_at,
        .dw = model->grads + l->begin,
        .dbias = model->grads + l->bias_at,
        .norm = norm_tensors(model, l),
        .index = out->index,
        .keys = net->dropout,
    };
}

void model_forward(Model *model, const void *inputs, int rows, bool training)
{
    Net *net = model->net;
    const Plan *plan = plan_for(model, rows);
    OneHotSpec tokens = { rows, model->per_row, model->config.classes, model->config.type };
    trace_begin("forward");
    net->current = plan;
    net->dropout = training && model->config.gpt.dropout > 0 ? net->keys : NULL;
    if (net->keys)
        one_hot(model->ops, &tokens, inputs, net->values[0].data, net->keys);
    else
        net->values[0].data = (void *)inputs;
    for (int i = 0; i < net->layer_count; i++) {
        OpArgs args = args_of(model, &net->layers[i]);
        args.training = training;
        progress_beat();
        op_forward(plan->ops[i], &args);
    }
    trace_end();
}

// Makes the gradients before `end` final (ops_join), calls `ready` for those from `begin` on, and
// returns `end`. The MODEL_SPARE floats come with the last gradients.
static size_t gradients_final(Model *model, size_t begin, size_t end, GradReady ready, void *arg)
{
    size_t known = end == model->grad_count ? model->ready_count : end;
    ops_join(model->ops);
    if (ready && end > begin)
        ready(arg, begin, known - begin);
    return end;
}

void model_backward(Model *model, GradReady ready, void *arg)
{
    const Net *net = model->net;
    size_t known = 0;
    trace_begin("backward");
    for (int i = net->layer_count - 1; i >= 0; i--) {
        const Layer *layer = &net->layers[i];
        OpArgs args = args_of(model, layer);
        progress_beat();
        if (layer->kind == OP_CONV)
            known = gradients_final(model, known, layer->begin, ready, arg);
        op_backward(net->current->ops[i], &args);
        if (!ops_beside)
            known = gradients_final(model, known, layer->end, ready, arg);
    }
    gradients_final(model, known, model->grad_count, ready, arg);
    trace_end();
}

double model_score(const Model *model, const Stats *test)
{
    double count = (double)test->count;
    return 100.0 * (model->per_row > 1 ? exp(-test->loss_sum / count) : test->correct1 / count);
}

// --- the weight hash -----------------------------------------------------------------------------

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const ModelTensor *const *)a)->name, (*(const ModelTensor *const *)b)->name);
}

static uint64_t fnv1a(uint64_t hash, const float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, &values[i], sizeof word);
        hash = (hash ^ word) * 0x100000001b3u;
    }
    return hash;
}

uint64_t model_hash(const Model *model)
{
    float *arena = host_copy(model, model->params, model->param_count);
    const ModelTensor **order = xmalloc(model->tensor_count * sizeof *order);
    for (int i = 0; i < model->tensor_count; i++)
        order[i] = &model->tensors[i];
    qsort(order, model->tensor_count, sizeof *order, by_name);
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < model->tensor_count; i++) {
        if (order[i]->kind != MODEL_WEIGHT && order[i]->kind != MODEL_VECTOR)
            continue;
        progress_beat();
        float *values = xmalloc(order[i]->count * sizeof *values);
        model_export(model, order[i], arena, values);
        hash = fnv1a(hash, values, order[i]->count);
        free(values);
    }
    free(order);
    host_free(arena);
    return hash;
}
