// transformer_cuda.c - the layers of a transformer: not there yet.
#include "check.h"
#include "ops.h"

static _Noreturn void missing(void)
{
    FAIL("use --backend cpu", "the CUDA backend has no layers of a transformer yet");
}

void one_hot(Ops *ops, const OneHotSpec *spec, const int32_t *batch, void *out, uint64_t *keys)
{
    missing();
}

void layer_norm_forward(Ops *ops, Shape shape, const NormTensors *t, const void *x, void *y)
{
    missing();
}

void layer_norm_backward(Ops *ops, Shape shape, const NormTensors *t, const void *x, const void *dy,
                         void *dx)
{
    missing();
}

void gelu_forward(Ops *ops, Shape shape, const void *x, void *y) { missing(); }

void gelu_backward(Ops *ops, Shape shape, const void *x, const void *dy, void *dx) { missing(); }

Attention *attention_new(Ops *ops, const AttentionSpec *spec) { missing(); }

void attention_free(Attention *attention) {}

void attention_forward(Attention *attention, const void *qkv, const uint64_t *keys, void *y)
{
    missing();
}

void attention_backward(Attention *attention, const void *qkv, const uint64_t *keys, const void *dy,
                        void *dqkv)
{
    missing();
}

void add_forward(Ops *ops, const AddSpec *spec, const void *a, const void *b, const uint64_t *keys,
                 void *y)
{
    missing();
}

void add_backward(Ops *ops, const AddSpec *spec, const void *dy1, const void *dy2,
                  const uint64_t *keys, void *da, void *db)
{
    missing();
}
