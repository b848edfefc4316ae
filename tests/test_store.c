// test_store.c - how ranks meet at rank 0's store, and which processes it refuses. No rank trains: each runs a scripted
// Part. Deaths and hangs in training: test_crashes.sh, test_stuck.sh.
// ctest: SANITIZERS asan tsan LABELS deadlines
#include "clock.h"
#include "interrupt.h"
#include "machine.h"
#include "progress.h"
#include "store.h"
#include "test.h"
#include "world/store_message.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { RANKS = 32, BIG = 300000 };

static struct Seen {
    atomic_int there, finish;           // ranks that have joined; set to let them end
} *seen;

typedef void Part(World *world);
static struct Actor { pid_t pid; int rank; bool ended; } actors[RANKS];
static int count;
static StoreConfig play;
static char path[4096];
static const char *said = "";

static void sleep_ms(int ms) { usleep((useconds_t)ms * 1000); }

// --- starting and ending ranks ---------------------------------------------------------------------------------------

static void stage(int size, double timeout)
{
    static int number;
    char name[40];
    snprintf(name, sizeof name, "said-%d-%d", (int)getpid(), number++);
    snprintf(path, sizeof path, "%s", test_path(name));
    close(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666));
    memset((void *)seen, 0, sizeof *seen);
    count = 0;
    play = (StoreConfig){ .size = size, .run = "play", .timeout = timeout };
    store_new_token(play.token);
    play.place = tcp_resolve("127.0.0.1", 0);
    play.socket = tcp_bind(&play.place);
}

static StoreConfig as(int rank)
{
    StoreConfig config = play;
    config.rank = rank;
    return config;
}

static int enter(StoreConfig config, Part *part)
{
    fflush(NULL);
    pid_t pid = fork();
    actors[count] = (struct Actor){ pid, config.rank, false };
    if (pid > 0)
        return count++;
    World world = { .rank = config.rank, .size = config.size };
    setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
    test_redirect(path);
    interrupt_install();
    check_set_rank(config.rank, config.size);
    if ((config.rank > 0 || config.size == 1) && play.socket > 0)
        close(play.socket);
    store_join(&config, &world);
    CHECK(strcmp(world.address, "127.0.0.1") == 0, "", "the rank's address is %s", world.address);
    seen->there++;
    part(&world);
    store_leave(&world);
    exit(0);
}

static void close_port(void)            // our copy of rank 0's socket: the port closes when rank 0 ends
{
    if (play.socket > 0)
        close(play.socket);
    play.socket = 0;
}

static void await(atomic_int *number, int wanted)
{
    for (int i = 0; i < 30000 && *number < wanted; i++)
        sleep_ms(1);
    EXPECT(*number >= wanted, "%d of %d", *number, wanted);
}

// Waits for an actor to end; `wanted` is its exit status, or 1000 + the signal that killed it.
static void ends(int actor, int wanted)
{
    int status = 0;
    double since = clock_now();
    while (!actors[actor].ended && waitpid(actors[actor].pid, &status, WNOHANG) == 0) {
        if (clock_now() - since > 50) {
            kill(actors[actor].pid, SIGKILL);
            EXPECT(false, "rank %d does not end", actors[actor].rank);
            since = clock_now();
        }
        sleep_ms(2);
    }
    actors[actor].ended = true;
    status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    said = test_read(path);
    EXPECT(status == wanted, "rank %d ends with %d, wanted %d: %s", actors[actor].rank, status, wanted, said);
}

static void all_end(int wanted)
{
    for (int i = 0; i < count; i++)
        if (!actors[i].ended)
            ends(i, wanted);
    close_port();
}

// --- parts -----------------------------------------------------------------------------------------------------------

static void bow(World *world) { (void)world; }

static void step(World *world)          // works until the test ends it
{
    progress_step(1, 3);
    for (progress_call("all_reduce of 5 (gradients)"); seen->finish == 0; sleep_ms(5))
        progress_beat();
    (void)world;
}

