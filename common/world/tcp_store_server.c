// tcp_store_server.c - rank 0's thread: lets ranks in, keeps the store, hears from every rank,
// judges.
//
// Nothing here waits for one connection. A stranger has 5 s to prove that it is a rank, may send
// one Hello, and takes one of a few places.
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
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STRANGERS = 64, AT_ONCE = 32, SLICE_MS = 50 };
static const double politeness = 5;     // s for a connection to prove that it is a rank
static const double farewell = 2;       // s for the others to leave, when rank 0 does
static const double last_words = 0.5;   // s for words to arrive
static const double courtesy = 1.5;     // s for a supervisor to say how its rank died

typedef struct Peer {
    int socket, rank;                   // rank -1: a stranger
    double since;                       // s
    bool leaving;                       // nothing it does matters any more
    Greeting greeting;                  // what it was sent
    char *in, *out;                     // the message that is coming; what waits to be sent
    size_t filled, sent, out_bytes;
    char where[TCP_PLACE_TEXT];
} Peer;

typedef struct Entry {
    struct Entry *next;
    size_t bytes;
    char key[STORE_KEY], value[];
} Entry;

struct TcpStoreServer {
    TcpStoreConfig config;
    StorePerson self, *persons;         // (size) by rank: who it is, or was
    Peer *peers;
    int count, most;
    Entry *entries;
    Watch watch;                        // ended > 0 before all are there: the rank is not there
    Alive *pages;
    int there;
    bool going;
    double begun, looked, deaf;         // s; deaf: no more connections until then
    int refused;
    char refusal[200];                  // the last
    atomic_bool stop;
    pthread_t thread;
};

// --- what is sent --------------------------------------------------------------------------------

static void flush_out(Peer *p)
{
    while (p->sent < p->out_bytes) {
        ssize_t n = send(p->socket, p->out + p->sent, p->out_bytes - p->sent,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n <= 0)
            return;                     // a broken connection is noticed where it is read
        p->sent += (size_t)n;
    }
    p->sent = p->out_bytes = 0;
}

static void send_bytes(Peer *p, const void *bytes, size_t count)
{
    p->out = realloc(p->out, p->out_bytes + count + 1);
    CHECK(p->out, "", "out of memory: %zu bytes for messages", p->out_bytes + count);
    memcpy(p->out + p->out_bytes, bytes, count);
    p->out_bytes += count;
}

static void answer(Peer *p, StoreWhat what, const void *value, size_t bytes)
{
    StoreHead head = { .what = what, .bytes = (uint32_t)bytes };
    send_bytes(p, &head, sizeof head);
    if (bytes > 0)
        send_bytes(p, value, bytes);
    flush_out(p);
}

// Until all that was sent has arrived, or (gone) the others have closed; or it takes too long.
static void send_rest(TcpStoreServer *s, bool gone)
{
    char nothing[256];
    bool busy = true;
    for (double until = clock_now() + last_words; busy && clock_now() < until; usleep(2000)) {
        busy = false;
        for (int i = 0; i < s->count; i++) {
            Peer *p = &s->peers[i];
            flush_out(p);
            bool closed = p->rank == 0 ||
                          recv(p->socket, nothing, sizeof nothing, MSG_DONTWAIT) == 0;
            busy = busy || (gone && !closed) || (!closed && p->out_bytes > 0);
        }
    }
}

// Rank 0 says why, unless it has said so (NULL); the others end without a word.
static _Noreturn void end_run(TcpStoreServer *s, const Error *words)
{
    if (words)
        WARN(words->hint, "%s", words->text);
    for (int i = 0; i < s->count; i++)
        if (s->peers[i].rank > 0 && !s->peers[i].leaving)
            answer(&s->peers[i], STORE_OVER, NULL, 0);
    send_rest(s, true);
    leave_at_once();
}

static void refuse(TcpStoreServer *s, Peer *p, const char *why)
{
    snprintf(s->refusal, sizeof s->refusal, "%s: %s", p->where, why);
    if (s->refused++ == 0)
        WARN("it is not let in; others are counted", "a stranger at %s knocks: %s", p->where, why);
}

