// test_tcp_store.c - ranks that find each other over TCP: which are let in, what becomes of those that
// are missing, die, stop or hang, and what is printed. Ranks do no training here: each plays a part.
// Also what this is made of: addresses, connections, secrets.
// ctest: TIMEOUT 120 SANITIZERS asan tsan LABELS deadlines
#include "tcp_store.h"
#include "alive.h"
#include "clock.h"
#include "interrupt.h"
#include "test.h"
#include "world/tcp_store_message.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
enum { SANITIZED = 1, SLOW = 5, STRANGERS = 1000 };     // SLOW: times as long as usual
#else
enum { SANITIZED = 0, SLOW = 1, STRANGERS = 10000 };
#endif
enum { RANKS = 32, BIG = 300000 };

static struct Seen {
    atomic_int there;                   // ranks that have met
    atomic_int finish;                  // what they wait for then
    atomic_int strangers;               // that have come so far
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
static bool nobody;                     // those that enter now are another user's
static double begun;
static char path[4096], said[1 << 16];

static void sleep_ms(int ms) { usleep((useconds_t)ms * 1000); }

// --- a play --------------------------------------------------------------------------------------

static void stage(int size, double timeout)
{
    static int number;
    char name[32];
    snprintf(name, sizeof name, "said-%d-%d", (int)getpid(), number++);
    snprintf(path, sizeof path, "%s", test_path(name));
    close(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666));
    memset((void *)seen, 0, sizeof *seen);
    count = 0;
    nobody = false;
    play = (TcpStoreConfig){ .size = size, .name = "play", .secret = secret_random(), .timeout = timeout };
    tcp_store_add(&play, "127.0.0.1", 0);
    tcp_store_bind(&play);
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
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0 || (nobody && setuid(65534) != 0))
        _exit(99);
    interrupt_install(false);
    alive_patience(config->timeout);
    if (config->rank > 0 && play.sockets[0] > 0)
        close(play.sockets[0]);
    if (config->first_free && config->rank == 0)
        tcp_store_bind(config);
    int descriptors = entries("/proc/self/fd") - (config->rank == 0);
    tcp_store_join(config, &world);
    alive_joined();
    CHECK(strcmp(world.address, "127.0.0.1") == 0, "", "its address is %s", world.address);
    snprintf(seen->run[world.rank], STORE_NAME, "%s", world.run);
    seen->there++;
    part(&world);
    tcp_store_end(&world);
    CHECK(entries("/proc/self/fd") == descriptors, "", "a descriptor is left");
    for (int i = 0; !SANITIZED && i < 1000 && entries("/proc/self/task") > 3; i++)
        sleep_ms(1);                    // the kernel takes a moment
    CHECK(SANITIZED || entries("/proc/self/task") == 3, "", "a thread is left");
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

static void enter_all(Part *part)
{
    for (int rank = 0; rank < play.size; rank++)
        enter(as(rank), part);
}

// No rank 0 is started from here on; and if it ends, its port is closed.
static void close_port(void)
{
    if (play.sockets[0] > 0)
        close(play.sockets[0]);
    play.sockets[0] = 0;
}

static void await(atomic_int *number, int wanted)
{
    for (int i = 0; i < 20000 && *number < wanted; i++)
        sleep_ms(1);
    EXPECT(*number >= wanted, "%d of %d", *number, wanted);
}

static void read_said(void)
{
    FILE *in = fopen(path, "r");
    said[in ? fread(said, 1, sizeof said - 1, in) : 0] = '\0';
    if (in)
        fclose(in);
}