static void exchange(World *world)
{
    char key[24], *big = xmalloc(BIG + 1), all[RANKS];
    sleep_ms(world->rank == world->size - 1 ? 300 : 0);
    memset(big, 'a' + world->rank, BIG + 1);
    store_gather(world, "letters", big, 1, all);
    snprintf(key, sizeof key, "twice %d", world->rank);
    store_put(world, key, "older", 6);
    store_put(world, key, big, 2);
    snprintf(key, sizeof key, "big %d", world->rank);
    store_put(world, key, big, BIG);
    for (int rank = 0; rank < world->size; rank++) {
        char letter = (char)('a' + rank);
        memset(big, '?', BIG + 1);
        snprintf(key, sizeof key, "big %d", rank);
        CHECK(all[rank] == letter, "", "gathered");
        CHECK(store_get(world, key, big, 5) == BIG && big[4] == letter && big[5] == '?', "", "5 bytes");
        CHECK(store_get(world, key, big, BIG + 1) == BIG && big[BIG - 1] == letter && big[BIG] == '?', "", "big");
        snprintf(key, sizeof key, "twice %d", rank);
        CHECK(store_get(world, key, big, 5) == 2 && big[1] == letter && big[2] == letter, "", "twice");
    }
    free(big);
}

// --- meeting ---------------------------------------------------------------------------------------------------------

// Clones of a virtual machine may have one name.
TEST(machines_of_one_name_differ)
{
    Machine here = machine_here(), clone = here;
    EXPECT(machine_is_same(&here, &clone), "%s is not itself", here.host);
    EXPECT(here.boot[0], "%s has no boot id", here.host);
    clone.boot[0]++;
    EXPECT(!machine_is_same(&here, &clone), "two machines are both %s", here.host);
}

TEST(ranks_join_in_any_order)
{
    static const int order[] = { 2, 0, 3, 1 };
    for (int round = 0; round < 25; round++) {      // 100 starts and ends: for the thread sanitizer
        stage(4, 40);
        for (int i = 0; i < 4; i++)
            enter(as(order[i]), round ? bow : exchange);
        all_end(0);
        EXPECT_EQ_STR(said, "");
    }
    stage(RANKS, 40);
    for (int rank = 0; rank < RANKS; rank++)
        enter(as(rank), bow);
    all_end(0);
    EXPECT_EQ_STR(said, "");
}

TEST(other_processes_are_refused)
{
    static const struct { const char *run, *words; bool other_token; int rank, size; } wrong[] = {
        { "play", "its token is not rank 0's", true, 1, 2 },
        { "another", "it is from a different run", false, 1, 3 },
        { "play", "its world size is 3, but rank 0's is 2", false, 2, 3 },
        { "play", "rank 1 has joined already (", false, 1, 2 },     // the others are there by now
    };
    enum { WRONG = sizeof wrong / sizeof *wrong };
    stage(2, 40);
    enter(as(0), step);
    for (int i = 0; i < WRONG; i++) {
        StoreConfig c = as(wrong[i].rank);
        if (i == WRONG - 1) {
            enter(as(1), step);
            await(&seen->there, 2);
        }
        c.timeout = 0.5;
        c.size = wrong[i].size;
        snprintf(c.run, sizeof c.run, "%s", wrong[i].run);
        if (wrong[i].other_token)
            store_new_token(c.token);
        ends(enter(c, bow), EXIT_FAILED);
        EXPECT_HAS(said, wrong[i].words);
    }
    seen->finish = 1;
    all_end(0);
    EXPECT_EQ_INT(seen->there, 2);
}

// --- strangers, and a rank that does not read ------------------------------------------------------------------------

static int knock(void)
{
    Error err;
    int fd = -1;
    for (int i = 0; i < 5000 && (fd = tcp_connect(&play.place, 10, &err)) < 0; i++)
        sleep_ms(1);
    EXPECT(fd >= 0, "%s", err.text);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 20, 0 }, sizeof(struct timeval));
    return fd;
}

typedef struct Bytes { StoreHead head; StoreHello hello; } Bytes;

static Bytes hello_of(int rank, bool right)
{
    Bytes b = { { STORE_HELLO, sizeof b.hello, "" }, { .rank = rank, .size = play.size, .run = "play" } };
    store_new_token(b.hello.token);
    if (right)
        memcpy(b.hello.token, play.token, sizeof play.token);
    return b;
}

// Connections that send nothing, half a HELLO, one with a wrong token, or garbage, and stay open.
TEST(strangers_do_not_keep_ranks_out)
{
    char noise[10 * sizeof(Bytes)];
    Bytes wrong = hello_of(1, false);
    stage(2, 60);
    enter(as(0), step);
    memset(noise, 7, sizeof noise);
    for (int i = 0; i < 80; i++) {
        size_t bytes = (size_t[]){ 0, sizeof wrong / 2, sizeof noise, sizeof wrong }[i % 4];
        send(knock(), i % 2 ? (void *)&wrong : noise, bytes, MSG_NOSIGNAL);
    }
    enter(as(1), step);
    await(&seen->there, 2);
    seen->finish = 1;
    all_end(0);
    EXPECT_EQ_STR(said, "");
}

