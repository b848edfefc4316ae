// comm_gloo.cc - comm_run on Gloo: over TCP, on the CPU. This file is in C++ because Gloo is.
//
// Gloo blocks the thread that calls it and has no streams, so each call becomes a job that the
// stream runs in its turn. If the device has its own memory, the job works on a copy in host
// memory:
//
//   comm_run:              copy_to_host | stream_enqueue(run) | copy_to_device
//   later, on the stream:                 run -> gloo::allreduce
//
// Only Gloo's "new-style" functions are used. Gloo's older algorithm classes must not share a
// context with them.
#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

extern "C" {
#include "check.h"
#include "comm/backend.h"
#include "comm/gloo/gloo_reduce.h"
#include "trace.h"

extern const char *const comm_backend = "gloo";
}

// Gloo's timeout applies to each wait, and other ranks may work for a long time before their call.
// Gloo notices at once if a rank's process ends; rank 0's store finds a rank that hangs (store.h).
static const std::chrono::milliseconds timeout = std::chrono::hours(24);

struct Backend {
    std::shared_ptr<gloo::rendezvous::Context> context;
    Stream **last, *own_last;   // *last: the stream of the latest call, or NULL
    Event *event;
    void *host;             // host copy of a call's values, if the device has its own memory
    size_t host_bytes;
};

// The stream of the latest call of any communicator, if the device has its own memory. Each call
// then waits for the one before it: the GPU's driver runs all jobs in one thread, and two ranks
// that began with jobs of different communicators would deadlock.
static Stream *shared_last;

class GlooStore : public gloo::rendezvous::Store {
public:
    GlooStore(const World *world, const char *name)
        : world_(world), prefix_("gloo/" + std::string(name) + "/")
    {
    }

    void set(const std::string &key, const std::vector<char> &data) override
    {
        const char *value = data.empty() ? "" : data.data();
        store_put(world_, (prefix_ + key).c_str(), value, data.size());
    }

    std::vector<char> get(const std::string &key) override
    {
        std::vector<char> data(256 * (size_t)world_->size);     // longer than what Gloo stores
        data.resize(store_get(world_, (prefix_ + key).c_str(), data.data(), data.size()));
        return data;
    }

    // Not needed: get waits until the value is there.
    void wait(const std::vector<std::string> &) override {}
    void wait(const std::vector<std::string> &, const std::chrono::milliseconds &) override {}

private:
    const World *world_;
    const std::string prefix_;
};

// Listens on a port that the system chooses. Gloo's threads must not handle Ctrl-C: they inherit a
// mask that blocks all signals.
static std::shared_ptr<gloo::transport::Device> listen_without_signals(const char *address)
{
    sigset_t all, kept;
    std::shared_ptr<gloo::transport::Device> device;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &kept);
    try {
        device = gloo::transport::tcp::CreateDevice(address);
    } catch (const std::exception &e) {
        FAIL("choose one of this machine's interfaces (--iface)", "Gloo cannot listen on %s: %s",
             address, e.what());
    }
    pthread_sigmask(SIG_SETMASK, &kept, nullptr);
    return device;
}

// The ranks exchange their addresses in the store. Then each connects to all others.
void backend_connect(Comm *comm, const World *world)
{
    Backend *backend = comm->backend = new Backend{};
    backend->context = std::make_shared<gloo::rendezvous::Context>(comm->rank, comm->size);
    backend->last = device_shares_memory(comm->device) ? &backend->own_last : &shared_last;
    backend->event = event_new(comm->device);
    replay_forbid(comm->device);
    if (comm->size == 1)
        return;
    auto device = listen_without_signals(world->address);
    GlooStore store(world, comm->name);
    backend->context->setTimeout(timeout);
    try {
        backend->context->connectFullMesh(store, device);
    } catch (const std::exception &e) {
        call_lost(comm, nullptr, e.what());
    }
}

void backend_free(Comm *comm)
{
    event_free(comm->backend->event);
    host_free(comm->backend->host);
    delete comm->backend;
}

// --- a call --------------------------------------------------------------------------------------

