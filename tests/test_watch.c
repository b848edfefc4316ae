// test_watch.c - the watchdog: which rank it blames, given Alive pages that the test fills in.
// ctest: SANITIZERS asan
#include "watch.h"
#include "check.h"
#include "test.h"

#include <fcntl.h>

enum { RANKS = 3, TIMEOUT = 2, PATIENCE = 5 };
enum { EXITED = 256 };                  // EXITED * status: an exit status in waitpid's format

// The state of one rank; all zeros: it works. Times are in seconds before now; delay as in Watched.
typedef struct State {
    double ended, silent, stopped, unsent, delay;
    int status;
    int waits;                          // > 0: number of the collective in which it waits
    bool done, stranger;                // stranger: sends no heartbeats
    bool reads, writes;                 // waits for a file
    bool gpu;                           // on a GPU; its longest step took 0.5 s
    bool new_gpu;                       // on a GPU; its first step has not ended
    bool apart;                         // has not met the other ranks
    bool elsewhere;                     // watched by a different supervisor
    bool any_time;                      // --timeout 0 --patience 0: never counts as hung
} State;

static const struct Case {
    State ranks[RANKS];
    bool remote;                        // the pages come over the network
    int passed;                         // signal that was passed on to the ranks
    int status;                         // wanted from watch_judge
    const char *words;                  // wanted in its message; "": no message
} cases[] = {
    { .words = "" },

    // A dead rank is named: at once if a signal killed it or no rank lives, else after a delay. In the delay,
    // an earlier death may show.
    { { [1] = { .ended = 0.01, .status = 7 * EXITED } }, .words = "" },
    { { [1] = { .ended = 0.3, .status = 7 * EXITED } }, .status = 7,
      .words = "rank 1 of 3 (node1, pid 1001) ended with status 7: after epoch 1, step 11" },
    { { [1] = { .ended = 0.01, .status = SIGKILL } }, .status = EXIT_FAILED,
      .words = "rank 1 of 3 (node1, pid 1001) was killed by SIGKILL (Killed): after epoch 1, step 11; last collective: "
               "no collective yet\nhint: " },
    { { [1] = { .ended = 0.3, .status = 35 } }, .status = EXIT_FAILED, .words = " was killed by SIG" },    // no name
    { { { .ended = 0.1 }, { .ended = 0.1 }, { .ended = 0.1, .status = EXITED } }, .status = EXIT_FAILED,
      .words = "ended with status 0: " },       // it ended without being done

    // Of these dead ranks, the watchdog names the one killed by a signal, else the first to end.
    { { { .ended = 0.5, .status = EXITED }, { .ended = 0.4, .status = SIGSEGV },
        { .ended = 0.6, .status = EXIT_REPORTED * EXITED } }, .status = EXIT_FAILED,
      .words = "rank 1 of 3 (node1, pid 1001) was killed by SIGSEGV" },
    { { { .ended = 0.5, .status = 5 * EXITED }, { .silent = 0 }, { .ended = 0.6, .status = 6 * EXITED } }, .status = 6,
      .words = "rank 2 of 3 " },

    // These ranks have printed their own error, so the watchdog prints nothing.
    { { [1] = { .ended = 0.5, .status = EXIT_REPORTED * EXITED } }, .status = EXIT_FAILED, .words = "" },
    { { [1] = { .ended = 0.5, .status = EXIT_USAGE * EXITED } }, .status = EXIT_USAGE, .words = "" },
    { { [1] = { .ended = 0.5, .status = EXIT_DIVERGED * EXITED } }, .status = EXIT_DIVERGED, .words = "" },
    { { [1] = { .ended = 0.5, .status = EXIT_RANKS_DIFFER * EXITED } }, .status = EXIT_RANKS_DIFFER, .words = "" },

    // No fault where words is "": all are done, a rank is watched elsewhere or sends no heartbeats, or a signal was
    // passed on.
    { { { .done = true, .ended = 1 }, { .done = true, .ended = 1, .status = 130 * EXITED },
        { .done = true, .ended = 1 } }, .words = "" },
    { { { .done = true, .ended = 1 }, { .done = true, .ended = 1 }, { .done = true, .ended = 1, .status = EXITED } },
      .status = EXIT_FAILED, .words = "rank 2 of 3 " },
    { { [0] = { .elsewhere = true, .ended = 1 } }, .words = "" },
    { { { .stranger = true, .ended = 1 }, { .stranger = true, .silent = 100 } }, .words = "" },
    { { { .stranger = true, .ended = 1, .status = EXIT_USAGE * EXITED } }, .status = EXIT_USAGE,
      .words = "rank 0 of 3 (node1, pid 1000) ended with status 2\n" },
    { { { .ended = 1, .status = SIGTERM } }, .passed = SIGTERM, .status = 128 + SIGTERM, .words = "" },
    { { { .ended = 1, .status = (128 + SIGTERM) * EXITED } }, .passed = SIGTERM, .status = 128 + SIGTERM, .words = "" },
    { { { .ended = 1, .status = SIGKILL } }, .passed = SIGTERM, .status = EXIT_FAILED, .words = "SIGKILL" },

    // A closed connection means a dead rank, unless the rank is done. Its supervisor may report the death first.
    { { { .silent = 0 }, { .ended = 2 }, { .ended = 3 } }, .remote = true, .status = EXIT_FAILED,
      .words = "rank 2 of 3 (node1, pid 1002) has disconnected: after epoch 1, step 12; " },
    { { { .silent = 0 }, { .ended = 2 }, { .ended = 3, .delay = 4 } }, .remote = true, .status = EXIT_FAILED,
      .words = "rank 1 of 3 " },
    { { [2] = { .ended = 3, .done = true } }, .remote = true, .words = "" },

    // A hung rank. A rank that waits for working ranks is not hung.
    { { [1] = { .silent = TIMEOUT - 0.5 } }, .words = "" },
    { { { .silent = 0 }, { .silent = TIMEOUT + 1 }, { .silent = TIMEOUT + 2 } }, .status = EXIT_FAILED,
      .words = "rank 2 of 3 (node1, pid 1002) has sent no heartbeat for 4 s: after epoch 1" },
    { { [1] = { .silent = TIMEOUT + 1 } }, .remote = true, .status = EXIT_FAILED,
      .words = "rank 1 of 3 (node1, pid 1001) has sent no heartbeat for 3 s" },
    { { [1] = { .silent = TIMEOUT + 1, .waits = 1 } }, .words = "" },
    { { [1] = { .silent = TIMEOUT + 1, .any_time = true } }, .words = "" },

    // A rank waits for a file: the watchdog prints a line after the timeout. It ends the run after the patience, but
    // never for a write.
    { { [1] = { .silent = TIMEOUT - 0.5, .reads = true } }, .words = "" },
    { { [1] = { .silent = TIMEOUT + 1, .reads = true } },
      .words = "rank 1 of 3 (node1, pid 1001) has been reading train/1.jpg for 3 s: after epoch 1, step 11; " },
    { { { .silent = 3, .reads = true }, { .silent = 4, .reads = true }, { .silent = 3.5, .reads = true } },
      .words = "rank 1 of 3 (node1, pid 1001) has been reading train/1.jpg for 4 s, as one of 3 ranks: " },
    { { [2] = { .silent = 3, .reads = true } }, .remote = true,
      .words = "rank 2 of 3 (node1, pid 1002) has been reading" },
    { { [2] = { .silent = 3, .reads = true, .delay = 2 } }, .remote = true, .words = "" },  // its supervisor prints it
    { { [1] = { .silent = PATIENCE + 1, .reads = true } }, .status = EXIT_FAILED,
      .words = "rank 1 of 3 (node1, pid 1001) has been reading train/1.jpg for 6 s: after epoch 1, step 11; last "
               "collective: no collective yet\nhint: from step 04 on, --patience SECONDS" },
    { { { .silent = 9, .waits = 1 }, { .silent = 6, .reads = true }, { .silent = 9, .waits = 1 } },
      .status = EXIT_FAILED, .words = "hint: from step 04 on, --patience SECONDS" },
    { { [1] = { .silent = 99, .writes = true } }, .words = "has been writing net.st for 99 s: " },
    { { [1] = { .silent = 99, .reads = true, .any_time = true } }, .words = "" },

    // A rank that is stopped or unreachable, whether it was waiting or working.
    { { [1] = { .stopped = 3, .silent = 3, .waits = 1 } }, .status = EXIT_FAILED,
      .words = "rank 1 of 3 (node1, pid 1001) has been stopped for 3 s: after epoch 1, step 11" },
    { { [1] = { .stopped = 1, .silent = 3, .waits = 1 } }, .words = "" },
    { { [2] = { .unsent = 3.1, .silent = 3 } }, .remote = true, .status = EXIT_FAILED,
      .words = "rank 2 of 3 (node1, pid 1002) is stopped or unreachable: it has sent nothing for 3.1 s: after "
               "epoch 1, step 12" },
    { { [2] = { .unsent = 3.1, .silent = 3, .waits = 1 } }, .remote = true, .status = EXIT_FAILED,
      .words = "is stopped or unreachable" },
    { { [2] = { .unsent = 3.1, .silent = 3, .delay = 2 } }, .remote = true, .words = "" },

    // Deadlocks: all ranks wait for each other, or for one that is done.
    { { { .silent = 3, .waits = 2 }, { .silent = 3, .waits = 1 }, { .silent = 3, .waits = 2 } }, .status = EXIT_FAILED,
      .words = "all ranks have been waiting for each other for 2 s\n" },
    { { { .silent = 3, .waits = 2 }, { .silent = 3, .waits = 1 }, { .silent = 3, .waits = 2 } }, .remote = true,
      .status = EXIT_FAILED, .words = "rank 1 of 3 (node1, pid 1001) is behind: " },
    { { { .silent = 3, .waits = 2 }, { .silent = 3, .waits = 1 }, { .silent = 3, .waits = 2 } }, .status = EXIT_FAILED,
      .words = "rank 0 of 3 (node1, pid 1000) waits: after epoch 1, step 10; last collective: #2 all_reduce of 5 "
               "(gradients), in backward\n" },
    { { { .silent = 3, .waits = 2 }, { .silent = 3, .waits = 1 }, { .silent = 3, .waits = 2 } }, .status = EXIT_FAILED,
      .words = "hint: --check-collectives stops" },
    { { { .silent = 3, .waits = 1 }, { .silent = 3, .waits = 1, .apart = true }, { .silent = 3, .waits = 1 } },
      .status = EXIT_FAILED, .words = "hint: they have never met" },
    { { { .silent = 1, .waits = 2 }, { .silent = 3, .waits = 1 }, { .silent = 3, .waits = 2 } }, .words = "" },
    { { { .silent = 3, .waits = 1 }, { .silent = 3, .waits = 1 }, { .silent = 3, .done = true, .ended = 1 } },
      .status = EXIT_FAILED, .words = "rank 2 of 3 (node1, pid 1002) is done: " },
    { { { .silent = 3, .waits = 1 }, { .silent = 3, .waits = 1, .reads = true }, { .silent = 3, .waits = 1 } },
      .words = "rank 1 of 3 (node1, pid 1001) has been reading" },
    { { { .silent = 4, .waits = 1, .gpu = true }, { .silent = 4, .waits = 1, .gpu = true },
        { .silent = 4, .waits = 1, .gpu = true } }, .words = "" },
    { { { .silent = 6, .waits = 1, .gpu = true }, { .silent = 6, .waits = 1, .gpu = true },
        { .silent = 6, .waits = 1, .gpu = true } }, .status = EXIT_FAILED,
      .words = "all ranks have been waiting for each other for 5 s\n" },
    { { { .silent = 4, .waits = 1, .gpu = true }, { .silent = 4, .waits = 1, .new_gpu = true },
        { .silent = 4, .waits = 1, .gpu = true } }, .words = "" },
    { { { .silent = 6, .waits = 1, .gpu = true }, { .silent = 6, .waits = 1, .new_gpu = true },
        { .silent = 6, .waits = 1, .gpu = true } }, .status = EXIT_FAILED, .words = "each other for 5 s\n" },
    { { { .silent = 3, .waits = 1, .gpu = true }, { .silent = 3, .gpu = true },
        { .silent = 3, .waits = 1, .gpu = true } },
      .status = EXIT_FAILED, .words = "rank 1 of 3 (node1, pid 1001) has sent no heartbeat for 3 s" },
    { { { .silent = 3, .waits = 1, .any_time = true }, { .silent = 3, .waits = 1, .any_time = true },
        { .silent = 3, .waits = 1, .any_time = true } }, .words = "" },
};

