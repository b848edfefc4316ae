// loader.c - batches, prepared ahead of the training step by threads; with -j 0, by the caller.
//
//   worker 1   batch 0            | load | batch 2        | load ...
//   worker 2   batch 1                | load | batch 3 ...
//   training   wait for data             | step 0     | step 1 ...
//
// A worker takes the next batch and makes its rows, in its own memory: it crops images, decodes
// pictures, or cuts windows of a text. Batch number b goes into slot b % LOADER_SLOTS:
//
//   worker         waits until the slot is free, makes the stream wait for `done`, loads the rows,
//                  records `ready`: the slot is full
//   loader_next    waits for the full slot, makes the compute stream wait for `ready`, returns it
//   loader_next    (the next call) records `done` after the work on the batch: the slot is free
//
// Threads wait for each other with condition variables, streams with events. On the CPU the calling
// thread does the work of these streams, and the events do nothing.
#include "progress.h"
#include "clock.h"
#include "data/pictures.h"
#include "rng.h"
#include "threads.h"
#include "trace.h"

#include <stdlib.h>
#include <string.h>

typedef struct Slot {
    void *inputs;           // device memory, as in Batch
    int32_t *labels;        // (rows, per_row), device
    Event *ready;           // recorded after the work that fills the slot
    Event *done;            // recorded after the work that reads the slot
    bool full;
} Slot;

typedef struct Worker {
    Loader *loader;
    pthread_t thread;
    uint8_t *bytes;         // rows of row_bytes(), host
    int32_t *labels;        // (rows, per_row), host
    uint8_t *sent;          // images: a copy of `bytes` on the device; if memory is shared, `bytes`
    Event *loaded;          // recorded after the work that reads `bytes`
    PictureRoom room;
    uint8_t *picture;       // a decoded picture, before it is placed on the canvas
} Worker;

struct Loader {
    Device *device;
    Stream *stream;
    LoaderConfig config;
    const Dataset *dataset;
    bool shared;            // device memory is host memory
    Worker *workers;        // one for each thread of -j; with -j 0, one for the caller
    Slot slots[LOADER_SLOTS];
    Batch batch;            // the last result of loader_next
    bool holding;           // the caller still uses `batch`
    double wait_ms;

    pthread_mutex_t lock;   // guards all below; ids to batches change only while workers are idle
    pthread_cond_t work;    // wakes workers: a batch to make, a free slot, or the end
    pthread_cond_t news;    // wakes the caller: a worker has finished a batch
    int32_t *ids;
    int count;
    int64_t epoch;
    int batches;
    int next_batch;         // the batch that a worker makes next
    int next_give;          // the batch that loader_next returns next
    int let_go;             // the slots of the batches before this one are free
    int busy;               // workers that are making a batch
    bool resting, ending;
};

static Slot *slot_of(Loader *loader, int batch) { return &loader->slots[batch % LOADER_SLOTS]; }

static size_t image_bytes(const Dataset *set)
{
    return (size_t)set->channels * set->height * set->width;
}

// Bytes of a row as workers make it: the pixels of a canvas, or a key and tokens.
static size_t row_bytes(const Loader *loader)
{
    const Shape *row = &loader->config.shape;
    return dataset_is_text(loader->dataset) ? shape_bytes(*row) / row->n
                                            : (size_t)loader->dataset->channels * row->h * row->w;
}

// --- one batch -----------------------------------------------------------------------------------

static int batch_count(const Loader *loader, int batch)
{
    int left = loader->count - batch * loader->config.shape.n;
    return left < loader->config.shape.n ? left : loader->config.shape.n;
}

static int batch_rows(const Loader *loader, int batch)
{
    return loader->config.fill_last ? loader->config.shape.n : batch_count(loader, batch);
}

static int between(int low, int value, int high)
{
    return value < low ? low : value > high ? high : value;
}

