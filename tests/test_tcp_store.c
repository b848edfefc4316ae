// test_tcp_store.c - the rendezvous over TCP: which processes may join, and what is printed when ranks are missing,
// die, stop or hang. No rank trains: each runs a scripted Part. Also the building blocks: addresses and connections.
// ctest: SANITIZERS asan tsan LABELS deadlines
#include "tcp_store.h"
#include "alive.h"
#include "clock.h"
#include "interrupt.h"
#include "test.h"
#include "world/tcp_store_message.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
enum { SANITIZED = 1, SLOW = 5, STRANGERS = 500 };     // SLOW: multiplies limits of time
#else
enum { SANITIZED = 0, SLOW = 1, STRANGERS = 5000 };
#endif
enum { RANKS = 32, BIG = 300000 };

static struct Seen {
    atomic_int there;                   // ranks that have joined
    atomic_int finish;                  // set to let them end
    atomic_int strangers;
    atomic_int partly;                  // rank 1 has a part of an answer
    char run[RANKS][STORE_NAME];
} *seen;

typedef void Part(World *world);
static struct Actor {
    pid_t pid;
    int rank;
    bool ended;
} actors[RANKS];
static int count;
static TcpStoreConfig play;
static double begun;
static char path[4096];
static const char *said = "";

static void sleep_ms(int ms) { usleep((useconds_t)ms * 1000); }

// --- starting and ending ranks -------------------------------------------------------------------

static double timeout, patience;        // of the ranks that are started

static void stage(int size, double the_timeout, double the_patience)
{
    static int number;
    char name[32];
    snprintf(name, sizeof name, "said-%d-%d", (int)getpid(), number++);
    snprintf(path, sizeof path, "%s", test_path(name));
    close(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666));
    memset((void *)seen, 0, sizeof *seen);
    count = 0;
    play = (TcpStoreConfig){ .size = size, .run = "play" };
    timeout = the_timeout;
    patience = the_patience;
    tcp_store_new_token(play.token);
    play.place = tcp_resolve("127.0.0.1", 0);
    play.socket = tcp_bind(&play.place);
    begun = clock_now();
}

static TcpStoreConfig as(int rank)
{
    TcpStoreConfig config = play;
    config.rank = rank;
    return config;
}