// --- who may join --------------------------------------------------------------------------------

static void send_away(TcpStoreServer *s, Peer *p, bool final, const Error *error)
{
    StoreWords words = { *error, final };
    answer(p, STORE_NO, &words, sizeof words);
    p->leaving = true;
    p->since = s->looked;
}

static const char *name_of(const StorePerson *person, char text[120])
{
    snprintf(text, 120, "rank %d (%.70s, pid %d)", (int)person->rank, person->host, (int)person->pid);
    return text;
}

static bool is_newer(const TcpStoreServer *s, const StorePerson *person)
{
    const StorePerson *present = &s->persons[person->rank];
    return person->generation > present->generation && strcmp(person->host, present->host) == 0;
}

// Does it contradict what is known? That ends the run, for it would never be complete.
static bool fits(const TcpStoreServer *s, const StorePerson *person, Error *error)
{
    char who[120], other[120];
    name_of(person, who);
    if (person->size != s->self.size)
        return error_set(error, "all ranks need the same world size", "%s says that there are %d "
                         "ranks, %s says %d", who, (int)person->size, name_of(&s->self, other),
                         (int)s->self.size);
    if (person->rank < 0 || person->rank >= s->self.size)
        return error_set(error, "ranks are numbered from 0", "%s comes, but there are %d ranks: 0 to "
                         "%d", who, (int)s->self.size, (int)s->self.size - 1);
    return s->watch.ranks[person->rank].ended > 0 || is_newer(s, person) ||
           error_set(error, "each process needs a rank of its own; do two machines have the same "
                     "--node-rank?", "%s is there twice: %s, pid %d, comes too",
                     name_of(&s->persons[person->rank], other), person->host, (int)person->pid);
}

// After all were there. If it is of a newer start, one of ours is gone, and the others must start
// again.
static void come_late(TcpStoreServer *s, Peer *p, const StorePerson *person)
{
    Error error;
    bool newer = person->rank >= 0 && person->rank < s->self.size && is_newer(s, person);
    error_set(&error, "one process too many? another run may have this port", "the run has begun: "
              "all %d ranks are there", (int)s->self.size);
    send_away(s, p, !newer, &error);
    if (newer) {
        error_set(&error, "", "rank %d was started again on %s: its run cannot continue without it",
                  (int)person->rank, person->host);
        end_run(s, &error);
    }
}

static void welcome(TcpStoreServer *s, Peer *p, const Hello *hello)
{
    Welcome words = { .rank0 = s->self };
    int rank = hello->person.rank;
    for (int i = 0; i < s->count; i++)  // one of before, which has not noticed yet
        if (s->peers[i].rank == rank)
            s->peers[i].leaving = true;
    s->there += s->watch.ranks[rank].ended > 0;
    s->watch.ranks[rank].ended = 0;
    s->persons[rank] = hello->person;
    p->rank = rank;
    secret_prove(&s->config.secret, "rank 0", hello, sizeof *hello, words.proof);
    answer(p, STORE_WELCOME, &words, sizeof words);
}

