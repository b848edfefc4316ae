// ctest: SANITIZERS asan tsan
// Checkpoints that a thread writes while training continues: their contents. (test_save_fails_beside.sh ends the
// program meanwhile.)
#include "alive.h"
#include "base/output.h"
#include "check.h"
#include "saver.h"
#include "test_device.h"
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

// --- a simulated run -----------------------------------------------------------------------------

typedef struct Run {
    Model *model;
    Optim *optim;
    TrainState state;
} Run;

static Run new_run(const char *arch)
{
    static OptimConfig config;
    config = optim_defaults();
    Run r = { .model = model_new(device, ops, &(ModelConfig){ arch, 3, 32, 32, 10, 2 }) };
    model_init(r.model, 1);
    r.optim = optim_new(&config, r.model);
    r.state = (TrainState){ .seed = 1, .batch_size = 2, .loss_scale = 1, .best_top1 = -1 };
    return r;
}

static void free_run(Run *r)
{
    optim_free(r->optim);
    model_free(r->model);
}

// Changes everything that a checkpoint holds.
static void train_step(Run *r)
{
    Model *m = r->model;
    r->state.global_step++;
    r->state.step++;
    m->batches_seen++;
    for (size_t i = 0; i < m->param_count; i++) {
        r->optim->arenas[0].values[i] += 0.5f;
        m->params[i] += 0.25f;
    }
    for (size_t i = 0; i < m->buffer_count; i++)
        m->buffers[i] += 1;
}

static bool same_files(const char *a, const char *b)
{
    char command[9000];
    snprintf(command, sizeof command, "cmp -s '%s' '%s'", test_path(a), test_path(b));
    return system(command) == 0;
}

// --- the contents of the files -------------------------------------------------------------------

static sem_t begun;

// Only one file is written at a time: while this thread writes one, the saver waits.
static void *write_slowly(void *path)
{
    Error err;
    FILE *out = replace_open(path, &err);
    sem_post(&begun);
    while (alive_here()->outside == 0)  // until training waits for the disk
        usleep(1000);
    if (!out || !replace_commit(out, path, &err))
        FAIL_ERROR(&err);
    return NULL;
}

// Three saves to a disk that is slow until the third waits for it, each followed at once by a training step. Each file
// must hold the state at its save, byte for byte as checkpoint_save writes it.
TEST(files_hold_the_state_at_the_save)
{
    static const char *const names[] = { "first", "second", "third" };
    Error err;
    char path[4096];
    pthread_t slow;
    Run r = new_run("lenet"), twin = new_run("lenet");
    Saver *saver = saver_new(r.model, r.optim, "cifar10");
    sem_init(&begun, 0, 0);
    snprintf(path, sizeof path, "%s", test_path("slow"));
    EXPECT(pthread_create(&slow, NULL, write_slowly, path) == 0, "pthread_create");
    sem_wait(&begun);
    EXPECT(alive_here()->outside == 0, "a thread that writes excuses a training thread that hangs");
    for (int i = 0; i < 3; i++) {
        saver_save(saver, test_path(names[i]), &r.state);
        train_step(&r);
    }
    saver_free(saver);
    pthread_join(slow, NULL);
    for (int i = 0; i < 3; i++) {
        if (!checkpoint_save(test_path("wanted"), twin.model, twin.optim, &twin.state, "cifar10",
                             &err))
            FAIL_ERROR(&err);
        EXPECT(same_files(names[i], "wanted"), "the %s file differs", names[i]);
        train_step(&twin);
    }
    free_run(&twin);
    free_run(&r);
}

TEST_MAIN_ON_DEVICE(1, 0)
