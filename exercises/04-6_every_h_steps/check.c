// Linked into the learner's program. If SPY is set, writes to spy.RANK what each step except the
// last does to three weights:
//
//   start 0 WEIGHT VALUE           before the first step; WEIGHT: 0, 1 or 2
//   step STEP WEIGHT INNER NEXT    values after this rank's optimizer, and when the next step begins
//   message                        an all-reduce
#include "comm.h"
#include "optim.h"
#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>

enum { WEIGHTS = 3 };
static FILE *out;
static int steps;
static float inner[WEIGHTS];

static float weight(Model *m, int i) { return m->params[i * (m->grad_count - 1) / (WEIGHTS - 1)]; }

WRAPPED(optim_step);
void __wrap_optim_step(Optim *optim, const Scalars *scalars)
{
    __real_optim_step(optim, scalars);
    stream_sync(device_stream(optim->model->device));
    for (int i = 0; i < WEIGHTS; i++)
        inner[i] = weight(optim->model, i);
    steps++;
}

WRAPPED(model_forward);
void __wrap_model_forward(Model *model, const void *inputs, int rows, bool training)
{
    char name[64];
    stream_sync(device_stream(model->device));
    snprintf(name, sizeof name, "spy.%s", getenv("RANK"));
    if (!out && getenv("SPY"))
        out = fopen(name, "w");
    if (out && steps == 0)
        setlinebuf(out);
    for (int i = 0; out && training && i < WEIGHTS; i++)
        if (steps == 0)
            fprintf(out, "start 0 %d %.9g\n", i, weight(model, i));
        else
            fprintf(out, "step %d %d %.9g %.9g\n", steps, i, inner[i], weight(model, i));
    __real_model_forward(model, inputs, rows, training);
}

WRAPPED(comm_all_reduce);
void __wrap_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    if (out)
        fprintf(out, "message\n");
    __real_comm_all_reduce(comm, stream, values, count, type);
}
