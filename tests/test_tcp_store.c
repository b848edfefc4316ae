// test_tcp_store.c - ranks that find each other over TCP: who is let in, what becomes of those who
// are missing, die, stop or hang, and who says it. Ranks do no training here: each plays a part.
// ctest: TIMEOUT 240 SANITIZERS asan tsan LABELS deadlines
#include "tcp_store.h"
#include "alive.h"
#include "clock.h"
#include "interrupt.h"
#include "test.h"
#include "world/tcp_store_message.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { RANKS = 32, ACTORS = 48, STRANGERS = 10000, BIG = 300000 };
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
enum { SANITIZED = 1, SLOW = 5 };       // times as long as usual
#else
enum { SANITIZED = 0, SLOW = 1 };
#endif

static struct Seen {
    atomic_int there;                   // ranks that have met
    atomic_int go_on;                   // what they wait for then
    atomic_int strangers;               // that have come so far
    char run[RANKS][STORE_NAME];
} *seen;

typedef void Part(World *world);
static struct Actor {
    pid_t pid;                          // 0: has ended
    int rank;
} actors[ACTORS];
static int count;
static TcpStoreConfig play;
static const char *elsewhere;           // a name of another machine, for those that enter now
static bool nobody;                     // ... as another user
static double begun;
static char path[4096], said[1 << 16];

static void sleep_ms(int ms) { usleep((useconds_t)ms * 1000); }

// --- a play --------------------------------------------------------------------------------------

static void stage(int size, double timeout)
{
    static int number;
    char name[32];
    snprintf(name, sizeof name, "said-%d", number++);
    snprintf(path, sizeof path, "%s", test_path(name));
    close(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666));
    memset((void *)seen, 0, sizeof *seen);
    count = 0;
    elsewhere = NULL;
    nobody = false;
    play = (TcpStoreConfig){ .size = size, .name = "play", .secret = secret_random(), .generation = 100,
                             .timeout = timeout };
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
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0 || (nobody && setuid(65534) != 0) ||
        (elsewhere && (unshare(CLONE_NEWUTS) != 0 || sethostname(elsewhere, strlen(elsewhere)) != 0)))
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
    alive_done();
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
    actors[count] = (struct Actor){ pid, config.rank };
    return count++;
}

// No rank 0 is started from here on; and if it ends, its port is closed.
static void close_port(void)
{
    if (play.sockets[0] > 0)
        close(play.sockets[0]);
    play.sockets[0] = 0;
}

static void await_there(int wanted)
{
    for (int i = 0; i < 20000 && seen->there < wanted; i++)
        sleep_ms(1);
    EXPECT(seen->there >= wanted, "%d of %d ranks have met", seen->there, wanted);
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
    while (actors[actor].pid > 0 && waitpid(actors[actor].pid, &status, WNOHANG) == 0) {
        if (clock_now() - since > 40) {
            kill(actors[actor].pid, SIGKILL);
            EXPECT(false, "rank %d hangs", actors[actor].rank);
            since = clock_now();
        }
        sleep_ms(2);
    }
    actors[actor].pid = 0;
    status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    read_said();
    EXPECT(status == wanted, "rank %d ends with %d, wanted %d: %s", actors[actor].rank, status, wanted, said);
}

static void all_end(int wanted)
{
    for (int i = 0; i < count; i++)
        if (actors[i].pid > 0)
            ends(i, wanted);
    read_said();
    close_port();
}

static void all_well(void)
{
    seen->go_on = 1;
    all_end(0);
    EXPECT_EQ_STR(said, "");
}

static void kill_one(int actor)
{
    pid_t pid = actors[actor].pid;
    kill(pid, SIGKILL);
    ends(actor, 1000 + SIGKILL);
    actors[actor].pid = -pid;           // for the words about it
}

