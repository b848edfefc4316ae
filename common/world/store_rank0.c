// store_rank0.c - rank 0's side of the store: admits ranks, stores values, and watches the records.
//
// No answer is sent, and no message printed, while the lock is held: so a rank that does not read
// its answers delays no other rank.
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

static const double hello_limit = 5;        // seconds from a connection to its HELLO
static const double early_line = 10;        // seconds without a beat before a line is printed
static const double silence = 5;            // a record is old after this many seconds of silence
static const double leave_limit = 1.5;      // seconds for all ranks to receive END and exit

typedef struct Entry {
    struct Entry *next;
    size_t bytes;
    char key[STORE_KEY], value[];
} Entry;

typedef struct Peer {                   // what rank 0 knows about a rank
    bool here;
    int pid, socket;
    char host[STORE_NAME];
    Progress record;
    double heard, ended;                // time (s) of the last message and the disconnect, or 0
} Peer;

static struct {
    StoreConfig config;
    Peer *peers, *seen;                 // (size each); seen: a copy for the watch
    Entry *entries;                     // never freed: answers point to them
    bool over;
    pthread_mutex_t lock;               // guards the three lines above, except `seen`
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

static int joined(void)
{
    int count = 0;
    for (int i = 0; i < server.config.size; i++)
        count += server.peers[i].here;
    return count;
}

// --- the end -------------------------------------------------------------------------------------

void store_await_leaving(double seconds)
{
    int left = 1;
    for (double until = clock_now() + seconds; left > 0 && clock_now() < until; usleep(20000)) {
        left = 0;
        lock();
        for (int i = 1; i < server.config.size; i++)
            left += server.peers[i].here && server.peers[i].ended == 0;
        unlock();
    }
}

void store_end_all(void)
{
    static atomic_flag ending = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&ending))
        pause();                        // another thread is ending the run
    lock();
    server.over = true;
    unlock();
    store_await_leaving(leave_limit);
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
        answer.what = STORE_END;
    else if (entry)
        answer = (StoreHead){ .what = STORE_VALUE, .bytes = (uint32_t)entry->bytes };
    unlock();
    *value = entry ? entry->value : NULL;
    return answer;
}

// Is there a reason for refusing this process? A process that is already here may join again:
// perhaps it gave up waiting for the answer to its HELLO.
static bool is_refused(const StoreHead *head, const StoreHello *new, char reason[STORE_REASON])
{
    const StoreConfig *c = &server.config;
    const Peer *p = &server.peers[new->rank > 0 && new->rank < c->size ? new->rank : 0];
    if (head->what != STORE_HELLO || head->bytes != sizeof *new)
        snprintf(reason, STORE_REASON, "it is a different program or version of ddp.c");
    else if (strncmp(new->token, c->token, STORE_TOKEN) != 0)
        snprintf(reason, STORE_REASON, "its token is not rank 0's: set the same DDP_TOKEN on all "
                 "ranks, or on none");
    else if (strncmp(new->run, c->run, STORE_NAME) != 0)
        snprintf(reason, STORE_REASON, "it is from a different run: choose a different port");
    else if (new->size != c->size)
        snprintf(reason, STORE_REASON, "its world size is %d, but rank 0's is %d: set the same "
                 "world size on all ranks", new->size, c->size);
    else if (p->here && (p->pid != new->pid || strcmp(p->host, new->host) != 0))
        snprintf(reason, STORE_REASON, "rank %d has joined already (%s, pid %d): check that "
                 "no two machines have the same --node-rank", new->rank, p->host, p->pid);
    for (int i = 1; i < c->size && !reason[0]; i++)
        if (server.peers[i].ended > 0)
            snprintf(reason, STORE_REASON, "rank %d has died, so this run will end soon", i);
    return reason[0];
}

static void join(int socket, const StoreHello *new)
{
    Peer *p = &server.peers[new->rank];
    *p = (Peer){ .here = true, .pid = new->pid, .socket = socket, .heard = clock_now() };
    memcpy(p->host, new->host, sizeof p->host);
    if (joined() == server.config.size && !find("run"))
        put("run", "", 1);      // all ranks wait for this key
}