// Expects that it ends with this status (1000 + the signal that killed it).
static void ends(int actor, int wanted)
{
    int status = 0;
    double since = clock_now();
    while (!actors[actor].ended && waitpid(actors[actor].pid, &status, WNOHANG) == 0) {
        if (clock_now() - since > 30) {
            kill(actors[actor].pid, SIGKILL);
            EXPECT(false, "rank %d hangs", actors[actor].rank);
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

static void kill_one(int actor)
{
    kill(actors[actor].pid, SIGKILL);
    ends(actor, 1000 + SIGKILL);
}

static int times(const char *what)
{
    int n = 0;
    for (const char *p = said; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

static void expect_said(const char *what) { EXPECT(strstr(said, what) != NULL, "no \"%s\" in: %s", what, said); }
static void expect_lines(int lines) { EXPECT(times("\n") == lines, "not %d lines: %s", lines, said); }

static void expect_within(double seconds)
{
    EXPECT(clock_now() - begun < seconds * SLOW, "took %.1f s: %s", clock_now() - begun, said);
}

// --- parts ---------------------------------------------------------------------------------------

static void bow(World *world) { (void)world; }

// As a rank that trains: it beats.
static void step(World *world)
{
    alive_step(1, 3 + world->rank);
    alive_collective_begin("gradients", "all_reduce", 5);
    for (; seen->finish == 0; sleep_ms(5))
        alive_beat();
}

static void hang(World *world)          // rank 2; the others work
{
    if (world->rank != 2)
        step(world);
    alive_step(1, 7);
    while (seen->finish == 0)
        sleep_ms(5);
}

static void be_patient(World *world)    // rank 0 works, the others wait for it
{
    if (world->rank == 0)
        step(world);
    alive_wait_begin();
    while (seen->finish == 0)
        sleep_ms(5);
    alive_wait_end();
}

static void wait_on(World *world)
{
    for (int i = 0; i < 2 - (world->rank == 1); i++)
        alive_collective_begin("gradients", "all_reduce", 5);
    alive_wait_begin();
    for (;;)
        pause();
}

static void get_what_never_comes(World *world)
{
    char value;
    if (world->rank == 1)
        world->store.get(world->store.arg, "never", &value, 1);
    step(world);
}

static void fall_over_when_done(World *world)
{
    alive_done();
    sleep_ms(2000);                     // a beat
    if (world->rank > 0)
        syscall(SYS_exit_group, 0);
}

static void first_leaves_first(World *world)
{
    while (world->rank > 0 && seen->finish == 0)
        sleep_ms(5);
}

static void be_done_and_linger(World *world)
{
    alive_done();
    sleep_ms(4000 * world->rank);       // longer than rank 0 waits
}

// --- meeting -------------------------------------------------------------------------------------

// Each rank puts something, and gets what the others have put; the last of them comes late.
static void exchange(World *world)
{
    const Store *s = &world->store;
    char key[24], *big = xmalloc(BIG + 1);
    sleep_ms(world->rank == world->size - 1 ? 300 : 0);
    memset(big, 'a' + world->rank, BIG + 1);
    snprintf(key, sizeof key, "twice %d", world->rank);
    s->put(s->arg, key, "older", 6);
    s->put(s->arg, key, big, 2);
    snprintf(key, sizeof key, "big %d", world->rank);
    s->put(s->arg, key, big, BIG);
    for (int rank = 0; rank < world->size; rank++) {
        char letter = (char)('a' + rank);
        memset(big, '?', BIG + 1);
        snprintf(key, sizeof key, "big %d", rank);
        CHECK(s->get(s->arg, key, big, 5) == BIG && big[4] == letter && big[5] == '?', "", "5 bytes");
        CHECK(s->get(s->arg, key, big, BIG + 1) == BIG && big[BIG - 1] == letter && big[BIG] == '?', "", "big");
        snprintf(key, sizeof key, "twice %d", rank);
        CHECK(s->get(s->arg, key, big, 5) == 2 && big[1] == letter && big[2] == letter, "", "twice");
    }
    free(big);
}

TEST(they_meet_in_any_order)
{
    static const int orders[][4] = { { 0, 1, 2, 3 }, { 3, 2, 1, 0 }, { 2, 0, 3, 1 } };
    for (int o = 0; o < 3; o++) {
        stage(4, 20);
        for (int i = 0; i < 4; i++) {
            enter(as(orders[o][i]), exchange);
            sleep_ms(o == 0 ? 0 : 60);
        }
        all_well();
        EXPECT(strlen(seen->run[0]) > 8, "run %s", seen->run[0]);
        for (int i = 0; i < 4; i++)
            EXPECT_EQ_STR(seen->run[i], seen->run[0]);
    }
    stage(1, 5);
    enter(as(0), exchange);
    all_well();
    stage(RANKS, 30);
    enter_all(bow);
    all_well();
    EXPECT_EQ_INT(seen->there, RANKS);
}

// Two runs take what is free of the same ports, and rank 0 comes last. The first place does not answer.
TEST(two_runs_beside_each_other)
{
    stage(3, 20);
    int port = play.places[0].port;
    close_port();
    play.count = 0;
    play.first_free = true;
    tcp_store_add(&play, "192.0.2.1", port);
    for (int i = 0; i < 5; i++)
        tcp_store_add(&play, "127.0.0.1", port + i);
    for (int i = 0; i < 6; i++) {
        TcpStoreConfig c = as(2 - i / 2);
        snprintf(c.name, sizeof c.name, "play %d", i % 2);
        enter(c, bow);
        sleep_ms(i < 4 ? 300 : 0);
    }
    seen->finish = 1;
    all_end(0);
    EXPECT(times("it is of another run") == times("\n") / 2, "nothing else is printed: %s", said);
}

TEST(rank_0_is_not_there)
{
    stage(2, 1);
    close_port();
    enter(as(1), bow);
    all_end(1);
    expect_said("rank 1 of 2 has not found rank 0 at 127.0.0.1:");
    expect_said("Connection refused\nhint: is rank 0 started");
    EXPECT(clock_now() - begun > 0.9, "too early");
    play.count = 0;
    play.first_free = true;
    tcp_store_add(&play, "0.0.0.0", 0);
    enter(as(0), bow);
    all_end(1);
    expect_said("0.0.0.0 means every interface of this machine\nhint: give the one address");
}

TEST(a_signal_ends_a_wait)
{
    stage(2, 30);
    int waits = enter(as(0), bow);
    play.places[0].port++;
    int searches = enter(as(1), bow);
    sleep_ms(500);
    kill(actors[searches].pid, SIGTERM);
    kill(actors[waits].pid, SIGINT);
    ends(searches, 128 + SIGTERM);
    ends(waits, 128 + SIGINT);
    close_port();
    stage(2, 30);
    enter_all(get_what_never_comes);
    await(&seen->there, 2);
    kill(actors[1].pid, SIGTERM);
    ends(1, 128 + SIGTERM);
    all_end(EXIT_REPORTED);
}

// --- ranks that do not fit -----------------------------------------------------------------------

TEST(the_missing_are_named)
{
    stage(6, 2);
    int goes = enter(as(3), bow);
    for (int rank = 0; rank < 3; rank++)
        enter(as(rank), bow);
    sleep_ms(1000);
    kill_one(goes);
    all_end(EXIT_REPORTED);
    expect_said("3 of 6 ranks came within 2 s: missing are 3, 4, 5\nhint: are they started");
    expect_lines(2);
    expect_within(5);
}

TEST(contradictions_end_it_at_once)
{
    static const struct { int rank, size; const char *words; } wrong[] = {
        { 2, 4, ") says that there are 4 ranks, rank 0 (" }, { 1, 3, "rank 1 is there twice: " },
    };
    for (int i = 0; i < 2; i++) {
        stage(3, 20);
        enter(as(0), bow);
        enter(as(1), bow);
        sleep_ms(400);
        TcpStoreConfig c = as(wrong[i].rank);
        c.size = wrong[i].size;
        enter(c, bow);
        all_end(EXIT_REPORTED);
        expect_said(wrong[i].words);
        expect_lines(2);
        expect_within(3);
    }
}

// A process that is no rank of this run, with another secret, run or size, or too late: it is refused, and
// the run is not disturbed.
TEST(others_are_refused)
{
    static const struct { const char *name, *words; bool early, random, none; int rank, size; } wrong[] = {
        { "play", "does not know rank 0's token", true, true, false, 1, 2 },
        { "play", "does not know rank 0's token", true, false, true, 1, 2 },
        { "another", "it is of another run", true, false, false, 1, 2 },
        { "another", "it is of another run", false, false, false, 1, 3 },
        { "play", "the run has begun: all ranks are there", false, false, false, 1, 2 },
        { "play", "it has no rank", false, false, false, -1, 2 },
        { "play", "it has no rank", true, false, false, 2, 2 },
    };
    for (int early = 1; early >= 0; early--) {
        if (early)
            stage(2, 20);
        if (early)
            enter(as(0), step);
        else
            enter(as(1), step);
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            TcpStoreConfig c = as(wrong[i].rank);
            if (wrong[i].early != early)
                continue;
            await(&seen->there, early ? 0 : 2);
            c.timeout = 0.5;
            c.size = wrong[i].size;
            snprintf(c.name, sizeof c.name, "%s", wrong[i].name);
            c.secret = wrong[i].random ? secret_random() : wrong[i].none ? (Secret){ .known = false } : c.secret;
            ends(enter(c, bow), 1);
            expect_said(wrong[i].words);
        }
    }
    seen->finish = 1;
    all_end(0);
    EXPECT_EQ_INT(times("refused a connection"), 1);
    EXPECT_EQ_INT(seen->there, 2);
}

static int knock(void)
{
    Error err;
    int fd = -1;
    for (int i = 0; i < 5000 && (fd = tcp_connect(&play.places[0], 10, &err)) < 0 && !seen->finish; i++)
        sleep_ms(1);
    EXPECT(fd >= 0, "%s", err.text);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 10, 0 }, sizeof(struct timeval));
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger));
    return fd;
}