static int times(const char *what)
{
    int n = 0;
    for (const char *p = said; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

// These words, and lines of one event: a line and its hint.
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
    for (; seen->go_on == 0; sleep_ms(5))
        alive_beat();
}

static void hang(World *world)          // rank 2; the others work
{
    if (world->rank != 2)
        step(world);
    alive_step(1, 7);
    while (seen->go_on == 0)
        sleep_ms(5);
}

static void be_patient(World *world)    // rank 0 works, the others wait for it
{
    if (world->rank == 0)
        step(world);
    alive_wait_begin();
    while (seen->go_on == 0)
        sleep_ms(5);
    alive_wait_end();
}

static void wait_for_ever(World *world)
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

// --- meeting -------------------------------------------------------------------------------------

// Each puts something, and gets what the others have put; the last of them comes late.
static void exchange(World *world)
{
    const Store *s = &world->store;
    char key[3][24], *big = xmalloc(BIG + 1);
    if (world->rank == world->size - 1)
        sleep_ms(300);
    for (int get = 0; get < 2; get++)
        for (int rank = get ? 0 : world->rank; rank < (get ? world->size : world->rank + 1); rank++) {
            static const char *const names[] = { "twice", "empty", "big" };
            for (int i = 0; i < 3; i++)
                snprintf(key[i], sizeof key[i], "%s %d", names[i], rank);
            memset(big, 'a' + rank, BIG + 1);
            if (!get) {
                s->put(s->arg, key[0], "old", 4);
                s->put(s->arg, key[0], big, 2);
                s->put(s->arg, key[1], big, 0);
                s->put(s->arg, key[2], big, BIG);
                continue;
            }
            memset(big, '?', BIG + 1);
            CHECK(s->get(s->arg, key[2], big, 5) == BIG && big[4] == 'a' + rank && big[5] == '?', "", "5 bytes");
            CHECK(s->get(s->arg, key[2], big, BIG + 1) == BIG && big[BIG - 1] == 'a' + rank && big[BIG] == '?', "",
                  "big");
            memset(big, '?', 5);
            CHECK(s->get(s->arg, key[1], big, 5) == 0 && big[0] == '?', "", "empty");
            CHECK(s->get(s->arg, key[0], big, 5) == 2 && big[1] == 'a' + rank && big[2] == '?', "", "twice");
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
    for (int rank = RANKS - 1; rank >= 0; rank--)
        enter(as(rank), bow);
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
    all_well();
}

TEST(rank_0_and_its_port)
{
    stage(2, 1);
    TcpPlace place = tcp_place(play.sockets[0], false);
    EXPECT_EQ_STR(place.address, "127.0.0.1");
    EXPECT(place.port > 0 && place.port == play.places[0].port, "port %d", place.port);
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
    enter(as(0), step);
    int gets = enter(as(1), get_what_never_comes);
    await_there(2);
    kill(actors[gets].pid, SIGTERM);
    ends(gets, 128 + SIGTERM);
    all_end(EXIT_REPORTED);
}

// --- who does not fit ----------------------------------------------------------------------------

TEST(the_missing_are_named)
{
    stage(6, 2);
    int goes = enter(as(3), bow);
    for (int rank = 0; rank < 3; rank++)
        enter(as(rank), bow);
    sleep_ms(1000);
    kill_one(goes);
    all_end(EXIT_REPORTED);
    expect_said("3 of 6 ranks came within 2 s: missing are 3 (gone again), 4, 5\nhint: are they started");
    expect_lines(2);
    expect_within(5);
}

TEST(contradictions_end_it_at_once)
{
    static const struct { int rank, size; const char *words; } wrong[] = {
        { 2, 4, ") says that there are 4 ranks, rank 0 (" },
        { 3, 3, ") comes, but there are 3 ranks: 0 to 2\n" },
        { 1, 3, ") is there twice: " },
    };
    for (int i = 0; i < 3; i++) {
        stage(3, 20);
        enter(as(0), bow);
        enter(as(1), bow);
        sleep_ms(400);
        TcpStoreConfig c = as(wrong[i].rank);
        c.size = wrong[i].size;
        ends(enter(c, bow), 1);
        all_end(EXIT_REPORTED);
        EXPECT(times(wrong[i].words) == 2, "each says \"%s\": %s", wrong[i].words, said);
        expect_within(3);
    }
}

TEST(who_is_late_disturbs_nobody)
{
    static const int late[][2] = { { 1, 2 }, { 2, 3 }, { -1, 2 }, { 5, 2 } };
    stage(2, 10);
    enter(as(0), step);
    enter(as(1), step);
    await_there(2);
    for (int i = 0; i < 4; i++) {
        TcpStoreConfig c = as(late[i][0]);
        c.size = late[i][1];
        ends(enter(c, bow), 1);
        expect_said("does not let it in: the run has begun: all 2 ranks are there\nhint: one process too many");
    }
    seen->go_on = 1;
    all_end(0);
}

TEST(ranks_that_start_again)
{
    stage(3, 20);                       // before all are there, the newer takes the place
    enter(as(0), bow);
    int old = enter(as(1), bow);
    sleep_ms(400);
    TcpStoreConfig newer = as(1);
    newer.generation = 200;
    enter(newer, bow);
    ends(old, EXIT_REPORTED);
    enter(as(2), bow);
    all_end(0);

    stage(2, 8);                        // afterwards, all have to start again
    enter(as(0), step);
    enter(as(1), step);
    await_there(2);
    newer = as(1);
    newer.generation = 200;
    int again = enter(newer, bow);
    ends(0, EXIT_REPORTED);
    ends(1, EXIT_REPORTED);
    expect_said("rank 1 was started again on ");
    close_port();
    tcp_store_bind(&play);              // as a launcher would: at the same port
    newer = as(0);
    newer.generation = 300;
    enter(newer, bow);
    ends(again, 0);
    all_end(0);
}

// --- strangers -----------------------------------------------------------------------------------

TEST(who_does_not_know_the_token)
{
    stage(2, 20);
    enter(as(0), bow);
    sleep_ms(200);
    TcpStoreConfig c = as(1);
    c.timeout = 1;
    c.secret = secret_random();
    ends(enter(c, bow), 1);
    expect_said("it does not know our token\nhint: all ranks need the same: --token-file FILE");
    c.secret.known = false;
    ends(enter(c, bow), 1);
    expect_said("it has no token, but rank 0 has one\nhint: all ranks need the same");
    c = as(1);
    c.timeout = 1;
    snprintf(c.name, sizeof c.name, "another play");
    ends(enter(c, bow), 1);
    expect_said("another run is there ('play', not 'another play')\nhint: another port");
    EXPECT_EQ_INT(times(" knocks: "), 1);
    enter(as(1), bow);
    all_end(0);
    EXPECT_EQ_INT(times("in all, "), 1);
    EXPECT_EQ_INT(seen->there, 2);
}

static int knock(void)
{
    Error err;
    int fd = tcp_connect(&play.places[0], NULL, 10, &err);
    EXPECT(fd >= 0, "%s", err.text);
    fcntl(fd, F_SETFL, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 10, 0 }, sizeof(struct timeval));
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger));
    return fd;
}

