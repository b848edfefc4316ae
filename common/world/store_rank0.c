// store_rank0.c - rank 0's side of the store: admits ranks, keeps values, and watches the records.
//
// No answer is sent, and no message printed, while the lock is held: a rank that does not read its
// answers delays nobody else.
#include "world/store_rank0.h"
#include "clock.h"
#include "threads.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STRANGERS = 64, NAMED_MOST = 16 };
static const double hello_limit = 5;        // s from a connection to its HELLO
static const double early_line = 10;        // s without a beat until a line is printed
static const double silence = 5;            // s after which a record is old
static const double supervisor_delay = 2;   // s in which a supervisor may report a death
static const double leave_limit = 1.5;      // s in which all ranks get END, and end
static const double late_limit = 3.6;       // s: the same after a death

typedef struct Entry {
    struct Entry *next;
    size_t bytes;
    char key[STORE_KEY], value[];
} Entry;

typedef struct Peer {                   // what rank 0 knows of a rank
    bool here, supervised;
    int pid, socket;
    char host[STORE_NAME];
    Progress record;
    double heard, ended;                // s: its last message; when its connection closed, or 0
} Peer;

static struct {
    StoreConfig config;
    Peer *peers, *seen;                 // (size) seen: the watch's copy
    Entry *entries;                     // never freed: answers point to them
    int joined;
    bool over, late;
    pthread_mutex_t lock;               // of the five lines above, but for `seen`
    atomic_int strangers;               // connections without a HELLO yet
} server = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void lock(void) { pthread_mutex_lock(&server.lock); }
static void unlock(void) { pthread_mutex_unlock(&server.lock); }

static const Entry *find(const char *key)
{
    const Entry *entry = server.entries;
    while (entry && strcmp(entry->key, key) != 0)
        entry = entry->next;
    return entry;
}

static void put(const char *key, const void *value, size_t bytes)
{
    Entry *entry = xmalloc(sizeof *entry + bytes);
    *entry = (Entry){ .next = server.entries, .bytes = bytes };
    snprintf(entry->key, sizeof entry->key, "%s", key);
    memcpy(entry->value, value, bytes);
    server.entries = entry;
}

// --- the end -------------------------------------------------------------------------------------

static bool others_are_there(void)
{
    bool any = false;
    lock();
    for (int i = 1; i < server.config.size; i++)
        any = any || (server.peers[i].here && server.peers[i].ended == 0);
    unlock();
    return any;
}

void store_await_leaving(double seconds)
{
    for (double until = clock_now() + seconds; others_are_there() && clock_now() < until;)
        usleep(20000);
}

void store_end_all(bool late)
{
    static atomic_flag ending = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&ending))
        pause();                        // another thread is ending the run
    lock();
    server.over = true;
    server.late = late;
    unlock();
    store_await_leaving(late ? late_limit : leave_limit);
    leave_at_once(EXIT_REPORTED);
}

// --- connections ---------------------------------------------------------------------------------

StoreHead store_answer(int rank, const StoreHead *request, const void *sent, const void **value)
{
    StoreHead answer = { .what = STORE_DONE };
    Peer *p = &server.peers[rank];
    lock();
    const Entry *entry = request->what == STORE_GET ? find(request->key) : NULL;
    p->heard = clock_now();
    if (request->what == STORE_PUT)
        put(request->key, sent, request->bytes);
    else if (request->what == STORE_BEAT && request->bytes == sizeof p->record)
        memcpy(&p->record, sent, sizeof p->record);
    if (server.over)
        answer = (StoreHead){ .what = STORE_END, .key = { server.late } };
    else if (entry)
        answer = (StoreHead){ .what = STORE_VALUE, .bytes = (uint32_t)entry->bytes };
    unlock();
    *value = entry ? entry->value : NULL;
    return answer;
}

// Returns the reason for refusing the connection, or NULL.
static const char *refusal(const StoreHead *head, const StoreHello *hello)
{
    const StoreConfig *c = &server.config;
    if (!hello || head->what != STORE_HELLO || head->bytes != sizeof *hello || hello->rank < 1 ||
        hello->rank >= hello->size)
        return "it is from another program, or another version of ddp.c";
    if (strncmp(hello->token, c->token, STORE_TOKEN) != 0)
        return "its token is not rank 0's: set the same DDP_TOKEN on all ranks, or on none";
    if (strncmp(hello->run, c->run, STORE_NAME) != 0)
        return "it is from another run: choose another port";
    return NULL;
}

