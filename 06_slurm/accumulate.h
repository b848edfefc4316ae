// accumulate.h - a batch in parts: the gradients of a large batch, in the memory of a small one.
#pragma once
#include "data.h"
#include "ddp.h"
#include "log.h"
#include "model.h"

// How many rows go through the model together if a batch is split into at most `parts` parts.
int accumulate_rows(int parts, const Dataset *data, int batch_size);

typedef struct Accumulate {
    Model *model;           // made for batches of accumulate_rows rows
    Ddp *ddp;
    float *sum;             // device: sum of earlier parts' gradients; NULL: batches have one part
    bool first, last;       // is the current part the batch's first; is it the last?
} Accumulate;
void accumulate_begin(Accumulate *a, int parts, Model *model, Ddp *ddp, Log *log);

// How many parts the batch has, and its part i, whose gradients accumulate_ready then expects.
int accumulate_parts(const Accumulate *a, const Batch *batch);
Batch accumulate_part(Accumulate *a, const Batch *batch, int i);
// For model_backward, in place of ddp_ready. arg: the Accumulate.
void accumulate_ready(void *arg, size_t offset, size_t count);