// What a rank sends here, with the token.
static Hello hello_to(int fd, int rank)
{
    Hello hello = { .client = { .magic = STORE_MAGIC },
                    .person = { .rank = rank, .size = play.size, .run = "play" } };
    EXPECT(recv(fd, &hello.server, sizeof hello.server, MSG_WAITALL) > 0, "no greeting");
    secret_prove(&play.secret, "rank", &hello, offsetof(Hello, proof), (&hello)->proof);
    return hello;
}

static bool hears(int fd, StoreWhat what)
{
    char bytes[1024];
    StoreHead head = { .what = 0 };
    if (recv(fd, &head, sizeof head, MSG_WAITALL) > 0 && head.bytes > 0 && head.bytes <= sizeof bytes)
        recv(fd, bytes, head.bytes, MSG_WAITALL);
    return head.what == what;
}

// A rank checks which user's process rank 0 is; and rank 0, which user's the rank is.
TEST(without_a_token_the_user_counts)
{
    int status = -1;
    stage(2, 3);
    play.secret.known = false;
    enter(as(0), bow);
    if (geteuid() != 0) {
        enter(as(1), bow);
        all_end(0);
        return;
    }
    TcpStoreConfig c = as(1);
    c.timeout = 1;
    nobody = true;
    ends(enter(c, bow), 1);
    expect_said("it belongs to another user: choose another port, or use a token");
    fflush(NULL);
    pid_t other = fork();
    if (other == 0) {
        int fd = setuid(65534) == 0 ? knock() : -1;
        Hello hello = hello_to(fd, 1);
        _exit(send(fd, &hello, sizeof hello, 0) < 0 || !hears(fd, STORE_NO));
    }
    EXPECT(waitpid(other, &status, 0) == other && status == 0, "another user's process is let in");
    all_end(EXIT_REPORTED);
    expect_said("it belongs to another user, and there is no token");
    expect_said("1 of 2 ranks came within 3 s: missing is 1\n");
}

