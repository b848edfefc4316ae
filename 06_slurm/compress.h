// compress.h - short messages: gradients travel between ranks as 16-bit floats.
#pragma once
#include "ddp.h"
#include "model.h"

typedef struct Compress {
    Model *model;
    Type type;
    uint16_t *sent;         // device: all gradients, in `type`
} Compress;
// Sets ddp's hook. type: "bf16", "fp16", or "none", which changes nothing.
void compress_begin(Compress *c, const char *type, Model *model, Ddp *ddp);
