// test_tcp_store.c - ranks that find each other over TCP: who is let in, what becomes of those who
// are missing, die, stop or hang, and who says it. Ranks do no training here: each plays a part.
// ctest: TIMEOUT 150 SANITIZERS asan tsan LABELS deadlines
#include "interrupt.h"
#include "tcp_store.h"
#include "tcp.h"
#include "clock.h"
#include "test.h"
#include "supervise.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 32, ACTORS = 40 };

static struct Seen {
    atomic_int there;           // ranks that have met
    atomic_int go_on;           // what they wait for then
    char run[RANKS][128];
    char address[RANKS][TCP_ADDRESS];
} *seen;

typedef void Part(TcpStore *meeting, int rank);
typedef struct Actor {
    pid_t pid;
    int rank;
} Actor;

static Actor actors[ACTORS];
static int count;
static int listener, port;      // of the play under way
static double begun, timeout;
static char path[4096], said[1 << 16];
static const unsigned char token[CHANNEL_KEY] = "only who knows this may come";

static void sleep_ms(int ms) { usleep((useconds_t)ms * 1000); }

// --- a play --------------------------------------------------------------------------------------

static void stage(double its_timeout)
{
    static int number;
    Error err;
    char name[32];
    snprintf(name, sizeof name, "said-%d", number++);
    snprintf(path, sizeof path, "%s", test_path(name));
    close(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666));
    memset(seen, 0, sizeof *seen);
    count = 0;
    timeout = its_timeout;
    begun = clock_now();
    listener = tcp_listen("127.0.0.1", 0, &err);
    EXPECT(listener >= 0, "%s", err.text);
    port = tcp_port(listener);
}

static TcpStoreConfig as(int rank, int size)
{
    return (TcpStoreConfig){ .rank = rank, .size = size, .first = 0, .generation = 100,
                            .address = "127.0.0.1", .port = port, .ports = 1,
                            .listening = rank == 0 ? listener : -1, .name = "play",
                            .token = token, .timeout = timeout };
}

static _Noreturn void act(const TcpStoreConfig *config, Part *part)
{
    struct rlimit no_core = { 0, 0 };
    setrlimit(RLIMIT_CORE, &no_core);
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0)
        _exit(99);
    if (listener >= 0 && config->listening != listener)
        close(listener);
    interrupt_install(false);
    TcpStore *meeting = tcp_store_join(config);
    alive_joined();
    snprintf(seen->run[config->rank], sizeof seen->run[0], "%s", tcp_store_run(meeting));
    snprintf(seen->address[config->rank], TCP_ADDRESS, "%s", tcp_store_address(meeting));
    seen->there++;
    part(meeting, config->rank);
    alive_done();
    tcp_store_end(meeting);
    exit(0);
}

static pid_t enter(TcpStoreConfig config, Part *part)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        act(&config, part);
    actors[count++] = (Actor){ pid, config.rank };
    return pid;
}

static void await_there(int wanted)
{
    for (int i = 0; i < 20000 && seen->there < wanted; i++)
        sleep_ms(1);
    EXPECT(seen->there >= wanted, "%d of %d ranks have met", seen->there, wanted);
}

static void close_listener(void)
{
    if (listener >= 0)
        close(listener);
    listener = -1;
}

static void read_said(void)
{
    FILE *in = fopen(path, "r");
    said[in ? fread(said, 1, sizeof said - 1, in) : 0] = '\0';
    if (in)
        fclose(in);
}

// Its exit status, or 1000 + the signal that killed it.
static int ends(pid_t pid)
{
    int status;
    double since = clock_now();
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (clock_now() - since > 40) {
            kill(pid, SIGKILL);
            EXPECT(false, "%d hangs", (int)pid);
            since = clock_now();
        }
        sleep_ms(2);
    }
    read_said();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// All who have not been asked for; they end with this status.
static void all_end(int wanted)
{
    for (int i = 0; i < count; i++)
        if (kill(actors[i].pid, 0) == 0) {
            int status = ends(actors[i].pid);
            EXPECT(status == wanted, "rank %d ends with %d: %s", actors[i].rank, status, said);
        }
    read_said();
    close_listener();
}

