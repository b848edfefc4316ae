// ctest: TIMEOUT 120 SANITIZERS asan tsan
// Checkpoints that are written while training goes on: what is in them, in which order they come,
// and what happens to them when the program ends in the middle.
#include "check.h"
#include "interrupt.h"
#include "saver.h"
#include "test.h"
#include "trace.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static Device *device;
static Ops *ops;

// --- a run that trains by adding up --------------------------------------------------------------

typedef struct Run {
    Model *model;
    float *velocity;
    TrainState state;
} Run;

static Run new_run(const char *arch)
{
    Run r = { .model = model_new(device, ops, &(ModelConfig){ arch, 3, 32, 32, 10, 2 }) };
    model_init(r.model, 1);
    r.velocity = device_alloc(device, r.model->param_count * sizeof(float));
    r.state = (TrainState){ .seed = 1, .batch_size = 2, .loss_scale = 1, .best_top1 = -1,
                            .ranks = 4 };
    return r;
}

static void free_run(Run *r)
{
    device_free(device, r->velocity);
    model_free(r->model);
}

// Everything that a checkpoint holds changes.
static void train_step(Run *r)
{
    Model *m = r->model;
    r->state.global_step++;
    r->state.step++;
    r->state.loss_scale *= 2;
    r->state.clean_steps += 3;
    r->state.skipped_steps++;
    m->batches_seen++;
    for (size_t i = 0; i < m->param_count; i++) {
        r->velocity[i] += 0.5f;
        m->params[i] += 0.25f;
    }
    for (size_t i = 0; i < m->buffer_count; i++)
        m->buffers[i] += 1;
}

static Saver *new_saver(const Run *r)
{
    return saver_new(&(CheckpointConfig){ .save = "here", .ranks = 4 }, r->model, r->velocity,
                     "cifar10");
}

// What checkpoint_save writes of a run.
static void save_wanted(const Run *r, const char *name)
{
    Error err;
    if (!checkpoint_save(test_path(name), r->model, r->velocity, &r->state, "cifar10", &err))
        FAIL_ERROR(&err);
}

static bool same_files(const char *a, const char *b)
{
    char command[9000];
    snprintf(command, sizeof command, "cmp -s '%s' '%s'", test_path(a), test_path(b));
    return system(command) == 0;
}

static int files_with(const char *directory, const char *text)
{
    int count = 0;
    DIR *dir = opendir(directory);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.' && strstr(entry->d_name, text);
    if (dir)
        closedir(dir);
    return count;
}

// --- what is in the files ------------------------------------------------------------------------

// Two saves as at the end of an epoch, a third, and training goes on at once: each file is of its
// moment, and byte for byte what checkpoint_save writes of a twin.
static void files_are_of_their_moment(const char *arch)
{
    static const char *const names[] = { "first", "second", "third" };
    static const char *const wanted[] = { "first.wanted", "second.wanted", "third.wanted" };
    Run r = new_run(arch), twin = new_run(arch);
    Saver *saver = new_saver(&r);
    for (int i = 0; i < 3; i++) {
        saver_save(saver, test_path(names[i]), &r.state);
        train_step(&r);
    }
    saver_free(saver);
    for (int i = 0; i < 3; i++) {
        save_wanted(&twin, wanted[i]);
        train_step(&twin);
        EXPECT(same_files(names[i], wanted[i]), "%s: the %s", arch, names[i]);
    }
    EXPECT(!same_files("first", "second") && !same_files("second", "third"), "%s", arch);
    free_run(&twin);
    free_run(&r);
}

// The saver's own number of ranks, which the training loop need not know.
TEST(ranks_are_noted)
{
    Run r = new_run("lenet");
    Saver *saver = new_saver(&r);
    r.state.ranks = 0;
    saver_save(saver, test_path("ranks"), &r.state);
    saver_free(saver);
    Error err;
    TrainState back;
    EXPECT(checkpoint_load(test_path("ranks"), r.model, r.velocity, &back, &err), "%s", err.text);
    EXPECT_EQ_INT(back.ranks, 4);
    free_run(&r);
}

// --- their order ---------------------------------------------------------------------------------

// The names that came into a directory by a rename, in their order.
static int arrivals(int fd, char names[][32], int most)
{
    _Alignas(struct inotify_event) char bytes[1 << 16];
    ssize_t size = read(fd, bytes, sizeof bytes);
    int count = 0;
    for (ssize_t at = 0; at < size;) {
        const struct inotify_event *event = (const void *)(bytes + at);
        if (count < most)
            snprintf(names[count++], sizeof names[0], "%.31s", event->name);
        at += (ssize_t)(sizeof *event + event->len);
    }
    return count;
}

