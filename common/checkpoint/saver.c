// saver.c - a thread that writes checkpoints, first come first served.
//
//   training   take a snapshot | ...                      | take another | ...
//   the queue  [ first ]                               [ first ][ second ]
//   the thread                 | lay out, write, fsync, rename          | the second ...
#include "saver.h"
#include "alive.h"
#include "threads.h"
#include "trace.h"

#include <limits.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { UNDER_WAY = 2 };     // a best checkpoint and the one after it need not wait for each other

typedef struct Save {
    Snapshot snapshot;      // keeps its memory for the next one
    char path[PATH_MAX];
} Save;

struct Saver {
    const Model *model;
    const float *velocity;
    const char *dataset;
    int ranks;
    Save saves[UNDER_WAY];
    bool running;           // there is a thread
    pthread_t thread;
    pthread_mutex_t lock;   // of all below
    pthread_cond_t work;    // tells the thread: there is a save, or no more will come
    pthread_cond_t news;    // tells who waits: one more is on the disk
    Save *queue[UNDER_WAY]; // those that are under way
    int count;              // of these
    bool ending;
};

void saver_options(Args *args, SaverConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "save-every", 0, ARG_INT, &config->every, "STEPS",
          "checkpoint within an epoch too (0: only between two)", .min = 0, .max = 1e9 }));
}

bool saver_due(const SaverConfig *config, int64_t global_step)
{
    return config->every > 0 && global_step % config->every == 0;
}

// --- the thread ----------------------------------------------------------------------------------

// The first of the queue, which stays there; waits for one. NULL: none will come any more. With the
// lock held.
static Save *save_next(Saver *s)
{
    while (s->count == 0 && !s->ending)
        pthread_cond_wait(&s->work, &s->lock);
    return s->count > 0 ? s->queue[0] : NULL;
}

static void save_done(Saver *s)
{
    s->count--;
    memmove(&s->queue[0], &s->queue[1], (size_t)s->count * sizeof s->queue[0]);
    pthread_cond_broadcast(&s->news);
}

static void save_write(const Saver *s, const Save *save)
{
    Error error;
    trace_begin("write");
    if (!snapshot_write(&save->snapshot, save->path, s->dataset, &error))
        FAIL_ERROR(&error);
    trace_end();
}

// The kernel finds pages for memory only when they are touched, for 90 MB perhaps 100 ms: here
// nobody waits for that. It changes nothing, so a snapshot may be under way already; it is a wish.
static void populate(void *memory, size_t bytes)
{
    const size_t piece = 4 << 20;
    for (size_t at = 0; at + piece <= bytes; at += piece)
        madvise((char *)memory + at, piece, MADV_POPULATE_WRITE);
}

// One core is enough: the others are at work on the next steps.
static void *saver_run(void *arg)
{
    Saver *s = arg;
    omp_set_num_threads(1);
    trace_thread("saver");
    for (int i = 0; i < UNDER_WAY; i++) {
        populate(s->saves[i].snapshot.params, s->model->param_count * sizeof(float));
        populate(s->saves[i].snapshot.velocity, s->model->param_count * sizeof(float));
    }
    pthread_mutex_lock(&s->lock);
    for (Save *save; (save = save_next(s));) {
        pthread_mutex_unlock(&s->lock);
        save_write(s, save);
        pthread_mutex_lock(&s->lock);
        save_done(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void start_thread(Saver *s)
{
    s->thread = thread_start(saver_run, s, "the saver");
    s->running = true;
}

// --- for the training thread ---------------------------------------------------------------------

Saver *saver_new(const CheckpointConfig *config, const Model *model, const float *velocity,
                 const char *dataset)
{
    Saver *s = xcalloc(1, sizeof *s);
    s->model = model;
    s->velocity = velocity;
    s->dataset = dataset;
    s->ranks = config->ranks;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->news, NULL);
    if (config->save && !config->evaluate) {
        for (int i = 0; i < UNDER_WAY; i++)
            snapshot_reserve(&s->saves[i].snapshot, model);
        start_thread(s);
    }
    return s;
}

// With the lock held. The disk may take as long as it likes.
static void wait_for_disk(Saver *s, int most)
{
    if (s->count <= most)
        return;
    trace_begin("wait for the disk");
    alive_outside_begin();
    while (s->count > most)
        pthread_cond_wait(&s->news, &s->lock);
    alive_outside_end();
    trace_end();
}

// One that is not under way.
static Save *free_save(Saver *s)
{
    pthread_mutex_lock(&s->lock);
    wait_for_disk(s, UNDER_WAY - 1);
    Save *save = &s->saves[0];
    while (s->count > 0 && save == s->queue[0])
        save++;
    pthread_mutex_unlock(&s->lock);
    return save;
}

static void enqueue(Saver *s, Save *save)
{
    pthread_mutex_lock(&s->lock);
    s->queue[s->count++] = save;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

void saver_save(Saver *s, const char *path, const TrainState *state)
{
    Save *save = free_save(s);
    CHECK(snprintf(save->path, sizeof save->path, "%s", path) < (int)sizeof save->path, "",
          "%.80s...: the path is too long", path);
    trace_begin("copy");
    snapshot_take(&save->snapshot, s->model, s->velocity, state);
    trace_end();
    save->snapshot.state.ranks = s->ranks;
    enqueue(s, save);
}

void saver_free(Saver *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    wait_for_disk(s, 0);
    s->ending = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (s->running)
        pthread_join(s->thread, NULL);
    for (int i = 0; i < UNDER_WAY; i++)
        snapshot_free(&s->saves[i].snapshot);
    pthread_cond_destroy(&s->news);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