static int times(const char *what)
{
    int n = 0;
    for (const char *p = said; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

static void expect_said(const char *what)
{
    EXPECT(strstr(said, what) != NULL, "no \"%s\" in: %s", what, said);
}

static void bow(TcpStore *meeting, int rank)
{
    (void)meeting;
    (void)rank;
}

// As a rank that trains: it beats.
static void step(TcpStore *meeting, int rank)
{
    (void)meeting;
    alive_step(1, 3 + rank);
    while (seen->go_on == 0) {
        alive_beat();
        sleep_ms(5);
    }
}

static void wait_for_ever(TcpStore *meeting, int rank)
{
    (void)meeting;
    (void)rank;
    alive_wait_begin();
    for (;;)
        pause();
}

// --- meeting -------------------------------------------------------------------------------------

// Everybody puts something, and gets what the others have put.
static void exchange(TcpStore *meeting, int rank)
{
    Store store = tcp_store_store(meeting);
    char key[40], value[16];
    for (int i = 0; i < 4; i++) {
        snprintf(key, sizeof key, "round %d %d", i, rank);
        snprintf(value, sizeof value, "%d", 10 * i + rank);
        store.put(store.arg, key, value, strlen(value) + 1);
        for (int other = 0; other < 4; other++) {
            char wanted[16];
            snprintf(key, sizeof key, "round %d %d", i, other);
            snprintf(wanted, sizeof wanted, "%d", 10 * i + other);
            size_t n = store.get(store.arg, key, value, sizeof value);
            CHECK(n == strlen(wanted) + 1 && strcmp(value, wanted) == 0, "", "%zu: %s", n, value);
        }
    }
}

TEST(they_come_in_any_order)
{
    static const int orders[][4] = { { 0, 1, 2, 3 }, { 3, 2, 1, 0 }, { 2, 0, 3, 1 } };
    for (int o = 0; o < 3; o++) {
        stage(20);
        for (int i = 0; i < 4; i++) {
            enter(as(orders[o][i], 4), exchange);
            sleep_ms(o == 0 ? 0 : 60);
        }
        all_end(0);
        EXPECT_EQ_STR(said, "");
        EXPECT(strlen(seen->run[0]) > 8, "run %s", seen->run[0]);
        for (int i = 0; i < 4; i++) {
            EXPECT_EQ_STR(seen->run[i], seen->run[0]);
            EXPECT_EQ_STR(seen->address[i], "127.0.0.1");
        }
    }
}

TEST(many_at_once)
{
    stage(30);
    for (int rank = RANKS - 1; rank >= 0; rank--)
        enter(as(rank, RANKS), bow);
    all_end(0);
    EXPECT_EQ_STR(said, "");
    EXPECT_EQ_INT(seen->there, RANKS);
}

TEST(one_alone_needs_nobody)
{
    stage(5);
    enter(as(0, 1), bow);
    all_end(0);
    EXPECT_EQ_STR(said, "");
}

TEST(rank_0_may_come_late_and_where_there_is_room)
{
    stage(20);
    for (int rank = 2; rank >= 0; rank--) {     // the first port is not theirs, and says nothing
        TcpStoreConfig c = as(rank, 3);
        c.listening = -1;
        c.ports = 5;
        enter(c, bow);
        sleep_ms(300);
    }
    all_end(0);
    EXPECT_EQ_STR(said, "");
}

TEST(two_runs_beside_each_other)
{
    stage(20);
    for (int i = 0; i < 6; i++) {
        TcpStoreConfig c = as(i / 2, 3);
        c.listening = -1;
        c.ports = 5;
        c.name = i % 2 ? "the other play" : "play";
        enter(c, bow);
    }
    all_end(0);
    EXPECT_EQ_STR(said, "");
}

static int free_port(void)
{
    Error err;
    int socket = tcp_listen("127.0.0.1", 0, &err), its = tcp_port(socket);
    close(socket);
    return its;
}

TEST(no_rank_0)
{
    stage(1);
    TcpStoreConfig c = as(1, 2);
    c.port = free_port();
    enter(c, bow);
    all_end(1);
    expect_said("rank 1 of 2 has not found rank 0 at 127.0.0.1:");
    expect_said(" within 1 s: Connection refused\nhint: is rank 0 started");
    EXPECT(clock_now() - begun > 0.9, "too early");
}

TEST(a_signal_ends_the_search)
{
    stage(30);
    TcpStoreConfig c = as(1, 2);
    c.port = free_port();
    pid_t searches = enter(c, bow), waits = enter(as(0, 2), bow);
    sleep_ms(500);
    kill(searches, SIGTERM);
    kill(waits, SIGINT);
    EXPECT_EQ_INT(ends(searches), 143);
    EXPECT_EQ_INT(ends(waits), 130);
    close_listener();
}

// --- who does not fit ----------------------------------------------------------------------------

// Rank 1 and 2 are on another machine: 1 speaks for it. Rank 3 is beside rank 0, which speaks.
TEST(the_missing_are_named)
{
    stage(1);
    for (int rank = 0; rank < 4; rank++) {
        TcpStoreConfig c = as(rank, 6);
        c.first = rank == 1 || rank == 2 ? 1 : 0;
        enter(c, bow);
    }
    all_end(1);
    expect_said("4 of 6 ranks came within 1 s: missing are 4, 5\nhint: ");
    expect_said("ends the run: 4 of 6 ranks came within 1 s: missing are 4, 5\nhint: ");
    EXPECT_EQ_INT(times("4 of 6 ranks"), 2);
    EXPECT(clock_now() - begun < 10, "took %.1f s", clock_now() - begun);
}

TEST(who_came_and_went_is_missing)
{
    stage(2);
    enter(as(0, 3), bow);
    pid_t goes = enter(as(1, 3), bow);
    sleep_ms(500);
    kill(goes, SIGKILL);
    EXPECT_EQ_INT(ends(goes), 1000 + SIGKILL);
    all_end(1);
    expect_said("1 of 3 ranks came within 2 s: missing are 1 (gone again), 2\n");
}

static void play_wrong(TcpStoreConfig wrong, const char *text)
{
    enter(as(0, 2), bow);
    sleep_ms(200);
    enter(wrong, bow);
    all_end(1);
    expect_said(text);
    EXPECT(clock_now() - begun < 10, "took %.1f s", clock_now() - begun);
}

TEST(contradictions_end_it_at_once)
{
    stage(20);
    play_wrong(as(1, 3), ") says that there are 3 ranks, rank 0 (");
    stage(20);
    play_wrong(as(2, 2), ") comes, but there are 2 ranks: 0 to 1\n");
    stage(20);
    TcpStoreConfig again = as(0, 2);
    again.listening = -1;
    Error err;
    EXPECT(tcp_listen("127.0.0.1", port, &err) < 0, "twice at one port");
    enter(again, bow);
    all_end(1);
    expect_said("cannot listen at port ");
    stage(20);
    enter(as(1, 3), bow);
    sleep_ms(200);
    enter(as(0, 3), bow);
    sleep_ms(200);
    enter(as(1, 3), bow);
    all_end(1);
    expect_said("is there twice: ");
    expect_said("hint: each process needs a rank of its own");
}

// --- generations ---------------------------------------------------------------------------------

static TcpStoreConfig of_generation(int rank, int size, int64_t generation)
{
    TcpStoreConfig c = as(rank, size);
    c.first = rank == 0 ? 0 : 1;        // two machines
    c.generation = generation;
    return c;
}

TEST(the_newer_take_the_places_of_the_older)
{
    stage(20);
    enter(of_generation(0, 4, 100), bow);
    pid_t old[2] = { enter(of_generation(1, 4, 100), bow), enter(of_generation(2, 4, 100), bow) };
    sleep_ms(400);
    enter(of_generation(2, 4, 200), bow);
    EXPECT_EQ_INT(ends(old[0]), 1);
    EXPECT_EQ_INT(ends(old[1]), 1);
    expect_said("were started anew, this is one of before");
    pid_t older = enter(of_generation(3, 4, 100), bow);
    EXPECT_EQ_INT(ends(older), 1);
    expect_said("belongs to an earlier start of its machine's ranks");
    EXPECT_EQ_INT(seen->there, 0);
    enter(of_generation(1, 4, 200), bow);
    enter(of_generation(3, 4, 200), bow);
    all_end(0);
}

TEST(the_newer_end_a_run_that_has_begun)
{
    stage(6);
    pid_t run[2] = { enter(of_generation(0, 2, 100), step), enter(of_generation(1, 2, 100), step) };
    await_there(2);
    pid_t anew = enter(of_generation(1, 2, 200), bow);
    EXPECT_EQ_INT(ends(run[0]), 1);
    EXPECT_EQ_INT(ends(run[1]), 1);
    expect_said("rank 1 was started anew on ");
    seen->there = 0;
    enter(of_generation(0, 2, 300), bow);       // as a launcher would, at the same port
    EXPECT_EQ_INT(ends(anew), 0);
    all_end(0);
}

TEST(who_is_late_disturbs_nobody)
{
    stage(10);
    enter(as(0, 2), step);
    enter(as(1, 2), step);
    await_there(2);
    EXPECT_EQ_INT(ends(enter(as(1, 2), bow)), 1);
    expect_said("does not let it in: the run has begun: all 2 ranks are there\n");
    EXPECT_EQ_INT(ends(enter(as(2, 3), bow)), 1);
    expect_said("says that there are 3 ranks");
    seen->go_on = 1;
    all_end(0);
}

// --- strangers -----------------------------------------------------------------------------------

TEST(who_does_not_know_the_token)
{
    static const unsigned char wrong[CHANNEL_KEY] = "a guess";
    stage(20);
    enter(as(0, 2), bow);
    TcpStoreConfig c = as(1, 2);
    c.token = wrong;
    EXPECT_EQ_INT(ends(enter(c, bow)), 1);
    expect_said("rank 1 of 2: rank 0 at 127.0.0.1:");
    expect_said("token\nhint: all ranks need the same: --token-file FILE");
    EXPECT_EQ_INT(times(" knocks: "), 1);
    c.token = NULL;
    EXPECT_EQ_INT(ends(enter(c, bow)), 1);
    expect_said("it wants a token, but this rank has none");
    EXPECT_EQ_INT(times(" knocks: "), 1);
    enter(as(1, 2), bow);
    all_end(0);
    expect_said("in all, 6 connections were refused");
}

TEST(without_a_token_the_user_counts)
{
    stage(3);
    TcpStoreConfig host = as(0, 2), guest = as(1, 2);
    host.token = guest.token = NULL;
    enter(host, bow);
    enter(guest, bow);
    all_end(0);
    EXPECT_EQ_STR(said, "");
    if (geteuid() != 0)
        return;
    stage(2);
    host = as(0, 2), guest = as(1, 2);
    host.token = guest.token = NULL;
    enter(host, bow);
    fflush(NULL);
    pid_t other = fork();
    if (other == 0) {
        int fd = open(path, O_WRONLY | O_APPEND);
        dup2(fd, STDERR_FILENO);
        if (setuid(65534) != 0)
            _exit(98);
        tcp_store_join(&guest);
        _exit(0);
    }
    EXPECT_EQ_INT(ends(other), 1);
    all_end(1);
    expect_said("it belongs to another user");
    expect_said("1 of 2 ranks came within 2 s: missing is 1\n");
}

static int connect_as_stranger(void)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "no connection");
    return fd;
}

