// tcp_store_server.c - rank 0's side of the store: admits ranks, keeps values, and watches the
// ranks' heartbeats.
//
// One thread serves all connections. It waits for a single one only when it ends the run, so a
// message may come or go in pieces. Below, < is received and > is sent.
//
//   a rank       < HELLO | WELCOME > | < request | answer > | < request ...
//   a stranger   < 5 s to send a HELLO of this run | closed
//
// If there are more than 64 strangers, those who connected first are closed.
#include "world/tcp_store_message.h"
#include "clock.h"
#include "threads.h"
#include "watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STRANGERS = 64, SLICE_MS = 50, MOMENT_US = 300000 };
static const double handshake_timeout = 5;      // s from a connection to its HELLO
static const double leave_timeout = 2;          // s for the others to leave, when rank 0 does
static const double supervisor_delay = 2;       // s in which a supervisor may report a death

typedef struct Peer {
    struct Peer *next;
    int socket, rank;                   // rank -1: a stranger
    double since;                       // s
    bool sends;                         // true: an answer; false: it receives a request
    StoreMessage message;
} Peer;

typedef struct Entry {
    struct Entry *next;
    size_t bytes;
    char key[STORE_KEY], value[];
} Entry;

struct TcpStoreServer {
    TcpStoreConfig config;
    Welcome self;
    pthread_t thread;
    atomic_bool stop;
    Peer *peers;                        // the latest first
    int connections;
    Entry *entries;                     // the latest first
    Watch watch;                        // a rank without a page has not connected yet
    Alive *pages;
    bool going, warned, awaited;        // all joined; a stranger was reported; missing ranks were
};

// Sends OVER to the other connected ranks, which end without a message. Then ends this process.
// wait: all these processes end later, so that a launcher can report a death first.
static _Noreturn void end_run(const TcpStoreServer *s, bool wait)
{
    for (Peer *p = s->peers; p; p = p->next) {
        StoreMessage over = { { .what = STORE_OVER, .key = { wait } }, NULL, 0 };
        bool half_sent = p->sends && p->message.moved > 0;      // an answer: OVER comes after it
        if (p->rank > 0 && !(half_sent && store_transfer(p->socket, true, &p->message, 1)))
            store_transfer(p->socket, true, &over, 1);
    }
    usleep(wait ? STORE_LAUNCHER_US : MOMENT_US);
    leave_at_once(EXIT_REPORTED);
}

// Replaces the request with its answer. The value must stay valid until it is sent.
static void answer(Peer *p, StoreWhat what, const void *value, size_t bytes)
{
    free(p->message.value);
    p->message = (StoreMessage){ { .what = what, .bytes = (uint32_t)bytes }, (void *)value, 0 };
    p->sends = true;
}

// --- joining -------------------------------------------------------------------------------------

// Returns the reason for refusing the connection, or NULL.
static const char *refusal(const TcpStoreServer *s, const Peer *p, const Hello *hello)
{
    if (p->message.head.what != STORE_HELLO || p->message.head.bytes != sizeof *hello ||
        hello->rank < 0 || hello->rank >= hello->size)
        return "it is from another program, or another version of ddp.c";
    if (strncmp(hello->token, s->config.token, STORE_TOKEN) != 0)
        return "its token is not rank 0's: set the same DDP_TOKEN on all ranks, or on none";
    if (strncmp(hello->run, s->config.run, STORE_NAME) != 0)
        return "it is from another run: choose another port";
    return s->going ? "the run has already begun with all its ranks" : NULL;
}

// Ends the run if the new process has another world size than rank 0, or a rank that is taken.
static void check_rank(TcpStoreServer *s, const Hello *new)
{
    const Watched *old = &s->watch.ranks[new->size == s->config.size ? new->rank : 0];
    if (new->size != s->config.size)
        WARN("all ranks need the same world size", "rank %d (%s, pid %d) has a world size of %d, "
             "but rank 0 (%s, pid %d) has %d", new->rank, new->host, new->pid, new->size,
             s->self.host, s->self.pid, s->config.size);
    else if (!old->alive || old->ended > 0)
        return;
    else
        WARN("each process needs a rank of its own; do two machines have the same --node-rank?",
             "two processes have rank %d: (%s, pid %d) and (%s, pid %d)", new->rank, old->host,
             (int)old->pid, new->host, new->pid);
    end_run(s, false);
}

static void handshake(TcpStoreServer *s, Peer *p)
{
    Hello *hello = p->message.value;
    const char *why = refusal(s, p, hello);
    if (why) {
        TcpPlace place = tcp_place(p->socket, true);
        if (!s->warned)
            WARN("further refusals are not reported", "refused a connection from %s:%d: %s",
                 place.address, place.port, why);
        s->warned = true;
        answer(p, STORE_NO, why, strlen(why));
        return;
    }
    hello->host[STORE_NAME - 1] = '\0';
    p->rank = hello->rank;              // from now on end_run also sends OVER there
    check_rank(s, hello);
    Watched *rank = &s->watch.ranks[p->rank];
    *rank = (Watched){ .alive = &s->pages[p->rank], .pid = hello->pid, .remote = true,
                       .delay = hello->supervised ? supervisor_delay : 0,
                       .last_message = clock_now() };
    memcpy(rank->host, hello->host, sizeof rank->host);
    answer(p, STORE_WELCOME, &s->self, sizeof s->self);
}

