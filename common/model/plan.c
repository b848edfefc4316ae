// plan.c - makes a network's shapes and operations for batches of one size.
#include "model/plan.h"
#include "progress.h"
#include "check.h"

#include <stdlib.h>

static OpSpec spec_of(const Model *model, const Plan *plan, int i)
{
    const Layer *l = &model->net->layers[i];
    return (OpSpec){
        .kind = l->kind,
        .x = plan->shapes[l->in],
        .out_channels = l->channels,
        .kernel_h = l->kernel_h,
        .kernel_w = l->kernel_w,
        .stride = l->stride,
        .pad = l->pad,
        .bias = l->bias,
        .needs_dx = l->in != 0,
        .f32_out = i == model->net->layer_count - 1,
        .relu = l->relu,
        .heads = l->heads,
        .T = model->per_row,
        .dropout = { (float)model->config.gpt.dropout, i }, // each layer drops different numbers
    };
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
        plan->shapes[0] = (Shape){ rows * model->per_row, c, 1, 1, model->config.type };
    }
    for (int i = 0; i < net->layer_count; i++) {
        OpSpec spec = spec_of(model, plan, i);
        progress_beat();
        plan->ops[i] = op_new(model->ops, &spec);
        plan->shapes[net->layers[i].out] = op_output(plan->ops[i]);
    }
    Plan **end = &net->plans;
    while (*end)
        end = &(*end)->next;
    return *end = plan;
}

void plan_free(Plan *plan)
{
    for (int i = 0; i < NET_MAX_LAYERS; i++)
        op_free(plan->ops[i]);
    free(plan);
}
