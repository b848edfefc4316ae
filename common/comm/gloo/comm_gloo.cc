// comm_gloo.cc - comm.h on Gloo: over TCP, computed by the CPU. In C++, because Gloo is C++.
//
// Gloo blocks the thread that calls it and has no streams, so a call becomes a job that the
// stream runs when it gets there. If the device has its own memory, the job works on a copy in
// host memory:
//
//   comm_all_reduce -> enqueue:  copy_to_host | stream_enqueue(run_job) | copy_to_device
//   later, on the stream:                       run_job -> gloo::allreduce
//
// Only Gloo's "new-style" functions are used. Gloo's older algorithm classes must not share a
// context with them.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

extern "C" {
#include "check.h"
#include "comm/backend.h"
#include "comm/gloo/gloo_reduce.h"
#include "tcp.h"

extern const char *const comm_backend = "gloo";
extern const bool comm_shares_devices = true;
}

// Gloo's timeout applies to each wait, and other ranks may work for a long time before their call.
// Gloo notices at once if a rank's process ends; the watchdog finds one that hangs.
static const std::chrono::milliseconds timeout = std::chrono::hours(24);

struct Backend {
    std::shared_ptr<gloo::rendezvous::Context> context;
    uint32_t tag;           // of the latest collective
    Stream **last, *own_last;   // *last: the stream of the latest call, or NULL
    Event *event;
    char *staging;
    size_t staging_bytes;
};

// The stream of the latest call of any communicator, if the device has its own memory. All calls
// then wait for the one before: the GPU's driver runs all jobs in one thread, and two ranks that
// began with jobs of different communicators would deadlock.
static Stream *shared_last;

// Returns NULL, or the exception's text, valid until this thread calls error_of again.
template <typename Work>
static const char *error_of(Work work)
{
    static thread_local std::string text;
    try {
        work();
        return nullptr;
    } catch (const std::exception &e) {
        text = e.what();
    }
    return text.c_str();
}

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
        std::vector<char> data(256 * (size_t)world_->size);     // Gloo's values are shorter
        data.resize(store_get(world_, (prefix_ + key).c_str(), data.data(), data.size()));
        return data;
    }

    // get waits until the value is there.
    void wait(const std::vector<std::string> &) override {}
    void wait(const std::vector<std::string> &, const std::chrono::milliseconds &) override {}

private:
    const World *world_;
    const std::string prefix_;
};

// Listens on a port of the system's choice. Gloo's threads must not handle Ctrl-C: they inherit a
// mask that blocks all signals.
static std::shared_ptr<gloo::transport::Device> listen_without_signals(const char *address)
{
    sigset_t all, kept;
    std::shared_ptr<gloo::transport::Device> device;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &kept);
    const char *error = error_of([&] { device = gloo::transport::tcp::CreateDevice(address); });
    pthread_sigmask(SIG_SETMASK, &kept, nullptr);
    CHECK(!error, "the address must be one of this machine's own", "Gloo cannot listen at %s: %s",
          address, error);
    return device;
}

// The ranks exchange their addresses in the store, then each connects to every other one.
static std::shared_ptr<gloo::rendezvous::Context> connect(const Comm *comm, const World *world)
{
    auto context = std::make_shared<gloo::rendezvous::Context>(comm->rank, comm->size);
    if (comm->size == 1)
        return context;
    tcp_expect_sockets(3 * comm->size);     // pairs of two communicators, and rank 0's store
    auto device = listen_without_signals(world->address);
    GlooStore store(world, comm->name);
    context->setTimeout(timeout);
    const char *error = error_of([&] { context->connectFullMesh(store, device); });
    if (error)
        call_lost(comm, nullptr, error);
    return context;
}

void backend_connect(Comm *comm, const World *world)
{
    auto *backend = new Backend{};
    backend->context = connect(comm, world);
    backend->last = device_shares_memory(comm->device) ? &backend->own_last : &shared_last;
    backend->event = event_new(comm->device);
    comm->backend = backend;
}