// --- strangers -----------------------------------------------------------------------------------

// With the token: sends something wrong as a rank. Its connection is closed, and nothing else happens.
static void misbehave(uint32_t what, uint32_t bytes)
{
    static unsigned char value[1000];
    StoreHead head = { what, bytes, "" };
    int fd = knock();
    Hello hello = hello_to(fd, 1);
    memset(head.key, 'k', sizeof head.key);
    EXPECT(send(fd, &hello, sizeof hello, 0) > 0 && hears(fd, STORE_WELCOME), "it is not let in");
    EXPECT(send(fd, &head, sizeof head, MSG_NOSIGNAL) > 0, "gone");
    if (bytes <= sizeof value)
        EXPECT((bytes == 0 || send(fd, value, bytes, MSG_NOSIGNAL) > 0) && hears(fd, STORE_DONE), "no answer");
    else
        EXPECT(recv(fd, value, 1, 0) <= 0, "it stays");
    close(fd);
    sleep_ms(50 * SLOW);
}

// Nothing, a byte, half a Hello, one that was recorded, one with a wrong proof, garbage; 100 at a time stay.
static _Noreturn void send_strangers(const Hello *old)
{
    enum { OPEN = 100 };
    int fds[OPEN];
    Hello wrong = *old;
    memset(fds, -1, sizeof fds);
    for (int i = 0; i < STRANGERS; i++, seen->strangers++) {
        int *fd = &fds[i % OPEN];
        size_t bytes = (size_t[]){ 0, 1, sizeof wrong / 2, sizeof wrong, 10 * sizeof wrong }[i % 5];
        char noise[10 * sizeof wrong];
        memset(noise, i, sizeof noise);
        if (i % 5 == 3 || i % 5 == 2)
            memcpy(noise, i % 2 ? &wrong : old, sizeof wrong);
        if (*fd >= 0)
            close(*fd);
        *fd = knock();
        if (*fd < 0)
            _exit(1);
        if (bytes > 0 && send(*fd, noise, bytes, MSG_NOSIGNAL) < 0)
            sleep_ms(1);
        wrong.proof[i % SECRET_BYTES]++;
    }
    exit(test_failed > 0);
}

