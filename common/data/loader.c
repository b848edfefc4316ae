// loader.c - batches, prepared ahead of the training step by a few threads.
//
//   worker 1   fill 0 | fill 2          | fill 4 | ...        one slot each, in turn
//   worker 2   fill 1          | fill 3 |
//   training            step 0 | step 1 | step 2 | ...        loader_next: is the next slot full?
//
// Workers take the numbers of the batches in order and fill slot number % LOADER_SLOTS, so the
// order of the batches does not depend on who is faster. A slot goes from hand to hand:
//
//   worker         lets its stream wait for `done`, fills the slot, records `ready`: it is full
//   loader_next    waits until it is full, lets the compute stream wait for `ready`, hands it out
//   loader_next    (the next call) records `done` behind the work that read it, and lets it go
//
// There are two kinds of waiting: threads wait for each other with a mutex, streams with events.
// Under CUDA to fill a slot is to launch one kernel. The CPU's streams work in the thread that
// asks, so there the mutex does it all.
#include "alive.h"
#include "data.h"
#include "trace.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct Slot {
    void *images;           // (rows, channels, height, width), device
    int32_t *labels;        // (rows), device
    Event *ready;           // behind the work that fills the slot
    Event *done;            // behind the work that reads it
    bool full;
} Slot;

typedef struct Worker {
    Loader *loader;
    Stream *stream;
    pthread_t thread;
    char name[24];
} Worker;

struct Loader {
    Device *device;
    LoaderConfig config;
    Dataset source;         // the data set, images and labels where the device reads them
    bool shared;            // those are the caller's: device memory is host memory
    Worker *workers;        // at least one: without threads (-j 0) its stream serves the caller
    Slot slots[LOADER_SLOTS];
    Batch batch;            // what loader_next gave last
    bool holding;           // the caller has it
    double wait_ms;

    pthread_mutex_t lock;   // for all below; what describes the epoch changes while workers rest
    pthread_cond_t work;    // tells workers: there may be a slot to fill
    pthread_cond_t news;    // tells the caller: a slot is full, or a worker rests
    int32_t *ids;           // host
    int32_t *device_ids;
    int capacity, count;    // of ids
    int64_t epoch;
    int batches;
    int next_fill;          // the batch that a worker takes next
    int next_give;          // the batch that loader_next gives next
    int let_go;             // batches before this one are done with
    int busy;               // workers that are filling a slot
    bool resting, ending;
};

static Slot *slot_of(Loader *loader, int batch) { return &loader->slots[batch % LOADER_SLOTS]; }

// --- one batch -----------------------------------------------------------------------------------

static int batch_count(const Loader *loader, int batch)
{
    int left = loader->count - batch * loader->config.shape.n;
    return left < loader->config.shape.n ? left : loader->config.shape.n;
}

static int batch_rows(const Loader *loader, int batch)
{
    return loader->config.pad_tail ? loader->config.shape.n : batch_count(loader, batch);
}

static void slot_fill(Loader *loader, Stream *stream, int batch)
{
    const Dataset *source = &loader->source;
    Slot *slot = slot_of(loader, batch);
    Shape shape = loader->config.shape;
    const int32_t *ids = loader->device_ids + (size_t)batch * shape.n;
    shape.n = batch_rows(loader, batch);

    trace_begin("load");
    stream_wait(stream, slot->done);
    images_load(stream, source->images, source->labels, source->channels, source->height,
                source->width, ids, batch_count(loader, batch), loader->epoch,
                &loader->config.augment, slot->images, shape, slot->labels);
    event_record(slot->ready, stream);
    trace_end();
}

// --- workers -------------------------------------------------------------------------------------

static bool worker_has_work(const Loader *loader)
{
    return !loader->resting && loader->next_fill < loader->batches &&
           loader->next_fill < loader->let_go + LOADER_SLOTS;
}

