// test_watch.c - the judgement: which of several ranks is to blame, by pages that the test writes.
// ctest: SANITIZERS asan
#include "watch.h"
#include "check.h"
#include "clock.h"
#include "test.h"

#include <fcntl.h>

enum { RANKS = 3, PATIENCE = 2 };

static Alive pages[RANKS];
static Watched ranks[RANKS];
static Watch watch;
static char said[1 << 14];

static int exited(int status) { return status << 8; }

static Alive *page_of(int rank)         // the next alive_...() write there
{
    alive_publish(&pages[rank]);
    return &pages[rank];
}

// All work, and were seen to just now. heard: their pages came over the network.
static void begin(bool heard)
{
    double now = clock_now();
    watch = (Watch){ .size = RANKS, .ranks = ranks, .looked = now };
    sigemptyset(&watch.passed);
    memset((void *)pages, 0, sizeof pages);
    for (int i = 0; i < RANKS; i++) {
        page_of(i);
        alive_patience(PATIENCE);
        alive_joined();
        alive_step(1, 10 + i);
        ranks[i] = (Watched){ .alive = &pages[i], .pid = 1000 + i, .host = "node1", .beaten = now,
                              .beats = pages[i].beats, .heard = heard ? now : 0 };
    }
}

static void ends(int rank, double ago, int status)
{
    ranks[rank].ended = clock_now() - ago;
    ranks[rank].status = status;
}

static void silent_for(int rank, double seconds) { ranks[rank].beaten = clock_now() - seconds; }

static void waits(int rank, int collectives)
{
    page_of(rank);
    alive_wait_begin();
    for (int i = 0; i < collectives; i++)
        alive_collective_begin("gradients", "all_reduce", 5);
    ranks[rank].beats = pages[rank].beats;
    silent_for(rank, PATIENCE + 1);
}

