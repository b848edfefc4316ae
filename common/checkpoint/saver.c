// saver.c - a thread that writes checkpoints in the order in which they were taken.
//
//   training     take snapshot 0 | ...                | take snapshot 1 | ...
//   the thread                   | lay out, write, fsync, rename snapshot 0 | snapshot 1 ...
#include "saver.h"
#include "alive.h"
#include "threads.h"
#include "trace.h"

#include <limits.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>

enum { UNDER_WAY = 2 };     // so that a best checkpoint and the next one do not wait for each other

typedef struct Save {
    Snapshot snapshot;      // keeps its memory for the next one
    char path[PATH_MAX];
} Save;

struct Saver {
    const Model *model;
    const Optim *optim;
    const char *dataset;
    pthread_t thread;
    Save saves[UNDER_WAY];  // save number i uses saves[i % UNDER_WAY]
    pthread_mutex_t lock;   // for all fields below
    pthread_cond_t changed;
    int64_t taken, written; // saves so far
    bool ending;
};

void saver_options(Args *args, SaverConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "save-every", 0, ARG_INT, &config->every, "STEPS",
          "also save after this many steps in an epoch (0: do not)", .min = 0, .max = 1e9,
          .needs = "save" }));
}

bool saver_due(const SaverConfig *config, int64_t global_step)
{
    return config->every > 0 && global_step % config->every == 0;
}

Saver *saver_new(const Model *model, const Optim *optim, const char *dataset)
{
    Saver *s = xcalloc(1, sizeof *s);
    s->model = model;
    s->optim = optim;
    s->dataset = dataset;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    return s;
}

// --- the thread ----------------------------------------------------------------------------------

// Waits for a save, and returns the oldest that is not written yet. NULL: no more will come.
static Save *next_save(Saver *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->taken == s->written && !s->ending)
        pthread_cond_wait(&s->changed, &s->lock);
    Save *save = s->taken > s->written ? &s->saves[s->written % UNDER_WAY] : NULL;
    pthread_mutex_unlock(&s->lock);
    return save;
}

static void add_one(Saver *s, int64_t *saves)
{
    pthread_mutex_lock(&s->lock);
    (*saves)++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void *saver_run(void *arg)
{
    Saver *s = arg;
    Error error;
    omp_set_num_threads(1);     // the other cores compute the next steps
    trace_thread("saver");
    for (Save *save; (save = next_save(s));) {
        trace_begin("write");
        if (!snapshot_write(&save->snapshot, save->path, s->dataset, &error))
            FAIL_ERROR(&error);
        trace_end();
        add_one(s, &s->written);
    }
    return NULL;
}

// --- for the training thread ---------------------------------------------------------------------

// Waits until at most this many saves are unfinished. The disk has no time limit.
static void wait_for_disk(Saver *s, int most)
{
    pthread_mutex_lock(&s->lock);
    if (s->taken - s->written > most) {
        trace_begin("wait for the disk");
        alive_outside_begin();
        while (s->taken - s->written > most)
            pthread_cond_wait(&s->changed, &s->lock);
        alive_outside_end();
        trace_end();
    }
    pthread_mutex_unlock(&s->lock);
}

void saver_save(Saver *s, const char *path, const TrainState *state)
{
    wait_for_disk(s, UNDER_WAY - 1);
    Save *save = &s->saves[s->taken % UNDER_WAY];
    CHECK(snprintf(save->path, sizeof save->path, "%s", path) < (int)sizeof save->path, "",
          "%.80s...: the path is too long", path);
    trace_begin("copy");
    snapshot_take(&save->snapshot, s->model, s->optim, state);
    trace_end();
    if (s->taken == 0)
        s->thread = thread_start(saver_run, s, "the saver");
    add_one(s, &s->taken);
}

void saver_free(Saver *s)
{
    wait_for_disk(s, 0);
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->taken > 0)
        pthread_join(s->thread, NULL);
    for (int i = 0; i < UNDER_WAY; i++)
        snapshot_free(&s->saves[i].snapshot);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