static long resident_pages(pid_t pid)
{
    char name[64];
    long all, pages = -1;
    snprintf(name, sizeof name, "/proc/%d/statm", (int)pid);
    FILE *in = fopen(name, "r");
    EXPECT(in && fscanf(in, "%ld %ld", &all, &pages) == 2, "no %s", name);
    fclose(in);
    return pages;
}

TEST(strangers_join_nothing_and_delay_no_rank)
{
    stage(3, 40);
    int host = enter(as(0), step), status = -1;
    int fd = knock();
    Hello old = hello_to(fd, 1);
    close(fd);
    misbehave(STORE_PUT, UINT32_MAX);
    misbehave(STORE_PUT, STORE_MOST + 1);
    misbehave(STORE_PUT, 1000);
    misbehave(STORE_BEAT, 3);
    misbehave(99, 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        send_strangers(&old);
    await(&seen->strangers, STRANGERS / 10);
    long before = resident_pages(actors[host].pid);
    EXPECT_EQ_INT(seen->there, 0);
    await(&seen->strangers, STRANGERS / 2);
    begun = clock_now();
    enter(as(1), step);
    enter(as(2), step);
    await(&seen->there, 3);
    EXPECT(SANITIZED || seen->strangers < STRANGERS, "the strangers were too fast");
    expect_within(2);
    seen->finish = seen->there < 3;
    EXPECT(waitpid(child, &status, 0) == child && status == 0, "the strangers failed");
    long grown = resident_pages(actors[host].pid) - before;
    EXPECT(SANITIZED || grown < 512, "%ld pages more", grown);
    seen->finish = 1;
    all_end(0);
    EXPECT_EQ_INT(seen->there, 3);
    EXPECT_EQ_INT(times("refused a connection"), 1);
    expect_lines(2);
}

TEST(slow_ones_are_sent_away)
{
    stage(1, 20);
    enter(as(0), step);
    await(&seen->there, 1);
    int fd = knock();
    Hello hello = hello_to(fd, 0);
    begun = clock_now();
    for (int i = 0; i < 20 && send(fd, (char *)&hello + i, 1, MSG_NOSIGNAL) == 1; i++)
        sleep_ms(500);
    double took = clock_now() - begun;
    EXPECT(took > 4.5 && took < 8, "%.1f s", took);
    close(fd);
    all_well();
}

// --- losses --------------------------------------------------------------------------------------

static void begin(Part *part, double timeout, bool supervised)
{
    stage(3, timeout);
    play.supervised = supervised;
    enter_all(part);
    close_port();
    await(&seen->there, 3);
    sleep_ms(1300);                     // a second beat
    begun = clock_now();
}

static const char *name_of(int rank, const char *of)
{
    static char text[200];
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "rank %d%s (%s, pid %d) ", rank, of, host, (int)actors[rank].pid);
    return text;
}