// More than may be under way: the later ones wait for the disk, and none overtakes another.
TEST(first_come_first_served)
{
    enum { SAVES = 12 };
    char directory[4096], names[SAVES + 1][32], path[4200];
    Run r = new_run("lenet");
    snprintf(directory, sizeof directory, "%s", test_path("order"));
    mkdir(directory, 0777);
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    inotify_add_watch(fd, directory, IN_MOVED_TO);
    trace_open(test_path("trace.json"), 0, "test");
    Saver *saver = new_saver(&r);
    for (int i = 0; i < SAVES; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, i % 2 ? "net" : "net.best");
        saver_save(saver, path, &r.state);
        train_step(&r);
    }
    saver_free(saver);
    trace_close();
    EXPECT_EQ_INT(arrivals(fd, names, SAVES + 1), SAVES);
    for (int i = 0; i < SAVES; i++)
        EXPECT_EQ_STR(names[i], i % 2 ? "net" : "net.best");
    EXPECT_EQ_INT(files_with(directory, ""), 2);
    close(fd);
    char command[4200];
    snprintf(command, sizeof command, "cd '%s' && grep -q '\"saver\"' trace.json && grep -q "
             "'\"wait for the disk\"' trace.json && [ $(grep -c '\"write\"' trace.json) = %d ]",
             test_path(""), SAVES);
    EXPECT(system(command) == 0, "not in the timeline: %s", command);
    free_run(&r);
}

// Who never saves has no thread, and all of this is nothing.
TEST(without_a_file)
{
    Run r = new_run("lenet");
    Saver *saver = saver_new(&(CheckpointConfig){ .ranks = 4 }, r.model, r.velocity, "cifar10");
    saver_free(saver);
    saver_free(new_saver(&r));
    saver_free(NULL);
    free_run(&r);
}

TEST(when_one_is_due)
{
    SaverConfig every = { .every = 3 }, never = { .every = 0 };
    int64_t due = 0;
    for (int64_t step = 1; step <= 10; step++) {
        due = due * 10 + saver_due(&every, step) * step;
        EXPECT(!saver_due(&never, step), "step %lld", (long long)step);
    }
    EXPECT_EQ_INT(due, 3006009 * 10);
}

// --- the end of the program ----------------------------------------------------------------------

// This program again, with two arguments: it saves on and on.
static void save_for_ever(const char *directory)
{
    char path[4200];
    Run r = new_run("lenet");
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
    char *argv[] = { (char *)"test_saver", (char *)"for ever", (char *)directory, NULL };
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
    Run r = new_run("lenet");
    EXPECT(checkpoint_load(path, r.model, r.velocity, &state, &err), "%s", err.text);
    free_run(&r);
}

// A second Ctrl-C ends the program at once, in the middle of anything that the thread does: nothing
// temporary is left, no complaint is heard, and what was there is whole.
TEST(an_impatient_end)
{
    char directory[4096], path[4200], said[2048];
    snprintf(directory, sizeof directory, "%s", test_path("impatient"));
    snprintf(path, sizeof path, "%s/net", directory);
    mkdir(directory, 0777);
    for (int round = 0; round < 10; round++) {
        int out, status;
        pid_t child = start_child(directory, &out);
        if (read(out, said, 1) != 1)
            FAIL("", "the child is gone");
        do {                    // two that come too soon after one another may be taken for one
            kill(child, SIGTERM);
            nanosleep(&(struct timespec){ .tv_nsec = 211000 * (round + 1) }, NULL);
        } while (waitpid(child, &status, WNOHANG) == 0);
        ssize_t size = read(out, said, sizeof said - 1);
        said[size > 0 ? size : 0] = '\0';
        close(out);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM, "status %x", status);
        EXPECT(!strstr(said, "saf") && !strstr(said, "No such file"), "it said: %s", said);
        EXPECT_EQ_INT(files_with(directory, "tmp"), 0);
        expect_whole(path);
    }
}

// The disk fails under the thread: that ends the program, with the line that everybody knows.
TEST(a_disk_that_fails)
{
    char directory[4096], path[4200], kept[4096], said[2048];
    snprintf(directory, sizeof directory, "%s", test_path("failing"));
    snprintf(path, sizeof path, "%s/net", directory);
    snprintf(kept, sizeof kept, "%s", test_path("kept"));
    mkdir(directory, 0777);
    int out, status, seen = 0;
    pid_t child = start_child(directory, &out);
    if (read(out, said, 1) != 1 || rename(directory, kept) != 0)
        FAIL("", "the child or the directory is gone");
    for (ssize_t size; (size = read(out, said + seen, sizeof said - 1 - (size_t)seen)) > 0;)
        seen += (int)size;
    said[seen] = '\0';
    waitpid(child, &status, 0);
    close(out);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILED, "status %x", status);
    EXPECT(strstr(said, "net: ") && strstr(said, ": No such file or directory"), "it said: %s",
           said);
    EXPECT_EQ_INT(files_with(kept, ""), 1 + files_with(kept, "tmp"));
    snprintf(path, sizeof path, "%s/net", kept);
    expect_whole(path);
}

int main(int argc, char **argv)
{
    device = device_open(0, 1);
    ops = ops_new(device, &(OpsConfig){ 0 });
    if (argc > 2) {
        save_for_ever(argv[2]);
        return 1;
    }
    files_are_of_their_moment("lenet");
    files_are_of_their_moment("resnet18");
    ranks_are_noted();
    first_come_first_served();
    without_a_file();
    when_one_is_due();
    an_impatient_end();
    a_disk_that_fails();
    ops_free(ops);
    device_close(device);
    return test_done();
}
