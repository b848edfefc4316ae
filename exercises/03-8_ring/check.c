// Linked into the learner's program. Before the first bucket it calls the learner's hook with
// numbers whose sum shows which ranks are in it: 1 from rank 0, 10 from rank 1, 100 from rank 2 ...,
// times 1 to 9. It writes the results to ring.SIZE.RANK:
//
//   number COUNT EXPECTED FOUND       each number, if COUNT is below 10
//   send COUNT TO NUMBERS             each comm_send and comm_receive, in their order
//   receive COUNT FROM NUMBERS
//   total COUNT WRONG SENT OTHERS     wrong numbers; bytes sent; bytes moved by other calls than
//                                     comm_send and comm_receive
//   returned YES                      1: the hook returned although its stream stood still
#include "check.h"
#include "clock.h"
#include "ddp.h"
#include "wrap.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

static DdpHook hook;
static void *hook_arg;
static uint64_t sent, received;
static FILE *out;           // while numbers are added up
static size_t adding;       // how many numbers

WRAPPED(comm_send);
void __wrap_comm_send(Comm *comm, Stream *stream, const void *values, size_t count, CommType type,
                      int to)
{
    uint64_t before = comm_bytes(comm);
    if (out)
        fprintf(out, "send %zu %d %zu\n", adding, to, count);
    __real_comm_send(comm, stream, values, count, type, to);
    sent += comm_bytes(comm) - before;
}

WRAPPED(comm_receive);
void __wrap_comm_receive(Comm *comm, Stream *stream, void *values, size_t count, CommType type,
                         int from)
{
    uint64_t before = comm_bytes(comm);
    if (out)
        fprintf(out, "receive %zu %d %zu\n", adding, from, count);
    __real_comm_receive(comm, stream, values, count, type, from);
    received += comm_bytes(comm) - before;
}

static void try_count(Comm *comm, Stream *stream, size_t count)
{
    float unit = 1, all = 0;
    float *values = xcalloc(count, sizeof *values);
    size_t wrong = 0;
    for (int rank = 0; rank < comm_size(comm); rank++, unit *= 10) {
        all += unit;
        for (size_t i = 0; i < count && rank == comm_rank(comm); i++)
            values[i] = unit * (float)(i % 9 + 1);
    }
    uint64_t before = comm_bytes(comm);
    sent = received = 0;
    adding = count;
    hook(hook_arg, comm, stream, values, count);
    stream_sync(stream);
    for (size_t i = 0; i < count; i++) {
        values[i] *= (float)comm_size(comm);    // from the mean back to the sum
        wrong += values[i] != all * (float)(i % 9 + 1);
        if (count < 10)
            fprintf(out, "number %zu %.9g %.9g\n", count, all * (float)(i % 9 + 1), values[i]);
    }
    fprintf(out, "total %zu %zu %llu %llu\n", count, wrong, (unsigned long long)sent,
            (unsigned long long)(comm_bytes(comm) - before - sent - received));
    free(values);
}

static atomic_bool in_hook, waits;

static void host_waits(void) { waits = waits || in_hook; }

WRAPPED(stream_sync);
void __wrap_stream_sync(Stream *stream)
{
    host_waits();
    __real_stream_sync(stream);
}

WRAPPED(event_sync);
void __wrap_event_sync(Event *event)
{
    host_waits();
    __real_event_sync(event);
}

// A task that stops the stream until the hook has returned or waits for the stream, for at most 2.5 s. Sets *in_time:
// whether the hook has returned.
static void stand_still(void *in_time)
{
    double begin = clock_now();
    while (in_hook && !waits && clock_now() < begin + 2.5)
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    **(bool **)in_time = !in_hook;
}

static void try_to_return(Comm *comm, Stream *stream)
{
    static float values[8];
    bool in_time = false, *result = &in_time;
    adding = 0;
    in_hook = true;
    stream_enqueue(stream, stand_still, &result, sizeof result);
    hook(hook_arg, comm, stream, values, 8);
    in_hook = false;
    stream_sync(stream);
    fprintf(out, "returned %d\n", in_time);
}

static void spy(void *arg, Comm *comm, Stream *stream, float *grads, size_t count)
{
    static bool tried;
    static const size_t counts[] = { 8, 7, 1, 12000, 12001 };
    if (!tried) {
        char name[64];
        snprintf(name, sizeof name, "ring.%d.%d", comm_size(comm), comm_rank(comm));
        out = fopen(name, "w");
        CHECK(out, "", "%s cannot be written", name);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            try_count(comm, stream, counts[i]);
        try_to_return(comm, stream);
        fclose(out);
        out = NULL;
        tried = true;
    }
    hook(hook_arg, comm, stream, grads, count);
}

WRAPPED(ddp_set_hook);
void __wrap_ddp_set_hook(Ddp *ddp, DdpHook theirs, void *arg)
{
    hook = theirs;
    hook_arg = arg;
    __real_ddp_set_hook(ddp, spy, NULL);
}
