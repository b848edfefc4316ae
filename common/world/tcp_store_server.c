// tcp_store_server.c - rank 0's side of the store: admits ranks, keeps values, and watches the
// ranks' heartbeats.
//
// One thread serves all connections and waits for none of them: a message may come or go in pieces.
//
//   a rank       GREETING > | < HELLO | WELCOME > | < question | answer > | < question ...
//   a stranger   GREETING > | < 5 s to send a HELLO that proves its right | closed
//
// If there are too many strangers, the oldest connection is closed.
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

enum { STRANGERS = 64, SLICE_MS = 50 };
static const double politeness = 5;     // s for a stranger to prove that it is a rank
static const double farewell = 2;       // s for the others to leave, when rank 0 does
static const double courtesy = 2;       // s for a supervisor to report how its rank died

typedef struct Peer {
    struct Peer *next;
    int socket, rank;                   // rank -1: a stranger
    double since;                       // s
    bool sends;                         // an answer; else it receives a question
    StoreMessage message;
    StoreRandom greeting;               // the random bytes that it was sent
    Welcome welcome;
} Peer;

typedef struct Entry {
    struct Entry *next;
    size_t bytes;
    char key[STORE_KEY], value[];
} Entry;

struct TcpStoreServer {
    TcpStoreConfig config;
    Person self;
    pthread_t thread;
    atomic_bool stop;
    Peer *peers;                        // the latest first
    int connections;
    Entry *entries;                     // the latest first
    Watch watch;                        // before the run, ended > 0 means: has not joined yet
    Alive *pages;
    bool going, warned;
};

// Rank 0 prints why, unless it has already done so (NULL). The others have a moment to receive
// OVER, and end without a message.
static _Noreturn void end_run(TcpStoreServer *s, const Error *why)
{
    const StoreHead over = { .what = STORE_OVER };
    if (why)
        WARN(why->hint, "%s", why->text);
    for (const Peer *p = s->peers; p; p = p->next)
        if (p->rank > 0)
            send(p->socket, &over, sizeof over, MSG_NOSIGNAL | MSG_DONTWAIT);
    usleep(300000);
    leave_at_once(EXIT_REPORTED);
}

// Replaces the question by its answer. The value must stay valid until it is sent.
static void answer(Peer *p, StoreWhat what, const void *value, size_t bytes)
{
    free(p->message.value);
    p->message = (StoreMessage){ { .what = what, .bytes = (uint32_t)bytes }, (void *)value, 0 };
    p->sends = true;
}

// --- joining -------------------------------------------------------------------------------------

// NULL: it is a rank of this run; else the reason for refusing it.
static const char *refusal(const TcpStoreServer *s, const Peer *p, const Hello *hello)
{
    const Secret *secret = &s->config.secret;
    if (p->message.head.what != STORE_HELLO || p->message.head.bytes != sizeof *hello ||
        hello->person.rank < 0 || hello->person.rank >= hello->person.size)
        return "it is another program, or another version of this one";
    if (memcmp(&hello->server, &p->greeting, sizeof p->greeting) != 0 ||
        !secret_proves(secret, "rank", hello, offsetof(Hello, proof), &hello->proof))
        return "it does not know rank 0's token, or rank 0 has none (--token-file FILE: the same for "
               "all ranks)";
    if (!secret->text[0] && tcp_is_loopback(tcp_place(p->socket, false).address) &&
        !tcp_same_user(p->socket))
        return "it belongs to another user, and there is no token (--token-file FILE)";
    if (strncmp(hello->person.run, s->self.run, STORE_NAME) != 0)
        return "it belongs to another run: choose another port";
    return s->going ? "the run has begun: all ranks are there" : NULL;
}

// Two ranks that contradict each other end the run, since it would never be complete.
static void check_person(TcpStoreServer *s, const Person *new)
{
    Error why;
    const Watched *old = &s->watch.ranks[new->size == s->self.size ? new->rank : 0];
    if (new->size != s->self.size)
        error_set(&why, "all ranks need the same world size", "rank %d (%s, pid %d) says that there "
                  "are %d ranks, rank 0 (%s, pid %d) says %d", new->rank, new->host, new->pid, new->size,
                  s->self.host, s->self.pid, s->self.size);
    else if (old->ended > 0)
        return;
    else
        error_set(&why, "each process needs a rank of its own; do two machines have the same "
                  "--node-rank?", "rank %d is there twice: %s, pid %d, and %s, pid %d", new->rank,
                  old->host, (int)old->pid, new->host, new->pid);
    end_run(s, &why);
}