// Expects this status and these words ("": none); what is printed meanwhile goes to a file.
static void expect(int status, const char *words)
{
    int kept = dup(STDERR_FILENO), file = open(test_path("said"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(file, STDERR_FILENO);
    int judged = watch_judge(&watch);
    dup2(kept, STDERR_FILENO);
    close(kept);
    said[pread(file, said, sizeof said - 1, 0)] = '\0';
    close(file);
    EXPECT_EQ_INT(judged, status);
    if (words[0])
        EXPECT(strstr(said, words) != NULL, "no \"%s\" in: %s", words, said);
    else
        EXPECT_EQ_STR(said, "");
}

TEST(a_death_is_named)
{
    begin(false);
    EXPECT(watch_lives(&watch), "all live");
    expect(0, "");
    ends(1, 0, exited(7));
    expect(0, "");                      // one that was killed before may still show
    ends(1, 0, SIGKILL);
    expect(EXIT_FAILED, "rank 1 of 3 (node1, pid 1001) was killed by SIGKILL (Killed): after epoch 1, "
                        "step 11; last collective: no collective yet\nhint: ");
    ends(1, 0.3, exited(7));
    expect(7, "rank 1 of 3 (node1, pid 1001) ended with status 7: after epoch 1, step 11");
    ends(1, 0.3, SIGRTMIN + 1);         // it has no short name
    expect(EXIT_FAILED, " was killed by SIG");
    for (int i = 0; i < RANKS; i++)
        ends(i, 0, exited(i == 2));
    expect(EXIT_FAILED, "ended with status 0: ");   // not done: it should not have ended
    EXPECT(!watch_lives(&watch), "none lives");
    ranks[0].alive = ranks[1].alive = ranks[2].alive = NULL;
    expect(0, "");                      // ranks that others watch
}

TEST(of_several_deaths_one_is_to_blame)
{
    begin(false);
    ends(0, 0.5, exited(1));
    ends(1, 0.4, SIGSEGV);              // a death by a signal comes before the failures that it causes
    ends(2, 0.6, exited(EXIT_REPORTED));
    expect(EXIT_FAILED, "rank 1 of 3 (node1, pid 1001) was killed by SIGSEGV");
    begin(false);
    ends(0, 0.5, exited(5));
    ends(2, 0.6, exited(6));
    expect(6, "rank 2 of 3 ");
    begin(false);
    ends(1, 0.5, exited(EXIT_REPORTED));            // what it knows is on the screen
    expect(EXIT_FAILED, "");
    ends(1, 0.5, exited(EXIT_USAGE));
    expect(EXIT_USAGE, "");
    ends(1, 0.5, exited(EXIT_DIVERGED));
    expect(EXIT_DIVERGED, "");
}

TEST(some_ends_are_no_fault)
{
    begin(false);
    for (int i = 0; i < RANKS; i++) {
        page_of(i);
        alive_done();
        ends(i, 1, exited(i == 1 ? 130 : 0));       // all agreed to stop
    }
    expect(0, "");
    ends(2, 1, exited(1));
    expect(1, "rank 2 of 3 ");

    begin(false);                       // programs that know nothing of signs of life
    for (int i = 0; i < RANKS; i++) {
        pages[i].beats = 0;
        pages[i].patience = 0;
        silent_for(i, 100);
    }
    ends(0, 1, exited(0));
    expect(0, "");
    ends(0, 1, exited(EXIT_USAGE));
    expect(EXIT_USAGE, "rank 0 of 3 (node1, pid 1000) ended with status 2\n");

    begin(false);
    sigaddset(&watch.passed, SIGTERM);
    ends(0, 1, SIGTERM);
    expect(128 + SIGTERM, "");
    ends(0, 1, exited(128 + SIGTERM));
    expect(128 + SIGTERM, "");
    ends(0, 1, SIGKILL);
    expect(EXIT_FAILED, "SIGKILL");
}

TEST(a_closed_connection_is_a_death)
{
    begin(true);
    ends(1, 2, 0);
    ends(2, 3, 0);
    expect(EXIT_FAILED, "rank 2 of 3 (node1, pid 1002) is gone: after epoch 1, step 12; ");
    ranks[2].slack = 4;                 // its own supervisor speaks first
    expect(EXIT_FAILED, "rank 1 of 3 ");
    ranks[1].slack = 4;
    expect(0, "");
    begin(true);
    ends(2, 3, 0);
    page_of(2);
    alive_done();
    expect(0, "");
}

TEST(a_rank_hangs)
{
    begin(false);
    silent_for(1, PATIENCE - 0.5);
    expect(0, "");
    silent_for(1, PATIENCE + 1);
    silent_for(2, PATIENCE + 2);
    expect(EXIT_FAILED, "rank 2 of 3 (node1, pid 1002) has given no sign of life for 4 s: after epoch 1");
    alive_publish(&pages[2]);
    alive_beat();
    expect(EXIT_FAILED, "rank 1 of 3 ");
    page_of(1);
    alive_outside_begin();              // a slow disk
    expect(0, "");
    alive_outside_end();
    silent_for(1, PATIENCE + 1);
    expect(0, "");                      // the end of it was a beat
    waits(1, 1);                        // and to wait for others that work is no fault
    expect(0, "");
    alive_wait_end();
    expect(0, "");
    silent_for(1, PATIENCE + 1);
    alive_patience(0);
    expect(0, "");
}

TEST(a_rank_is_stopped_or_unheard)
{
    begin(false);
    waits(1, 1);
    ranks[1].stopped = clock_now() - 3;
    expect(EXIT_FAILED, "rank 1 of 3 (node1, pid 1001) is stopped for 3 s: after epoch 1, step 11");
    ranks[1].stopped = clock_now() - 1;
    expect(0, "");
    for (int waiting = 0; waiting < 2; waiting++) {
        begin(true);
        if (waiting)
            waits(2, 1);
        silent_for(2, 3);
        ranks[2].heard = clock_now() - 3.1;
        expect(EXIT_FAILED, "rank 2 of 3 (node1, pid 1002) is stopped or out of reach, and has not been "
                            "heard of for 3.1 s: after epoch 1, step 12");
        ranks[2].slack = 2;
        expect(0, "");
    }
    begin(true);                        // it is heard, but does nothing
    silent_for(2, 3);
    expect(EXIT_FAILED, "rank 2 of 3 (node1, pid 1002) has given no sign of life for 3 s");
}

TEST(all_wait_for_each_other)
{
    for (int heard = 0; heard < 2; heard++) {
        begin(heard);
        waits(0, 2);
        waits(1, 1);
        expect(0, "");
        waits(2, 2);
        expect(EXIT_FAILED, "all wait for each other, for 2 s now\n");
        EXPECT(strstr(said, "rank 1 of 3 (node1, pid 1001) is behind: ") != NULL, "says %s", said);
        EXPECT(strstr(said, "rank 0 of 3 (node1, pid 1000) waits: after epoch 1, step 10; last collective: "
                            "all_reduce #2 of 5 values (gradients)\n") != NULL, "says %s", said);
        ranks[0].beaten = clock_now();
        expect(0, "");                  // not yet
    }
    begin(false);
    waits(0, 1);
    waits(1, 1);
    page_of(2);
    alive_done();
    waits(2, 1);
    ends(2, 1, exited(0));
    expect(EXIT_FAILED, "all wait for each other");
    EXPECT(strstr(said, "rank 2 of 3 (node1, pid 1002) is done: ") != NULL, "says %s", said);
    page_of(1);
    alive_patience(0);
    page_of(0);
    alive_patience(0);
    page_of(2);
    alive_patience(0);
    expect(0, "");
}

// The machine slept, or Ctrl-Z stopped all of us: nobody could give signs of life.
TEST(who_was_stopped_itself_judges_nobody)
{
    for (int heard = 0; heard < 2; heard++) {
        begin(heard);
        for (int i = 0; i < RANKS; i++) {
            silent_for(i, 50);
            ranks[i].heard = heard ? clock_now() - 50 : 0;
        }
        ranks[1].stopped = heard ? 0 : clock_now() - 50;
        watch.looked = clock_now() - 50;
        expect(0, "");
        expect(0, "");
    }
}

int main(void)
{
    a_death_is_named();
    of_several_deaths_one_is_to_blame();
    some_ends_are_no_fault();
    a_closed_connection_is_a_death();
    a_rank_hangs();
    a_rank_is_stopped_or_unheard();
    all_wait_for_each_other();
    who_was_stopped_itself_judges_nobody();
    return test_done();
}