// Mute ones, and ones that say anything: all of them together stall nobody, before and after.
TEST(strangers_stall_nobody)
{
    enum { MANY = 200 };
    static const char noise[] = "GET / HTTP/1.0\r\n\r\n";
    int fds[2 * MANY];
    stage(20);
    enter(as(0, 3), step);
    for (int i = 0; i < MANY; i++) {
        fds[i] = connect_as_stranger();
        if (i % 4 == 0 && send(fds[i], noise, sizeof noise, MSG_NOSIGNAL) < 0)
            sleep_ms(1);
    }
    double since = clock_now();
    enter(as(1, 3), step);
    enter(as(2, 3), step);
    await_there(3);
    EXPECT(clock_now() - since < 5, "took %.1f s", clock_now() - since);
    for (int i = MANY; i < 2 * MANY; i++)
        fds[i] = connect_as_stranger();
    sleep_ms(300);
    seen->go_on = 1;
    all_end(0);
    EXPECT_EQ_INT(times(" knocks: "), 1);
    EXPECT(times("\n") <= 3, "says %s", said);
    for (int i = 0; i < 2 * MANY; i++)
        close(fds[i]);
}

TEST(mute_ones_are_sent_away)
{
    char byte[256];
    stage(20);
    enter(as(0, 1), step);
    await_there(1);
    int fd = connect_as_stranger();
    double since = clock_now();
    while (recv(fd, byte, sizeof byte, 0) > 0)
        continue;
    EXPECT(clock_now() - since > 4.5 && clock_now() - since < 9, "%.1f s", clock_now() - since);
    close(fd);
    seen->go_on = 1;
    all_end(0);
    expect_said("it does not say who it is");
}