static void *worker_run(void *arg)
{
    Worker *worker = arg;
    Loader *loader = worker->loader;
    device_use(loader->device);
    trace_thread(worker->name);

    pthread_mutex_lock(&loader->lock);
    while (!loader->ending) {
        if (!worker_has_work(loader)) {
            pthread_cond_wait(&loader->work, &loader->lock);
            continue;
        }
        int batch = loader->next_fill++;
        loader->busy++;
        pthread_mutex_unlock(&loader->lock);
        slot_fill(loader, worker->stream, batch);
        pthread_mutex_lock(&loader->lock);
        loader->busy--;
        slot_of(loader, batch)->full = true;
        pthread_cond_signal(&loader->news);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

// The process's signals are for its main thread.
static void workers_start(Loader *loader)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < loader->config.workers; i++) {
        int status =
            pthread_create(&loader->workers[i].thread, NULL, worker_run, &loader->workers[i]);
        CHECK(status == 0, "fewer workers (-j) may do", "pthread_create: worker %d of %d: %s",
              i + 1, loader->config.workers, strerror(status));
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

// On return no worker touches anything, and nothing is left to do on their streams. Takes the lock;
// workers_resume gives it back.
static void workers_rest(Loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    loader->resting = true;
    while (loader->busy > 0)
        pthread_cond_wait(&loader->news, &loader->lock);
    for (int i = 0; i < loader->config.workers || i == 0; i++)
        stream_sync(loader->workers[i].stream);
}

static void workers_resume(Loader *loader)
{
    loader->resting = false;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->lock);
}

// --- a loader's life -----------------------------------------------------------------------------

static void *upload(Loader *loader, const void *from, size_t bytes)
{
    Stream *stream = loader->workers[0].stream;
    void *memory = device_alloc(loader->device, bytes);
    copy_to_device(stream, memory, from, bytes);
    stream_sync(stream);
    return memory;
}

static void source_set(Loader *loader, const Dataset *dataset)
{
    loader->source = *dataset;
    loader->shared = device_shares_memory(loader->device);
    if (loader->shared)
        return;
    size_t image = (size_t)dataset->channels * dataset->height * dataset->width;
    loader->source.images = upload(loader, dataset->images, (size_t)dataset->count * image);
    loader->source.labels =
        upload(loader, dataset->labels, (size_t)dataset->count * sizeof *dataset->labels);
}

static void slot_new(Slot *slot, Device *device, Shape shape)
{
    slot->images = device_alloc(device, shape_bytes(shape));
    slot->labels = device_alloc(device, (size_t)shape.n * sizeof *slot->labels);
    slot->ready = event_new(device);
    slot->done = event_new(device);
}

Loader *loader_new(Device *device, const Dataset *dataset, const LoaderConfig *config)
{
    Loader *loader = xcalloc(1, sizeof *loader);
    loader->device = device;
    loader->config = *config;
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->work, NULL);
    pthread_cond_init(&loader->news, NULL);

    loader->workers = xcalloc((size_t)config->workers + 1, sizeof *loader->workers);
    for (int i = 0; i < config->workers || i == 0; i++) {
        Worker *worker = &loader->workers[i];
        worker->loader = loader;
        snprintf(worker->name, sizeof worker->name, "loader %d", i + 1);
        worker->stream = stream_new(device, worker->name);
    }
    source_set(loader, dataset);
    for (int i = 0; i < LOADER_SLOTS; i++)
        slot_new(&loader->slots[i], device, config->shape);
    workers_start(loader);
    return loader;
}

void loader_free(Loader *loader)
{
    if (!loader)
        return;
    workers_rest(loader);
    loader->ending = true;
    workers_resume(loader);
    for (int i = 0; i < loader->config.workers; i++)
        pthread_join(loader->workers[i].thread, NULL);
    stream_sync(device_stream(loader->device)); // it may still read a slot

    for (int i = 0; i < LOADER_SLOTS; i++) {
        event_free(loader->slots[i].done);
        event_free(loader->slots[i].ready);
        device_free(loader->device, loader->slots[i].labels);
        device_free(loader->device, loader->slots[i].images);
    }
    if (!loader->shared) {
        device_free(loader->device, loader->device_ids);
        device_free(loader->device, loader->source.labels);
        device_free(loader->device, loader->source.images);
    }
    for (int i = 0; i < loader->config.workers || i == 0; i++)
        stream_free(loader->workers[i].stream);
    free(loader->ids);
    free(loader->workers);
    pthread_cond_destroy(&loader->news);
    pthread_cond_destroy(&loader->work);
    pthread_mutex_destroy(&loader->lock);
    free(loader);
}