// Has the process closed this connection? If it gave up waiting, it may be here by a newer one.
static bool is_closed(int socket)
{
    return recv(socket, &(char){ 0 }, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

// Receives a HELLO, and answers it. Returns the new rank, or -1.
static int admit(int socket)
{
    StoreHead head = { 0 };
    StoreHello hello = { 0 };
    void *value = NULL;
    char answer[STORE_REASON] = "";
    tcp_limit(socket, hello_limit);
    if (!store_receive(socket, &head, &value, sizeof hello))
        memcpy(&hello, value, head.bytes);
    free(value);
    hello.host[STORE_NAME - 1] = '\0';
    lock();
    bool refused = is_closed(socket) || is_refused(&head, &hello, answer);
    if (!refused)
        join(socket, &hello);
    unlock();
    if (!refused)
        snprintf(answer, sizeof answer, "%s, pid %d", server.peers[0].host, server.peers[0].pid);
    store_send(socket, (StoreHead){ .what = refused ? STORE_NO : STORE_DONE,
                                    .bytes = (uint32_t)strlen(answer) }, answer);
    tcp_limit(socket, 0);
    return refused ? -1 : hello.rank;
}

// A connection has closed. If its rank has not beaten yet, the rank counts as not joined.
static void lose(int rank, int socket)
{
    Peer *p = &server.peers[rank];
    lock();
    if (p->socket == socket && p->record.beats == 0)
        *p = (Peer){ .here = false };
    else if (p->socket == socket)
        p->ended = clock_now();
    unlock();
}

static void *serve(void *arg)
{
    int socket = (int)(intptr_t)arg, rank = admit(socket);
    StoreHead head;
    void *sent = NULL;
    const void *value;
    bool open = rank > 0;
    while (open && !store_receive(socket, &head, &sent, STORE_MOST)) {
        StoreHead answer = store_answer(rank, &head, sent, &value);
        free(sent);
        sent = NULL;
        open = !store_send(socket, answer, value);
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
        if (socket >= 0)
            pthread_detach(thread_start(serve, (void *)(intptr_t)socket, "a connection"));
        else
            usleep(100000);             // too many files are open: perhaps only for a moment
    }
    return NULL;
}

// --- the watch -----------------------------------------------------------------------------------

static void name_peer(const Peer *p, double now, char text[PROGRESS_LINE + 200])
{
    char how[PROGRESS_LINE], old[80] = "";
    if (now - p->heard > silence && p->ended == 0)
        snprintf(old, sizeof old, "stopped or cut off, silent for %.4g s, ", now - p->heard);
    snprintf(text, PROGRESS_LINE + 200, "rank %d of %d (%s, pid %d): %s%s", (int)(p - server.seen),
             server.config.size, p->host, p->pid, old, progress_describe(&p->record, how));
}

// Applies the rule of store.h. Negative: the other ranks wait for `a`, not `b`. Positive: they wait
// for `b`. 0: the records do not show which.
static int64_t compare(const Peer *a, const Peer *b, double now)
{
    int64_t heard = (now - a->heard < silence) - (now - b->heard < silence);
    int64_t calls = a->record.calls - b->record.calls, epochs = a->record.epoch - b->record.epoch;
    return heard ? heard : calls ? calls : epochs ? epochs : a->record.step - b->record.step;
}

// The records do not show which rank the others wait for: perhaps two ranks are in different calls.
static void report_tie(const char *what, double now, bool ends)
{
    const Peer *seen = server.seen;
    int size = server.config.size, other = size - 1;
    char text[PROGRESS_LINE + 200];
    while (other > 1 && strcmp(seen[other].record.call, seen[0].record.call) == 0)
        other--;
    WARN("all ranks must make the same calls in the same order. If they do, check the network and "
         "the firewall: ranks connect in pairs, on any port",
         "%s; at call %lld, rank 0 is in %s, rank %d in %s", what,
         (long long)seen[0].record.calls, seen[0].record.call, other, seen[other].record.call);
    for (int i = 0; ends && i < size; i++) {
        name_peer(&seen[i], now, text);
        WARN("", "%s", text);
    }
}

static void report_stuck(double now, double waited, bool ends)
{
    const Peer *first = server.seen, *end = server.seen + server.config.size;
    int named = 0;
    char what[120], text[PROGRESS_LINE + 200], more[40] = "", hint[80] = "";
    for (const Peer *p = server.seen; p < end; p++)
        first = compare(p, first, now) < 0 ? p : first;
    for (const Peer *p = server.seen; p < end; p++)
        named += compare(p, first, now) == 0;
    snprintf(what, sizeof what, "no rank has made progress for %.4g s%s", waited,
             ends ? " (--timeout)" : "");
    if (named == server.config.size && named > 1) {
        report_tie(what, now, ends);
        return;
    }
    name_peer(first, now, text);
    if (named > 1)
        snprintf(more, sizeof more, "; and %d more rank%s", named - 1, named > 2 ? "s" : "");
    if (!ends && server.config.timeout > 0)
        snprintf(hint, sizeof hint, "the run ends after %g s without progress (--timeout)",
                 server.config.timeout);
    WARN(hint, "%s; %s%s%s", what, server.config.size > 1 ? "all wait for " : "", text, more);
}

static void report_missing(double now, double waited, bool ends)
{
    char missing[200] = "";
    int size = server.config.size, there = size;
    for (int i = 0; i < size; i++)
        if (!server.seen[i].here) {
            size_t n = strlen(missing);
            snprintf(missing + n, sizeof missing - n, "%s%d", n ? ", " : "", i);
            there--;
        }
    WARN("check that the missing ranks run, have rank 0's address and port, and are not stopped by "
         "a firewall", "only %d of %d ranks connected within %.4g s; %s rank%s %s", there, size,
         waited, ends ? "missing:" : "waiting for", size - there > 1 ? "s" : "", missing);
}

// Ends the run if a rank has died. First gives a supervisor death_delay to notice the death.
static void judge_deaths(double now)
{
    const Peer *dead = NULL;
    bool supervised = server.config.supervised;
    char text[PROGRESS_LINE + 200];
    for (const Peer *p = server.seen; p < server.seen + server.config.size; p++)
        if (p->ended > 0 && !p->record.done && (!dead || p->ended < dead->ended))
            dead = p;
    if (!dead || (supervised && now < dead->ended + death_delay))
        return;
    name_peer(dead, now, text);
    WARN("to continue from the last checkpoint, use --save FILE --resume auto", "lost %s", text);
    usleep(supervised ? 0 : (useconds_t)(1e6 * death_delay));
    store_end_all();
}

// Copies the peers to `seen`. Returns beats + joined ranks, a sum that each sign of life changes;
// or -1: the run is over. absent: this process was stopped, so it could hear nothing.
static int64_t look(bool absent, bool *all)
{
    double now = clock_now();
    lock();
    int64_t signs = joined();
    *all = signs == server.config.size;
    progress_read(&server.peers[0].record);
    server.peers[0].heard = now;
    for (Peer *p = server.peers; p < server.peers + server.config.size; p++) {
        p->heard = absent ? now : p->heard;
        signs += p->record.beats;
    }
    memcpy(server.seen, server.peers, (size_t)server.config.size * sizeof *server.seen);
    signs = server.over ? -1 : signs;
    unlock();
    return signs;
}

// If steps take longer than early_line, one line per step would be too many. So a line is printed
// only after twice the longest pause before this one.
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
            store_end_all();
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
    if (size == 1) {
        put("run", "", 1);      // all ranks wait for this key
    } else {
        fcntl(config->socket, F_SETFD, FD_CLOEXEC);
        fcntl(config->socket, F_SETFL, 0);      // makes accept wait
        CHECK(listen(config->socket, SOMAXCONN) == 0,
              "another program may be using it (ss -ltnp shows which): choose a different "
              "--master-port", "cannot listen on %s:%d: %s", config->place.address,
              config->place.port, strerror(errno));
        pthread_detach(thread_start(accept_all, NULL, "the store"));
    }
    pthread_detach(thread_start(watch, NULL, "the watchdog"));
}
