// plan.c - a network for one number of rows, and the memory of its values.
#include "model/plan.h"
#include "alive.h"
#include "check.h"

#include <stdlib.h>

size_t aligned_bytes(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t value_bytes(const Net *net, int i, Type type)
{
    bool logits = i == net->value_count - 1;
    return aligned_bytes(net->values[i].count * type_size(logits ? TYPE_F32 : type));
}

NormTensors norm_tensors(const Model *model, const Layer *l)
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

const void *weights_of(const Model *model, const Layer *l)
{
    size_t as_masters = l->begin * type_size(model->config.type);
    return (const char *)model->weights + (model->net->copy_bytes > 0 ? l->copy_at : as_masters);
}

// --- plans ---------------------------------------------------------------------------------------

PoolSpec pool_spec(const Layer *layer, Shape x)
{
    return (PoolSpec){ x, layer->kernel_h, layer->stride, layer->pad };
}

// Each layer of a network draws other random numbers.
static Dropout dropout_of(const Model *model, const Layer *layer)
{
    return (Dropout){ (float)model->config.gpt.dropout, (int)(layer - model->net->layers) };
}

AddSpec add_spec(const Model *model, const Plan *plan, const Layer *layer)
{
    return (AddSpec){ plan->shapes[layer->in], model->per_row, dropout_of(model, layer) };
}

OneHotSpec one_hot_spec(const Model *model, const Plan *plan)
{
    return (OneHotSpec){ plan->rows, model->per_row, model->config.classes, model->config.type };
}

static Shape plan_layer(Model *model, Plan *plan, int i)
{
    const Layer *layer = &model->net->layers[i];
    const Plan *first = model->net->plans;
    Shape x = plan->shapes[layer->in];
    alive_beat();
    if (layer->type == LAYER_CONV) {
        ConvSpec spec = { x, layer->channels, layer->kernel_h, layer->kernel_w, layer->stride,
                          layer->pad, layer->bias, layer->in != 0,
                          .f32_out = i == model->net->layer_count - 1 };
        plan->convs[i] = conv_new(model->ops, &spec, first ? first->convs[i] : NULL);
        return conv_output(plan->convs[i]);
    }
    if (layer->type == LAYER_NORM) {
        NormSpec spec = { x, layer->residual >= 0, layer->relu };
        plan->norms[i] = norm_new(model->ops, &spec);
        return x;
    }
    if (layer->type == LAYER_MAXPOOL) {
        PoolSpec spec = pool_spec(layer, x);
        return pool_output(&spec);
    }
    if (layer->type == LAYER_ATTENTION) {
        AttentionSpec spec = { x, layer->heads, model->per_row, dropout_of(model, layer) };
        plan->attentions[i] = attention_new(model->ops, &spec);
        return (Shape){ x.n, x.c / 3, 1, 1, x.c / 3, x.type };
    }
    if (layer->type == LAYER_AVGPOOL)
        return (Shape){ x.n, x.c, 1, 1, x.c, x.type };
    return x;
}

// The plan for this number of rows, made at its first use: for full batches, and an epoch's last
// one.
Plan *plan_for(Model *model, int rows)
{
    Net *net = model->net;
    for (Plan *plan = net->plans; plan; plan = plan->next)
        if (plan->rows == rows)
            return plan;
    Plan *plan = xcalloc(1, sizeof *plan);
    plan->rows = rows;
    plan->shapes[0] = model->input;
    plan->shapes[0].n = rows;
    if (model->per_row > 1) {
        int c = net->extents[0].c;
        plan->shapes[0] = (Shape){ rows * model->per_row, c, 1, 1, c, model->config.type };
    }
    for (int i = 0; i < net->layer_count; i++)
        plan->shapes[net->layers[i].out] = plan_layer(model, plan, i);
    Plan **end = &net->plans;
    while (*end)
        end = &(*end)->next;
    return *end = plan;
}

void plan_free(Plan *plan)
{
    for (int i = 0; i < NET_MAX_LAYERS; i++) {
        conv_free(plan->convs[i]);
        norm_free(plan->norms[i]);
        attention_free(plan->attentions[i]);
    }
    free(plan);
}

// --- memory that is shared -----------------------------------------------------------------------

static int by_size(const void *a, const void *b)
{
    const Life *x = a, *y = b;
    if (x->size != y->size)
        return x->size < y->size ? 1 : -1;
    return x->value != y->value ? y->value - x->value : x->part - y->part;
}

static bool overlap(const Life *a, const Life *b)
{
    return a->from <= b->to && b->from <= a->to && a->at < b->at + b->size &&
           b->at < a->at + a->size;
}

size_t place(Life *lives, int count)
{
    size_t end = 0;
    qsort(lives, count, sizeof *lives, by_size);
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i; j++)
            if (overlap(&lives[i], &lives[j])) {
                lives[i].at = lives[j].at + lives[j].size;
                j = -1;                 // moved: check all of them again
            }
        end = lives[i].at + lives[i].size > end ? lives[i].at + lives[i].size : end;
    }
    return end;
}