// What a rank says here, with the token.
static Hello hello_to(int fd, int rank)
{
    Hello hello = { .client = { STORE_MAGIC, play.secret.known, { 0 } },
                    .person = { .rank = rank, .size = play.size, .run = "play" } };
    EXPECT(recv(fd, &hello.server, sizeof hello.server, MSG_WAITALL) > 0, "no greeting");
    secret_prove(&play.secret, "rank", &hello, offsetof(Hello, proof), (&hello)->proof);
    return hello;
}

static bool hears(int fd, StoreWhat what)
{
    char bytes[1024];
    StoreHead head = { .what = 0 };
    if (recv(fd, &head, sizeof head, MSG_WAITALL) > 0 && head.bytes <= sizeof bytes)
        recv(fd, bytes, head.bytes, MSG_WAITALL);
    return head.what == what;
}

// A rank looks whose rank 0 is; and rank 0, whose the rank is.
TEST(without_a_token_the_user_counts)
{
    int status = -1;
    stage(2, 3);
    play.secret.known = false;
    enter(as(0), bow);
    TcpStoreConfig c = as(1);
    c.secret = secret_random();
    c.timeout = 1;
    ends(enter(c, bow), 1);
    expect_said("it has a token, but rank 0 has none");
    enter(as(1), bow);
    all_end(0);
    if (geteuid() != 0) {
        printf("not as root: other users and other hosts are left out\n");
        return;
    }
    stage(2, 3);
    play.secret.known = false;
    enter(as(0), bow);
    c = as(1);
    c.timeout = 1;
    nobody = true;
    ends(enter(c, bow), 1);
    expect_said("it belongs to another user\nhint: another port, or a token");
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

// One with the token: says something wrong as a member. Its connection is closed, and nothing else happens.
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
}

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

static void await_strangers(int wanted)
{
    for (int i = 0; i < 30000 && seen->strangers < wanted; i++)
        sleep_ms(1);
}