TEST(a_dead_rank_is_named)
{
    for (int timeout = 0; timeout <= 20; timeout += 20) {       // without a timeout, too
        begin(step, timeout, false);
        kill_one(2);
        while (said[0] == '\0' && clock_now() < begun + 10)
            read_said();
        expect_within(1);
        expect_said(name_of(2, " of 3"));
        expect_said("is gone: after epoch 1, step 5; last collective: all_reduce #1 of 5 values "
                    "(gradients)\nhint: ");
        all_end(EXIT_REPORTED);
        expect_lines(2);
        expect_within(5);
    }
}

static void expect_lost(Part *part, int signal, const char *how, const char *more, int lines)
{
    begin(part, 2, false);
    kill(actors[2].pid, signal);
    ends(0, EXIT_REPORTED);
    ends(1, EXIT_REPORTED);
    if (lines == 2)
        expect_said(name_of(2, " of 3"));
    expect_said(how);
    expect_said(more);
    expect_lines(lines);
    expect_within(5);
    kill(actors[2].pid, SIGCONT);
    all_end(EXIT_REPORTED);
}

TEST(a_stopped_rank_is_named)
{
    expect_lost(step, SIGSTOP, "has not been heard of for 2", " s: after epoch 1, step 5; ", 2);
}

TEST(a_hung_rank_is_named)
{
    expect_lost(hang, SIGCONT, "has given no sign of life for 2", " s: after epoch 1, step 7; ", 2);
}

TEST(a_deadlock_is_reported)
{
    expect_lost(wait_on, SIGCONT, "all wait for each other, for 2 s now", ") is behind: ", 5);
}

TEST(a_patient_one_is_not_blamed)
{
    begin(be_patient, 1, false);
    sleep_ms(3000);
    all_well();
}

static void without_rank_0(bool stopped)
{
    begin(step, 2, false);
    char words[400];
    snprintf(words, sizeof words, "%s%s", name_of(0, ""), stopped ? "does not answer: it is stopped" : "is gone: ");
    kill(actors[0].pid, stopped ? SIGSTOP : SIGKILL);
    ends(1, EXIT_REPORTED);
    ends(2, EXIT_REPORTED);
    expect_within(6);
    EXPECT(times(words) == 2, "not twice \"%s\": %s", words, said);
    expect_lines(4);
    kill(actors[0].pid, SIGCONT);
    ends(0, stopped ? EXIT_REPORTED : 1000 + SIGKILL);
}
TEST(when_rank_0_is_killed_all_end) { without_rank_0(false); }
TEST(when_rank_0_is_stopped_all_end) { without_rank_0(true); }

// The supervisor sees how they die: the ranks are silent for a while, then speak, for it may be stopped.
TEST(with_a_supervisor_it_speaks_first)
{
    for (int victim = 0; victim <= 2; victim += 2) {
        begin(step, 20, true);
        kill_one(victim);
        sleep_ms(1500);
        read_said();
        EXPECT_EQ_STR(said, "");
        all_end(EXIT_REPORTED);
        expect_said(victim ? "rank 2 of 3 (" : "rank 0 (");
        expect_within(5);
    }
}

TEST(stopped_together_and_continued)
{
    begin(step, 2, false);
    for (int i = 0; i < 3; i++)
        kill(actors[i].pid, SIGSTOP);
    sleep_ms(3000);
    for (int i = 0; i < 3; i++)
        kill(actors[i].pid, SIGCONT);
    sleep_ms(1500);
    all_well();
}

TEST(they_leave_in_any_order)
{
    static Part *const parts[] = { bow, fall_over_when_done, first_leaves_first };
    for (int i = 0; i < 3; i++) {       // in the last, rank 0 has waited for more than 1 s then, of 2
        begin(parts[i], 20, false);
        all_well();
    }
}

TEST(rank_0_leaves_first)
{
    begin(be_done_and_linger, 20, false);
    all_well();
    expect_within(12);
}

// --- addresses and connections -------------------------------------------------------------------

static Error err;

static void expect_error(const char *text, const char *hint)
{
    EXPECT(strstr(err.text, text) && strstr(err.hint, hint), "'%s' '%s', wanted '%s' '%s'", err.text, err.hint,
           text, hint);
    err = (Error){ .text = "" };
}