static int entries(const char *folder)
{
    int n = 0;
    DIR *dir = opendir(folder);
    while (dir && readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static _Noreturn void act(TcpStoreConfig *config, Part *part)
{
    World world = { .rank = config->rank, .size = config->size };
    setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
    test_redirect(path);
    interrupt_install(false);
    alive_limits(timeout, patience);
    if ((config->rank > 0 || config->size == 1) && play.socket > 0)
        close(play.socket);
    int descriptors = entries("/proc/self/fd") - (config->rank == 0 && config->size > 1);
    tcp_store_join(config, &world);
    alive_joined();
    CHECK(strcmp(world.address, "127.0.0.1") == 0, "", "the rank's address is %s", world.address);
    snprintf(seen->run[world.rank], STORE_NAME, "%s", world.run);
    seen->there++;
    part(&world);
    tcp_store_end(&world);
    CHECK(entries("/proc/self/fd") == descriptors, "", "a file descriptor leaked");
    for (int i = 0; !SANITIZED && i < 1000 && entries("/proc/self/task") > 3; i++)
        sleep_ms(1);                    // the kernel takes a moment to remove an ended thread
    CHECK(SANITIZED || entries("/proc/self/task") == 3, "", "a thread still runs");
    exit(0);
}

static int enter(TcpStoreConfig config, Part *part)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        act(&config, part);
    actors[count] = (struct Actor){ pid, config.rank, false };
    return count++;
}

// Closes our copy of rank 0's socket, so that the port closes when rank 0 ends.
static void close_port(void)
{
    if (play.socket > 0)
        close(play.socket);
    play.socket = 0;
}

static void await(atomic_int *number, int wanted)
{
    for (int i = 0; i < 20000 && *number < wanted; i++)
        sleep_ms(1);
    EXPECT(*number >= wanted, "%d of %d", *number, wanted);
}

static void read_said(void) { said = test_read(path); }

// Waits for an actor to end; `wanted` is its exit status, or 1000 + the signal that killed it.
static void ends(int actor, int wanted)
{
    int status = 0;
    double since = clock_now();
    while (!actors[actor].ended && waitpid(actors[actor].pid, &status, WNOHANG) == 0) {
        if (clock_now() - since > 30) {
            kill(actors[actor].pid, SIGKILL);
            EXPECT(false, "rank %d does not end", actors[actor].rank);
            since = clock_now();
        }
        sleep_ms(2);
    }
    actors[actor].ended = true;
    status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    read_said();
    EXPECT(status == wanted, "rank %d ends with %d, wanted %d: %s", actors[actor].rank, status, wanted, said);
}

static void all_end(int wanted)
{
    for (int i = 0; i < count; i++)
        if (!actors[i].ended)
            ends(i, wanted);
    close_port();
}

static void all_well(void)
{
    seen->finish = 1;
    all_end(0);
    EXPECT_EQ_STR(said, "");
}

static int times(const char *what) { return test_times(said, what); }
static void expect_said(const char *what) { EXPECT(times(what) > 0, "no \"%s\" in: %s", what, said); }
static void expect_lines(int lines) { EXPECT(times("\n") == lines, "not %d lines: %s", lines, said); }

static void expect_within(double seconds)
{
    EXPECT(clock_now() - begun < seconds * SLOW, "took %.1f s: %s", clock_now() - begun, said);
}

// --- parts ---------------------------------------------------------------------------------------

static void bow(World *world) { (void)world; }

// Imitates a training rank, until the test ends it.
static void step(World *world)
{
    alive_step(1, 3 + world->rank);
    alive_collective_begin(1, "gradients", "all_reduce", 5, "");
    for (; seen->finish == 0; sleep_ms(5))
        alive_beat();
}

static void hang(World *world)          // rank 2 hangs; the others work
{
    if (world->rank != 2)
        step(world);
    alive_step(1, 5);
    while (seen->finish == 0)
        sleep_ms(5);
}

static void be_done_and_linger(World *world)
{
    alive_done();
    sleep_ms(4000 * world->rank);       // longer than rank 0 waits for the other ranks
}

static void exchange(World *world)
{
    char key[24], *big = xmalloc(BIG + 1);
    sleep_ms(world->rank == world->size - 1 ? 300 : 0);
    memset(big, 'a' + world->rank, BIG + 1);
    snprintf(key, sizeof key, "twice %d", world->rank);
    store_put(world, key, "older", 6);
    store_put(world, key, big, 2);
    snprintf(key, sizeof key, "big %d", world->rank);
    store_put(world, key, big, BIG);
    for (int rank = 0; rank < world->size; rank++) {
        char letter = (char)('a' + rank);
        memset(big, '?', BIG + 1);
        snprintf(key, sizeof key, "big %d", rank);
        CHECK(store_get(world, key, big, 5) == BIG && big[4] == letter && big[5] == '?', "", "5 bytes");
        CHECK(store_get(world, key, big, BIG + 1) == BIG && big[BIG - 1] == letter && big[BIG] == '?', "", "big");
        snprintf(key, sizeof key, "twice %d", rank);
        CHECK(store_get(world, key, big, 5) == 2 && big[1] == letter && big[2] == letter, "", "twice");
    }
    free(big);
}

// --- rendezvous ----------------------------------------------------------------------------------

TEST(ranks_join_in_any_order)
{
    static const int order[] = { 2, 0, 3, 1 };
    stage(4, 20, 20);
    for (int i = 0; i < 4; i++) {
        enter(as(order[i]), exchange);
        sleep_ms(60);
    }
    all_well();
    EXPECT(strlen(seen->run[0]) > 8, "run %s", seen->run[0]);
    for (int i = 0; i < 4; i++)
        EXPECT_EQ_STR(seen->run[i], seen->run[0]);
    for (int size = 1; size <= RANKS; size += RANKS - 1) {
        stage(size, 30, 30);
        for (int rank = 0; rank < size; rank++)
            enter(as(rank), bow);
        all_well();
        EXPECT_EQ_INT(seen->there, size);
    }
}

TEST(missing_and_wrong_ranks)
{
    static const struct { int rank, size; const char *words; } wrong[] = {
        { -1, 0, "only 2 of 3 ranks connected within 2 s; missing: 2\nhint: check that the missing ranks run" },
        { 2, 4, ") has a world size of 4, but rank 0 (" }, { 1, 3, "two processes have rank 1: " },
    };
    for (int i = 0; i < 3; i++) {
        stage(3, i == 0 ? 1 : 20, i == 0 ? 2 : 20);
        enter(as(0), bow);
        enter(as(1), bow);
        sleep_ms(400);
        TcpStoreConfig c = as(wrong[i].rank);
        c.size = wrong[i].size;
        if (c.rank >= 0)
            enter(c, bow);
        all_end(EXIT_REPORTED);
        expect_said(wrong[i].words);
        EXPECT_EQ_INT(times("only 2 of 3 ranks connected within 1 s; waiting for: 2\n"), i == 0);
        expect_lines(2 + (i == 0));
        expect_within(6);
    }
}

TEST(processes_of_other_runs_are_refused)
{
    static const struct { const char *name, *words; bool early, random, none; int rank, size; } wrong[] = {
        { "play", "its token is not rank 0's", true, true, false, 1, 2 },
        { "play", "its token is not rank 0's", true, false, true, 1, 2 },
        { "another", "it is from another run", true, false, false, 1, 3 },
        { "play", "it is from another program", true, false, false, 2, 2 },
        { "another", "it is from another run", false, false, false, 1, 3 },
        { "play", "the run has already begun with all its ranks", false, false, false, 1, 2 },
        { "play", "it is from another program", false, false, false, -1, 2 },
    };
    stage(2, 20, 20);
    enter(as(0), step);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        TcpStoreConfig c = as(wrong[i].rank);
        if (!wrong[i].early && seen->there == 0) {
            enter(as(1), step);
            await(&seen->there, 2);
        }
        timeout = 0.5;                  // the patience stays at 20 s
        c.size = wrong[i].size;
        snprintf(c.run, sizeof c.run, "%s", wrong[i].name);
        if (wrong[i].random)
            tcp_store_new_token(c.token);
        if (wrong[i].none)
            c.token[0] = '\0';
        ends(enter(c, bow), 1);
        timeout = 20;
        expect_said(wrong[i].words);
    }
    seen->finish = 1;
    all_end(0);
    EXPECT_EQ_INT(times("refused a connection"), 1);
    EXPECT_EQ_INT(seen->there, 2);
}