TEST(strangers_join_nothing_and_delay_nobody)
{
    stage(3, 40);
    int host = enter(as(0), step), status = -1;
    sleep_ms(500);
    int fd = knock();
    Hello old = hello_to(fd, 1);
    close(fd);
    misbehave(STORE_PUT, UINT32_MAX);
    misbehave(STORE_PUT, STORE_MOST + 1);
    misbehave(STORE_PUT, 1000);
    misbehave(STORE_BEAT, 3);
    misbehave(99, 0);
    sleep_ms(200);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        send_strangers(&old);
    await_strangers(STRANGERS / 10);
    long before = resident_pages(actors[host].pid);
    EXPECT_EQ_INT(seen->there, 0);
    await_strangers(STRANGERS / 2);
    begun = clock_now();
    enter(as(1), step);
    enter(as(2), step);
    await_there(3);
    EXPECT(seen->strangers < STRANGERS, "the strangers were too fast");
    expect_within(2);
    EXPECT(waitpid(child, &status, 0) == child && status == 0, "the strangers failed");
    long grown = resident_pages(actors[host].pid) - before;
    EXPECT(SANITIZED || grown < 128, "%ld pages more", grown);
    seen->go_on = 1;
    all_end(0);
    EXPECT_EQ_INT(seen->there, 3);
    EXPECT_EQ_INT(times(" knocks: "), 1);
    expect_said(" connections were refused; the last: ");
}

TEST(slow_ones_are_sent_away)
{
    stage(1, 20);
    enter(as(0), step);
    await_there(1);
    int fd = knock();
    Hello hello = hello_to(fd, 0);
    begun = clock_now();
    for (int i = 0; i < 20 && send(fd, (char *)&hello + i, 1, MSG_NOSIGNAL) == 1; i++)
        sleep_ms(500);
    double took = clock_now() - begun;
    EXPECT(took > 4.5 && took < 8, "%.1f s", took);
    close(fd);
    seen->go_on = 1;
    all_end(0);
    expect_said("it does not say who it is\nhint: it is not let in");
}

// --- losses --------------------------------------------------------------------------------------

static void begin(Part *part, double timeout)
{
    if (timeout >= 0)
        stage(3, timeout);
    for (int rank = 0; rank < 3; rank++)
        enter(as(rank), part);
    close_port();
    await_there(3);
    sleep_ms(1300);                     // a second pulse
    begun = clock_now();
}

static const char *who(int rank, const char *of)
{
    static char text[200];
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "rank %d%s (%s, pid %d) ", rank, of, host, abs(actors[rank].pid));
    return text;
}

TEST(a_dead_rank_is_named)
{
    for (int timeout = 0; timeout <= 20; timeout += 20) {       // without a timeout, too
        begin(step, timeout);
        kill_one(2);
        const char *words = who(2, " of 3");
        while (said[0] == '\0' && clock_now() < begun + 10)
            read_said();
        expect_within(1);
        expect_said(words);
        expect_said("is gone: after epoch 1, step 5; last collective: all_reduce #1 of 5 values "
                    "(gradients)\nhint: ");
        actors[2].pid = 0;
        all_end(EXIT_REPORTED);
        expect_lines(2);
        expect_within(5);
    }
}

static void expect_lost(Part *part, int signal, const char *how, const char *more, int lines)
{
    begin(part, 2);
    kill(actors[2].pid, signal);
    ends(0, EXIT_REPORTED);
    ends(1, EXIT_REPORTED);
    if (lines == 2)
        expect_said(who(2, " of 3"));
    expect_said(how);
    expect_said(more);
    expect_lines(lines);
    expect_within(5);
    kill(actors[2].pid, SIGCONT);
    all_end(EXIT_REPORTED);
}

TEST(who_is_lost_is_named)
{
    expect_lost(step, SIGSTOP, "has not been heard of for 2",
                " s, it is stopped or its machine is out of reach: after epoch 1, step 5; ", 2);
    expect_lost(hang, SIGCONT, "has given no sign of life for 2", " s: after epoch 1, step 7; ", 2);
    expect_lost(wait_for_ever, SIGCONT, "all wait for each other, for 2 s now: rank 1 of 3 (",
                "last collective: all_reduce #2 of 5 values (gradients)", 5);
}

TEST(a_patient_one_is_not_blamed)
{
    begin(be_patient, 1);
    sleep_ms(3000);
    all_well();
}

