// test_spawn.c - the launcher of 03_ddp_fork: what becomes of the ranks, and of the program's exit
// status, whatever one of them does. Ranks do no training here: each plays a part.
// ctest: PROCESSORS all TIMEOUT 60 SANITIZERS asan LABELS deadlines
#include "../03_ddp_fork/spawn.c"
#include "alive.h"
#include "clock.h"
#include "interrupt.h"
#include "test.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/resource.h>

// Whoever links no communication library decides this himself.
__attribute__((weak)) const bool comm_shares_devices = false;

enum { RANKS = 4, DESCRIPTORS = 64 };

// What ranks leave for the test to see.
static struct Seen {
    _Atomic pid_t pid[RANKS];
    atomic_int ready;       // ranks that are where the test wants them
    atomic_int extra;       // descriptors too many
} *seen;

typedef int Part(const World *world);
typedef struct Launch {
    pid_t pid;
    double begun;
    char path[4096];        // what it says
} Launch;

static char said[1 << 16], host[64];
static double took;         // s, the last launch
static bool open_before[DESCRIPTORS];

static void sleep_ms(int ms) { usleep((useconds_t)ms * 1000); }

static void note_descriptors(void)
{
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        open_before[fd] = fcntl(fd, F_GETFD) >= 0;
}

// --- launching -----------------------------------------------------------------------------------

static _Noreturn void be_launcher(Part *part, int ranks, double timeout, const char *path)
{
    World world;
    SpawnConfig config = { .ranks = ranks, .timeout = timeout };
    struct rlimit no_core = { 0, 0 };
    setrlimit(RLIMIT_CORE, &no_core);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0 || dup2(fd, STDOUT_FILENO) < 0)
        _exit(99);
    close(fd);
    note_descriptors();
    spawn(&config, &world);
    seen->pid[world.rank] = getpid();
    interrupt_install(true);
    int status = part(&world);
    if (alive_here()->done)
        tcp_store_end(&world);
    exit(status);
}

static Launch launch(Part *part, int ranks, double timeout)
{
    static int number;
    Launch l = { .begun = clock_now() };
    char name[32];
    snprintf(name, sizeof name, "said-%d", number++);
    snprintf(l.path, sizeof l.path, "%s", test_path(name));
    memset(seen, 0, sizeof *seen);
    fflush(NULL);
    l.pid = fork();
    if (l.pid == 0)
        be_launcher(part, ranks, timeout, l.path);
    return l;
}

static void await_ready(int ranks)
{
    for (int i = 0; i < 5000 && seen->ready < ranks; i++)
        sleep_ms(1);
    EXPECT(seen->ready >= ranks, "%d of %d ranks are there", seen->ready, ranks);
}

// Running, or stopped; a zombie that nobody asks for is gone.
static char state_of(pid_t pid)
{
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *in = fopen(path, "r");
    if (in == NULL)
        return 0;
    bool read = fgets(line, sizeof line, in) != NULL;
    fclose(in);
    char state = read && strrchr(line, ')') ? strrchr(line, ')')[2] : 0;
    return state == 'Z' || state == 'X' ? 0 : state;
}

static int ranks_left(void)
{
    int left = 0;
    for (int i = 0; i < RANKS; i++)
        left += seen->pid[i] > 0 && state_of(seen->pid[i]) != 0;
    return left;
}

static void read_said(const Launch *l)
{
    FILE *in = fopen(l->path, "r");
    said[in ? fread(said, 1, sizeof said - 1, in) : 0] = '\0';
    if (in)
        fclose(in);
}