// Copies an image to a black canvas, with the image's corner at (top, left), which may be outside
// the canvas. flip: then mirrors the canvas.
static void image_place(const Loader *loader, const uint8_t *image, int top, int left, bool flip,
                        uint8_t *canvas)
{
    const Dataset *set = loader->dataset;
    const int height = loader->config.shape.h, width = loader->config.shape.w;
    const int first = between(0, top, height), last = between(0, top + set->height, height);
    const int begin = between(0, left, width), end = between(begin, left + set->width, width);
    memset(canvas, 0, row_bytes(loader));
    for (int c = 0; c < set->channels; c++) {
        for (int y = first; y < last; y++) {
            const uint8_t *from = image + ((size_t)c * set->height + y - top) * set->width;
            uint8_t *to = canvas + ((size_t)c * height + y) * width;
            for (int x = begin; x < end && flip; x++)
                to[width - 1 - x] = from[x - left];
            if (!flip)
                memcpy(to + begin, from + (begin - left), end - begin);
        }
    }
}

// Makes a window of text: key and tokens go to `row`, the token after each of these to `labels`.
static void window_make(const Loader *loader, int32_t id, uint32_t *row, int32_t *labels)
{
    const Dataset *set = loader->dataset;
    const Augment *augment = &loader->config.augment;
    const int block = set->per_row;
    const Philox key = philox(augment->seed, (uint64_t)loader->epoch, (uint32_t)id);
    const uint8_t *tokens = set->inputs + (size_t)id * block;
    if (augment->crop)
        tokens += text_offset(augment->seed, loader->epoch, block);
    memcpy(row, key.v, TEXT_KEY * sizeof *row);
    for (int i = 0; i < block; i++) {
        row[TEXT_KEY + i] = tokens[i];
        labels[i] = tokens[i + 1];
    }
}

// Puts a sample's image on a canvas: in the middle, or where a crop moves it. Also sets the label.
// picture_make has already cropped the image of a picture file.
static void image_make(Worker *worker, int32_t id, uint8_t *canvas, int32_t *label)
{
    Error error;
    Loader *loader = worker->loader;
    const Dataset *set = loader->dataset;
    const Augment *augment = &loader->config.augment;
    const Shape *shape = &loader->config.shape;
    const int top = (shape->h - set->height) / 2, left = (shape->w - set->width) / 2;
    *label = set->labels[id];
    if (set->pictures) { // picture_make also crops and flips
        if (!picture_make(set, id, augment, loader->epoch, &worker->room, worker->picture, &error))
            FAIL_ERROR(&error);
        image_place(loader, worker->picture, top, left, false, canvas);
        return;
    }
    const Jitter jitter = jitter_of(augment->seed, loader->epoch, id, augment->padding);
    image_place(loader, set->inputs + id * image_bytes(set),
                top + (augment->crop ? augment->padding - jitter.y : 0),
                left + (augment->crop ? augment->padding - jitter.x : 0),
                augment->flip && jitter.flip, canvas);
}

static void rows_make(Worker *worker, int batch)
{
    Loader *loader = worker->loader;
    const int32_t *ids = loader->ids + (size_t)batch * loader->config.shape.n;
    const int labels = loader->dataset->per_row;
    trace_begin("make rows");
    for (int i = 0; i < batch_count(loader, batch); i++) {
        uint8_t *row = worker->bytes + i * row_bytes(loader);
        if (dataset_is_text(loader->dataset))
            window_make(loader, ids[i], (uint32_t *)row, &worker->labels[i * labels]);
        else
            image_make(worker, ids[i], row, &worker->labels[i]);
        progress_beat();
    }
    trace_end();
}

// Copies the worker's rows into the batch's slot on the device, and normalises images there.
static void slot_load(Worker *worker, int batch)
{
    Loader *loader = worker->loader;
    const Augment *augment = &loader->config.augment;
    const Slot *slot = slot_of(loader, batch);
    const int count = batch_count(loader, batch), labels = loader->dataset->per_row;
    const size_t row = row_bytes(loader);
    Shape shape = loader->config.shape;
    shape.n = batch_rows(loader, batch);

    trace_begin("load");
    stream_wait(loader->stream, slot->done);
    for (int i = count * labels; i < shape.n * labels; i++)
        worker->labels[i] = -1;
    copy_to_device(loader->stream, slot->labels, worker->labels,
                   shape.n * labels * sizeof *slot->labels);
    if (dataset_is_text(loader->dataset)) {
        memset(worker->bytes + count * row, 0, (shape.n - count) * row);
        copy_to_device(loader->stream, slot->inputs, worker->bytes, shape.n * row);
    } else {
        if (!loader->shared)
            copy_to_device(loader->stream, worker->sent, worker->bytes, count * row);
        images_load(loader->stream, worker->sent, count, loader->dataset->channels, augment->mean,
                    augment->std, slot->inputs, shape);
    }
    event_record(slot->ready, loader->stream);
    event_record(worker->loaded, loader->stream);
    trace_end();
}