static void take_hello(TcpStoreServer *s, Peer *p)
{
    Hello hello;
    Error error;
    memcpy(&hello, p->in, sizeof hello);
    hello.person.host[STORE_NAME - 1] = hello.person.run[STORE_NAME - 1] = '\0';
    const Secret *secret = &s->config.secret;
    bool loopback = tcp_is_loopback(tcp_place(p->socket, false).address);
    if (memcmp(hello.client.magic, STORE_MAGIC, sizeof hello.client.magic) != 0)
        error_set(&error, "", "this is another program, or another version of this one");
    else if (hello.client.secret != secret->known)
        error_set(&error, "all ranks need the same: --token-file FILE, or one launcher for all",
                  secret->known ? "it has no token, but rank 0 has one"
                                : "it has a token, but rank 0 has none");
    else if (memcmp(&hello.server, &p->greeting, sizeof p->greeting) != 0 ||
             !secret_proves(secret, "rank", &hello, offsetof(Hello, proof), hello.proof))
        error_set(&error, "all ranks need the same: --token-file FILE, or one launcher for all",
                  "it does not know our token");
    else if (!secret->known && loopback && !tcp_same_user(p->socket))
        error_set(&error, "another port, or a token (--token-file)",
                  "it belongs to another user, and there is no token");
    else if (strcmp(hello.person.run, s->self.run) != 0) {
        error_set(&error, "another port", "another run is there ('%s', not '%s')", s->self.run,
                  hello.person.run);
        send_away(s, p, false, &error);
        return;
    } else if (s->going) {
        come_late(s, p, &hello.person);
        return;
    } else if (fits(s, &hello.person, &error)) {
        welcome(s, p, &hello);
        return;
    } else {
        send_away(s, p, true, &error);
        end_run(s, &error);
    }
    refuse(s, p, error.text);
    send_away(s, p, false, &error);
}

// --- what ranks ask ------------------------------------------------------------------------------

static Entry **find(TcpStoreServer *s, const char *key)
{
    Entry **at = &s->entries;
    while (*at && strcmp((*at)->key, key) != 0)
        at = &(*at)->next;
    return at;
}

static void keep(TcpStoreServer *s, const char *key, const void *value, size_t bytes)
{
    Entry **at = find(s, key), *old = *at, *entry = xmalloc(sizeof *entry + bytes);
    *entry = (Entry){ .next = old ? old->next : NULL, .bytes = bytes };
    snprintf(entry->key, sizeof entry->key, "%s", key);
    memcpy(entry->value, value, bytes);
    *at = entry;
    free(old);
}

static void take_question(TcpStoreServer *s, Peer *p)
{
    StoreHead head;
    Watched *rank = &s->watch.ranks[p->rank];
    const char *value = p->in + sizeof head;
    memcpy(&head, p->in, sizeof head);
    head.key[STORE_KEY - 1] = '\0';
    const Entry *entry = head.what == STORE_GET ? *find(s, head.key) : NULL;
    rank->heard = s->looked;
    if (head.what == STORE_PUT)
        keep(s, head.key, value, head.bytes);
    else if (head.what == STORE_BEAT && head.bytes == sizeof(Alive))
        memcpy(rank->alive, value, sizeof(Alive));
    else if (head.what == STORE_OVER)
        end_run(s, NULL);
    else if (head.what == STORE_END)
        rank->alive->done = p->leaving = true;
    if (p->leaving)
        p->since = rank->ended = s->looked;
    answer(p, entry ? STORE_VALUE : head.what == STORE_GET ? STORE_NOT_YET : STORE_DONE,
           entry ? entry->value : NULL, entry ? entry->bytes : 0);
}

// --- connections ---------------------------------------------------------------------------------

static void forget(TcpStoreServer *s, int i)
{
    Peer *p = &s->peers[i];
    if (p->rank >= 0 && !p->leaving) {
        s->watch.ranks[p->rank].ended = s->looked;
        s->there--;
    }
    close(p->socket);
    free(p->in);
    free(p->out);
    *p = s->peers[--s->count];
}

// How long the message is that is coming, as far as that is known.
static size_t wanted(const Peer *p)
{
    StoreHead head = { .bytes = 0 };
    if (p->rank < 0)
        return sizeof(Hello);
    if (p->filled >= sizeof head)
        memcpy(&head, p->in, sizeof head);
    return head.bytes > STORE_MOST ? 0 : sizeof head + head.bytes;
}