// Waits for it; its exit status, or 1000 + the signal that killed it. No rank is left then.
static int finish(const Launch *l)
{
    int status;
    while (waitpid(l->pid, &status, WNOHANG) == 0) {
        if (clock_now() - l->begun > 15) {
            kill(l->pid, SIGKILL);
            EXPECT(false, "it hangs");
        }
        sleep_ms(2);
    }
    took = clock_now() - l->begun;
    read_said(l);
    EXPECT_EQ_INT(ranks_left(), 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int play(Part *part, int ranks, double timeout)
{
    Launch l = launch(part, ranks, timeout);
    return finish(&l);
}

static bool says(const char *what) { return strstr(said, what) != NULL; }

static int count(const char *what)
{
    int n = 0;
    for (const char *p = said; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

// Waits as one waits for another rank, until somebody ends it.
static int wait_for_ever(void)
{
    alive_wait_begin();
    seen->ready++;
    for (;;)
        pause();
    return 0;
}

// --- statuses ------------------------------------------------------------------------------------

static int well(const World *w)
{
    (void)w;
    alive_done();
    return 0;
}

static int stopped_by_agreement(const World *w)
{
    sleep_ms(50 * w->rank);
    alive_done();
    return 130;
}

TEST(all_is_well)
{
    EXPECT_EQ_INT(play(well, 3, 30), 0);
    EXPECT_EQ_STR(said, "");
    EXPECT_EQ_INT(play(well, 1, 30), 0);
    EXPECT_EQ_INT(play(stopped_by_agreement, 3, 30), 130);
    EXPECT_EQ_STR(said, "");
}

static int look_around(const World *w)
{
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    WARN("", "size %d, local %d of %d, at %s, blocked %d, group %d", w->size, w->local_rank,
         w->local_size, w->address, sigismember(&blocked, SIGTERM), getpgrp() == getpid());
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        seen->extra += fcntl(fd, F_GETFD) >= 0 && !open_before[fd];
    alive_done();
    return 0;
}

TEST(ranks_know_who_they_are)
{
    EXPECT_EQ_INT(play(look_around, 0, 30), 0); // on a CPU: two
    EXPECT_EQ_INT(count("size 2, local "), 2);
    EXPECT(says("[rank 0/2 ") && says("[rank 1/2 "), "says %s", said);
    EXPECT_EQ_INT(count("at 127.0.0.1, blocked 0, group 1"), 2);
    EXPECT_EQ_INT(play(look_around, 4, 30), 0);
    EXPECT(says("size 4, local 3 of 4"), "says %s", said);
    // Each has its connection and the pages; rank 0 the store, too: its port, and those that are there.
    EXPECT(seen->extra <= 4 * 2 + 1 + 4, "%d descriptors", seen->extra);
}

// --- deaths --------------------------------------------------------------------------------------

static int death_signal, death_status;

static int one_dies(const World *w)
{
    alive_joined();
    alive_step(2, 7);
    if (w->rank != 1)
        return wait_for_ever();
    alive_step(2, 8);
    alive_collective_begin("gradients", "all_reduce", 1024);
    while (seen->ready < w->size - 1)
        sleep_ms(1);
    if (death_signal) {
        signal(death_signal, SIG_DFL);          // AddressSanitizer has its own ideas
        kill(getpid(), death_signal);
        pause();
    }
    return death_status;
}

TEST(who_died_of_what)
{
    static const struct {
        int signal, status, wanted;
        const char *text;
    } deaths[] = {
        { SIGKILL, 0, 1, "was killed by SIGKILL (Killed): after epoch 2, step 8; last collective: "
                         "all_reduce #1 of 1024 values (gradients)\nhint: " },
        { SIGSEGV, 0, 1, "was killed by SIGSEGV (Segmentation fault): after epoch 2, step 8; " },
        { SIGTERM, 0, 1, "was killed by SIGTERM (Terminated): after epoch 2" },
        { 0, 0, 1, "ended with status 0: after epoch 2, step 8; " },
        { 0, 1, 1, "ended with status 1: after epoch 2, step 8; " },
        { 0, 143, 143, "ended with status 143: after epoch 2, step 8; " },
        { 0, EXIT_USAGE, EXIT_USAGE, NULL },        // these have been explained
        { 0, EXIT_DIVERGED, EXIT_DIVERGED, NULL },
        { 0, EXIT_REPORTED, 1, NULL },
    };
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) {
        char who[100];
        death_signal = deaths[i].signal;
        death_status = deaths[i].status;
        EXPECT_EQ_INT(play(one_dies, 3, 30), deaths[i].wanted);
        snprintf(who, sizeof who, "rank 1 of 3 (%s, pid %d) ", host, (int)seen->pid[1]);
        EXPECT(!deaths[i].text || (says(who) && says(deaths[i].text)), "no \"%s%s\" in %s", who,
               deaths[i].text, said);
        EXPECT_EQ_INT(count(": rank "), deaths[i].text != NULL);
        EXPECT(took < 4, "took %.1f s", took);
    }
}

// The one that complains that another is gone is not the one that died.
static int complains(const World *w)
{
    seen->ready++;
    while (seen->ready < 100 || (w->rank != 2 && state_of(seen->pid[2]) != 0))
        sleep_ms(1);
    if (w->rank == 2)
        raise(SIGKILL);
    return EXIT_FAILED;
}

TEST(the_one_that_died_first_is_named)
{
    Launch l = launch(complains, 3, 30);
    await_ready(3);
    kill(l.pid, SIGSTOP);                       // so that it sees all the deaths at once
    seen->ready = 100;
    for (int i = 0; i < 5000 && ranks_left() > 0; i++)
        sleep_ms(1);
    kill(l.pid, SIGCONT);
    EXPECT_EQ_INT(finish(&l), 1);
    EXPECT_EQ_INT(count(": rank "), 1);
    EXPECT(says("rank 2 of 3 (") && says("was killed by SIGKILL"), "says %s", said);
}

static int deaf(const World *w)
{
    if (w->rank == 1) {
        while (seen->ready == 0)
            sleep_ms(1);
        return 7;
    }
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    return wait_for_ever();
}

TEST(who_does_not_hear_is_killed_after_2_s)
{
    EXPECT_EQ_INT(play(deaf, 2, 30), 7);
    EXPECT(took > 1.9 && took < 4, "took %.1f s", took);
}

static int clean_up_descriptor;
static void note_clean_up(void)
{
    if (write(clean_up_descriptor, "cleaned up\n", 11) < 0)
        abort();
}

// --- lost ----------------------------------------------------------------------------------------

static int one_stops(const World *w)
{
    alive_joined();
    alive_wait_begin();
    clean_up_descriptor = STDERR_FILENO;
    check_on_exit(note_clean_up);
    seen->ready++;
    if (w->rank == 1)
        raise(SIGSTOP);
    while (seen->ready < 100)
        sleep_ms(1);
    check_on_exit(NULL);
    alive_wait_end();
    alive_done();
    return 0;
}

TEST(who_is_stopped_is_lost)
{
    EXPECT_EQ_INT(play(one_stops, 3, 1), 1);
    EXPECT(says("rank 1 of 3 (") && says("is stopped for 1"), "says %s", said);
    EXPECT_EQ_INT(count("cleaned up"), 3);      // it is woken up for that
    EXPECT(took > 1 && took < 4, "took %.1f s", took);
}

static int one_hangs(const World *w)
{
    alive_joined();
    alive_step(1, 3);
    if (w->rank != 2)
        return wait_for_ever();
    for (volatile unsigned i = 0;; i++) {
    }
    return 0;
}

TEST(who_hangs_is_lost)
{
    EXPECT_EQ_INT(play(one_hangs, 3, 0.5), 1);
    EXPECT(says("rank 2 of 3 (") && says("has given no sign of life for 0.5"), "says %s",
           said);
    EXPECT(says(": after epoch 1, step 3; last collective: "), "says %s", said);
    EXPECT_EQ_INT(count(": rank "), 1);
    EXPECT(took > 0.5 && took < 3, "took %.1f s", took);
}

static int deadlock(const World *w)
{
    alive_joined();
    alive_step(4, 1);
    alive_collective_begin("main", "barrier", 0);
    alive_collective_end();
    if (w->rank == 0)
        alive_collective_begin("gradients", "all_reduce", 5);
    else if (w->rank == 1)
        alive_collective_begin("main", "broadcast", 6);
    return wait_for_ever();
}

TEST(when_all_wait_it_is_a_deadlock)
{
    EXPECT_EQ_INT(play(deadlock, 3, 0.5), 1);
    EXPECT(says("all wait for each other, for 0.5 s now\n") && says(") is behind: "), "says %s", said);
    EXPECT(says("last collective: barrier #1 (main), which is over\n"), "says %s", said);
    EXPECT(says("last collective: all_reduce #2 of 5 values (gradients)\n") &&
               says("last collective: broadcast #2 of 6 values (main)\n"), "says %s", said);
    EXPECT(took > 0.5 && took < 3, "took %.1f s", took);
}

static int nobody_comes(const World *w)
{
    char value;
    if (w->rank == 0)
        return wait_for_ever();
    w->store.get(w->store.arg, "never", &value, 1);
    return 0;
}

static int one_evaluates(const World *w)
{
    alive_joined();
    alive_wait_begin();
    if (w->rank == 1) {                         // as another thread of it would
        alive_wait_begin();
        alive_wait_end();
    }
    if (w->rank == 0) {
        alive_wait_end();
        for (int i = 0; i < 30; i++) {
            sleep_ms(40);
            alive_beat();
        }
        seen->ready = 1;
        alive_wait_begin();
    }
    while (seen->ready == 0)
        sleep_ms(5);
    alive_wait_end();
    alive_done();
    return 0;
}

// A terminal that is not read, a slow disk.
static int one_prints(const World *w)
{
    alive_joined();
    alive_wait_begin();
    if (w->rank == 0) {
        alive_outside_begin();
        sleep_ms(1200);
        alive_outside_end();
        seen->ready = 1;
    }
    while (seen->ready == 0)
        sleep_ms(5);
    alive_wait_end();
    alive_done();
    return 0;
}

TEST(to_wait_for_the_world_outside_is_honest)
{
    EXPECT_EQ_INT(play(one_prints, 3, 0.4), 0);
    EXPECT(said[0] == '\0', "says %s", said);
}

TEST(to_wait_for_who_works_is_honest)
{
    EXPECT_EQ_INT(play(one_evaluates, 3, 0.4), 0);
    EXPECT_EQ_STR(said, "");
    EXPECT(took > 1.2, "took %.1f s", took);
}

// --- signals -------------------------------------------------------------------------------------

// Steps until it is asked to stop: as a training run does.
static int steps(const World *w)
{
    (void)w;
    seen->ready++;
    while (!interrupt_requested()) {
        sleep_ms(5);
        alive_beat();
    }
    sleep_ms(50);
    alive_done();
    return 128 + interrupt_requested();
}

TEST(once_after_this_step)
{
    static const int signals[] = { SIGINT, SIGTERM };
    for (int i = 0; i < 2; i++) {
        Launch l = launch(steps, 3, 30);
        await_ready(3);
        kill(l.pid, signals[i]);
        EXPECT_EQ_INT(finish(&l), 128 + signals[i]);
        EXPECT_EQ_STR(said, "\nstopping after this step; once more: at once\n");
    }
}

static int long_step(const World *w)
{
    (void)w;
    seen->ready++;
    for (;;) {
        sleep_ms(5);
        alive_beat();
    }
    return 0;
}

static int deaf_step(const World *w)
{
    signal(SIGINT, SIG_IGN);
    return long_step(w);
}

static void ask(const Launch *l, int signal, int times)
{
    for (int i = 0; i < times; i++) {
        kill(l->pid, signal);
        sleep_ms(100);
    }
}

TEST(twice_at_once)
{
    Launch l = launch(long_step, 3, 30);
    await_ready(3);
    ask(&l, SIGINT, 1);
    EXPECT(ranks_left() == 3, "once was enough");
    ask(&l, SIGINT, 1);
    EXPECT_EQ_INT(finish(&l), 130);
    EXPECT_EQ_STR(said, "\nstopping after this step; once more: at once\n");
    EXPECT(took < 4, "took %.1f s", took);
}

TEST(three_times_kills)
{
    Launch l = launch(deaf_step, 2, 30);
    await_ready(2);
    ask(&l, SIGINT, 2);
    EXPECT(ranks_left() == 2, "they are not deaf");
    ask(&l, SIGINT, 1);
    EXPECT_EQ_INT(finish(&l), 130);
    EXPECT(took < 1.9, "took %.1f s", took);
}

// Some wait for a rank that is not there yet: there is nothing to finish.
TEST(a_signal_ends_a_rendezvous)
{
    Launch l = launch(nobody_comes, 3, 30);
    await_ready(1);
    ask(&l, SIGTERM, 1);
    EXPECT_EQ_INT(finish(&l), 143);
    EXPECT(took < 1.9, "took %.1f s", took);
    EXPECT_EQ_STR(said, "\nstopping after this step; once more: at once\n");
}

TEST(a_terminal_that_hangs_up)
{
    Launch l = launch(long_step, 2, 30);
    await_ready(2);
    ask(&l, SIGHUP, 1);
    EXPECT_EQ_INT(finish(&l), 129);
    EXPECT_EQ_STR(said, "");
}

// One long step, without a beat.
static int silent_step(const World *w)
{
    (void)w;
    seen->ready++;
    while (!interrupt_requested())
        sleep_ms(5);
    alive_done();
    return 128 + interrupt_requested();
}

// A clock that went on would find everybody lost.
TEST(stopped_together_and_continued)
{
    Launch l = launch(silent_step, 2, 2);
    await_ready(2);
    kill(l.pid, SIGTSTP);
    const pid_t all[] = { l.pid, seen->pid[0], seen->pid[1] };
    for (int i = 0; i < 3; i++) {
        for (int ms = 0; ms < 2000 && state_of(all[i]) != 'T'; ms++)
            sleep_ms(1);
        EXPECT(state_of(all[i]) == 'T', "%d: %c", i, state_of(all[i]));
    }
    sleep_ms(2200);
    ask(&l, SIGCONT, 1);
    EXPECT_EQ_INT(ranks_left(), 2);
    ask(&l, SIGINT, 1);
    EXPECT_EQ_INT(finish(&l), 130);
    EXPECT_EQ_STR(said, "\nstopping after this step; once more: at once\n");
}

// Or a machine that slept: what it did not see it cannot blame on anybody.
TEST(a_parent_that_was_away)
{
    Launch l = launch(silent_step, 2, 2.5);
    await_ready(2);
    kill(l.pid, SIGSTOP);
    sleep_ms(2700);
    ask(&l, SIGCONT, 1);                // first: it is passed on, and whom LeakSanitizer stops at its
    ask(&l, SIGINT, 1);                 // end, to look for leaks, it would wake up
    EXPECT_EQ_INT(finish(&l), 130);
    EXPECT_EQ_STR(said, "\nstopping after this step; once more: at once\n");
}

TEST(nobody_outlives_the_parent)
{
    Launch l = launch(long_step, 4, 30);
    await_ready(4);
    kill(l.pid, SIGKILL);
    double begun = clock_now();
    while (ranks_left() > 0 && clock_now() - begun < 2)
        sleep_ms(5);
    EXPECT_EQ_INT(finish(&l), 1000 + SIGKILL);  // which looks who is left
}

int main(void)
{
    gethostname(host, sizeof host - 1);
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    all_is_well();
    ranks_know_who_they_are();
    who_died_of_what();
    the_one_that_died_first_is_named();
    who_does_not_hear_is_killed_after_2_s();
    who_is_stopped_is_lost();
    who_hangs_is_lost();
    when_all_wait_it_is_a_deadlock();
    to_wait_for_who_works_is_honest();
    to_wait_for_the_world_outside_is_honest();
    once_after_this_step();
    twice_at_once();
    three_times_kills();
    a_signal_ends_a_rendezvous();
    a_terminal_that_hangs_up();
    stopped_together_and_continued();
    a_parent_that_was_away();
    nobody_outlives_the_parent();
    munmap(seen, sizeof *seen);
    return test_done();
}
