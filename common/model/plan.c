// plan.c - a network for one number of rows.
#include "model/plan.h"
#include "alive.h"
#include "check.h"

#include <stdlib.h>

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