// One that knows the token, and means nothing by it.
TEST(nonsense_harms_nobody)
{
    static const uint32_t kinds[] = { 0, 1, 2, 3, 4, 5, 6, 9, 12, 13, 0xFFFFFFFF };
    static const size_t sizes[] = { 0, 3, 4, 8, 72, 100, 160, 200, 65608, 65609, CHANNEL_MOST };
    Error err;
    static unsigned char message[CHANNEL_MOST];
    stage(20);
    enter(as(0, 1), step);
    await_there(1);
    for (int i = 0; i < 11; i++) {
        Channel *wire = channel_new(tcp_connect("127.0.0.1", port, NULL, &err), false, token);
        for (int i = 0; i < 2000 && channel_turn(wire) == CHANNEL_OPENING; i++)
            usleep(10000);
        EXPECT(channel_turn(wire) == CHANNEL_OPEN, "%s", channel_why(wire));
        for (int j = 0; j < 11; j++) {
            memset(message, i % 2 ? 0xFF : 0, sizeof message);
            memcpy(message, &kinds[i], 4);
            channel_send(wire, message, sizes[j]);
        }
        while (channel_turn(wire) == CHANNEL_OPEN && channel_events(wire) & POLLOUT)
            while (channel_next(wire, &(size_t){ 0 }))
                continue;
        channel_free(wire);
    }
    sleep_ms(200);
    EXPECT_EQ_INT(kill(actors[0].pid, 0), 0);
    seen->go_on = 1;
    all_end(0);
    EXPECT_EQ_STR(said, "");
}

