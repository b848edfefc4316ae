// gloo_shim.cc - the only C++ here: calls Gloo, and turns its exceptions into text.
//
// Only Gloo's "new-style" calls are used, functions that take options. Its older algorithm classes
// must not share a context with them: they pin the sockets' buffers at a few KB.
#include "comm/gloo/gloo_shim.h"
extern "C" {
#include "comm/gloo/gloo_reduce.h"
}

#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
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

// Gloo's timeout applies to each wait, and other ranks may work for a long time before they make the
// call. Gloo notices a dead rank at once; the watchdog finds a rank that hangs.
static const std::chrono::milliseconds patience = std::chrono::hours(24);

struct GlooLink {
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<gloo::rendezvous::Context> context;
};

static thread_local std::string complaint;

template <typename Work>
static GlooError attempt(Work work)
{
    try {
        work();
        return nullptr;
    } catch (const std::exception &e) {
        complaint = e.what();
    } catch (...) {
        complaint = "an exception without a message";
    }
    return complaint.c_str();
}

// Our store with Gloo's interface.
class CallbackStore : public gloo::rendezvous::Store {
public:
    CallbackStore(const World *world, const char *prefix) : world_(world), prefix_(prefix) {}

    void set(const std::string &key, const std::vector<char> &data) override
    {
        const char *value = data.empty() ? "" : data.data();
        store_put(world_, (prefix_ + key).c_str(), value, data.size());
    }

    // Our get waits itself, so the waits below do nothing.
    std::vector<char> get(const std::string &key) override
    {
        std::vector<char> data(1024);
        size_t bytes = store_get(world_, (prefix_ + key).c_str(), data.data(), data.size());
        bool all = bytes <= data.size();
        data.resize(bytes);
        if (!all)
            store_get(world_, (prefix_ + key).c_str(), data.data(), data.size());
        return data;
    }

    void wait(const std::vector<std::string> &) override {}
    void wait(const std::vector<std::string> &, const std::chrono::milliseconds &) override {}

private:
    const World *world_;
    std::string prefix_;
};

GlooError gloo_listen(GlooLink **link, const char *address)
{
    return attempt([&] {
        auto made = std::make_unique<GlooLink>();
        made->device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address));
        *link = made.release();
    });
}

GlooError gloo_connect(GlooLink *link, const World *world, const char *prefix)
{
    return attempt([&] {
        CallbackStore gloo_store(world, prefix);
        auto context = std::make_shared<gloo::rendezvous::Context>(world->rank, world->size);
        context->setTimeout(patience);
        context->connectFullMesh(gloo_store, link->device);
        link->context = context;
    });
}

void gloo_close(GlooLink *link)
{
    attempt([&] { delete link; });
}

// --- the calls -----------------------------------------------------------------------------------

using Context = std::shared_ptr<gloo::Context>;

static uint8_t *bytes_of(const void *memory)
{
    return static_cast<uint8_t *>(const_cast<void *>(memory));
}

// Gloo needs only the width of a value; the sum's function interprets it.
static void set_values(gloo::AllreduceOptions &options, const Call *c)
{
    switch (comm_width(c->type)) {
    case 8: return options.setOutput(static_cast<uint64_t *>(c->to), c->count);
    case 4: return options.setOutput(static_cast<uint32_t *>(c->to), c->count);
    case 2: return options.setOutput(static_cast<uint16_t *>(c->to), c->count);
    default: return options.setOutput(static_cast<uint8_t *>(c->to), c->count);
    }
}

static void all_reduce(const Context &context, uint32_t tag, const Call *c)
{
    gloo::AllreduceOptions options(context);
    options.setTag(tag);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setReduceFunction(gloo_sums[c->type]);
    set_values(options, c);
    gloo::allreduce(options);
}

static void broadcast(const Context &context, uint32_t tag, const Call *c)
{
    gloo::BroadcastOptions options(context);
    options.setTag(tag);
    options.setRoot(c->other);
    options.setOutput(bytes_of(c->to), c->bytes);
    gloo::broadcast(options);
}

static void all_gather(const Context &context, uint32_t tag, const Call *c)
{
    gloo::AllgatherOptions options(context);
    options.setTag(tag);
    options.setInput(bytes_of(c->from), c->bytes);
    options.setOutput(bytes_of(c->to), c->bytes * context->size);
    gloo::allgather(options);
}

static void gather(const Context &context, uint32_t tag, const Call *c)
{
    gloo::GatherOptions options(context);
    options.setTag(tag);
    options.setRoot(c->other);
    options.setInput(bytes_of(c->from), c->bytes);
    if (context->rank == c->other)
        options.setOutput(bytes_of(c->to), c->bytes * context->size);
    gloo::gather(options);
}

// Gloo's collectives leave slot 0 free.
static void send(const Context &context, const Call *c)
{
    auto buffer = context->createUnboundBuffer(bytes_of(c->from), c->bytes);
    buffer->send(c->other, 0);
    buffer->waitSend(patience);
}

static void receive(const Context &context, const Call *c)
{
    auto buffer = context->createUnboundBuffer(c->to, c->bytes);
    buffer->recv(c->other, 0);
    buffer->waitRecv(patience);
}

GlooError gloo_call(GlooLink *link, uint32_t tag, const Call *call)
{
    return attempt([&] {
        switch (call->kind) {
        case CALL_ALL_REDUCE: return all_reduce(link->context, tag, call);
        case CALL_BROADCAST: return broadcast(link->context, tag, call);
        case CALL_ALL_GATHER: return all_gather(link->context, tag, call);
        case CALL_GATHER: return gather(link->context, tag, call);
        case CALL_SEND: return send(link->context, call);
        case CALL_RECEIVE: return receive(link->context, call);
        default: throw std::logic_error("no such call");
        }
    });
}

GlooError gloo_barrier(GlooLink *link, uint32_t tag, double seconds)
{
    return attempt([&] {
        gloo::BarrierOptions options(link->context);
        options.setTag(tag);
        if (seconds > 0)
            options.setTimeout(std::chrono::milliseconds((int64_t)(1000 * seconds)));
        gloo::barrier(options);
    });
}