// --- workers -------------------------------------------------------------------------------------

// Makes the next batch; false: none is left, or workers rest. Releases the caller's lock meanwhile.
static bool work(Worker *worker)
{
    Loader *loader = worker->loader;
    if (loader->resting || loader->next_batch >= loader->batches)
        return false;
    const int batch = loader->next_batch++;
    Slot *slot = slot_of(loader, batch);
    loader->busy++;
    pthread_mutex_unlock(&loader->lock);
    event_sync(worker->loaded);
    rows_make(worker, batch);
    pthread_mutex_lock(&loader->lock);
    while (!loader->resting && batch >= loader->let_go + LOADER_SLOTS)
        pthread_cond_wait(&loader->work, &loader->lock);
    if (!loader->resting) {
        pthread_mutex_unlock(&loader->lock);
        slot_load(worker, batch);
        pthread_mutex_lock(&loader->lock);
        slot->full = true;
    }
    loader->busy--;
    pthread_cond_signal(&loader->news);
    return true;
}

static void *worker_run(void *arg)
{
    Worker *worker = arg;
    Loader *loader = worker->loader;
    char name[24];
    snprintf(name, sizeof name, "loader %d", (int)(worker - loader->workers) + 1);
    trace_thread(name);
    device_use(loader->device);
    pthread_mutex_lock(&loader->lock);
    while (!loader->ending)
        if (!work(worker))
            pthread_cond_wait(&loader->work, &loader->lock);
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

// On return the workers are idle, and the stream is done. Takes the lock; workers_resume releases
// it.
static void workers_rest(Loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    loader->resting = true;
    pthread_cond_broadcast(&loader->work);
    while (loader->busy > 0)
        pthread_cond_wait(&loader->news, &loader->lock);
    stream_sync(loader->stream);
}

static void workers_resume(Loader *loader)
{
    loader->resting = false;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->lock);
}

// --- new and free --------------------------------------------------------------------------------

static void slot_new(Loader *loader, Slot *slot)
{
    const Shape shape = loader->config.shape;
    slot->inputs = device_alloc(loader->device, shape_bytes(shape));
    slot->labels = device_alloc(loader->device,
                                sizeof *slot->labels * shape.n * loader->dataset->per_row);
    slot->ready = event_new(loader->device);
    slot->done = event_new(loader->device);
}

static void slot_free(Loader *loader, Slot *slot)
{
    event_free(slot->done);
    event_free(slot->ready);
    device_free(loader->device, slot->labels);
    device_free(loader->device, slot->inputs);
}

static void worker_new(Loader *loader, Worker *worker)
{
    const size_t rows = loader->config.shape.n, bytes = rows * row_bytes(loader);
    worker->loader = loader;
    worker->bytes = host_alloc(bytes);
    worker->labels = host_alloc(rows * loader->dataset->per_row * sizeof *worker->labels);
    worker->sent = loader->shared ? worker->bytes : device_alloc(loader->device, bytes);
    worker->loaded = event_new(loader->device);
    worker->picture = xmalloc(image_bytes(loader->dataset));
}

static void worker_free(Loader *loader, Worker *worker)
{
    picture_room_free(&worker->room);
    free(worker->picture);
    event_free(worker->loaded);
    if (!loader->shared)
        device_free(loader->device, worker->sent);
    host_free(worker->labels);
    host_free(worker->bytes);
}

static int worker_count(const Loader *loader)
{
    return loader->config.workers > 0 ? loader->config.workers : 1;
}