// --- strangers -----------------------------------------------------------------------------------

static int knock(void)
{
    Error err;
    int fd = -1;
    for (int i = 0; i < 5000 && (fd = tcp_connect(&play.place, 10, &err)) < 0 && !seen->finish; i++)
        sleep_ms(1);
    EXPECT(fd >= 0, "%s", err.text);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 10, 0 }, sizeof(struct timeval));
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger));
    return fd;
}

typedef struct Bytes {
    StoreHead head;
    Hello hello;
} Bytes;

static Bytes wrong_hello(int rank)
{
    Bytes b = { { STORE_HELLO, sizeof b.hello, "" }, { .rank = rank, .size = play.size, .run = "play" } };
    tcp_store_new_token(b.hello.token);
    return b;
}

TEST(slow_clients_are_disconnected)
{
    stage(2, 20, 20);
    enter(as(0), step);
    enter(as(1), step);
    await(&seen->there, 2);
    int fd = knock();
    Bytes bytes = wrong_hello(0);
    begun = clock_now();
    for (int i = 0; i < 40 && send(fd, (char *)&bytes + i, 1, MSG_NOSIGNAL) == 1; i++)
        sleep_ms(500);
    double took = clock_now() - begun;
    EXPECT(took > 4.5 && took < 15, "disconnected after %.1f s", took);
    close(fd);
    all_well();
}

// --- lost ranks ----------------------------------------------------------------------------------