static int bind_here(const char *address, int port)
{
    TcpPlace place = { .port = port };
    snprintf(place.address, sizeof place.address, "%s", address);
    int bound = tcp_bind(&place, &err);
    return bound >= 0 && listen(bound, 8) == 0 ? bound : -1;
}

TEST(addresses)
{
    TcpAddress address = "", all[16];
    EXPECT(tcp_resolve("192.0.2.7", address, &err) && !strcmp(address, "192.0.2.7"), "%s", address);
    EXPECT(tcp_resolve("localhost", address, &err) && tcp_is_loopback(address), "%s %s", address, err.text);
    EXPECT(!tcp_resolve("no..such", address, &err), "%s", address);
    expect_error("no address of 'no..such' is known: ", "getent hosts");
    EXPECT(tcp_is_loopback("127.8.9.10") && !tcp_is_loopback("10.0.0.1") && !tcp_is_loopback(""), "loopback");
    EXPECT(tcp_own_addresses("lo", all, 1) == 1 && tcp_is_loopback(all[0]), "lo");
    EXPECT(!tcp_use_interface("eth99", address, &err), "%s", address);
    expect_error("interface 'eth99' is not there, is down, or has no IPv4 address", "ip -brief address");
    for (int i = tcp_own_addresses(NULL, all, 16) - 1; i >= 0; i--) {
        int bound = bind_here(all[i], 0);
        EXPECT(bound >= 0 && !tcp_is_loopback(all[i]), "%s: %s", all[i], err.text);
        close(bound);
    }
}

TEST(connections)
{
    int listener = bind_here("127.0.0.1", 0);
    TcpPlace place = tcp_place(listener, false);
    EXPECT(!strcmp(place.address, "127.0.0.1") && place.port > 0, "%s:%d", place.address, place.port);
    EXPECT(fcntl(listener, F_GETFD) & FD_CLOEXEC, "programs inherit it");
    EXPECT_EQ_INT(bind_here("127.0.0.1", place.port), -1);
    expect_error("of 127.0.0.1: Address already in use", "choose another --master-port");
    close(bind_here("127.0.0.2", place.port));      // at this address and no other
    EXPECT_EQ_INT(bind_here("192.0.2.1", 0), -1);
    expect_error("192.0.2.1 is not an address of this machine", "rank 0 must be on the machine");
    int client = tcp_connect(&place, 10, &err), server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    EXPECT(tcp_same_user(server) && tcp_same_user(client), "another user");
    EXPECT(!tcp_same_user(listener) && !tcp_same_user(-1), "there is no other side");
    close(client);
    EXPECT(!tcp_same_user(server), "what is left of it belongs to user 0");
    close(server);
    listen(listener, 0);                            // it takes one, and accepts none
    client = tcp_connect(&place, 1, &err);
    EXPECT_EQ_INT(tcp_connect(&place, 0.3, &err), -1);
    expect_error("Connection timed out", "");
    close(client);
    close(listener);
    EXPECT_EQ_INT(tcp_connect(&place, 0.3, &err), -1);
    expect_error("Connection refused", "");
}

// As another user; and where the system has no other port to choose, a socket connects to itself.
TEST(as_root)
{
    int listener = bind_here("127.0.0.1", 0);
    TcpPlace place = tcp_place(listener, false);
    int client = tcp_connect(&place, 10, &err), server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (geteuid() != 0 || setegid(65534) != 0 || seteuid(65534) != 0) {
        printf("not as root: other users and other networks are left out\n");
        return;
    }
    EXPECT(!tcp_same_user(server) && !tcp_same_user(client), "another user's");
    EXPECT(seteuid(0) == 0 && setegid(0) == 0, "root");
    if (unshare(CLONE_NEWNET) != 0 || system("ip link set lo up 2>/dev/null") != 0 ||
        system("(echo 40000 40001 >/proc/sys/net/ipv4/ip_local_port_range) 2>/dev/null") != 0)
        return;
    for (int i = 0; i < 40; i++) {
        place.port = 40000 + i % 2;
        EXPECT_EQ_INT(tcp_connect(&place, 0.3, &err), -1);
    }
}