static void take_hello(TcpStoreServer *s, Peer *p)
{
    Hello *hello = p->message.value;
    TcpPlace place = tcp_place(p->socket, true);
    const char *why = refusal(s, p, hello);
    if (why && !s->warned)
        WARN("later ones are not reported", "refused a connection from %s:%d: %s", place.address,
             place.port, why);
    if (why) {
        s->warned = true;
        answer(p, STORE_NO, why, strlen(why));
        return;
    }
    Person *person = &hello->person;
    person->host[STORE_NAME - 1] = '\0';
    p->rank = person->rank;             // from now on end_run sends OVER there, too
    check_person(s, person);
    Watched *rank = &s->watch.ranks[p->rank];
    *rank = (Watched){ .alive = rank->alive, .pid = person->pid, .slack = person->supervised ? courtesy : 0 };
    memcpy(rank->host, person->host, sizeof rank->host);
    p->welcome = (Welcome){ s->self, secret_prove(&s->config.secret, "rank 0", hello, sizeof *hello) };
    answer(p, STORE_WELCOME, &p->welcome, sizeof p->welcome);
}

// --- questions -----------------------------------------------------------------------------------

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

static void take_question(TcpStoreServer *s, Peer *p)
{
    StoreHead *head = &p->message.head;
    Watched *rank = &s->watch.ranks[p->rank];
    const Entry *entry = NULL;
    rank->heard = clock_now();
    head->key[STORE_KEY - 1] = '\0';
    if (head->what == STORE_PUT)
        keep(s, head->key, p->message.value, head->bytes);
    else if (head->what == STORE_BEAT && head->bytes == sizeof(Alive))
        memcpy(rank->alive, p->message.value, sizeof(Alive));
    else if (head->what == STORE_OVER)
        end_run(s, NULL);
    else if (head->what == STORE_GET)
        entry = find(s, head->key);
    if (entry)
        answer(p, STORE_VALUE, entry->value, entry->bytes);
    else
        answer(p, head->what == STORE_GET ? STORE_NOT_YET : STORE_DONE, NULL, 0);
}

// --- connections ---------------------------------------------------------------------------------

static void let_in(TcpStoreServer *s, int listening)
{
    int socket = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    if (socket < 0)
        return;
    Peer *p = xcalloc(1, sizeof *p);
    *p = (Peer){ .next = s->peers, .socket = socket, .rank = -1, .since = clock_now(),
                 .greeting = store_random() };
    answer(p, STORE_GREETING, &p->greeting, sizeof p->greeting);
    s->peers = p;
    s->connections++;
}

static void forget(TcpStoreServer *s, Peer *p)
{
    if (p->rank >= 0)
        s->watch.ranks[p->rank].ended = clock_now();
    if (!p->sends)
        free(p->message.value);
    close(p->socket);
    free(p);
    s->connections--;
}

// Continues sending or receiving the current message. False: the connection is closed or refused.
static bool serve(TcpStoreServer *s, Peer *p)
{
    bool known = p->rank >= 0;
    int moved = store_move(p->socket, p->sends, &p->message, known ? STORE_MOST : sizeof(Hello));
    if (moved <= 0)
        return moved == 0;
    if (!p->sends) {
        (known ? take_question : take_hello)(s, p);
        return serve(s, p);             // an answer seldom has to wait
    }
    bool refused = p->message.head.what == STORE_NO;
    p->message = (StoreMessage){ .moved = 0 };
    p->sends = false;
    return !refused;
}

// Serves the connections that are ready. fds has one entry for each, in the same order.
static void serve_all(TcpStoreServer *s, const struct pollfd *fds)
{
    double now = clock_now();
    int strangers = 0;
    for (Peer **at = &s->peers, *p; (p = *at); fds++) {
        bool stays = !fds->revents || serve(s, p);
        if (stays && p->rank < 0)
            stays = ++strangers <= STRANGERS && now < p->since + politeness;
        if (stays) {
            at = &p->next;
        } else {
            *at = p->next;
            forget(s, p);
        }
    }
}

