// test_supervise.c - what is said of programs that give no signs of life. All else about watching is in
// test_spawn.c and test_tcp_store.c.
#include "test.h"
#include "clock.h"
#include "supervise.h"

#include <fcntl.h>
#include <unistd.h>

static char said[4096];

// Watches one child that does this, for at most 5 s; its exit status, or what is judged. Meanwhile
// what is said goes to a file.
static int watch_one(Supervisor *watch, void (*what)(void))
{
    int status = 0, kept = dup(STDERR_FILENO);
    int file = open(test_path("said"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(file, STDERR_FILENO);
    fflush(NULL);
    Child *child = &watch->children[0];
    child->pid = fork();
    if (child->pid == 0) {
        alive_publish(child->alive);
        what();
        _exit(99);
    }
    for (double begun = clock_now(); status == 0 && clock_now() < begun + 5; usleep(20000)) {
        supervise_look(watch);
        status = supervise_judge(watch);
        if (child->ended > 0 && status == 0)
            status = supervise_status(watch);
        if (child->ended > 0)
            break;
    }
    if (child->ended == 0)
        kill(child->pid, SIGKILL);
    while (child->ended == 0)
        supervise_look(watch);
    dup2(kept, STDERR_FILENO);
    close(kept);
    said[pread(file, said, sizeof said - 1, 0)] = '\0';
    close(file);
    return status;
}

static Supervisor watch_of(bool foreign, double timeout)
{
    Supervisor watch = supervise_new(1, timeout);
    watch.children[0].alive = alive_pages(1);
    watch.foreign = foreign;
    return watch;
}

static int play_for(bool foreign, double timeout, void (*what)(void))
{
    Supervisor watch = watch_of(foreign, timeout);
    int status = watch_one(&watch, what);
    alive_pages_free(watch.children[0].alive, 1);
    free(watch.children);
    return status;
}

static int play(bool foreign, void (*what)(void)) { return play_for(foreign, 0.5, what); }

static void end_well(void) { _exit(0); }
static void end_badly(void) { _exit(7); }

static void say_something_and_end(void)
{
    alive_beat();
    _exit(0);
}

static void take_time(void)
{
    sleep(2);
    _exit(0);
}

static void hang(void)
{
    alive_joined();
    pause();
}

TEST(a_foreign_program_may_end)
{
    EXPECT_EQ_INT(play(true, end_well), 0);
    EXPECT_EQ_STR(said, "");
    EXPECT_EQ_INT(play(true, take_time), 0);
    EXPECT_EQ_STR(said, "");
    EXPECT_EQ_INT(play(true, end_badly), 7);
    EXPECT(strstr(said, ") ended with status 7\n") != NULL, "says %s", said);
}

TEST(one_of_ours_may_not)
{
    EXPECT_EQ_INT(play(false, end_well), 1);
    EXPECT_EQ_INT(play(false, take_time), 1);
    EXPECT(strstr(said, "no sign of life for 0.5 s") != NULL, "says %s", said);
    EXPECT_EQ_INT(play(true, say_something_and_end), 1);
    EXPECT(strstr(said, "ended with status 0 before it had met") != NULL, "says %s", said);
    EXPECT_EQ_INT(play(true, hang), 1);
    EXPECT(strstr(said, "no sign of life for 0.5 s") != NULL, "says %s", said);
}

static void be_stopped(void)
{
    alive_joined();
    raise(SIGSTOP);
    _exit(0);
}

static void be_stopped_when_done(void)
{
    alive_done();
    be_stopped();
}

// launch judges no signs of life: rank 0 does, as long as it is there.
TEST(who_is_stopped_when_all_is_done)
{
    EXPECT_EQ_INT(play_for(true, 0, be_stopped), 0);
    EXPECT_EQ_STR(said, "");
    EXPECT_EQ_INT(play_for(true, 0, be_stopped_when_done), 1);
    EXPECT(strstr(said, "is stopped (SIGSTOP) for 3 s now") != NULL, "says %s", said);
}

// Those of other machines: one is gone, and another follows it.
TEST(the_first_that_is_gone_is_named)
{
    Supervisor watch = supervise_new(3, 30);
    Alive *pages = alive_pages(3);
    double now = clock_now();
    for (int i = 0; i < 3; i++)
        watch.children[i] = (Child){ .pid = 1000 + i, .alive = &pages[i], .heard = now };
    watch.children[1].ended = now - 2;
    watch.children[2].ended = now - 3;
    supervise_look(&watch);
    EXPECT_EQ_INT(supervise_judge(&watch), 1);
    EXPECT(strstr(watch.verdict.text, "rank 2 of 3 (pid 1002) is gone") != NULL, "says %s",
           watch.verdict.text);
    alive_pages_free(pages, 3);
    free(watch.children);
}

int main(void)
{
    the_first_that_is_gone_is_named();
    who_is_stopped_when_all_is_done();
    a_foreign_program_may_end();
    one_of_ours_may_not();
    return test_done();
}
