// accumulate.c - a batch in parts.
//
// Several forward and backward passes add up to the gradients of one large batch, but keep only one
// part's activations, and send gradients only once, with the last part:
//
//   first part    sum = gradients
//   next parts    sum += gradients
//   last part     gradients += sum; ddp_ready
//
// Nothing is divided here: the loss is a mean over the whole batch. BatchNorm sees one part at a
// time, so a network with BatchNorm learns slightly different weights than from the large batch.
#include "accumulate.h"

// On a GPU each part must start at a multiple of 16 bytes: 8 numbers of 16 bits.
int accumulate_rows(int parts, const Dataset *data, int batch_size)
{
    int rest = data->channels * data->height * data->width % 8;
    int rows = (batch_size + parts - 1) / parts;
    while (rows < batch_size && rows * rest % 8 != 0)
        rows++;
    return rows;
}

int accumulate_parts(const Accumulate *a, const Batch *batch)
{
    int rows = a->model->input.n;
    return (batch->rows + rows - 1) / rows;
}

Batch accumulate_part(Accumulate *a, const Batch *batch, int i)
{
    const Shape shape = a->model->input;
    int begin = i * shape.n, left = batch->rows - begin;
    a->first = i == 0;
    a->last = left <= shape.n;
    return batch_part(batch, shape, begin, a->last ? left : shape.n);
}

void accumulate_ready(void *arg, size_t offset, size_t count)
{
    Accumulate *a = arg;
    Model *model = a->model;
    float *grads = model->grads + offset;
    if (a->first && !a->last)
        copy_on_device(device_stream(model->device), a->sum + offset, grads, count * sizeof *grads);
    else if (!a->last)
        add_into(model->ops, count, a->sum + offset, grads);
    else if (!a->first)
        add_into(model->ops, count, grads, a->sum + offset);
    if (a->last)
        ddp_ready(a->ddp, offset, count);
}

void accumulate_begin(Accumulate *a, int parts, Model *model, Ddp *ddp, Log *log)
{
    *a = (Accumulate){ .model = model, .ddp = ddp };
    if (parts == 1)
        return;
    a->sum = device_alloc(model->device, model->ready_count * sizeof *a->sum);
    log_say(log, "   == accumulate: each batch in parts of up to %d samples", model->input.n);
}