// Takes what has come, but no second message before the first is answered. False: it is gone.
static bool take(TcpStoreServer *s, Peer *p)
{
    flush_out(p);
    while (p->out_bytes == 0) {
        size_t all = wanted(p);
        p->in = all > 0 ? realloc(p->in, all) : p->in;
        ssize_t n = 0;
        if (all > 0 && p->in)
            n = recv(p->socket, p->in + p->filled, all - p->filled, MSG_DONTWAIT);
        if (n <= 0)
            return n < 0 && (errno == EAGAIN || errno == EINTR);
        p->filled += (size_t)n;
        if (p->filled < wanted(p) || wanted(p) == 0)
            continue;
        if (!p->leaving && p->rank < 0)
            take_hello(s, p);
        else if (!p->leaving)
            take_question(s, p);
        p->filled = 0;
    }
    return true;
}

// Ranks are there to stay; of the strangers too many the oldest goes.
static void make_room(TcpStoreServer *s)
{
    int oldest = -1, strangers = 0;
    for (int i = 0; i < s->count; i++) {
        bool stranger = s->peers[i].rank < 0 || s->peers[i].leaving;
        strangers += stranger;
        if (stranger && (oldest < 0 || s->peers[i].since < s->peers[oldest].since))
            oldest = i;
    }
    if (strangers >= STRANGERS + s->self.size)
        forget(s, oldest);
}

static void let_in(TcpStoreServer *s, int listening)
{
    for (int i = 0; i < AT_ONCE; i++) {
        make_room(s);
        int socket = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket < 0 && (errno == EMFILE || errno == ENFILE))
            s->deaf = s->looked + 0.5;
        if (socket < 0)
            return;
        Peer *p = &s->peers[s->count++];
        TcpPlace place = tcp_place(socket, true);
        *p = (Peer){ .socket = socket, .rank = -1, .since = s->looked };
        snprintf(p->where, sizeof p->where, "%s:%d", place.address, place.port);
        Secret random = secret_random();
        p->greeting = (Greeting){ STORE_MAGIC, s->config.secret.known, { 0 } };
        memcpy(p->greeting.random, random.bytes, sizeof p->greeting.random);
        send_bytes(p, &p->greeting, sizeof p->greeting);
        flush_out(p);
    }
}

static void serve(TcpStoreServer *s)
{
    struct pollfd fds[s->most + STORE_PLACES];
    int first = s->config.count;
    for (int i = 0; i < first; i++)
        fds[i] = (struct pollfd){ .fd = s->looked < s->deaf ? -1 : s->config.sockets[i],
                                  .events = POLLIN };
    for (int i = 0; i < s->count; i++)
        fds[first + i] = (struct pollfd){ .fd = s->peers[i].socket,
                                          .events = s->peers[i].out_bytes ? POLLOUT : POLLIN };
    poll(fds, (nfds_t)(first + s->count), SLICE_MS);
    double now = clock_now();
    if (now > s->looked + 1)
        s->begun += now - s->looked;    // we were stopped ourselves
    s->looked = now;
    for (int i = s->count - 1; i >= 0; i--) {
        Peer *p = &s->peers[i];
        bool late = (p->rank < 0 || p->leaving) && now > p->since + politeness;
        if (late && !p->leaving)
            refuse(s, p, "it does not say who it is");
        if (late || (fds[first + i].revents && !take(s, p)))
            forget(s, i);
    }
    for (int i = 0; i < first; i++)
        if (fds[i].revents)
            let_in(s, s->config.sockets[i]);
}

// --- the thread ----------------------------------------------------------------------------------

static void go(TcpStoreServer *s)
{
    char run[STORE_NAME];
    uint64_t random[2] = { 0, (uint64_t)(1e9 * clock_now()) };
    if (getrandom(random, sizeof random, 0) < 0)
        random[0] = (uint64_t)getpid();
    snprintf(run, sizeof run, "%d-%016llx%016llx", (int)getpid(), (unsigned long long)random[0],
             (unsigned long long)random[1]);
    for (int i = 0; i < s->self.size; i++) {
        Watched *rank = &s->watch.ranks[i];
        bool here = strcmp(s->persons[i].host, s->self.host) == 0;
        rank->pid = s->persons[i].pid;
        rank->host = s->persons[i].host;
        rank->heard = rank->beaten = s->looked;
        // A supervisor knows more; here it is judged only if that says nothing.
        rank->slack = !s->persons[i].supervised ? 0 : here ? 2 * courtesy : courtesy;
    }
    s->watch.looked = s->looked;
    keep(s, "run", run, strlen(run) + 1);
    s->going = true;
}

