// If SPY is set, slows messages and averages down, and prints three numbers each time the
// optimizer begins: how many buckets the rank has sent so far, how many of them have been averaged,
// and the most that were on their way at once. Also prints a line if the host waits in a step.
#include "comm.h"
#include "model.h"
#include "wrap.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int rank;
static _Thread_local bool in_step, in_message;
static int sent, under_way;     // counted by the compute thread
static atomic_int averaged;     // counted by the thread that sends

static void nap(void *arg)
{
    if (getenv("SPY"))
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
}

static void arrive(void *arg)
{
    averaged++;
}

WRAPPED(comm_all_reduce);
void __wrap_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    rank = comm_rank(comm);
    sent++;
    if (sent - averaged > under_way)
        under_way = sent - averaged;
    stream_enqueue(stream, nap, NULL, 0);
    in_message = true;          // the communicator itself may wait
    __real_comm_all_reduce(comm, stream, values, count, type);
    in_message = false;
}

WRAPPED(values_scale);
void __wrap_values_scale(Stream *stream, float *values, size_t count, float factor)
{
    stream_enqueue(stream, nap, NULL, 0);
    __real_values_scale(stream, values, count, factor);
    stream_enqueue(stream, arrive, NULL, 0);
}

WRAPPED(sgd_update);
void __wrap_sgd_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                       float *velocity, const Scalars *scalars)
{
    if (getenv("SPY"))
        fprintf(stderr, "spy: rank %d %d %d %d\n", rank, sent, (int)averaged, under_way);
    __real_sgd_update(ops, count, grad_count, params, grads, velocity, scalars);
}

static void host_waits(const char *function)
{
    if (getenv("SPY") && in_step && !in_message)
        fprintf(stderr, "spy: %s is called in a step\n", function);
}

WRAPPED(stream_sync);
void __wrap_stream_sync(Stream *stream)
{
    host_waits("stream_sync");
    __real_stream_sync(stream);
}

WRAPPED(event_sync);
void __wrap_event_sync(Event *event)
{
    host_waits("event_sync");
    __real_event_sync(event);
}

WRAPPED(replay_run);
void __wrap_replay_run(Replay *replay, int key, void (*step)(void *), void *arg)
{
    in_step = true;
    __real_replay_run(replay, key, step, arg);
    in_step = false;
}