static void wait_for_calls(Backend *backend)
{
    if (*backend->last)
        stream_sync(*backend->last);
    *backend->last = nullptr;
}

void backend_free(Comm *comm)
{
    wait_for_calls(comm->backend);
    event_free(comm->backend->event);
    host_free(comm->backend->staging);
    error_of([&] { delete comm->backend; });
}

const char *backend_barrier(Comm *comm)
{
    wait_for_calls(comm->backend);
    if (comm->size == 1)
        return nullptr;
    return error_of([&] {
        gloo::BarrierOptions options(comm->backend->context);
        options.setTag(++comm->backend->tag);
        gloo::barrier(options);
    });
}

// What a call reads or writes. bytes: 0 if this rank has no input or no output.
struct Buffer {
    char *memory;
    size_t bytes;
};

struct Job {
    Comm *comm;
    Call call;
    Buffer in, out;         // in.memory == out.memory: in place
    void (*run)(const Job &job);    // returns when this rank's part is done
    uint32_t tag;           // of a collective: a number, the same on all ranks
};

static Buffer buffer(const void *memory, size_t count, CommType type)
{
    return { static_cast<char *>(const_cast<void *>(memory)), count * comm_width(type) };
}

static void run_job(void *arg)
{
    const Job &job = *static_cast<Job *>(arg);
    const char *error = nullptr;
    call_work_begin(job.comm, &job.call);
    if (job.comm->size > 1)
        error = error_of([&] { job.run(job); });
    else if (job.in.bytes > 0 && job.out.bytes > 0)
        std::memmove(job.out.memory, job.in.memory, job.out.bytes);
    call_work_end(job.comm, &job.call);
    if (error)
        call_lost(job.comm, &job.call, error);
}

// The stream waits for the previous call if that was made on a different stream.
static void take_turn(Backend *backend, Stream *stream)
{
    if (*backend->last && *backend->last != stream) {
        event_record(backend->event, *backend->last);
        stream_wait(stream, backend->event);
    }
    *backend->last = stream;
}

// Gives the job buffers in host memory: one buffer if it was in place, else the output after the
// input.
static void stage(Backend *backend, Job *job)
{
    bool in_place = job->in.memory == job->out.memory;
    size_t in_bytes = in_place ? 0 : job->in.bytes;
    size_t bytes = std::max(job->in.bytes, in_bytes + job->out.bytes);
    if (bytes > backend->staging_bytes) {
        wait_for_calls(backend);        // they use the old buffer
        host_free(backend->staging);
        backend->staging = static_cast<char *>(host_alloc(bytes));
        backend->staging_bytes = bytes;
    }
    job->in.memory = backend->staging;
    job->out.memory = backend->staging + in_bytes;
}

static void enqueue(Stream *stream, Job job)
{
    Backend *backend = job.comm->backend;
    const Buffer in = job.in, out = job.out;
    bool staged = !device_shares_memory(job.comm->device);
    if (!call_begin(job.comm, stream, &job.call))
        return;
    if (job.call.kind != CALL_SEND && job.call.kind != CALL_RECEIVE)
        job.tag = ++backend->tag;
    if (staged)
        stage(backend, &job);
    take_turn(backend, stream);
    if (staged && in.bytes > 0)
        copy_to_host(stream, job.in.memory, in.memory, in.bytes);
    stream_enqueue(stream, run_job, &job, sizeof job);
    if (staged && out.bytes > 0)
        copy_to_device(stream, out.memory, job.out.memory, out.bytes);
    call_end(job.comm, stream, &job.call);
}

