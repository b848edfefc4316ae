// tcp_store_server.c - rank 0's side of the store: admits ranks, keeps values, and judges all
// ranks by their signs of life.
//
//   judging thread   accepts | accepts | judges ... 20 times a second              | frees
//   one per peer     Greeting, Hello: let in or refused | question, answer ...     | closed
//
// Connections do not wait for each other. A stranger has 5 s to prove that it is a rank.
// If there are too many strangers, the oldest is closed.
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
    struct TcpStoreServer *server;
    int socket, rank;                   // rank -1: a stranger
    double since;                       // s
} Peer;

typedef struct Entry {
    struct Entry *next;
    size_t bytes;
    char key[STORE_KEY], value[];
} Entry;

struct TcpStoreServer {
    TcpStoreConfig config;
    Person self, *persons;              // (size) by rank
    pthread_t thread;
    atomic_bool stop;
    pthread_mutex_t lock;               // over what follows
    Peer *peers;                        // the latest first
    Entry *entries;                     // the latest first
    Watch watch;                        // ended > 0 before all are there: the rank is not there
    Alive *pages;
    bool going, warned, crowded;        // crowded: threads of strangers have yet to end
};

// --- messages ------------------------------------------------------------------------------------

Greeting store_greeting(void)
{
    Greeting greeting = { STORE_MAGIC, { 0 } };
    Secret random = secret_random();
    memcpy(greeting.random, random.bytes, sizeof greeting.random);
    return greeting;
}

static bool receive(const Peer *p, void *bytes, size_t count)
{
    return count == 0 || recv(p->socket, bytes, count, MSG_WAITALL) == (ssize_t)count;
}