Loader *loader_new(Device *device, const Dataset *dataset, const LoaderConfig *config)
{
    Loader *loader = xcalloc(1, sizeof *loader);
    loader->device = device;
    loader->dataset = dataset;
    loader->config = *config;
    loader->shared = device_shares_memory(device);
    loader->stream = stream_new(device, "loader");
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->work, NULL);
    pthread_cond_init(&loader->news, NULL);
    for (int i = 0; i < LOADER_SLOTS; i++)
        slot_new(loader, &loader->slots[i]);
    loader->workers = xcalloc(worker_count(loader), sizeof *loader->workers);
    for (int i = 0; i < worker_count(loader); i++)
        worker_new(loader, &loader->workers[i]);
    for (int i = 0; i < config->workers; i++)
        loader->workers[i].thread = thread_start(worker_run, &loader->workers[i], "worker (-j)");
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
    stream_sync(device_stream(loader->device)); // the compute stream may still read a slot

    for (int i = 0; i < worker_count(loader); i++)
        worker_free(loader, &loader->workers[i]);
    for (int i = 0; i < LOADER_SLOTS; i++)
        slot_free(loader, &loader->slots[i]);
    stream_free(loader->stream);
    free(loader->ids);
    free(loader->workers);
    pthread_cond_destroy(&loader->news);
    pthread_cond_destroy(&loader->work);
    pthread_mutex_destroy(&loader->lock);
    free(loader);
}

// --- an epoch ------------------------------------------------------------------------------------

// Sets the epoch's ids (NULL: 0 to count - 1). Call it while the workers are idle.
static void ids_set(Loader *loader, const int32_t *ids, int count)
{
    free(loader->ids);
    loader->ids = xmalloc(count * sizeof *ids);
    loader->count = count;
    for (int i = 0; i < count; i++) {
        int id = ids ? ids[i] : i;
        CHECK(id >= 0 && id < loader->dataset->count, "ids go from 0 to the data set's size - 1",
              "sample %d of %d has an impossible id %d", i, count, id);
        loader->ids[i] = id;
    }
}

// Gives back the current batch's slot. Call it when all work on the batch is enqueued.
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
    loader->next_batch = loader->next_give = loader->let_go = first;
    for (int i = 0; i < LOADER_SLOTS; i++)
        loader->slots[i].full = false;
    workers_resume(loader);
}

// Waits until the next batch's slot is full; without workers, the caller fills it here. The caller
// holds the lock. Returns the seconds waited, but 0 if the device is still busy.
static double slot_await(Loader *loader, const Slot *slot)
{
    double begin = clock_now();
    trace_begin("wait for data");
    while (!slot->full) {
        if (loader->config.workers == 0)
            work(loader->workers);
        else
            pthread_cond_wait(&loader->news, &loader->lock);
    }
    trace_end();
    progress_beat();
    return stream_idle(device_stream(loader->device)) ? clock_now() - begin : 0;
}

const Batch *loader_next(Loader *loader)
{
    progress_beat();
    batch_let_go(loader);
    if (loader->next_give >= loader->batches)
        return NULL;

    const int batch = loader->next_give;
    Slot *slot = slot_of(loader, batch);
    pthread_mutex_lock(&loader->lock);
    loader->let_go = batch;
    pthread_cond_broadcast(&loader->work);
    double waited = slot->full ? 0 : slot_await(loader, slot);
    loader->wait_ms += 1e3 * waited;
    slot->full = false;
    loader->next_give++;
    pthread_mutex_unlock(&loader->lock);

    stream_wait(device_stream(loader->device), slot->ready);
    loader->holding = true;
    loader->batch = (Batch){ .index = batch, .count = batch_count(loader, batch),
                             .rows = batch_rows(loader, batch), .inputs = slot->inputs,
                             .full = batch_rows(loader, batch) == loader->config.shape.n,
                             .per_row = loader->dataset->per_row,
                             .labels = slot->labels, .slot = batch % LOADER_SLOTS };
    loader->batch.label_count = loader->batch.rows * loader->dataset->per_row;
    return &loader->batch;
}

double loader_wait_ms(Loader *loader)
{
    double ms = loader->wait_ms;
    loader->wait_ms = 0;
    return ms;
}