static Alive pages[RANKS];
static Watched ranks[RANKS];
static Watch watch;

static void set(int rank, const State *state, bool remote, double now)
{
    memset((void *)&pages[rank], 0, sizeof *pages);
    alive_publish(&pages[rank]);
    if (!state->stranger) {
        alive_limits(state->any_time ? 0 : TIMEOUT, state->any_time ? 0 : PATIENCE);
        if (!state->apart)
            alive_joined();
        alive_step(1, 10 + rank);
    }
    if (state->waits)
        alive_wait_begin();
    for (int i = 0; i < state->waits; i++)
        alive_collective_begin((uint64_t)i + 1, "gradients", "all_reduce", 5, "backward");
    if (state->gpu || state->new_gpu)
        alive_device_step(-1);
    if (state->gpu)
        alive_device_step(0.5);
    if (state->reads || state->writes) {
        AliveOutside wait = { .kind = state->reads ? ALIVE_PATIENT : ALIVE_ENDLESS,
                              .doing = state->reads ? "reading" : "writing",
                              .what = state->reads ? "train/1.jpg" : "net.st" };
        alive_outside_begin(&wait);
        alive_outside_end(&wait);       // ends this process's wait; the page shall still show one
        pages[rank].outside = wait.kind;
    }
    if (state->done)
        alive_done();
    ranks[rank] = (Watched){
        .alive = state->elsewhere ? NULL : &pages[rank], .pid = 1000 + rank, .host = "node1",
        .beats = pages[rank].beats, .last_beat = now - state->silent, .remote = remote,
        .last_message = now - state->unsent,
        .stopped = state->stopped ? now - state->stopped : 0, .delay = state->delay, .status = state->status,
        .ended = state->ended ? now - state->ended : 0,
    };
}