// Waits a moment for input. Serves old connections before it accepts new ones, so that a rank that
// reconnects has left first.
static void listen_on(TcpStoreServer *s)
{
    int doors = s->config.count, n = doors;
    struct pollfd *fds = xcalloc((size_t)(doors + s->connections), sizeof *fds);
    for (int i = 0; i < doors; i++)
        fds[i] = (struct pollfd){ .fd = s->config.sockets[i], .events = POLLIN };
    for (const Peer *p = s->peers; p; p = p->next)
        fds[n++] = (struct pollfd){ .fd = p->socket, .events = p->sends ? POLLOUT : POLLIN };
    poll(fds, (nfds_t)n, SLICE_MS);
    serve_all(s, fds + doors);
    for (int i = 0; i < doors; i++)
        if (fds[i].revents)
            let_in(s, fds[i].fd);
    free(fds);
}

// --- judging -------------------------------------------------------------------------------------

static void go(TcpStoreServer *s)
{
    Secret run = secret_random();
    run.text[STORE_NAME / 2] = '\0';
    s->watch.looked = clock_now();
    for (Watched *rank = s->watch.ranks; rank < s->watch.ranks + s->self.size; rank++)
        rank->heard = rank->beaten = s->watch.looked;
    keep(s, "run", run.text, STORE_NAME / 2 + 1);
    s->going = true;
}

static _Noreturn void give_up(TcpStoreServer *s, int there)
{
    Error error;
    char missing[200] = "";
    int named = 0, size = s->self.size;
    for (int i = 0; i < size; i++)
        if (s->watch.ranks[i].ended > 0 && named++ < 16) {
            size_t n = strlen(missing);
            snprintf(missing + n, sizeof missing - n, "%s%d", n ? ", " : "", i);
        }
    error_set(&error, "are they started, and do they look for rank 0 here? does a firewall stop "
              "them? --timeout gives more time", "%d of %d ranks came within %.3g s: missing %s %s%s",
              there, size, s->config.timeout, named > 1 ? "are" : "is", missing,
              named > 16 ? ", ..." : "");
    end_run(s, &error);
}

// late: the timeout for all ranks to join has passed.
static void look(TcpStoreServer *s, bool late)
{
    int there = 0;
    for (int i = 0; i < s->self.size; i++)
        there += s->watch.ranks[i].ended == 0;
    if (!s->going && there == s->self.size)
        go(s);
    else if (!s->going && late)
        give_up(s, there);
    if (s->going && watch_judge(&s->watch))
        end_run(s, NULL);
}

// Only short intervals count towards the timeout: in a long one this process was stopped.
static void *run(void *arg)
{
    TcpStoreServer *s = arg;
    const double limit = s->config.timeout + s->config.supervised;   // 1 s for a supervisor to report
    double waited = 0, leaving = 0;
    for (bool others = true; others && leaving < farewell;) {
        double before = clock_now();
        listen_on(s);
        double took = clock_now() - before;
        waited += took < 1 ? took : 0;
        look(s, s->config.timeout > 0 && waited > limit);
        leaving += s->stop ? took : 0;
        others = !s->stop;
        for (const Peer *p = s->peers; p; p = p->next)
            others = others || p->rank > 0;
    }
    return NULL;
}

TcpStoreServer *tcp_store_server_new(const TcpStoreConfig *config, const Person *self)
{
    TcpStoreServer *s = xcalloc(1, sizeof *s);
    size_t size = (size_t)self->size;
    s->config = *config;
    s->self = *self;
    s->pages = xcalloc(size, sizeof *s->pages);
    s->watch = (Watch){ .size = self->size, .ranks = xcalloc(size, sizeof *s->watch.ranks) };
    for (size_t i = 0; i < size; i++)
        s->watch.ranks[i] = (Watched){ .alive = &s->pages[i], .ended = clock_now() };
    for (int i = 0; i < config->count; i++) {
        fcntl(config->sockets[i], F_SETFD, FD_CLOEXEC);
        CHECK(listen(config->sockets[i], SOMAXCONN) == 0, "another run may have it (ss -ltnp): choose "
              "another --master-port", "cannot listen at port %d of %s: %s", config->places[i].port,
              config->places[i].address, strerror(errno));
    }
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
        forget(s, p);
    }
    for (int i = 0; i < s->config.count; i++)
        close(s->config.sockets[i]);
    for (Entry *entry = s->entries, *next; entry; entry = next) {
        next = entry->next;
        free(entry);
    }
    free(s->watch.ranks);
    free(s->pages);
    free(s);
}