static void begin(Part *part, double the_timeout, bool supervised)
{
    stage(3, the_timeout, 20);
    play.supervised = supervised;
    for (int rank = 0; rank < 3; rank++)
        enter(as(rank), part);
    close_port();
    await(&seen->there, 3);
    sleep_ms(1300);                     // long enough for a second heartbeat
    begun = clock_now();
}

// Rank 0 names a lost rank; a lost rank 0 is named by all others. A supervisor gets time to print first.
static const struct Loss {
    const char *name;
    Part *part;
    int victim, signal;
    double timeout;
    bool supervised;
    double first, last;                 // when the message may come, in s after the loss
    const char *words;
} losses[] = {
    { "dead", step, 2, SIGKILL, 20, false, 0, 1, "has disconnected: after epoch 1, step 5; last collective: #1 "
      "all_reduce of 5 (gradients)\nhint: " },
    { "dead, without --timeout", step, 2, SIGKILL, 0, false, 0, 1, "has disconnected: after epoch 1, step 5; " },
    { "dead, supervised", step, 2, SIGKILL, 20, true, 1.5, 4, "has disconnected: after epoch 1, step 5; " },
    { "stopped", step, 2, SIGSTOP, 2, false, 1.5, 4, "is stopped or unreachable: it has sent nothing for 2" },
    { "hung", hang, 2, SIGCONT, 2, false, 0, 4, "has sent no heartbeat for 2" },
    { "hung, supervised", hang, 2, SIGCONT, 2, true, 0, 6, "has sent no heartbeat for 4" },
    { "rank 0 dead", step, 0, SIGKILL, 20, false, 1.5, 4, "is lost: the connection was closed\nhint: " },
    { "rank 0 dead, supervised", step, 0, SIGKILL, 20, true, 1.5, 4, "is lost: the connection was closed\nhint: " },
    { "rank 0 stopped", step, 0, SIGSTOP, 2, false, 1.5, 5, "is lost: no answer; it may be stopped, or its "
      "machine unreachable\nhint: " },
};

static void lose(const struct Loss *loss)
{
    char host[65] = "", words[400];
    gethostname(host, sizeof host - 1);
    begin(loss->part, loss->timeout, loss->supervised);
    kill(actors[loss->victim].pid, loss->signal);
    while (read_said(), said[0] == '\0' && clock_now() < begun + 10)
        sleep_ms(2);
    EXPECT(clock_now() > begun + loss->first, "too early: %s", said);
    expect_within(loss->last);
    for (int rank = 0; rank < 3; rank++)
        if (rank != loss->victim)
            ends(rank, EXIT_REPORTED);
    EXPECT(loss->signal != SIGKILL || clock_now() > begun + 2,
           "a launcher had only %.1f s to see the lost rank end first", clock_now() - begun);
    expect_within(loss->last + 3);
    snprintf(words, sizeof words, "rank %d%s (%s, pid %d) %s", loss->victim, loss->victim ? " of 3" : "", host,
             (int)actors[loss->victim].pid, loss->words);
    EXPECT(times(words) == (loss->victim ? 1 : 2), "\"%s\": %s", words, said);
    expect_lines(loss->victim ? 2 : 4);
    kill(actors[loss->victim].pid, SIGCONT);
    ends(loss->victim, loss->signal == SIGKILL ? 1000 + SIGKILL : EXIT_REPORTED);
}

TEST(rank_0_leaves_first)
{
    begin(be_done_and_linger, 20, false);
    all_well();
    expect_within(12);
}

static void end_during_an_answer(World *world)
{
    while (world->rank == 2 && seen->partly == 0)
        sleep_ms(1);
    if (world->rank == 2)
        store_end_run(world);
    step(world);
}

static void expect_answer(int fd, StoreWhat what, size_t bytes)
{
    static char value[STORE_MOST];
    StoreHead head = { 0 };
    ssize_t n;
    size_t at = 0;
    EXPECT(recv(fd, &head, sizeof head, MSG_WAITALL) == sizeof head && head.what == what, "no %x but %x", what,
           head.what);
    while (at < bytes && (n = recv(fd, value + at, bytes - at < 131072 ? bytes - at : 131072, 0)) > 0) {
        at += (size_t)n;
        seen->partly = at > bytes / 8;
        sleep_ms(1);                    // slow enough for rank 2 to end the run meanwhile
    }
    EXPECT(at == bytes && memchr(value, STORE_OVER & 255, bytes) == NULL, "%x: not the value, %zu bytes", what, at);
}