// --- the store -----------------------------------------------------------------------------------

static void big_values(TcpStore *meeting, int rank)
{
    enum { BIG = 65536 };
    Store store = tcp_store_store(meeting);
    char *value = xmalloc(BIG + 1);
    if (rank == 0) {
        sleep_ms(700);                  // the others wait
        memset(value, 'x', BIG);
        value[BIG - 1] = 'y';
        store.put(store.arg, "big", value, BIG);
        store.put(store.arg, "empty", value, 0);
        store.put(store.arg, "empty", value, 1);
        store.put(store.arg, "again", value, 1);
    }
    size_t n = store.get(store.arg, "big", value, BIG + 1);
    CHECK(n == BIG && value[0] == 'x' && value[BIG - 1] == 'y', "", "%zu bytes", n);
    n = store.get(store.arg, "big", value, 10);
    CHECK(n == BIG, "", "%zu bytes", n);
    store.get(store.arg, "again", value, 1);
    n = store.get(store.arg, "empty", value, 0);
    CHECK(n == 1, "", "%zu bytes", n);
    free(value);
}

static void too_long(TcpStore *meeting, int rank)
{
    Store store = tcp_store_store(meeting);
    char key[65] = { 0 };
    (void)rank;
    memset(key, 'k', 64);
    store.put(store.arg, key, "", 0);
}

static void never(TcpStore *meeting, int rank)
{
    Store store = tcp_store_store(meeting);
    char value;
    (void)rank;
    store.get(store.arg, "never", &value, 1);
}

TEST(the_store)
{
    stage(20);
    for (int rank = 0; rank < 4; rank++)
        enter(as(rank, 4), big_values);
    all_end(0);
    EXPECT_EQ_STR(said, "");
    stage(20);
    enter(as(0, 1), too_long);
    all_end(1);
    expect_said("too long");
    stage(30);
    pid_t waits = enter(as(0, 1), never);
    await_there(1);
    sleep_ms(300);
    kill(waits, SIGTERM);
    all_end(143);
}