// --- an epoch ------------------------------------------------------------------------------------

// Workers rest.
static void ids_set(Loader *loader, const int32_t *ids, int count)
{
    const size_t bytes = (size_t)count * sizeof *ids;
    for (int i = 0; i < count; i++) {
        int id = ids ? ids[i] : i;
        CHECK(id >= 0 && id < loader->source.count, "", "sample %d of %d: there is no id %d", i,
              count, id);
    }
    if (count > loader->capacity) {
        free(loader->ids);
        loader->ids = xmalloc(bytes);
        if (!loader->shared) {
            device_free(loader->device, loader->device_ids);
            loader->device_ids = device_alloc(loader->device, bytes);
        }
        loader->capacity = count;
    }
    loader->count = count;
    for (int i = 0; i < count; i++)
        loader->ids[i] = ids ? ids[i] : i;
    if (loader->shared) {
        loader->device_ids = loader->ids;
    } else {
        copy_to_device(loader->workers[0].stream, loader->device_ids, loader->ids, bytes);
        stream_sync(loader->workers[0].stream);
    }
}

// The caller has asked for the next batch, or for another epoch: its work on this one is enqueued.
static void batch_let_go(Loader *loader)
{
    if (loader->holding)
        event_record(loader->slots[loader->batch.slot].done, device_stream(loader->device));
    loader->holding = false;
}

void loader_start(Loader *loader, const int32_t *ids, int count, int64_t epoch, int first)
{
    batch_let_go(loader);
    workers_rest(loader);
    if (count > 0)
        ids_set(loader, ids, count);
    loader->epoch = epoch;
    loader->batches = count / loader->config.shape.n + (count % loader->config.shape.n > 0);
    loader->next_fill = loader->next_give = loader->let_go = first;
    for (int i = 0; i < LOADER_SLOTS; i++)
        loader->slots[i].full = false;
    workers_resume(loader);
}

int loader_batches(const Loader *loader) { return loader->batches; }

// Waits until the slot of the next batch is full (or fills it, if nobody else does).
static void slot_await(Loader *loader, int batch)
{
    int64_t begin = trace_now();
    trace_begin("wait for data");
    if (loader->config.workers == 0)
        slot_fill(loader, loader->workers[0].stream, batch);
    else
        while (!slot_of(loader, batch)->full)
            pthread_cond_wait(&loader->news, &loader->lock);
    trace_end();
    loader->wait_ms += (double)(trace_now() - begin) * 1e-6;
    alive_beat();
}

const Batch *loader_next(Loader *loader)
{
    alive_beat();
    batch_let_go(loader);
    if (loader->next_give >= loader->batches)
        return NULL;

    const int batch = loader->next_give;
    Slot *slot = slot_of(loader, batch);
    pthread_mutex_lock(&loader->lock);
    loader->let_go = batch;
    pthread_cond_signal(&loader->work);
    if (!slot->full)
        slot_await(loader, batch);
    slot->full = false;
    loader->next_give++;
    pthread_mutex_unlock(&loader->lock);

    stream_wait(device_stream(loader->device), slot->ready);
    loader->holding = true;
    loader->batch = (Batch){ .index = batch, .count = batch_count(loader, batch),
                             .rows = batch_rows(loader, batch), .images = slot->images,
                             .labels = slot->labels, .slot = batch % LOADER_SLOTS };
    return &loader->batch;
}

double loader_wait_ms(Loader *loader)
{
    double ms = loader->wait_ms;
    loader->wait_ms = 0;
    return ms;
}