static void expect_file(const char *content, int mode, const char *wrong)
{
    Secret secret;
    const char *file = test_path("token");
    FILE *out = fopen(file, "w");
    fputs(content, out);
    fclose(out);
    chmod(file, (mode_t)mode);
    EXPECT(secret_find(file, &secret, &err) == !wrong, "'%s', mode %o: %s", content, mode, err.text);
    expect_error(wrong ? wrong : "", "");
}

TEST(secrets)
{
    Secret one = secret_random(), other = secret_random(), none = { .known = false }, read;
    unsigned char proof[SECRET_BYTES];
    char text[SECRET_TEXT + 1];
    EXPECT(one.known && memcmp(one.bytes, other.bytes, SECRET_BYTES) != 0, "not random");
    secret_to_text(&one, text);
    EXPECT(strlen(text) == 64 && secret_from_text(text, &read) && !memcmp(&read, &one, sizeof one), "%s", text);
    expect_file(text, 0600, NULL);
    expect_file(text, 0640, "others may read it");
    strcat(text, "\n");
    expect_file(text, 0400, NULL);
    text[63] = 'g';
    expect_file(text, 0600, "not a token of 64 hexadecimal digits");
    text[63] = '\n';
    expect_file(text, 0600, "not a token of 64 hexadecimal digits");
    EXPECT(!secret_find(test_path("missing"), &read, &err), "there is none");
    expect_error("No such file", "");
    EXPECT(!secret_find(test_path("."), &read, &err), "a folder");
    expect_error("not this user's own file", "chmod 600");
    secret_prove(&one, "rank", "hello", 5, proof);
    EXPECT(secret_proves(&one, "rank", "hello", 5, proof), "no proof");
    EXPECT(!secret_proves(&one, "rank 0", "hello", 5, proof) && !secret_proves(&one, "rank", "hallo", 5, proof) &&
           !secret_proves(&one, "rank", "hello", 4, proof) && !secret_proves(&other, "rank", "hello", 5, proof) &&
           !secret_proves(&none, "rank", "hello", 5, proof), "a proof of something else");
}

// --- all of them ---------------------------------------------------------------------------------

// They mostly wait: all at once, each in a process of its own; and then the strangers.
int main(int argc, char **argv)
{
    static const struct { const char *name; void (*test)(void); } tests[] = {
#define ROW(name) { #name, name }
        ROW(they_meet_in_any_order), ROW(two_runs_beside_each_other), ROW(rank_0_is_not_there),
        ROW(a_signal_ends_a_wait), ROW(the_missing_are_named), ROW(contradictions_end_it_at_once),
        ROW(others_are_refused), ROW(without_a_token_the_user_counts), ROW(slow_ones_are_sent_away),
        ROW(a_dead_rank_is_named), ROW(a_stopped_rank_is_named), ROW(a_hung_rank_is_named),
        ROW(a_deadlock_is_reported), ROW(a_patient_one_is_not_blamed), ROW(when_rank_0_is_killed_all_end),
        ROW(when_rank_0_is_stopped_all_end), ROW(with_a_supervisor_it_speaks_first),
        ROW(stopped_together_and_continued), ROW(they_leave_in_any_order), ROW(rank_0_leaves_first),
        ROW(addresses), ROW(connections), ROW(as_root), ROW(secrets),
        ROW(strangers_join_nothing_and_delay_no_rank),
    };
    enum { TESTS = sizeof tests / sizeof *tests };
    pid_t pids[TESTS] = { 0 };
    for (int i = 0, k = 0, status; i <= TESTS; i++) {
        for (; i >= TESTS - 1 && k < i; k++)
            EXPECT(pids[k] == 0 || (waitpid(pids[k], &status, 0) == pids[k] && status == 0), "%s failed",
                   tests[k].name);
        fflush(NULL);
        if (i == TESTS || (argc > 1 && strcmp(argv[1], tests[i].name) != 0) || (pids[i] = fork()) > 0)
            continue;
        seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        tests[i].test();
        _exit(test_failed > 0);
    }
    return test_done();
}
