// compress.c - averages gradients as 16-bit floats: half the bytes, and fewer digits.
#include "compress.h"

#include <string.h>

// A DdpHook: each rank divides its gradients by the number of ranks before the sum. So, apart from
// rounding, the sum does not exceed the largest gradient, and overflows only if that gradient does.
static void average_short(void *arg, Comm *comm, Stream *stream, float *grads, size_t count)
{
    Compress *c = arg;
    uint16_t *sent = c->sent + (grads - c->model->grads);
    values_narrow(stream, c->type, count, grads, 1.0f / (float)comm_size(comm), sent);
    comm_all_reduce(comm, stream, sent, count, c->type == TYPE_F16 ? COMM_F16 : COMM_BF16);
    values_widen(stream, c->type, count, sent, grads);
}

void compress_begin(Compress *c, const char *type, Model *model, Ddp *ddp)
{
    if (strcmp(type, "none") == 0)
        return;
    *c = (Compress){ .model = model, .type = strcmp(type, "fp16") == 0 ? TYPE_F16 : TYPE_BF16 };
    c->sent = device_alloc(model->device, model->ready_count * sizeof *c->sent);
    ddp_set_hook(ddp, average_short, c);
}
