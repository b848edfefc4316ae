// ctest: TIMEOUT 120 SANITIZERS asan tsan
// Checkpoints that a thread writes while training continues: their contents, and what remains of
// them if the program ends meanwhile.
#include "check.h"
#include "interrupt.h"
#include "saver.h"
#include "test.h"

#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static Device *device;
static Ops *ops;

// --- a simulated run -----------------------------------------------------------------------------

typedef struct Run {
    Model *model;
    Optim *optim;
    TrainState state;
} Run;

static Run new_run(const char *arch)
{
    static const OptimConfig config;
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

static Saver *new_saver(const Run *r)
{
    return saver_new(r->model, r->optim, "cifar10");
}

static bool same_files(const char *a, const char *b)
{
    char command[9000];
    snprintf(command, sizeof command, "cmp -s '%s' '%s'", test_path(a), test_path(b));
    return system(command) == 0;
}

// --- the contents of the files -------------------------------------------------------------------

// Three saves, each followed at once by a training step. Each file must hold the state at its save,
// byte for byte as checkpoint_save writes it.
TEST(files_hold_the_state_at_the_save)
{
    static const char *const names[] = { "first", "second", "third" };
    Error err;
    Run r = new_run("resnet18"), twin = new_run("resnet18");
    Saver *saver = new_saver(&r);
    for (int i = 0; i < 3; i++) {
        saver_save(saver, test_path(names[i]), &r.state);
        train_step(&r);
    }
    saver_free(saver);
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

// --- the end of the program ----------------------------------------------------------------------

// Saves in an endless loop. Runs in a child: this program, started with two arguments.
static void save_endlessly(const char *directory)
{
    char path[4200];
    Run r = new_run("convnet");
    interrupt_install(false);
    snprintf(path, sizeof path, "%s/net", directory);
    Saver *saver = new_saver(&r);
    for (int i = 0;; i++) {
        saver_save(saver, path, &r.state);
        train_step(&r);
        if (i == 2 && write(STDOUT_FILENO, "r", 1) != 1)
            return;
    }
}

static pid_t start_child(const char *directory, int *out)
{
    pid_t child;
    int ends[2];
    posix_spawn_file_actions_t actions;
    char *argv[] = { (char *)"test_saver", (char *)"endlessly", (char *)directory, NULL };
    if (pipe(ends) != 0)
        FAIL("", "pipe");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    if (posix_spawn(&child, "/proc/self/exe", &actions, NULL, argv, environ) != 0)
        FAIL("", "posix_spawn");
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    *out = ends[0];
    return child;
}

static void expect_whole(const char *path)
{
    Error err;
    TrainState state;
    Run r = new_run("convnet");
    EXPECT(checkpoint_load(path, r.model, r.optim, &state, &err), "%s", err.text);
    free_run(&r);
}

// A second SIGTERM ends the program at once, whatever the saver's thread is doing. The last file
// must be complete, and leftovers must not stop the next run from saving.
TEST(a_second_signal_leaves_a_whole_file)
{
    char directory[4096], path[4200], ready;
    snprintf(directory, sizeof directory, "%s", test_path("impatient"));
    snprintf(path, sizeof path, "%s/net", directory);
    mkdir(directory, 0777);
    for (int round = 0; round < 10; round++) {
        int out, status;
        pid_t child = start_child(directory, &out);
        if (read(out, &ready, 1) != 1)
            FAIL("", "the child is gone");
        do {                    // repeat, since two signals in quick succession can merge into one
            kill(child, SIGTERM);
            nanosleep(&(struct timespec){ .tv_nsec = 211000 * (round + 1) }, NULL);
        } while (waitpid(child, &status, WNOHANG) == 0);
        close(out);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM, "status %x", status);
        expect_whole(path);
    }
}

int main(int argc, char **argv)
{
    device = device_open(0, 1);
    ops = ops_new(device, &(OpsConfig){ 0 });
    if (argc > 2) {
        save_endlessly(argv[2]);
        return 1;
    }
    files_hold_the_state_at_the_save();
    a_second_signal_leaves_a_whole_file();
    ops_free(ops);
    device_close(device);
    return test_done();
}