// --- requests ------------------------------------------------------------------------------------

static const Entry *find(const TcpStoreServer *s, const char *key)
{
    const Entry *entry = s->entries;
    while (entry && strcmp(entry->key, key) != 0)
        entry = entry->next;
    return entry;
}

// An entry never moves, since answers point to its value.
static void keep(TcpStoreServer *s, const char *key, const void *value, size_t bytes)
{
    Entry *entry = xmalloc(sizeof *entry + bytes);
    *entry = (Entry){ .next = s->entries, .bytes = bytes };
    snprintf(entry->key, sizeof entry->key, "%s", key);
    memcpy(entry->value, value, bytes);
    s->entries = entry;
}

static void keep_page(TcpStoreServer *s, int rank, const void *page)
{
    char text[ALIVE_DOING];
    memcpy(&s->pages[rank], page, sizeof(Alive));
    if (rank > 0 || !s->going)
        return;
    watch_slowest(&s->watch, text);
    alive_slowest_set(text);
}

static void answer_request(TcpStoreServer *s, Peer *p)
{
    StoreHead *head = &p->message.head;
    Watched *rank = &s->watch.ranks[p->rank];
    const Entry *entry = NULL;
    rank->last_message = clock_now();
    head->key[STORE_KEY - 1] = '\0';
    if (head->what == STORE_PUT)
        keep(s, head->key, p->message.value, head->bytes);
    else if (head->what == STORE_BEAT && head->bytes == sizeof(Alive))
        keep_page(s, p->rank, p->message.value);
    else if (head->what == STORE_OVER)
        end_run(s, false);
    else if (head->what == STORE_GET)
        entry = find(s, head->key);
    if (entry)
        answer(p, STORE_VALUE, entry->value, entry->bytes);
    else
        answer(p, head->what == STORE_GET ? STORE_NOT_YET : STORE_DONE, NULL, 0);
}

// --- connections ---------------------------------------------------------------------------------

static void add_peer(TcpStoreServer *s, int socket)
{
    Peer *p = xcalloc(1, sizeof *p);
    *p = (Peer){ .next = s->peers, .socket = socket, .rank = -1, .since = clock_now() };
    s->peers = p;
    s->connections++;
}

// A rank that has sent no heartbeat yet may connect again: perhaps it gave up waiting for WELCOME.
static void drop(TcpStoreServer *s, Peer *p)
{
    Watched *rank = p->rank >= 0 ? &s->watch.ranks[p->rank] : NULL;
    if (rank && alive_seen(rank->alive))
        rank->ended = clock_now();
    else if (rank)
        rank->alive = NULL;
    if (!p->sends)
        free(p->message.value);
    close(p->socket);
    free(p);
    s->connections--;
}

// Continues to receive a request or to send its answer. False: the connection has ended or is
// refused.
static bool serve(TcpStoreServer *s, Peer *p)
{
    bool known = p->rank >= 0;
    int moved = store_move(p->socket, p->sends, &p->message, known ? STORE_MOST : sizeof(Hello));
    if (moved <= 0)
        return moved == 0;
    if (!p->sends) {
        (known ? answer_request : handshake)(s, p);
        return serve(s, p);             // an answer seldom has to wait
    }
    bool refused = p->message.head.what == STORE_NO;
    p->message = (StoreMessage){ .moved = 0 };
    p->sends = false;
    return !refused;
}

// fds has one entry for each of s->peers, in their order. Closes strangers by the rules at the top.
static void serve_all(TcpStoreServer *s, const struct pollfd *fds)
{
    double now = clock_now();
    int strangers = 0;
    for (Peer **at = &s->peers, *p; (p = *at); fds++) {
        bool stays = !fds->revents || serve(s, p);
        if (stays && p->rank < 0)
            stays = ++strangers <= STRANGERS && now < p->since + handshake_timeout;
        if (stays) {
            at = &p->next;
        } else {
            *at = p->next;
            drop(s, p);
        }
    }
}

// Serves old connections before it accepts a new one. So if a rank reconnects, its old connection
// is dropped first.
static void wait_for_input(TcpStoreServer *s)
{
    struct pollfd *fds = xcalloc((size_t)(1 + s->connections), sizeof *fds);
    int n = 1, new = -1;
    fds[0] = (struct pollfd){ .fd = s->config.size > 1 ? s->config.socket : -1, .events = POLLIN };
    for (const Peer *p = s->peers; p; p = p->next)
        fds[n++] = (struct pollfd){ .fd = p->socket, .events = p->sends ? POLLOUT : POLLIN };
    poll(fds, (nfds_t)n, SLICE_MS);
    serve_all(s, fds + 1);
    if (fds[0].revents)
        new = accept4(s->config.socket, NULL, NULL, SOCK_CLOEXEC);
    if (new >= 0)
        add_peer(s, new);
    free(fds);
}

