// comm_gloo.c - comm.h on Gloo: rings and trees over TCP, computed by the CPU.
//
// Gloo works in the thread that calls it and has no streams, so a call becomes a job that the
// stream runs when it gets there (stream_call). If the device has its own memory, the job works on
// a copy in host memory:
//
//   device memory --copy_to_host--> staging --job--> staging --copy_to_device--> device memory
#include "alive.h"
#include "check.h"
#include "comm/backend.h"
#include "comm/gloo/gloo_shim.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

const char *const comm_backend = "gloo";
const bool comm_shares_devices = true;

struct Link {
    const Comm *comm;
    GlooLink *gloo;
    uint32_t tag;           // of the latest call
    Stream **last, *own_last;   // stream of the latest call; NULL: there is nothing to wait for
    Event *event;
    unsigned char *staging;
    size_t staging_bytes;
};

// A communicator's calls run in the order in which they were made, even on different streams. If
// the device has its own memory, all communicators share one order: the driver runs all jobs in one
// thread, and two ranks that began with different jobs would deadlock.
static Stream *shared_last;

// --- connecting ----------------------------------------------------------------------------------

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
    Link *link = xcalloc(1, sizeof *link);
    link->comm = comm;
    GlooError error = listen_without_signals(&link->gloo, world->address);
    CHECK(!error, "the address must be one of this machine's own",
          "Gloo cannot listen at %s: %s", world->address, error);
    snprintf(prefix, sizeof prefix, "gloo/%s/", comm->name);
    error = gloo_connect(link->gloo, world, prefix);
    if (error)
        comm_lost(comm, NULL, error);
    link->last = device_shares_memory(comm->device) ? &link->own_last : &shared_last;
    link->event = event_new(comm->device);
    return link;
}

// Waits until all calls in this link's order are done.
static void wait_for_calls(Link *link)
{
    if (*link->last)
        stream_sync(*link->last);
    *link->last = NULL;
}

void link_free(Link *link)
{
    wait_for_calls(link);
    gloo_close(link->gloo);
    event_free(link->event);
    host_free(link->staging);
    free(link);
}

// --- the calls -----------------------------------------------------------------------------------

bool link_bare(Link *link, const Call *call)
{
    GlooError error = gloo_call(link->gloo, ++link->tag, call);
    if (error)
        comm_lost(link->comm, call, error);
    return true;
}

const char *link_barrier(Link *link, double seconds)
{
    wait_for_calls(link);
    return gloo_barrier(link->gloo, ++link->tag, seconds);
}

typedef struct Job {
    Link *link;
    uint32_t tag;
    Call call;
} Job;

static void do_job(void *arg)
{
    const Job *job = arg;
    comm_call_begin(job->link->comm, &job->call);
    GlooError error = gloo_call(job->link->gloo, job->tag, &job->call);
    comm_call_end();
    if (error)
        comm_lost(job->link->comm, &job->call, error);
}

// The stream waits for the previous call if that was made on a different stream.
static void take_turn(Link *link, Stream *stream)
{
    if (*link->last && *link->last != stream) {
        event_record(link->event, *link->last);
        stream_wait(stream, link->event);
    }
    *link->last = stream;
}

// The same call on staging: in place if it was in place, else with the input before the output.
static Call stage(Link *link, const Call *call)
{
    Call staged = *call;
    bool in_place = call->from == call->to;
    size_t bytes = call->bytes + (in_place ? 0 : call->to_bytes);
    if (bytes > link->staging_bytes) {
        wait_for_calls(link);           // they use the old buffer
        host_free(link->staging);
        link->staging = host_alloc(bytes);
        link->staging_bytes = bytes;
    }
    staged.from = link->staging;
    staged.to = link->staging + (in_place ? 0 : call->bytes);
    return staged;
}

void link_enqueue(Link *link, Stream *stream, const Call *call)
{
    bool shared = device_shares_memory(link->comm->device);
    bool pair = call->kind == CALL_SEND || call->kind == CALL_RECEIVE;
    Job job = { link, pair ? 0 : ++link->tag, shared ? *call : stage(link, call) };
    take_turn(link, stream);
    if (!shared && call->from_bytes)
        copy_to_host(stream, (void *)job.call.from, call->from, call->from_bytes);
    stream_call(stream, do_job, &job, sizeof job);
    if (!shared && call->to_bytes)
        copy_to_device(stream, call->to, job.call.to, call->to_bytes);
}
