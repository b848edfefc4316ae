// comm_gloo.c - comm.h on Gloo: rings and trees over TCP, computed by the CPU.
//
// Gloo works in the thread that calls it and has no streams, so a call becomes a job that the
// stream runs in its turn (stream_call). If the device has memory of its own, the job
// works on a copy in host memory:
//
//   device memory --copy_to_host--> staging --job--> staging --copy_to_device--> device memory
#include "alive.h"
#include "check.h"
#include "comm/backend.h"
#include "comm/gloo/gloo_reduce.h"
#include "comm/gloo/gloo_shim.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

const char *const comm_backend = "gloo";
const bool comm_shares_devices = true;

// A communicator's calls run in the order in which they were made, also if they were made on
// different streams. If a device has memory of its own, all communicators share one
// order: the driver runs all jobs in one thread, and if two ranks started with different
// jobs, each would wait for the other without end.
typedef struct Order {
    Stream *last;           // of the latest call; NULL: there is nothing to wait for
    Event *event;
} Order;

// Staging that became too small is kept: running or recorded jobs hold its address.
typedef struct Staging {
    unsigned char *memory;
    size_t bytes;
    struct Staging *outgrown;
} Staging;

struct Link {
    const Comm *comm;
    GlooLink *gloo;
    uint32_t tag;           // of the latest call
    Order own, *order;
    Staging *staging;       // NULL as long as there is none
};

static Order shared_order;
static int shared_users;    // communicators that have it

// --- connecting ----------------------------------------------------------------------------------

static Order *order_new(Link *link)
{
    bool own = device_shares_memory(link->comm->device);
    Order *order = own ? &link->own : &shared_order;
    if (own || shared_users++ == 0)
        *order = (Order){ NULL, event_new(link->comm->device) };
    return order;
}

static void order_free(Order *order)
{
    if (order == &shared_order && --shared_users > 0)
        return;
    event_free(order->event);
    order->event = NULL;
}

// Gloo's threads must not handle Ctrl-C: they inherit a mask that blocks all signals.
static GlooError listen_without_signals(GlooLink **gloo, const char *address)
{
    sigset_t all, kept;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &kept);
    GlooError error = gloo_listen(gloo, address);
    pthread_sigmask(SIG_SETMASK, &kept, NULL);
    return error;
}

Link *link_new(const Comm *comm, const World *world)
{
    char prefix[32];
    Store store = world->store;
    Link *link = xcalloc(1, sizeof *link);
    link->comm = comm;
    GlooError error = listen_without_signals(&link->gloo, world->address);
    CHECK(!error, "the address must be one of this machine's own",
          "Gloo cannot listen at %s: %s", world->address, error);
    snprintf(prefix, sizeof prefix, "gloo/%s/", comm->name);
    error = gloo_connect(link->gloo, world->rank, world->size, &store, prefix);
    if (error)
        comm_lost(comm, NULL, error);
    link->order = order_new(link);
    return link;
}

void link_free(Link *link)
{
    if (link->order->last)
        stream_sync(link->order->last);
    link->order->last = NULL;
    order_free(link->order);
    gloo_close(link->gloo);
    while (link->staging) {
        Staging *staging = link->staging;
        link->staging = staging->outgrown;
        host_free(staging->memory);
        free(staging);
    }
    free(link);
}

// --- a call to Gloo ------------------------------------------------------------------------------

static GlooError do_call(GlooLink *gloo, uint32_t tag, const Call *c)
{
    size_t width = comm_width(c->type), bytes = c->count * width;
    GlooReduce *reduce = gloo_reduce_function(c->type, c->op);
    switch (c->kind) {
    case CALL_ALL_REDUCE:
        return gloo_all_reduce(gloo, tag, c->to, c->count, width, reduce);
    case CALL_REDUCE:
        return gloo_reduce(gloo, tag, c->to, c->count, width, reduce, c->other);
    case CALL_BROADCAST:
        return gloo_broadcast(gloo, tag, c->to, bytes, c->other);
    case CALL_ALL_GATHER:
        return gloo_all_gather(gloo, tag, c->from, c->to, bytes);
    case CALL_GATHER:
        return gloo_gather(gloo, tag, c->from, c->to, bytes, c->other);
    case CALL_SEND:
        return gloo_send(gloo, c->from, bytes, c->other);
    case CALL_RECEIVE:
        return gloo_receive(gloo, c->to, bytes, c->other);
    default:
        return "no such call";
    }
}

bool link_bare(Link *link, const Call *call)
{
    GlooError error = do_call(link->gloo, ++link->tag, call);
    if (error)
        comm_lost(link->comm, call, error);
    return true;
}

const char *link_barrier(Link *link, double seconds)
{
    if (link->order->last)
        stream_sync(link->order->last);
    return gloo_barrier(link->gloo, ++link->tag, seconds);
}

// --- in the order of a stream --------------------------------------------------------------------

typedef struct Job {
    Link *link;
    uint32_t tag;
    Call call;
} Job;

static void do_job(void *arg)
{
    const Job *job = arg;
    comm_call_begin(job->link->comm, &job->call);
    GlooError error = do_call(job->link->gloo, job->tag, &job->call);
    comm_call_end();
    if (error)
        comm_lost(job->link->comm, &job->call, error);
}

// The stream waits for the previous call if that was made on a different stream.
static void take_turn(Order *order, Stream *stream)
{
    if (order->last && order->last != stream) {
        event_record(order->event, order->last);
        stream_wait(stream, order->event);
    }
    order->last = stream;
}

static unsigned char *need_staging(Link *link, size_t bytes)
{
    if (!link->staging || link->staging->bytes < bytes) {
        Staging *staging = xmalloc(sizeof *staging);
        *staging = (Staging){ host_alloc(bytes), bytes, link->staging };
        link->staging = staging;
    }
    return link->staging->memory;
}

// The same call on staging: in place if it was in place, else with the input before the output.
static Call stage(Link *link, const Call *call)
{
    Call staged = *call;
    size_t count_bytes = call->count * comm_width(call->type);
    size_t out = call->from_bytes ? call->from_bytes : call->from == call->to ? count_bytes : 0;
    bool in_place = call->from == call->to && call->to_bytes <= count_bytes;
    unsigned char *memory = need_staging(link, in_place ? out : out + call->to_bytes);
    staged.from = memory;
    staged.to = in_place ? memory : memory + out;
    return staged;
}

void link_enqueue(Link *link, Stream *stream, const Call *call)
{
    bool shared = device_shares_memory(link->comm->device);
    bool pair = call->kind == CALL_SEND || call->kind == CALL_RECEIVE;
    take_turn(link->order, stream);
    Job job = { link, pair ? 0 : ++link->tag, shared ? *call : stage(link, call) };
    if (!shared && call->from_bytes)
        copy_to_host(stream, (void *)job.call.from, call->from, call->from_bytes);
    stream_call(stream, do_job, &job, sizeof job);
    if (!shared && call->to_bytes)
        copy_to_device(stream, call->to, job.call.to, call->to_bytes);
}