// --- judging -------------------------------------------------------------------------------------

// All ranks wait for the run's name, which no other run has.
static void begin_run(TcpStoreServer *s)
{
    char run[STORE_TOKEN];
    tcp_store_new_token(run);
    keep(s, "run", run, strlen(run) + 1);
    s->going = true;
}

// Is the rank connected, and has it sent a heartbeat? Only a heartbeat brings the rank's timeout
// and patience.
static bool is_there(const Watched *rank)
{
    return rank->alive && rank->ended == 0 && alive_seen(rank->alive);
}

// While ranks are missing: prints a line after the timeout, and ends the run after the patience. If
// rank 0 has a supervisor, both happen 1 s later: the supervisor may report first.
static void await_ranks(TcpStoreServer *s, int there, double waited)
{
    char missing[200] = "";
    int named = 0, size = s->config.size;
    double timeout = alive_here()->timeout, patience = alive_here()->patience;
    bool line = !s->awaited && timeout > 0 && waited > timeout + s->config.supervised;
    bool end = patience > 0 && waited > patience + s->config.supervised;
    if (!line && !end)
        return;
    for (int i = 0; i < size; i++)
        if (!is_there(&s->watch.ranks[i]) && named++ < 16) {
            size_t n = strlen(missing);
            snprintf(missing + n, sizeof missing - n, "%s%d", n ? ", " : "", i);
        }
    WARN(!end ? "" : "check that the missing ranks run, have rank 0's address, and are not "
         "stopped by a firewall; from step 04 on, --patience gives them more time",
         "only %d of %d ranks connected within %.3g s; %s: %s%s", there, size,
         end ? patience : timeout, end ? "missing" : "waiting for", missing,
         named > 16 ? ", ..." : "");
    s->awaited = true;
    if (end)
        end_run(s, false);
}

static void judge(TcpStoreServer *s, double waited)
{
    int there = 0;
    for (int i = 0; i < s->config.size; i++)
        there += is_there(&s->watch.ranks[i]);
    if (!s->going && there == s->config.size)
        begin_run(s);
    else if (!s->going)
        await_ranks(s, there, waited);
    if (watch_judge(&s->watch, clock_now())) {
        bool death = false;             // else a rank hangs or is stopped
        for (const Watched *r = s->watch.ranks; r < s->watch.ranks + s->watch.size; r++)
            death = death || (r->alive && r->ended > 0 && !r->alive->done);
        end_run(s, death && !s->config.supervised); // a supervisor has had Watched.delay
    }
}

// `waited` counts only rounds of less than 1 s: in a longer one this process was stopped.
static void *run(void *arg)
{
    TcpStoreServer *s = arg;
    double waited = 0, leaving = 0;
    for (bool others = true; others && leaving < leave_timeout;) {
        double before = clock_now();
        wait_for_input(s);
        double took = clock_now() - before;
        waited += took < 1 ? took : 0;
        judge(s, waited);
        leaving += s->stop ? took : 0;
        others = !s->stop;
        for (const Peer *p = s->peers; p; p = p->next)
            others = others || p->rank > 0;
    }
    return NULL;
}

TcpStoreServer *tcp_store_server_new(const TcpStoreConfig *config, int own)
{
    TcpStoreServer *s = xcalloc(1, sizeof *s);
    size_t size = (size_t)config->size;
    s->config = *config;
    s->self.pid = (int32_t)getpid();
    gethostname(s->self.host, sizeof s->self.host - 1);
    s->pages = xcalloc(size, sizeof *s->pages);
    s->watch = (Watch){ .size = config->size, .ranks = xcalloc(size, sizeof *s->watch.ranks),
                        .now = clock_now() };
    if (size > 1) {
        fcntl(config->socket, F_SETFD, FD_CLOEXEC);
        CHECK(listen(config->socket, SOMAXCONN) == 0,
              "another program may be using it (ss -ltnp shows which): choose a different "
              "--master-port", "cannot listen on port %d of %s: %s", config->place.port,
              config->place.address, strerror(errno));
    }
    add_peer(s, own);
    s->thread = thread_start(run, s, "the store");
    return s;
}

void tcp_store_server_free(TcpStoreServer *s)
{
    if (s == NULL)
        return;
    s->stop = true;
    pthread_join(s->thread, NULL);
    for (Peer *p = s->peers, *next; p; p = next) {
        next = p->next;
        drop(s, p);
    }
    if (s->config.size > 1)
        close(s->config.socket);
    for (Entry *entry = s->entries, *next; entry; entry = next) {
        next = entry->next;
        free(entry);
    }
    free(s->watch.ranks);
    free(s->pages);
    free(s);
}