static char said[1 << 14];

static void expect(int number, double now, int status, const char *words)
{
    int kept = dup(STDERR_FILENO), file = open(test_path("said"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(file, STDERR_FILENO);
    int judged = watch_judge(&watch, now);
    dup2(kept, STDERR_FILENO);
    close(kept);
    said[pread(file, said, sizeof said - 1, 0)] = '\0';
    close(file);
    EXPECT(judged == status, "case %d: %d, wanted %d", number, judged, status);
    EXPECT(words[0] ? strstr(said, words) != NULL : !said[0], "case %d: no \"%s\" in: %s", number, words, said);
}

static void begin(const State states[RANKS], bool remote, double now)
{
    watch = (Watch){ .size = RANKS, .ranks = ranks, .now = now };
    sigemptyset(&watch.passed);
    for (int rank = 0; rank < RANKS; rank++)
        set(rank, &states[rank], remote, now);
}

static void make_calls(int rank, int calls)
{
    alive_publish(&pages[rank]);
    for (uint64_t at = pages[rank].latest + 1; calls > 0; calls--, at++)
        alive_collective_begin(at, "gradients", "all_reduce", (int64_t)at * 100, "backward");
}

// A deadlock's message compares the calls of rank 0 with those of the first rank that differs. Its last line is the
// first different call.
static void test_parting(double now)
{
    static const State waits = { .silent = 3, .waits = 1 };
    begin((State[RANKS]){ waits, waits, waits }, true, now);
    for (int rank = 0; rank < RANKS; rank++)
        make_calls(rank, 210);
    expect(-3, now, EXIT_FAILED, "rank 2 of 3 (node1, pid 1002) waits: after epoch 1, step 12; last collective: #211 "
           "all_reduce of 21100 (gradients), in backward\n");
    EXPECT(!strstr(said, "they part"), "all ranks made the same calls: %s", said);

    make_calls(0, 1);
    make_calls(1, 1);
    make_calls(2, 8);
    expect(-3, now, EXIT_FAILED, "\n  #212    all_reduce of 21200 (gradients), in backward        "
           "all_reduce of 21200 (gradients), in backward\n"
           "  #213    -                                                   all_reduce of 21300 (gradients), in backward"
           "    <- first difference\n");
    expect(-3, now, EXIT_FAILED, "          rank 0                                              rank 2\n");

    alive_publish(&pages[1]);
    alive_collective_begin(213, "metrics", "barrier", 0, "evaluate");
    expect(-3, now, EXIT_FAILED, "  #213    -                                                   barrier (metrics), in "
           "evaluate    <- first difference\n");
    alive_publish(&pages[0]);
    alive_collective_begin(213, "gradients", "send", 7, "backward");
    alive_publish(&pages[1]);
    alive_collective_begin(213, "gradients", "receive", 8, "");
    expect(-3, now, EXIT_FAILED, "rank 2\n");           // a send and a receive may belong together
    expect(-3, now, EXIT_FAILED, "send of 7 (gradients), in backward                  all_reduce of 21300");
}

// Rank 2 waits for data 30 ms longer than the others, which is more than a tenth of a step.
static void test_slowest(void)
{
    char text[ALIVE_DOING];
    begin((State[RANKS]){ { 0 } }, true, 1000);
    for (int rank = 0; rank < RANKS; rank++) {
        pages[rank].steps = 100;
        pages[rank].messages = 50;
        pages[rank].waited = rank == 2 ? 4 : 1;         // s
        pages[rank].own = 0.4;
        pages[rank].spent = 9.9;
    }
    watch_slowest(&watch, text);
    EXPECT_EQ_STR(text, "rank 2 (node1): 40.0 ms for data and 8.0 ms until its first message, in a step of 100.0 ms; "
                  "the others: 18.0 ms");
    pages[2].waited = 1.9;
    watch_slowest(&watch, text);
    EXPECT_EQ_STR(text, "");
    pages[2].waited = 4;
    pages[1].epoch = 2;                 // rank 1 has already begun the next epoch
    watch_slowest(&watch, text);
    EXPECT_EQ_STR(text, "");
}

int main(void)
{
    const double now = 1000;
    test_slowest();
    static const State all_work[RANKS], silent = { .silent = TIMEOUT + 1 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct Case *c = &cases[i];
        begin(c->ranks, c->remote, now);
        if (c->passed)
            sigaddset(&watch.passed, c->passed);
        expect((int)i, now, c->status, c->words);
    }

    test_parting(now);

    begin((State[RANKS]){ [1] = { .silent = 3, .reads = true } }, false, now);
    expect(-4, now, 0, "has been reading");
    expect(-4, now, 0, "");

    begin(all_work, false, now);        // the end of a wait counts as a heartbeat
    for (int ends_wait = 0; ends_wait < 2; ends_wait++) {
        set(1, &silent, false, now);
        if (ends_wait)
            alive_wait_begin();
        ranks[1].beats = pages[1].beats;
        (ends_wait ? alive_wait_end : alive_beat)();
        expect(-1, now, 0, "");
    }

    // After the machine slept, or Ctrl-Z stopped ranks and watchdog, no rank is blamed for silence.
    for (int remote = 0; remote < 2; remote++) {
        begin((State[RANKS]){ { .silent = 50, .unsent = 50 }, { .silent = 50, .unsent = 50, .stopped = 50 * !remote },
                              { .silent = 50, .unsent = 50 } }, remote, now);
        watch.now = now - 50;
        expect(-2, now, 0, "");
        expect(-2, now, 0, "");
    }
    return test_done();
}