TEST(alone)
{
    TcpStore *meeting = tcp_store_alone();
    Store store = tcp_store_store(meeting);
    char value[8] = "";
    store.put(store.arg, "a", "xyz", 4);
    EXPECT_EQ_INT(store.get(store.arg, "a", value, sizeof value), 4);
    EXPECT_EQ_STR(value, "xyz");
    EXPECT_EQ_STR(tcp_store_address(meeting), "127.0.0.1");
    EXPECT(tcp_store_run(meeting)[0], "no name");
    tcp_store_end(meeting);
}

// --- losses --------------------------------------------------------------------------------------

static void hang(TcpStore *meeting, int rank)
{
    (void)meeting;
    alive_step(1, 7);
    if (rank != 2)
        step(meeting, rank);
    for (;;)
        pause();
}

static void wait_for_each_other(TcpStore *meeting, int rank)
{
    alive_collective_begin("main", "barrier", 0);
    if (rank == 0)
        alive_collective_begin("gradients", "all_reduce", 5);
    wait_for_ever(meeting, rank);
}

// Rank 0 speaks for its machine; where there are two, so does rank 1 for another, where rank 2 is.
static void begin_on(int machines, Part *part, double its_timeout)
{
    stage(its_timeout);
    for (int rank = 0; rank < 3; rank++) {
        TcpStoreConfig c = as(rank, 3);
        c.first = machines > 1 && rank > 0;
        enter(c, part);
    }
    close_listener();
    await_there(3);
    sleep_ms(1300);                     // a second pulse
    begun = clock_now();
}

static void begin(Part *part, double its_timeout) { begin_on(2, part, its_timeout); }

static void expect_soon(double most)
{
    EXPECT(clock_now() - begun < most, "took %.1f s: %s", clock_now() - begun, said);
}

static const char *who(int rank)
{
    static char text[200];
    char host[65] = "";
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "rank %d of 3 (%s, pid %d) ", rank, host, (int)actors[rank].pid);
    return text;
}

TEST(who_dies_is_named)
{
    begin(step, 20);
    kill(actors[2].pid, SIGKILL);
    EXPECT_EQ_INT(ends(actors[2].pid), 1000 + SIGKILL);
    all_end(1);
    expect_said(who(2));
    expect_said("is gone: after epoch 1, step 5; last collective: no collective yet\nhint: ");
    EXPECT_EQ_INT(times("is gone"), 2);
    expect_soon(8);
}

TEST(who_is_stopped_is_named)
{
    begin(step, 2);
    kill(actors[2].pid, SIGSTOP);
    EXPECT_EQ_INT(ends(actors[0].pid), 1);
    EXPECT_EQ_INT(ends(actors[1].pid), 1);
    expect_said(who(2));
    expect_said("has not been heard of for 2 s: it is stopped or its machine is out of reach");
    expect_soon(12);
    kill(actors[2].pid, SIGCONT);
    all_end(1);
}

TEST(who_hangs_is_named)
{
    begin(hang, 2);
    all_end(1);
    expect_said(who(2));
    expect_said("has given no sign of life for 2 s");
    expect_said("works, after epoch 1, step 7");
    expect_soon(12);
}

TEST(a_deadlock_is_named)
{
    begin(wait_for_each_other, 2);
    all_end(1);
    expect_said("all wait for each other, for 2 s now: rank 1 (");
    expect_said("is behind");
    EXPECT_EQ_INT(times("all wait for each other"), 2);
    expect_said("last collective: all_reduce #2 of 5 values (gradients)");
    expect_soon(12);
}

TEST(when_rank_0_dies_all_end)
{
    for (int machines = 1; machines <= 2; machines++) {
        begin_on(machines, step, 20);
        kill(actors[0].pid, SIGKILL);
        EXPECT_EQ_INT(ends(actors[0].pid), 1000 + SIGKILL);
        all_end(1);
        EXPECT_EQ_INT(times("is gone: it has closed the connection\nhint: "), 1);
        expect_soon(8);
    }
}