struct Job {
    Comm *comm;
    Call call;
};

// The bytes of a call's values; in an all_gather, of all ranks' values.
static size_t bytes_of(const Comm *comm, const Call &call)
{
    size_t parts = call.kind == CALL_ALL_GATHER ? comm->size : 1;
    return parts * call.count * comm_width(call.type);
}

// Gloo needs to know only the values' width, because gloo_sums does the adding.
static void set_values(gloo::AllreduceOptions &options, const Call &call)
{
    switch (comm_width(call.type)) {
    case 8: return options.setOutput(static_cast<uint64_t *>(call.values), call.count);
    case 4: return options.setOutput(static_cast<uint32_t *>(call.values), call.count);
    case 2: return options.setOutput(static_cast<uint16_t *>(call.values), call.count);
    default: return options.setOutput(static_cast<uint8_t *>(call.values), call.count);
    }
}

// Returns when this rank's part is done. Sends and receives use Gloo's slot 0, which the
// collectives leave free. They need no further slot, being in order between their two ranks.
static void run(void *arg)
try {
    const Comm *comm = static_cast<Job *>(arg)->comm;
    const Call &call = static_cast<Job *>(arg)->call;
    const auto &context = comm->backend->context;
    const auto number = static_cast<uint32_t>(call.number);
    const size_t bytes = bytes_of(comm, call);
    char *values = static_cast<char *>(call.values);
    call_record(comm, &call);
    if (comm->size == 1)
        return trace_end();
    switch (call.kind) {
    case CALL_BARRIER:
    case CALL_ALL_REDUCE: {
        gloo::AllreduceOptions options(context);
        options.setTag(number);
        options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        options.setReduceFunction(gloo_sums[call.type]);
        set_values(options, call);
        gloo::allreduce(options);
        break;
    }
    case CALL_BROADCAST: {
        gloo::BroadcastOptions options(context);
        options.setTag(number);
        options.setRoot(call.peer);
        options.setOutput(values, bytes);
        gloo::broadcast(options);
        break;
    }
    case CALL_ALL_GATHER: {
        gloo::AllgatherOptions options(context);
        options.setTag(number);
        options.setOutput(values, bytes);
        gloo::allgather(options);
        break;
    }
    case CALL_SEND: {
        auto buffer = context->createUnboundBuffer(values, bytes);
        buffer->send(call.peer, 0);
        buffer->waitSend(timeout);
        break;
    }
    case CALL_RECEIVE: {
        auto buffer = context->createUnboundBuffer(values, bytes);
        buffer->recv(call.peer, 0);
        buffer->waitRecv(timeout);
        break;
    }
    }
    trace_end();
} catch (const std::exception &e) {
    const Job *job = static_cast<Job *>(arg);
    call_lost(job->comm, &job->call, e.what());
}

// Makes the stream wait for the previous call if that call was made on a different stream.
static void take_turn(Backend *backend, Stream *stream)
{
    if (*backend->last && *backend->last != stream) {
        event_record(backend->event, *backend->last);
        stream_wait(stream, backend->event);
    }
    *backend->last = stream;
}

static void need_host_memory(Backend *backend, size_t bytes)
{
    if (bytes <= backend->host_bytes)
        return;
    if (*backend->last)
        stream_sync(*backend->last);    // earlier calls may still use the old memory
    host_free(backend->host);
    backend->host = host_alloc(bytes);
    backend->host_bytes = bytes;
}

void comm_run(Comm *comm, Stream *stream, Call call)
{
    void *values = call.values;
    size_t bytes = bytes_of(comm, call);
    bool copied = !device_shares_memory(comm->device);
    if (!call_begin(comm, &call))
        return;
    if (copied) {
        need_host_memory(comm->backend, bytes);
        call.values = comm->backend->host;
    }
    take_turn(comm->backend, stream);
    if (copied)
        copy_to_host(stream, call.values, values, bytes);
    Job job = { comm, call };
    stream_enqueue(stream, run, &job, sizeof job);
    if (copied)
        copy_to_device(stream, values, call.values, bytes);
    call_end(comm, stream, &call);
}