// Rank 1 asks for big values and reads no answer. The others still exchange values, and rank 0 names rank 1.
static void exchange_beside(World *world)
{
    static char big[STORE_MOST];
    store_put(world, "big", big, sizeof big);
    seen->there++;
    for (int i = 0; i < 50; i++) {
        char key[24];
        snprintf(key, sizeof key, "%d from %d", i, world->rank);
        store_put(world, key, "x", 1);
        snprintf(key, sizeof key, "%d from %d", i, 2 - world->rank);
        store_get(world, key, big, 1);
    }
    seen->finish++;
    store_get(world, "never", big, 1);
}

TEST(a_rank_that_does_not_read_delays_nobody)
{
    Progress record = { .beats = 1 };
    stage(3, 6);
    enter(as(0), exchange_beside);
    enter(as(2), exchange_beside);
    int fd = knock();
    Bytes hello = hello_of(1, true);
    send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
    send(fd, &(StoreHead){ STORE_BEAT, sizeof record, "" }, sizeof(StoreHead), MSG_NOSIGNAL);
    send(fd, &record, sizeof record, MSG_NOSIGNAL);
    await(&seen->there, 4);
    for (int i = 0; i < 20; i++)
        send(fd, &(StoreHead){ STORE_GET, 0, "big" }, sizeof(StoreHead), MSG_NOSIGNAL);
    await(&seen->finish, 2);
    all_end(EXIT_REPORTED);
    EXPECT_HAS(said, "(--timeout); all wait for rank 1 of 3 (");
    close(fd);
}

// A death is named once, by rank 0, and only then do the others end: mpirun's status is that of the first to end.
TEST(a_death_is_named_before_others_end)
{
    char host[65] = "", wanted[200];
    stage(3, 40);
    for (int rank = 0; rank < 3; rank++)
        enter(as(rank), step);
    close_port();
    await(&seen->there, 3);
    sleep_ms(1300);                     // long enough for a second beat
    double begun = clock_now();
    kill(actors[2].pid, SIGKILL);
    ends(1, EXIT_REPORTED);
    EXPECT(clock_now() > begun + 2, "mpirun might see another rank end first");
    ends(0, EXIT_REPORTED);
    ends(2, 1000 + SIGKILL);
    gethostname(host, sizeof host - 1);
    snprintf(wanted, sizeof wanted, "lost rank 2 of 3 (%s, pid %d): after step 3 of epoch 1; 2 calls, the last: "
             "all_reduce of 5 (gradients)\nhint: ", host, (int)actors[2].pid);
    EXPECT(test_times(said, wanted) == 1, "not once \"%s\": %s", wanted, said);
}

// Rank 0 is done long before rank 1, which must not find it lost.
static void late(World *world) { sleep_ms(3000 * world->rank); }

TEST(rank_0_waits_for_a_rank_that_ends_late)
{
    stage(2, 40);
    enter(as(0), late);
    enter(as(1), late);
    all_end(0);
}

// The run ends because of rank 1. A replacement of rank 2 must wait for the next start, and not complete this one.
TEST(nobody_joins_a_run_that_has_lost_a_rank)
{
    Progress record = { .beats = 1 };
    stage(3, 40);
    Bytes hello = hello_of(1, true);
    StoreConfig late = as(2);
    enter(as(0), step);
    int fd = knock();
    send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
    send(fd, &(StoreHead){ STORE_BEAT, sizeof record, "" }, sizeof(StoreHead), MSG_NOSIGNAL);
    send(fd, &record, sizeof record, MSG_NOSIGNAL);
    close(fd);
    for (int i = 0; i < 30000 && test_times(said, "lost rank 1 of 3") == 0; i++) {
        sleep_ms(1);
        said = test_read(path);
    }
    late.timeout = 0.5;
    ends(enter(late, bow), EXIT_FAILED);
    all_end(EXIT_REPORTED);
    EXPECT_EQ_INT(seen->there, 0);
}

// --- running the tests -----------------------------------------------------------------------------------------------

// They mostly wait, so they run in parallel, one process each.
int main(void)
{
    pid_t pids[64];
    int status;
    for (int i = 0; i < test_count; i++) {
        fflush(NULL);
        pids[i] = fork();
        if (pids[i] > 0)
            continue;
        seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        test_list[i]();
        _exit(test_failed > 0);
    }
    for (int i = 0; i < test_count; i++)
        EXPECT(waitpid(pids[i], &status, 0) == pids[i] && status == 0, "test %d failed", i + 1);
    return test_done();
}