static bool answer(const Peer *p, StoreWhat what, const void *value, size_t bytes)
{
    StoreHead head = { .what = what, .bytes = (uint32_t)bytes };
    return send(p->socket, &head, sizeof head, MSG_NOSIGNAL | MSG_MORE * (bytes > 0)) == sizeof head &&
           (bytes == 0 || send(p->socket, value, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

// With the lock, so that nothing else happens. Rank 0 prints why, unless it has done so (NULL); the
// others end without a message, and have a moment to receive OVER.
static _Noreturn void end_run(TcpStoreServer *s, const Error *why)
{
    const StoreHead over = { .what = STORE_OVER };
    if (why)
        WARN(why->hint, "%s", why->text);
    for (const Peer *p = s->peers; p; p = p->next)
        if (p->rank > 0)
            send(p->socket, &over, sizeof over, MSG_NOSIGNAL | MSG_DONTWAIT);
    usleep(300000);
    leave_at_once();
}

// --- joining -------------------------------------------------------------------------------------

// NULL: it is one of ours; else why not.
static const char *refusal(const TcpStoreServer *s, const Peer *p, const Greeting *sent,
                           const Hello *hello)
{
    const Secret *secret = &s->config.secret;
    if (memcmp(hello->client.magic, STORE_MAGIC, sizeof hello->client.magic) != 0)
        return "it is another program, or another version of this one";
    if (memcmp(&hello->server, sent, sizeof *sent) != 0 ||
        !secret_proves(secret, "rank", hello, offsetof(Hello, proof), hello->proof))
        return "it does not know rank 0's token, or rank 0 has none (--token-file FILE: the same for "
               "all ranks)";
    if (!secret->known && tcp_is_loopback(tcp_place(p->socket, false).address) &&
        !tcp_same_user(p->socket))
        return "it belongs to another user, and there is no token (--token-file FILE)";
    if (strcmp(hello->person.run, s->self.run) != 0)
        return "it is of another run: choose another port";
    if (hello->person.rank < 0 || hello->person.rank >= hello->person.size)
        return "it has no rank";
    return s->going ? "the run has begun: all ranks are there" : NULL;
}

// Two ranks that contradict each other end the run, since it would never be complete.
static void check_person(TcpStoreServer *s, const Person *new)
{
    Error why;
    if (new->size != s->self.size)
        error_set(&why, "all ranks need the same world size", "rank %d (%s, pid %d) says that there "
                  "are %d ranks, rank 0 (%s, pid %d) says %d", new->rank, new->host, new->pid, new->size,
                  s->self.host, s->self.pid, s->self.size);
    else if (s->watch.ranks[new->rank].ended > 0)
        return;
    else
        error_set(&why, "each process needs a rank of its own; do two machines have the same "
                  "--node-rank?", "rank %d is there twice: %s, pid %d, and %s, pid %d", new->rank,
                  s->persons[new->rank].host, s->persons[new->rank].pid, new->host, new->pid);
    end_run(s, &why);
}

// If this rank's last process has closed its connection, its thread may not have noticed yet.
static void forget_closed(TcpStoreServer *s, int rank)
{
    char byte;
    for (Peer *p = s->peers; p; p = p->next) {
        errno = 0;
        if (p->rank == rank && recv(p->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0 && errno != EAGAIN) {
            p->rank = -1;
            s->watch.ranks[rank].ended = clock_now();
        }
    }
}

// With the lock.
static bool take_hello(TcpStoreServer *s, Peer *p, const Greeting *sent, Hello *hello)
{
    Welcome words = { .rank0 = s->self };
    TcpPlace place = tcp_place(p->socket, true);
    hello->person.host[STORE_NAME - 1] = hello->person.run[STORE_NAME - 1] = '\0';
    const char *why = refusal(s, p, sent, hello);
    if (why && !s->warned)
        WARN("more of them will not be mentioned", "refused a connection from %s:%d: %s", place.address,
             place.port, why);
    if (why) {
        s->warned = true;
        answer(p, STORE_NO, why, strlen(why));
        return false;
    }
    if (hello->person.rank < s->self.size)
        forget_closed(s, hello->person.rank);
    p->rank = hello->person.rank;       // by now OVER goes there, too
    check_person(s, &hello->person);
    s->watch.ranks[p->rank].ended = 0;
    s->persons[p->rank] = hello->person;
    secret_prove(&s->config.secret, "rank 0", hello, sizeof *hello, words.proof);
    return answer(p, STORE_WELCOME, &words, sizeof words);
}

// --- questions -----------------------------------------------------------------------------------

static const Entry *find(const TcpStoreServer *s, const char *key)
{
    const Entry *entry = s->entries;
    while (entry && strcmp(entry->key, key) != 0)
        entry = entry->next;
    return entry;
}

static void keep(TcpStoreServer *s, const char *key, const void *value, size_t bytes)
{
    Entry *entry = xmalloc(sizeof *entry + bytes);
    *entry = (Entry){ .next = s->entries, .bytes = bytes };
    snprintf(entry->key, sizeof entry->key, "%s", key);
    memcpy(entry->value, value, bytes);
    s->entries = entry;
}

// With the lock; the answer is sent without it. An entry stays where it is to the end.
static const Entry *take_question(TcpStoreServer *s, const Peer *p, const StoreHead *head,
                                  const void *value)
{
    if (p->rank < 0)
        return NULL;                    // closed meanwhile
    Watched *rank = &s->watch.ranks[p->rank];
    rank->heard = clock_now();
    if (head->what == STORE_PUT)
        keep(s, head->key, value, head->bytes);
    else if (head->what == STORE_BEAT && head->bytes == sizeof(Alive))
        memcpy(rank->alive, value, sizeof(Alive));
    else if (head->what == STORE_OVER)
        end_run(s, NULL);
    return head->what == STORE_GET ? find(s, head->key) : NULL;
}

static bool serve_question(TcpStoreServer *s, const Peer *p)
{
    StoreHead head;
    if (!receive(p, &head, sizeof head) || head.bytes > STORE_MOST)
        return false;
    char *value = xmalloc(head.bytes);
    bool all = receive(p, value, head.bytes);
    head.key[STORE_KEY - 1] = '\0';
    const Entry *entry = NULL;
    if (all) {
        pthread_mutex_lock(&s->lock);
        entry = take_question(s, p, &head, value);
        pthread_mutex_unlock(&s->lock);
    }
    free(value);
    return all && (entry ? answer(p, STORE_VALUE, entry->value, entry->bytes)
                         : answer(p, head.what == STORE_GET ? STORE_NOT_YET : STORE_DONE, NULL, 0));
}

// --- connections ---------------------------------------------------------------------------------

static void forget(TcpStoreServer *s, Peer *p)
{
    Peer **at = &s->peers;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    if (p->rank >= 0)
        s->watch.ranks[p->rank].ended = clock_now();
    close(p->socket);
    free(p);
}

static void *serve(void *arg)
{
    Peer *p = arg;
    TcpStoreServer *s = p->server;
    Greeting greeting = store_greeting();
    Hello hello;
    send(p->socket, &greeting, sizeof greeting, MSG_NOSIGNAL);
    bool said = receive(p, &hello, sizeof hello);
    pthread_mutex_lock(&s->lock);
    bool joined = said && take_hello(s, p, &greeting, &hello);
    pthread_mutex_unlock(&s->lock);
    while (joined && serve_question(s, p)) {
    }
    pthread_mutex_lock(&s->lock);
    forget(s, p);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

// With the lock.
static void let_in(TcpStoreServer *s, int listening)
{
    int socket = accept4(listening, NULL, NULL, SOCK_CLOEXEC), strangers = 0;
    if (socket < 0)
        return;
    for (const Peer *p = s->peers; p; p = p->next)
        if (p->rank < 0 && ++strangers == STRANGERS)
            shutdown(p->socket, SHUT_RDWR);
    Peer *p = xmalloc(sizeof *p);
    *p = (Peer){ .next = s->peers, .server = s, .socket = socket, .rank = -1, .since = clock_now() };
    s->peers = p;
    pthread_detach(thread_start(serve, p, "a peer"));
}

// Waits for connections, but only for a moment. Without the lock.
static void listen_on(TcpStoreServer *s)
{
    struct pollfd fds[STORE_PLACES] = { { 0 } };
    int strangers = 0;
    for (int i = 0; i < s->config.count; i++)
        fds[i] = (struct pollfd){ .fd = s->config.sockets[i], .events = POLLIN };
    poll(fds, s->crowded ? 0 : (nfds_t)s->config.count, s->crowded ? 1 : SLICE_MS);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->config.count; i++)
        if (fds[i].revents)
            let_in(s, fds[i].fd);
    for (const Peer *p = s->peers; p; p = p->next) {
        strangers += p->rank < 0;
        if (p->rank < 0 && clock_now() > p->since + politeness)
            shutdown(p->socket, SHUT_RDWR);
    }
    s->crowded = strangers > 2 * STRANGERS;
    pthread_mutex_unlock(&s->lock);
}

// --- judging -------------------------------------------------------------------------------------

static void go(TcpStoreServer *s)
{
    char run[SECRET_TEXT];
    Secret random = secret_random();
    s->watch.looked = clock_now();
    for (int i = 0; i < s->self.size; i++) {
        Watched *rank = &s->watch.ranks[i];
        rank->pid = s->persons[i].pid;
        rank->host = s->persons[i].host;
        rank->heard = rank->beaten = s->watch.looked;
        rank->slack = s->persons[i].supervised ? courtesy : 0;
    }
    secret_to_text(&random, run);
    run[STORE_NAME / 2] = '\0';
    keep(s, "run", run, sizeof run);
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

// With the lock. late: the time for all ranks to come is over.
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

// Only short intervals count: in a long one this process was stopped.
static void *run(void *arg)
{
    TcpStoreServer *s = arg;
    const double limit = s->config.timeout + s->config.supervised;      // a supervisor may know more
    double waited = 0, leaving = 0;
    for (bool others = true; others && leaving < farewell;) {
        double before = clock_now();
        listen_on(s);
        double took = clock_now() - before;
        waited += took < 1 ? took : 0;
        pthread_mutex_lock(&s->lock);
        look(s, s->config.timeout > 0 && waited > limit);
        leaving += atomic_load(&s->stop) ? took : 0;
        others = !atomic_load(&s->stop);
        for (const Peer *p = s->peers; p; p = p->next)
            others = others || p->rank > 0;
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

TcpStoreServer *tcp_store_server_new(const TcpStoreConfig *config, const Person *self)
{
    static TcpStoreServer only;         // one per process; threads of peers may still hold its lock
    TcpStoreServer *s = &only;
    size_t size = (size_t)self->size;
    *s = (TcpStoreServer){ .config = *config, .self = *self, .lock = PTHREAD_MUTEX_INITIALIZER };
    s->persons = xcalloc(size, sizeof *s->persons);
    s->pages = xcalloc(size, sizeof *s->pages);
    s->watch = (Watch){ .size = self->size, .ranks = xcalloc(size, sizeof *s->watch.ranks) };
    for (size_t i = 0; i < size; i++)
        s->watch.ranks[i] = (Watched){ .alive = &s->pages[i], .ended = clock_now() };
    for (int i = 0; i < config->count; i++) {
        fcntl(config->sockets[i], F_SETFL, O_NONBLOCK);
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
    atomic_store(&s->stop, true);
    pthread_join(s->thread, NULL);
    for (bool any = true; any; usleep(1000)) {
        pthread_mutex_lock(&s->lock);
        any = s->peers != NULL;
        for (const Peer *p = s->peers; p; p = p->next)
            shutdown(p->socket, SHUT_RDWR);
        pthread_mutex_unlock(&s->lock);
    }
    for (int i = 0; i < s->config.count; i++)
        close(s->config.sockets[i]);
    for (Entry *entry = s->entries, *next; entry; entry = next) {
        next = entry->next;
        free(entry);
    }
    free(s->watch.ranks);
    free(s->pages);
    free(s->persons);
}