TEST(without_rank_0_all_end)
{
    for (int stopped = 0; stopped < 2; stopped++) {
        begin(step, 2);
        char words[400];
        snprintf(words, sizeof words, "%s%s", who(0, ""), stopped ? "does not answer: it is stopped"
                                                                   : "is gone: ");
        kill(actors[0].pid, stopped ? SIGSTOP : SIGKILL);
        ends(1, EXIT_REPORTED);
        ends(2, EXIT_REPORTED);
        expect_within(6);
        EXPECT(times(words) == 2, "not twice \"%s\": %s", words, said);
        expect_lines(4);
        kill(actors[0].pid, SIGCONT);
        ends(0, stopped ? EXIT_REPORTED : 1000 + SIGKILL);
    }
}

// Somebody else sees how they die: rank 0 is silent about them, and they about rank 0, for a while.
TEST(with_a_supervisor_it_speaks)
{
    stage(3, 20);
    play.supervised = true;
    begin(step, -1);
    kill_one(2);
    sleep_ms(2500);
    EXPECT_EQ_INT(kill(actors[0].pid, 0) + kill(actors[1].pid, 0), 0);
    read_said();
    EXPECT_EQ_STR(said, "");
    actors[2].pid = 0;
    ends(0, EXIT_REPORTED);             // then rank 0 does, for the supervisor may be stopped
    ends(1, EXIT_REPORTED);
    EXPECT_EQ_INT(times("rank 2 of 3 ("), 1);
    stage(3, 20);
    play.supervised = true;
    begin(step, -1);
    kill_one(0);
    actors[0].pid = 0;
    sleep_ms(2500);
    read_said();
    EXPECT_EQ_STR(said, "");
    kill_one(1);
    kill_one(2);
    if (geteuid() != 0)
        return;
    stage(3, 20);                       // on another host: its own supervisor speaks first
    play.supervised = true;
    elsewhere = "node2";
    int lost = enter(as(2), step);
    elsewhere = NULL;
    enter(as(0), step);
    enter(as(1), step);
    await_there(3);
    sleep_ms(1300);
    begun = clock_now();
    kill_one(lost);
    actors[lost].pid = 0;
    all_end(EXIT_REPORTED);
    EXPECT(clock_now() - begun > 1.2, "too early");
    expect_said("rank 2 of 3 (node2, pid ");
    expect_within(4);
}

TEST(stopped_together_and_continued)
{
    begin(step, 2);
    for (int i = 0; i < 3; i++)
        kill(actors[i].pid, SIGSTOP);
    sleep_ms(3000);
    for (int i = 0; i < 3; i++)
        kill(actors[i].pid, SIGCONT);
    sleep_ms(1500);
    all_well();
}

// --- the end -------------------------------------------------------------------------------------

static void fall_over_when_done(World *world)
{
    alive_done();
    sleep_ms(2000);                     // a pulse
    if (world->rank > 0)
        syscall(SYS_exit_group, 0);
}

static void first_leaves_first(World *world)
{
    while (world->rank > 0 && seen->go_on == 0)
        sleep_ms(5);
}

static void be_done_and_linger(World *world)
{
    alive_done();
    sleep_ms(4000 * world->rank);       // longer than rank 0 waits
}

TEST(they_leave_in_any_order)
{
    begin(bow, 20);
    all_well();
    begin(fall_over_when_done, 20);
    all_well();
    begin(be_done_and_linger, 20);
    all_well();
    expect_within(12);
    begin(first_leaves_first, 20);      // rank 0 has waited for more than 1 s then, of 2
    all_well();
}

int main(int argc, char **argv)
{
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    static const struct { const char *name; void (*test)(void); } tests[] = {
#define ROW(name) { #name, name }
        ROW(they_meet_in_any_order), ROW(two_runs_beside_each_other), ROW(rank_0_and_its_port),
        ROW(a_signal_ends_a_wait), ROW(the_missing_are_named),
        ROW(contradictions_end_it_at_once), ROW(who_is_late_disturbs_nobody), ROW(ranks_that_start_again),
        ROW(who_does_not_know_the_token), ROW(without_a_token_the_user_counts),
        ROW(strangers_join_nothing_and_delay_nobody), ROW(slow_ones_are_sent_away), ROW(a_dead_rank_is_named),
        ROW(who_is_lost_is_named), ROW(a_patient_one_is_not_blamed), ROW(without_rank_0_all_end), ROW(with_a_supervisor_it_speaks),
        ROW(stopped_together_and_continued), ROW(they_leave_in_any_order),
    };
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (argc < 2 || strcmp(argv[1], tests[i].name) == 0)
            tests[i].test();
    return test_done();
}
