// gloo_shim.cc - the only C++ here: calls Gloo, and turns its exceptions into text.
//
// Only Gloo's "new-style" calls are used, functions that take options. Its older algorithm classes
// must not share a context with them: they pin the sockets' buffers at a few KB.
#include "comm/gloo/gloo_shim.h"

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

// Gloo's limit applies to each wait, and a different rank may work for long before it makes the
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
    CallbackStore(::Store *store, const char *prefix) : store_(store), prefix_(prefix) {}

    void set(const std::string &key, const std::vector<char> &data) override
    {
        const char *value = data.empty() ? "" : data.data();
        store_->put(store_->arg, (prefix_ + key).c_str(), value, data.size());
    }

    // Our get waits itself, so the waits below do nothing.
    std::vector<char> get(const std::string &key) override
    {
        std::vector<char> data(1024);
        size_t bytes = store_->get(store_->arg, (prefix_ + key).c_str(), data.data(), data.size());
        bool all = bytes <= data.size();
        data.resize(bytes);
        if (!all)
            store_->get(store_->arg, (prefix_ + key).c_str(), data.data(), data.size());
        return data;
    }

    void wait(const std::vector<std::string> &) override {}
    void wait(const std::vector<std::string> &, const std::chrono::milliseconds &) override {}

private:
    ::Store *store_;
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

GlooError gloo_connect(GlooLink *link, int rank, int size, Store *store, const char *prefix)
{
    return attempt([&] {
        CallbackStore gloo_store(store, prefix);
        auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
        context->setTimeout(patience);
        context->connectFullMesh(gloo_store, link->device);
        link->context = context;
    });
}

void gloo_close(GlooLink *link)
{
    attempt([&] { delete link; });
}

// Gloo needs only the width of a value; the reduce function interprets it.
template <typename Options>
static void set_values(Options &options, void *values, size_t count, size_t width)
{
    if (width == 8)
        options.setOutput(static_cast<uint64_t *>(values), count);
    else if (width == 4)
        options.setOutput(static_cast<uint32_t *>(values), count);
    else if (width == 2)
        options.setOutput(static_cast<uint16_t *>(values), count);
    else
        options.setOutput(static_cast<uint8_t *>(values), count);
}

static uint8_t *bytes_of(const void *memory)
{
    return static_cast<uint8_t *>(const_cast<void *>(memory));
}

GlooError gloo_all_reduce(GlooLink *link, uint32_t tag, void *values, size_t count, size_t width,
                          GlooReduce *reduce)
{
    return attempt([&] {
        gloo::AllreduceOptions options(link->context);
        options.setTag(tag);
        options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        options.setReduceFunction(reduce);
        set_values(options, values, count, width);
        gloo::allreduce(options);
    });
}

GlooError gloo_reduce(GlooLink *link, uint32_t tag, void *values, size_t count, size_t width,
                      GlooReduce *reduce, int root)
{
    return attempt([&] {
        gloo::ReduceOptions options(link->context);
        options.setTag(tag);
        options.setRoot(root);
        options.setReduceFunction(reduce);
        set_values(options, values, count, width);
        gloo::reduce(options);
    });
}

GlooError gloo_broadcast(GlooLink *link, uint32_t tag, void *values, size_t bytes, int root)
{
    return attempt([&] {
        gloo::BroadcastOptions options(link->context);
        options.setTag(tag);
        options.setRoot(root);
        options.setOutput(bytes_of(values), bytes);
        gloo::broadcast(options);
    });
}

GlooError gloo_all_gather(GlooLink *link, uint32_t tag, const void *mine, void *all, size_t bytes)
{
    return attempt([&] {
        gloo::AllgatherOptions options(link->context);
        options.setTag(tag);
        options.setInput(bytes_of(mine), bytes);
        options.setOutput(bytes_of(all), bytes * link->context->size);
        gloo::allgather(options);
    });
}

GlooError gloo_gather(GlooLink *link, uint32_t tag, const void *mine, void *all, size_t bytes,
                      int root)
{
    return attempt([&] {
        gloo::GatherOptions options(link->context);
        options.setTag(tag);
        options.setRoot(root);
        options.setInput(bytes_of(mine), bytes);
        if (link->context->rank == root)
            options.setOutput(bytes_of(all), bytes * link->context->size);
        gloo::gather(options);
    });
}

// Gloo's collectives leave slot 0 free.
GlooError gloo_send(GlooLink *link, const void *values, size_t bytes, int to)
{
    return attempt([&] {
        auto buffer = link->context->createUnboundBuffer(bytes_of(values), bytes);
        buffer->send(to, 0);
        buffer->waitSend(patience);
    });
}

GlooError gloo_receive(GlooLink *link, void *values, size_t bytes, int from)
{
    return attempt([&] {
        auto buffer = link->context->createUnboundBuffer(values, bytes);
        buffer->recv(from, 0);
        buffer->waitRecv(patience);
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