// Gloo needs only the values' width: gloo_sums adds them.
static void set_values(gloo::AllreduceOptions &options, void *values, const Call &call)
{
    switch (comm_width(call.type)) {
    case 8: return options.setOutput(static_cast<uint64_t *>(values), call.count);
    case 4: return options.setOutput(static_cast<uint32_t *>(values), call.count);
    case 2: return options.setOutput(static_cast<uint16_t *>(values), call.count);
    default: return options.setOutput(static_cast<uint8_t *>(values), call.count);
    }
}

void comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    const Buffer mine = buffer(values, count, type);
    enqueue(stream, { comm, { CALL_ALL_REDUCE, type, count }, mine, mine, [](const Job &job) {
        gloo::AllreduceOptions options(job.comm->backend->context);
        options.setTag(job.tag);
        options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        options.setReduceFunction(gloo_sums[job.call.type]);
        set_values(options, job.out.memory, job.call);
        gloo::allreduce(options);
    } });
}

void comm_broadcast(Comm *comm, Stream *stream, void *values, size_t count, CommType type,
                    int root)
{
    bool is_root = comm->rank == root;
    const Buffer in = buffer(values, is_root ? count : 0, type);
    const Buffer out = buffer(values, is_root ? 0 : count, type);
    enqueue(stream, { comm, { CALL_BROADCAST, type, count, root }, in, out, [](const Job &job) {
        gloo::BroadcastOptions options(job.comm->backend->context);
        options.setTag(job.tag);
        options.setRoot(job.call.peer);
        options.setOutput(job.out.memory, std::max(job.in.bytes, job.out.bytes));
        gloo::broadcast(options);
    } });
}

void comm_all_gather(Comm *comm, Stream *stream, const void *mine, void *all, size_t count,
                     CommType type)
{
    const Buffer in = buffer(mine, count, type);
    const Buffer out = buffer(all, (size_t)comm->size * count, type);
    enqueue(stream, { comm, { CALL_ALL_GATHER, type, count }, in, out, [](const Job &job) {
        gloo::AllgatherOptions options(job.comm->backend->context);
        options.setTag(job.tag);
        options.setInput(job.in.memory, job.in.bytes);
        options.setOutput(job.out.memory, job.out.bytes);
        gloo::allgather(options);
    } });
}

void comm_gather(Comm *comm, Stream *stream, const void *mine, void *all, size_t count,
                 CommType type, int root)
{
    const Buffer in = buffer(mine, count, type);
    const Buffer out = buffer(all, comm->rank == root ? (size_t)comm->size * count : 0, type);
    enqueue(stream, { comm, { CALL_GATHER, type, count, root }, in, out, [](const Job &job) {
        gloo::GatherOptions options(job.comm->backend->context);
        options.setTag(job.tag);
        options.setRoot(job.call.peer);
        options.setInput(job.in.memory, job.in.bytes);
        if (job.out.bytes > 0)
            options.setOutput(job.out.memory, job.out.bytes);
        gloo::gather(options);
    } });
}

// Sends and receives use Gloo's slot 0, which the collectives leave free. They need no tag, because
// they are in order between their two ranks.
void comm_send(Comm *comm, Stream *stream, const void *values, size_t count, CommType type, int to)
{
    const Buffer in = buffer(values, count, type);
    enqueue(stream, { comm, { CALL_SEND, type, count, to }, in, {}, [](const Job &job) {
        const auto &context = job.comm->backend->context;
        auto unbound = context->createUnboundBuffer(job.in.memory, job.in.bytes);
        unbound->send(job.call.peer, 0);
        unbound->waitSend(timeout);
    } });
}

void comm_receive(Comm *comm, Stream *stream, void *values, size_t count, CommType type, int from)
{
    const Buffer out = buffer(values, count, type);
    enqueue(stream, { comm, { CALL_RECEIVE, type, count, from }, {}, out, [](const Job &job) {
        const auto &context = job.comm->backend->context;
        auto unbound = context->createUnboundBuffer(job.out.memory, job.out.bytes);
        unbound->recv(job.call.peer, 0);
        unbound->waitRecv(timeout);
    } });
}
