// stop.c - if a signal asks one rank to end, all ranks stop after the same step.
//
// A rank that stopped on its own would leave the others waiting for its gradients. So a signal only
// sets a float, stored after the gradients and averaged with them. Every rank then sees an average
// that is not 0, and all stop together.
//
// With a GPU, the host must not wait for each step. So the float is set only after every 8th step.
// Set after step 8, it is averaged in step 9. The average is fetched then, and read after step 16.
#include "stop.h"
#include "check.h"
#include "interrupt.h"

#include <signal.h>
#include <stdlib.h>

struct Stop {
    Model *model;
    Comm *comm;
    float *request, *average;   // host memory: this rank's signal, and all ranks' average
    Event *fetched;             // after this event, average is valid
    int64_t steps;
};

Stop *stop_new(Model *model, Comm *comm)
{
    Stop *stop = xcalloc(1, sizeof *stop);
    *stop = (Stop){ .model = model, .comm = comm, .request = host_alloc(2 * sizeof(float)),
                    .fetched = event_new(model->device) };
    stop->average = stop->request + 1;
    *stop->request = *stop->average = 0;
    interrupt_hold();
    return stop;
}

void stop_agree(Stop *stop)
{
    Stream *stream = device_stream(stop->model->device);
    float *sent = stop->model->grads + stop->model->grad_count;
    int64_t every = device_shares_memory(stop->model->device) ? 1 : 8, step = ++stop->steps % every;
    if (step == 1 % every) {        // on a CPU, `every` is 1: each step fetches and sends
        copy_to_host(stream, stop->average, sent, sizeof *sent);
        event_record(stop->fetched, stream);
    }
    if (step == 0) {
        event_sync(stop->fetched);
        if (*stop->average > 0)     // the average does not show which signal a rank got
            interrupt_stop(interrupt_received() ? interrupt_received() : SIGTERM);
        *stop->request = (float)interrupt_received();
        copy_to_device(stream, sent, stop->request, sizeof *sent);
    }
}

void stop_agree_now(Stop *stop)
{
    int asked = interrupt_received();
    comm_broadcast_host(stop->comm, &asked, sizeof asked);
    if (asked)
        interrupt_stop(asked);
}

void stop_free(Stop *stop)
{
    interrupt_release();
    event_free(stop->fetched);
    host_free(stop->request);
    free(stop);
}