static int join_as_rank_1(void)
{
    int fd = knock();
    Bytes hello = wrong_hello(1);
    memcpy(hello.hello.token, play.token, sizeof play.token);
    send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
    expect_answer(fd, STORE_WELCOME, 0);
    recv(fd, &(Welcome){ 0 }, sizeof(Welcome), MSG_WAITALL);
    return fd;
}

static void send_heartbeat(int fd)
{
    Alive page = { .beats = 1 };
    send(fd, &(StoreHead){ STORE_BEAT, sizeof page, "" }, sizeof(StoreHead), MSG_NOSIGNAL);
    send(fd, &page, sizeof page, MSG_NOSIGNAL);
    expect_answer(fd, STORE_DONE, 0);
}

// A rank that has connected counts as missing until its first heartbeat. (Otherwise its silence would have no limit,
// since the limit comes with a heartbeat.) Until then the rank may leave and connect again.
TEST(a_rank_without_a_heartbeat_is_missing)
{
    stage(3, 20, 4);
    enter(as(0), bow);
    close(join_as_rank_1());
    sleep_ms(100);                      // rank 0 reads the end of that connection first
    int fd = join_as_rank_1();
    all_end(EXIT_REPORTED);
    expect_said("only 1 of 3 ranks connected within 4 s; missing: 1, 2\n");
    close(fd);
}

TEST(a_death_is_named_before_all_have_joined)
{
    stage(3, 20, 20);
    enter(as(0), bow);
    enter(as(1), bow);
    close_port();
    sleep_ms(1000);
    begun = clock_now();
    kill(actors[1].pid, SIGKILL);
    while (read_said(), said[0] == '\0' && clock_now() < begun + 10)
        sleep_ms(2);
    expect_within(1);
    ends(1, 1000 + SIGKILL);
    ends(0, EXIT_REPORTED);
    expect_said("rank 1 of 3 (");
    expect_said("has disconnected: before it met the other ranks");
    expect_lines(2);
}

// The run ends while rank 1 receives an answer: the rest of the answer must come before the message of the end.
TEST(the_end_does_not_cut_an_answer)
{
    static char zeros[STORE_MOST];
    stage(3, 20, 20);
    enter(as(0), end_during_an_answer);
    enter(as(2), end_during_an_answer);
    int fd = join_as_rank_1();
    send_heartbeat(fd);
    send(fd, &(StoreHead){ STORE_PUT, STORE_MOST, "zeros" }, sizeof(StoreHead), MSG_NOSIGNAL);
    send(fd, zeros, sizeof zeros, MSG_NOSIGNAL);
    expect_answer(fd, STORE_DONE, 0);
    send(fd, &(StoreHead){ STORE_GET, 0, "zeros" }, sizeof(StoreHead), MSG_NOSIGNAL);
    expect_answer(fd, STORE_VALUE, STORE_MOST);
    expect_answer(fd, STORE_OVER, 0);
    close(fd);
    all_end(EXIT_REPORTED);
}

// --- addresses and connections -------------------------------------------------------------------

static Error err;

static void expect_error(const char *text, const char *hint)
{
    EXPECT(strstr(err.text, text) && strstr(err.hint, hint), "'%s' '%s', wanted '%s' '%s'", err.text, err.hint,
           text, hint);
    err = (Error){ .text = "" };
}

static void bind_again(const void *place)
{
    TcpPlace copy = *(const TcpPlace *)place;
    tcp_bind(&copy);
}

TEST(addresses)
{
    TcpAddress own;
    EXPECT(tcp_own_address("lo", own, &err) && tcp_is_loopback(own), "lo");
    if (tcp_own_address(NULL, own, &err)) {
        TcpPlace place = tcp_resolve(own, 0);
        close(tcp_bind(&place));
        EXPECT(place.port > 0 && !tcp_is_loopback(own), "%s: %d", own, place.port);
    }
    EXPECT(!tcp_own_address("nowhere", own, &err), "nowhere");
    expect_error("no interface nowhere is up", "ip -brief address");
}