TEST(when_rank_0_is_stopped_all_end)
{
    begin(step, 2);
    kill(actors[0].pid, SIGSTOP);
    EXPECT_EQ_INT(ends(actors[1].pid), 1);
    EXPECT_EQ_INT(ends(actors[2].pid), 1);
    EXPECT_EQ_INT(times("has not answered for 2 s: it is stopped"), 1);
    expect_soon(12);
    kill(actors[0].pid, SIGCONT);
    all_end(1);
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
    seen->go_on = 1;
    all_end(0);
    EXPECT_EQ_STR(said, "");
}

TEST(without_a_timeout_only_death_counts)
{
    begin(hang, 0);
    sleep_ms(1500);
    kill(actors[2].pid, SIGKILL);
    EXPECT_EQ_INT(ends(actors[2].pid), 1000 + SIGKILL);
    all_end(1);
    expect_said(who(2));
    expect_said("is gone: ");
    expect_soon(10);
}

static void fail(TcpStore *meeting, int rank)
{
    if (rank == 1)
        FAIL("", "something is wrong here");
    step(meeting, rank);
}

// Its own words come first.
TEST(who_fails_says_so_itself)
{
    begin(fail, 20);
    all_end(1);
    expect_said("something is wrong here\n");
    EXPECT(strstr(said, "something is wrong") < strstr(said, " is gone: "), "says %s", said);
    expect_soon(8);
}

// Who is done, and dies on its last steps, is missed by nobody: neither rank 0 nor another.
static void do_all(TcpStore *meeting, int rank)
{
    (void)meeting;
    (void)rank;
    alive_done();
    sleep_ms(1500);                     // a pulse
    while (seen->go_on == 0)
        sleep_ms(5);
    syscall(SYS_exit_group, 0);         // _exit of ThreadSanitizer's would miss the meeting's thread
    abort();
}

TEST(who_is_done_may_go)
{
    begin(do_all, 20);
    sleep_ms(500);
    seen->go_on = 1;
    all_end(0);
    EXPECT_EQ_STR(said, "");
}

// --- the end -------------------------------------------------------------------------------------

static void linger(TcpStore *meeting, int rank)
{
    (void)meeting;
    for (int i = 0; i < 40 * rank; i++) {
        alive_beat();
        sleep_ms(100);
    }
}

// Longer than rank 0 waits for them.
TEST(they_may_leave_one_after_the_other)
{
    stage(20);
    enter(as(0, 2), linger);
    enter(as(1, 2), linger);
    EXPECT_EQ_INT(ends(actors[0].pid), 0);
    all_end(0);
    EXPECT_EQ_STR(said, "");
    begin(bow, 20);
    all_end(0);
    EXPECT_EQ_STR(said, "");
}

int main(int argc, char **argv)
{
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    static const struct { const char *name; void (*test)(void); } tests[] = {
#define ROW(name) { #name, name }
        ROW(they_come_in_any_order), ROW(many_at_once), ROW(one_alone_needs_nobody),
        ROW(rank_0_may_come_late_and_where_there_is_room), ROW(two_runs_beside_each_other),
        ROW(no_rank_0), ROW(a_signal_ends_the_search), ROW(the_missing_are_named),
        ROW(who_came_and_went_is_missing), ROW(contradictions_end_it_at_once),
        ROW(the_newer_take_the_places_of_the_older), ROW(the_newer_end_a_run_that_has_begun),
        ROW(who_is_late_disturbs_nobody), ROW(who_does_not_know_the_token),
        ROW(without_a_token_the_user_counts), ROW(strangers_stall_nobody),
        ROW(mute_ones_are_sent_away), ROW(nonsense_harms_nobody), ROW(the_store), ROW(alone),
        ROW(who_dies_is_named),
        ROW(who_is_stopped_is_named), ROW(who_hangs_is_named), ROW(a_deadlock_is_named),
        ROW(when_rank_0_dies_all_end), ROW(when_rank_0_is_stopped_all_end),
        ROW(stopped_together_and_continued), ROW(without_a_timeout_only_death_counts),
        ROW(who_fails_says_so_itself), ROW(who_is_done_may_go),
        ROW(they_may_leave_one_after_the_other),
    };
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (argc < 2 || strcmp(argv[1], tests[i].name) == 0)
            tests[i].test();
    return test_done();
}