static _Noreturn void give_up(TcpStoreServer *s)
{
    Error error;
    char missing[320] = "";
    int named = 0;
    for (int i = 0; i < s->self.size; i++)
        if (s->watch.ranks[i].ended > 0 && named++ < 16) {
            size_t n = strlen(missing);
            snprintf(missing + n, sizeof missing - n, "%s%d%s", n ? ", " : "", i,
                     s->persons[i].size ? " (gone again)" : "");
        }
    char hint[sizeof error.hint] = "are they started, and do they look for rank 0 here? does a "
                                   "firewall stand in between? --timeout gives more time";
    if (s->refused > 0)
        snprintf(hint, sizeof hint, "refused were %d; the last: %s", s->refused, s->refusal);
    error_set(&error, hint, "%d of %d ranks came within %.3g s: missing %s %s%s", s->there,
              (int)s->self.size, s->config.timeout, named > 1 ? "are" : "is", missing,
              named > 16 ? ", ..." : "");
    end_run(s, &error);
}

static void look(TcpStoreServer *s)
{
    double patience = s->config.supervised ? courtesy : 0;   // a supervisor may know more
    if (!s->going && s->there == s->self.size)
        go(s);
    else if (!s->going && s->config.timeout > 0 && s->looked > s->begun + s->config.timeout + patience)
        give_up(s);
    if (s->going && watch_judge(&s->watch))
        end_run(s, NULL);
}

static bool others_left(const TcpStoreServer *s)
{
    for (int i = 0; i < s->count; i++)
        if (s->peers[i].rank > 0 && !s->peers[i].leaving)
            return false;
    return true;
}

static void *run(void *arg)
{
    TcpStoreServer *s = arg;
    for (double stopped = 0; stopped == 0 || (!others_left(s) && s->looked < stopped + farewell);) {
        serve(s);
        look(s);
        if (stopped == 0 && atomic_load(&s->stop))
            stopped = s->looked;
    }
    send_rest(s, false);
    if (s->refused > 1)
        WARN("", "in all, %d connections were refused; the last: %s", s->refused, s->refusal);
    return NULL;
}

TcpStoreServer *tcp_store_server_new(const TcpStoreConfig *config, const StorePerson *self)
{
    TcpStoreServer *s = xcalloc(1, sizeof *s);
    struct rlimit files;
    s->config = *config;
    s->self = *self;
    s->begun = s->looked = clock_now();
    s->most = 2 * self->size + STRANGERS + 1;
    s->peers = xcalloc((size_t)s->most, sizeof *s->peers);
    s->persons = xcalloc((size_t)self->size, sizeof *s->persons);
    s->pages = alive_pages(self->size, NULL);
    s->watch = (Watch){ .size = self->size, .looked = s->looked };
    s->watch.ranks = xcalloc((size_t)self->size, sizeof *s->watch.ranks);
    for (int i = 0; i < self->size; i++)
        s->watch.ranks[i] = (Watched){ .alive = &s->pages[i], .ended = s->looked };
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (int i = 0; i < config->count; i++) {
        fcntl(config->sockets[i], F_SETFL, O_NONBLOCK);
        fcntl(config->sockets[i], F_SETFD, FD_CLOEXEC);
        CHECK(listen(config->sockets[i], 128) == 0, "another run may have it (ss -ltnp): choose "
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
    while (s->count > 0)
        forget(s, s->count - 1);
    for (int i = 0; i < s->config.count; i++)
        close(s->config.sockets[i]);
    for (Entry *entry = s->entries, *next; entry; entry = next) {
        next = entry->next;
        free(entry);
    }
    alive_pages_free(s->pages, s->self.size);
    free(s->watch.ranks);
    free(s->persons);
    free(s->peers);
    free(s);
}