TEST(connections)
{
    TcpPlace place = tcp_resolve("127.0.0.1", 0);
    int listener = tcp_bind(&place);
    listen(listener, 8);
    EXPECT(fcntl(listener, F_GETFD) & FD_CLOEXEC, "exec would keep the listener open");
    EXPECT_EQ_INT(test_child(bind_again, &place), EXIT_FAILED);
    EXPECT_HAS(test_said, "of 127.0.0.1: Address already in use");
    EXPECT_HAS(test_said, "choose a different --master-port");
    TcpPlace other = tcp_resolve("127.0.0.2", place.port);  // the port is free on every other address
    close(tcp_bind(&other));
    int client = tcp_connect(&place, 10, &err), server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    EXPECT(client >= 0 && server >= 0, "%s", err.text);
    close(client);
    close(server);
    listen(listener, 0);                            // a queue of one, and no accept
    client = tcp_connect(&place, 1, &err);
    EXPECT_EQ_INT(tcp_connect(&place, 0.3, &err), -1);
    expect_error("Connection timed out", "");
    close(client);
    close(listener);
    EXPECT_EQ_INT(tcp_connect(&place, 0.3, &err), -1);
    expect_error("Connection refused", "");
}

// --- many strangers ------------------------------------------------------------------------------

// Sends nothing, a byte, half a Hello, a Hello with a wrong token, or garbage, until all ranks are there.
static _Noreturn void send_strangers(void)
{
    enum { OPEN = 100 };
    int fds[OPEN];
    Bytes wrong = wrong_hello(1);
    memset(fds, -1, sizeof fds);
    for (int i = 0; seen->there < 3 && !seen->finish; i++, seen->strangers++) {
        int *fd = &fds[i % OPEN];
        size_t bytes = (size_t[]){ 0, 1, sizeof wrong / 2, sizeof wrong, 10 * sizeof wrong }[i % 5];
        char noise[10 * sizeof wrong];
        memset(noise, i, sizeof noise);
        if (i % 5 == 3 || i % 5 == 2)
            memcpy(noise, &wrong, sizeof wrong);
        if (*fd >= 0)
            close(*fd);
        *fd = knock();
        if (*fd < 0)
            _exit(1);
        if (bytes > 0 && send(*fd, noise, bytes, MSG_NOSIGNAL) < 0)
            sleep_ms(1);
    }
    exit(test_failed > 0);
}

TEST(strangers_neither_join_nor_delay_ranks)
{
    stage(3, 40, 40);
    enter(as(0), step);
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        send_strangers();
    await(&seen->strangers, STRANGERS);
    begun = clock_now();
    enter(as(1), step);
    enter(as(2), step);
    await(&seen->there, 3);
    expect_within(4);                   // a stranger may stay for 5 s
    seen->finish = seen->there < 3;
    EXPECT(waitpid(child, &status, 0) == child && status == 0, "the strangers failed");
    seen->finish = 1;
    all_end(0);
    EXPECT_EQ_INT(seen->there, 3);
    EXPECT_EQ_INT(times("refused a connection"), 1);
    expect_lines(2);
}

// --- running the tests ---------------------------------------------------------------------------

enum { LOSSES = sizeof losses / sizeof *losses };

static pid_t start(int number)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid > 0)
        return pid;
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (number < LOSSES)
        lose(&losses[number]);
    else
        test_list[number - LOSSES]();
    _exit(test_failed > 0);
}

static void join(pid_t pid, const char *name)
{
    int status;
    EXPECT(waitpid(pid, &status, 0) == pid && status == 0, "%s failed", name);
}

// The tests mostly wait, so they run in parallel, one process each; the strangers, the last test, run alone.
int main(void)
{
    pid_t pids[64];
    int last = LOSSES + test_count - 1;
    for (int i = 0; i < last; i++)
        pids[i] = start(i);
    for (int i = 0; i < last; i++)
        join(pids[i], i < LOSSES ? losses[i].name : "a test");
    join(start(last), "the last test");
    return test_done();
}