static void refuse(int socket, const char *why)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    TcpPlace place = tcp_place(socket, true);
    if (!atomic_flag_test_and_set(&warned))
        WARN("further refusals are not reported", "refused a connection from %s:%d: %s",
             place.address, place.port, why);
    store_send(socket, (StoreHead){ .what = STORE_NO, .bytes = (uint32_t)strlen(why) }, why, 1,
               NULL);
}

static bool has_closed(int socket)
{
    char one;
    return recv(socket, &one, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

// Ends the run, because a new process contradicts rank 0 or another process.
static _Noreturn void end_for(int socket, const char *hint, const char *what)
{
    WARN(hint, "%s", what);
    store_send(socket, (StoreHead){ .what = STORE_END }, NULL, 1, NULL);
    store_end_all(false);
}

// All ranks wait for the run's name, which no other run has.
static void begin_run(void)
{
    char run[STORE_TOKEN];
    store_new_token(run);
    put("run", run, strlen(run) + 1);
}

// Fills in the peer, and returns NULL; or the reason for refusing it. A process may join again:
// perhaps it gave up waiting for the answer to its HELLO.
static const char *join(int socket, const StoreHello *new)
{
    char what[400] = "";
    Peer *p = &server.peers[new->size == server.config.size ? new->rank : 0];
    lock();
    bool again = p->pid == new->pid && strcmp(p->host, new->host) == 0;
    bool late = p->here && !again && (find("run") || p->ended > 0);
    if (new->size != server.config.size) {
        snprintf(what, sizeof what, "rank %d (%s, pid %d) has a world size of %d, but rank 0 (%s, "
                 "pid %d) has %d", new->rank, new->host, new->pid, new->size, p->host, p->pid,
                 server.config.size);
    } else if (p->here && !again && !late && !has_closed(p->socket)) {
        snprintf(what, sizeof what, "two processes have rank %d: (%s, pid %d) and (%s, pid %d)",
                 new->rank, p->host, p->pid, new->host, new->pid);
    } else if (!late) {
        server.joined += !p->here;
        *p = (Peer){ .here = true, .supervised = new->supervised, .pid = new->pid,
                     .socket = socket, .heard = clock_now() };
        memcpy(p->host, new->host, sizeof p->host);
        if (server.joined == server.config.size && !find("run"))
            begin_run();
    }
    unlock();
    if (what[0])
        end_for(socket, "each process needs a rank of its own, and all need the same world size; "
                "do two machines have the same --node-rank?", what);
    return late ? "the run has already begun with all its ranks" : NULL;
}

// Returns the rank of a new connection, or -1.
static int admit(int socket)
{
    StoreHead head = { 0 };
    StoreHello hello;
    void *value = NULL;
    char zero[STORE_NAME + 32];
    const char *why = store_receive(socket, &head, &value, sizeof hello, hello_limit, NULL);
    if (why && !head.what)
        return -1;                      // it has sent nothing
    why = refusal(&head, why ? NULL : value);
    if (!why) {
        memcpy(&hello, value, sizeof hello);
        hello.host[STORE_NAME - 1] = '\0';
        why = join(socket, &hello);
    }
    free(value);
    if (why) {
        refuse(socket, why);
        return -1;
    }
    snprintf(zero, sizeof zero, "%s, pid %d", server.peers[0].host, server.peers[0].pid);
    store_send(socket, (StoreHead){ .what = STORE_DONE, .bytes = sizeof zero }, zero, 1, NULL);
    return hello.rank;
}

// A connection has closed. Before its first beat a rank has not joined.
static void lose(int rank, int socket)
{
    Peer *p = &server.peers[rank];
    lock();
    if (p->socket == socket && p->record.beats == 0) {
        *p = (Peer){ .here = false };
        server.joined--;
    } else if (p->socket == socket) {
        p->ended = clock_now();
    }
    unlock();
}

static void *serve(void *arg)
{
    int socket = (int)(intptr_t)arg, rank = admit(socket);
    StoreHead head;
    void *sent = NULL;
    const void *value;
    server.strangers--;
    while (rank > 0 && !store_receive(socket, &head, &sent, STORE_MOST, INFINITY, NULL)) {
        StoreHead answer = store_answer(rank, &head, sent, &value);
        free(sent);
        sent = NULL;
        if (store_send(socket, answer, value, INFINITY, NULL))
            break;
    }
    free(sent);
    if (rank > 0)
        lose(rank, socket);
    close(socket);
    return NULL;
}

static void *accept_all(void *arg)
{
    for (;;) {
        int socket = accept4(server.config.socket, NULL, NULL, SOCK_CLOEXEC);
        if (socket >= 0) {
            server.strangers++;
            pthread_detach(thread_start(serve, (void *)(intptr_t)socket, "a connection"));
        } else if (errno != EINTR && errno != ECONNABORTED) {
            usleep(100000);             // too many files are open: perhaps not for long
        }
        while (server.strangers >= STRANGERS)
            usleep(10000);
    }
    return NULL;
}

// --- the watch -----------------------------------------------------------------------------------

static void name_peer(int rank, double now, char text[PROGRESS_LINE + 200])
{
    const Peer *p = &server.seen[rank];
    char how[PROGRESS_LINE], old[80] = "";
    if (now - p->heard > silence && p->ended == 0)
        snprintf(old, sizeof old, "stopped or cut off, silent for %.3g s, ", now - p->heard);
    snprintf(text, PROGRESS_LINE + 200, "rank %d of %d (%s, pid %d): %s%s", rank,
             server.config.size, p->host, p->pid, old, progress_describe(&p->record, how));
}

// Sets *first to the first rank of those with the lowest number, and returns how many they are.
static int lowest(int64_t (*number)(const Peer *p, double now), double now, int *first)
{
    int count = 0;
    for (int i = 0; i < server.config.size; i++) {
        int64_t than = count ? number(&server.seen[*first], now) : INT64_MAX;
        int64_t n = number(&server.seen[i], now);
        *first = n < than ? i : *first;
        count = n < than ? 1 : count + (n == than);
    }
    return count;
}

static int64_t is_heard(const Peer *p, double now)
{
    return now - p->heard < silence || p->ended > 0;
}

static int64_t calls_of(const Peer *p, double now) { return p->record.calls; }

static int64_t steps_of(const Peer *p, double now)
{
    return p->record.epoch * (INT64_C(1) << 40) + p->record.step;
}

// Also true if both wait for a key of the store, each for another one.
static bool alike(const char *a, const char *b)
{
    return strcmp(a, b) == 0 || (strncmp(a, "get ", 4) == 0 && strncmp(b, "get ", 4) == 0);
}

// All ranks have begun equally many calls and steps: are two in different calls?
static void report_tie(const char *what, bool every)
{
    const Peer *peers = server.seen;
    int size = server.config.size, other = 1;
    while (other < size && alike(peers[other].record.call, peers[0].record.call))
        other++;
    if (other == size)
        WARN("is the network up? Between machines a firewall must allow all ports, as ranks "
             "connect in pairs", "%s; all ranks are in their call %lld: %s",
             what, (long long)peers[0].record.calls, peers[0].record.call);
    else
        WARN("all ranks must make the same calls in the same order",
             "%s; in their call %lld rank 0 is in %s, but rank %d in %s", what,
             (long long)peers[0].record.calls, peers[0].record.call, other,
             peers[other].record.call);
    for (int i = 0; every && i < size && i < NAMED_MOST; i++) {
        char text[PROGRESS_LINE + 200];
        name_peer(i, clock_now(), text);
        WARN("", "%s", text);
    }
}

static void report_stuck(double now, double waited, bool ends)
{
    int first = 0, size = server.config.size, named;
    char what[120], text[PROGRESS_LINE + 200], more[40] = "", hint[80] = "";
    snprintf(what, sizeof what, "no rank has made progress for %.3g s%s", waited,
             ends ? " (--timeout)" : "");
    if (!ends && server.config.timeout > 0)
        snprintf(hint, sizeof hint, "the run ends after %.3g s of this (--timeout)",
                 server.config.timeout);
    if ((named = lowest(is_heard, now, &first)) == size &&
        (named = lowest(calls_of, now, &first)) == size)
        named = lowest(steps_of, now, &first);
    if (named == size && size > 1) {
        report_tie(what, ends);
        return;
    }
    name_peer(first, now, text);
    if (named > 1)
        snprintf(more, sizeof more, "; and %d more ranks", named - 1);
    WARN(hint, "%s; %s%s%s", what, size > 1 ? "all wait for " : "", text, more);
}

static void report_missing(double now, double waited, bool ends)
{
    char missing[200] = "";
    int named = 0, there = 0;
    for (int i = 0; i < server.config.size; i++) {
        size_t n = strlen(missing);
        there += server.seen[i].here;
        if (!server.seen[i].here && named++ < NAMED_MOST)
            snprintf(missing + n, sizeof missing - n, "%s%d", n ? ", " : "", i);
    }
    WARN("check that the missing ranks run, have rank 0's address, and are not stopped by a "
         "firewall", "only %d of %d ranks connected within %.3g s; %s: %s%s", there,
         server.config.size, waited, ends ? "missing" : "waiting for", missing,
         named > NAMED_MOST ? ", ..." : "");
}

// Has a rank died that its own supervisor has not reported? Names the first that did.
static void judge_deaths(double now)
{
    const Peer *dead = NULL;
    char text[PROGRESS_LINE + 200];
    for (const Peer *p = server.seen; p < server.seen + server.config.size; p++)
        if (p->ended > 0 && !p->record.done && (!dead || p->ended < dead->ended))
            dead = p;
    if (!dead || now < dead->ended + (dead->supervised ? supervisor_delay : 0))
        return;
    name_peer((int)(dead - server.seen), now, text);
    WARN("with --save, --resume auto continues from the last checkpoint", "lost %s", text);
    store_end_all(!server.config.supervised);
}

// Copies what is known of the ranks. Returns the number of beats and of joined ranks, or -1: the
// run is over. absent: this process was stopped, so nothing could be heard.
static int64_t look(bool absent, bool *all)
{
    lock();
    int64_t signs = server.over ? -1 : server.joined;
    *all = server.joined == server.config.size;
    progress_read(&server.peers[0].record);
    server.peers[0].heard = clock_now();
    for (Peer *p = server.peers; p < server.peers + server.config.size; p++) {
        p->heard = absent ? clock_now() : p->heard;
        signs += server.over ? 0 : p->record.beats;
    }
    memcpy(server.seen, server.peers, (size_t)server.config.size * sizeof *server.seen);
    unlock();
    return signs;
}

// A run whose steps are longer than the early line shall not print it each time: the line comes
// after twice the longest pause that has ended so far.
static void *watch(void *arg)
{
    const double timeout = server.config.timeout > 0 ? server.config.timeout : INFINITY;
    double since = clock_now(), last = since, early = early_line;
    int64_t before = 0;
    for (bool told = false;; usleep(100000)) {
        double now = clock_now();
        bool all, absent = now - last > 2;
        int64_t signs = look(absent, &all);
        if (signs < 0)
            return NULL;
        last = now;
        judge_deaths(now);
        if (signs != before || absent) {
            early = all && !absent ? fmax(early, 2 * (now - since)) : early;
            since = now;
            told = false;
        }
        before = signs;
        bool ends = now - since >= timeout, tells = !told && now - since >= early;
        if (ends || tells)
            (all ? report_stuck : report_missing)(now, ends ? timeout : now - since, ends);
        if (ends)
            store_end_all(false);
        told = told || tells;
    }
    return NULL;
}

void store_serve(const StoreConfig *config)
{
    size_t size = (size_t)config->size;
    server.config = *config;
    server.peers = xcalloc(size, sizeof *server.peers);
    server.seen = xcalloc(size, sizeof *server.seen);
    server.peers[0] = (Peer){ .here = true, .pid = (int)getpid(), .heard = clock_now() };
    gethostname(server.peers[0].host, STORE_NAME - 1);
    server.joined = 1;
    if (size == 1) {
        begin_run();
    } else {
        fcntl(config->socket, F_SETFD, FD_CLOEXEC);
        fcntl(config->socket, F_SETFL, 0);      // accept waits
        CHECK(listen(config->socket, SOMAXCONN) == 0,
              "another program may be using it (ss -ltnp shows which): choose a different "
              "--master-port", "cannot listen on port %d of %s: %s", config->place.port,
              config->place.address, strerror(errno));
        pthread_detach(thread_start(accept_all, NULL, "the store"));
    }
    pthread_detach(thread_start(watch, NULL, "the watch"));
}
