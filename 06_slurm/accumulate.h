// accumulate.h - a batch in parts: the gradients of a large batch, in the memory of a small one.
#pragma once
#include "data.h"
#include "ddp.h"
#include "log.h"
#include "model.h"

// How many rows of a batch go through the model together, if the batch has at most `parts` parts.
int accumulate_rows(int parts, const Dataset *data, int batch_size);

typedef struct Accumulate {
    Model *model;           // with room for accumulate_rows' rows
    Ddp *ddp;
    float *sum;             // device: the earlier parts' gradients; NULL: a batch has one part
    bool first, last;       // is the current part the batch's first, its last?
} Accumulate;
void accumulate_begin(Accumulate *a, int parts, Model *model, Ddp *ddp, Log *log);

// How many parts the batch has, and its part i, whose gradients accumulate_ready then expects.
int accumulate_parts(const Accumulate *a, const Batch *batch);
Batch accumulate_part(Accumulate *a, const Batch *batch, int i);
// Backward calls it in place of ddp_ready. arg: the Accumulate.
void accumulate_ready(void *arg, size_t offset, size_t count);
