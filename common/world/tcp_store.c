// tcp_store.c - a rank's side of the store: finds rank 0, asks, and sends signs of life.
//
//   training thread   join | put | get ........ |                       | end
//   store's thread         | beat  | beat  | beat  | beat  | beat  ...  |
//
// Both ask over one connection, one question at a time.
#include "world/tcp_store_message.h"
#include "clock.h"
#include "interrupt.h"
#include "threads.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const double courtesy = 1;       // s for whoever started a lost rank to say how it died
static const double farewell = 2;       // s for rank 0 to take note that we leave
enum { SLICE_MS = 100 };

typedef struct TcpStore {
    int rank, size, socket;
    bool supervised;
    double timeout;                     // s that an answer may take; 0: any
    StorePerson rank0;
    TcpStoreServer *server;             // rank 0's, else NULL
    pthread_t thread;
    pthread_mutex_t lock;               // over the connection, and what follows
    bool leaving, lost;                 // lost: rank 0 was the first to leave
    char run[STORE_NAME];
} TcpStore;

// --- the end -------------------------------------------------------------------------------------

static void sleep_s(double s)
{
    struct timespec left = { (time_t)s, (long)(1e9 * (s - (double)(time_t)s)) };
    while (nanosleep(&left, &left) != 0) {
    }
}

// Rank 0 is gone, or silent. Its supervisor, if that is also ours, says more, and ends us. Returns
// if all is done here, and the main thread is about to exit.
static void lose_rank0(const TcpStore *s, const char *how)
{
    char host[STORE_NAME] = "";
    gethostname(host, sizeof host - 1);
    bool told = s->supervised && s->rank0.supervised && strcmp(host, s->rank0.host) == 0;
    if (alive_here()->done)
        return;
    sleep_s(told ? 5 * courtesy : courtesy);
    if (s->rank > 0)
        WARN("what it or its machine said last tells why", "rank 0 (%s, pid %d) %s", s->rank0.host,
             (int)s->rank0.pid, how);
    leave_at_once();
}

// --- one connection ------------------------------------------------------------------------------

// Waits in slices: of the time in which this process was stopped, only one counts.
static const char *await(int socket, short events, double *left)
{
    struct pollfd fd = { .fd = socket, .events = events };
    while (poll(&fd, 1, SLICE_MS) <= 0)
        if (*left > 0 && (*left -= SLICE_MS / 1000.0) <= 0)
            return "does not answer: it is stopped, or its machine is out of reach";
    return NULL;
}

static const char closed[] = "is gone: the connection is closed";

// NULL, or what went wrong. seconds: 0: any.
static const char *send_all(int socket, const void *bytes, size_t count, double seconds)
{
    const char *why = NULL;
    for (size_t done = 0; done < count && !why;) {
        ssize_t n = send(socket, (const char *)bytes + done, count - done,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            done += (size_t)n;
        else if (n < 0 && errno != EAGAIN && errno != EINTR)
            return closed;
        else
            why = await(socket, POLLOUT, &seconds);
    }
    return why;
}

static const char *receive_all(int socket, void *bytes, size_t count, double seconds)
{
    const char *why = NULL;
    for (size_t done = 0; done < count && !why;) {
        ssize_t n = recv(socket, (char *)bytes + done, count - done, MSG_DONTWAIT);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || (errno != EAGAIN && errno != EINTR))
            return closed;
        else
            why = await(socket, POLLIN, &seconds);
    }
    return why;
}

// A head, and the value behind it, which the caller frees; NULL where there is none.
static const char *receive_message(int socket, StoreHead *head, void **value, double seconds)
{
    *value = NULL;
    const char *why = receive_all(socket, head, sizeof *head, seconds);
    if (why || head->bytes == 0)
        return why;
    if (head->bytes > STORE_MOST)
        return "sends something else than a store does";
    *value = xmalloc(head->bytes);
    return receive_all(socket, *value, head->bytes, seconds);
}

// --- asking --------------------------------------------------------------------------------------

// The lock is held. Returns what was answered, with its value.
static StoreWhat ask_locked(TcpStore *s, StoreWhat what, const char *key, const void *value,
                            size_t bytes, StoreHead *head, void **answer)
{
    *head = (StoreHead){ .what = what, .bytes = (uint32_t)bytes };
    snprintf(head->key, sizeof head->key, "%s", key);
    const char *why = send_all(s->socket, head, sizeof *head, s->timeout);
    if (!why && bytes > 0)
        why = send_all(s->socket, value, bytes, s->timeout);
    const char *heard = receive_message(s->socket, head, answer, s->timeout);  // it may say why
    if (!heard && head->what == STORE_OVER)
        leave_at_once();
    if (why || heard) {
        lose_rank0(s, heard ? heard : why);
        s->leaving = s->lost = true;
        head->what = STORE_OVER;
    }
    return head->what;
}

static StoreWhat ask(TcpStore *s, StoreWhat what, const char *key, const void *value, size_t bytes,
                     StoreHead *head, void **answer)
{
    while (pthread_mutex_trylock(&s->lock) != 0) {
        interrupt_leave();
        sleep_s(0.001);
    }
    StoreWhat answered = ask_locked(s, what, key, value, bytes, head, answer);
    pthread_mutex_unlock(&s->lock);
    return answered;
}

static void put(void *arg, const char *key, const void *value, size_t bytes)
{
    StoreHead head;
    void *answer;
    CHECK(strlen(key) < STORE_KEY && bytes <= STORE_MOST, "", "store: %.80s: a key of %zu bytes, a "
          "value of %zu: too long", key, strlen(key), bytes);
    alive_wait_begin();
    ask(arg, STORE_PUT, key, value, bytes, &head, &answer);
    alive_wait_end();
    free(answer);
}

// Asks again until somebody has put it, at most 50 times a second.
static size_t get(void *arg, const char *key, void *value, size_t capacity)
{
    StoreHead head;
    void *answer;
    alive_wait_begin();
    for (double pause = 0.001; ask(arg, STORE_GET, key, NULL, 0, &head, &answer) != STORE_VALUE;
         pause = pause < 0.02 ? 2 * pause : pause) {
        interrupt_leave();
        sleep_s(pause);
    }
    alive_wait_end();
    memcpy(value, answer ? answer : "", head.bytes < capacity ? head.bytes : capacity);
    free(answer);
    return head.bytes;
}

// The server ends this process, once the others have heard.
static void end(void *arg)
{
    StoreHead head;
    void *answer;
    ask(arg, STORE_OVER, "", NULL, 0, &head, &answer);
}

// --- signs of life -------------------------------------------------------------------------------

static void tell_signs(TcpStore *s)
{
    Alive page = { .beats = 0 };
    StoreHead head;
    void *answer;
    alive_copy(&page, alive_here());
    ask_locked(s, STORE_BEAT, "", &page, sizeof page, &head, &answer);
    free(answer);
}

// Between two beats it listens: the end of the run comes unasked, as the end of rank 0 does.
static void *beat(void *arg)
{
    TcpStore *s = arg;
    double pause = s->timeout <= 0 || s->timeout > 4 ? 1 : s->timeout / 4;
    struct pollfd fd = { .fd = s->socket, .events = POLLIN };
    bool leaving = false;
    for (double next = 0; !leaving;) {
        double now = clock_now();
        if (now < next)
            poll(&fd, 1, 1 + (int)(1000 * (next - now)));
        pthread_mutex_lock(&s->lock);
        leaving = s->leaving;
        bool due = clock_now() >= next;
        if (!leaving && (due || poll(&fd, 1, 0) > 0)) {
            tell_signs(s);
            next = clock_now() + pause;
        }
        pthread_mutex_unlock(&s->lock);
    }
    if (s->lost)
        pthread_detach(pthread_self()); // nobody may come to join it
    return NULL;
}

// --- finding rank 0 ------------------------------------------------------------------------------

typedef struct Search {
    const TcpStoreConfig *config;
    Error why;                          // of the last try that says most
    int telling;                        // how much: 0 nobody is there ... 2 the secrets differ
    bool final;                         // another try would not help
} Search;

static int fails(Search *s, int socket, int telling, const char *hint, const char *why)
{
    if (telling >= s->telling)
        error_set(&s->why, hint, "%s", why);
    s->telling = telling > s->telling ? telling : s->telling;
    close(socket);
    return -1;
}

static StorePerson person_of(const TcpStoreConfig *c)
{
    StorePerson me = { c->rank, c->size, (int32_t)getpid(), c->supervised, c->generation };
    gethostname(me.host, sizeof me.host - 1);
    snprintf(me.run, sizeof me.run, "%s", c->name);
    return me;
}

static Greeting greeting_of(const Secret *secret)
{
    Greeting greeting = { STORE_MAGIC, secret->known, { 0 } };
    Secret random = secret_random();
    memcpy(greeting.random, random.bytes, sizeof greeting.random);
    return greeting;
}

// Whoever is at the other end has accepted: is that our rank 0, and does it let us in? Returns the
// socket, or -1.
static int shake_hands(Search *s, int socket, double patience, StorePerson *rank0)
{
    const TcpStoreConfig *c = s->config;
    Hello hello = { .client = greeting_of(&c->secret), .person = person_of(c) };
    StoreHead head;
    union { Welcome welcome; StoreWords words; } *answer;
    const char *why = receive_all(socket, &hello.server, sizeof hello.server, patience);
    if (why)
        return fails(s, socket, 0, "", why);
    if (memcmp(hello.server.magic, STORE_MAGIC, sizeof hello.server.magic) != 0)
        return fails(s, socket, 0, "", "another program listens there, or another version of this");
    bool loopback = tcp_is_loopback(c->places[0].address);
    if (!c->secret.known && loopback && !tcp_same_user(socket))
        return fails(s, socket, 0, "another port, or a token (--token-file)",
                     "it belongs to another user");
    secret_prove(&c->secret, "rank", &hello, offsetof(Hello, proof), hello.proof);
    why = send_all(socket, &hello, sizeof hello, patience);
    why = why ? why : receive_message(socket, &head, (void **)&answer, patience);
    bool welcome = !why && head.what == STORE_WELCOME && head.bytes == sizeof answer->welcome;
    bool no = !why && head.what == STORE_NO && head.bytes == sizeof answer->words;
    if (welcome && secret_proves(&c->secret, "rank 0", &hello, sizeof hello, answer->welcome.proof)) {
        *rank0 = answer->welcome.rank0;
        free(answer);
        return socket;
    }
    Error words = { .text = "" };
    if (no) {
        words = answer->words.error;    // of whoever that is: it need not have an end
        words.text[sizeof words.text - 1] = words.hint[sizeof words.hint - 1] = '\0';
    }
    s->final = s->final || (no && answer->words.final);
    if (!why)
        free(answer);
    return no ? fails(s, socket, s->final ? 3 : 1, words.hint, words.text)
           : why ? fails(s, socket, 1, "", why)
                 : fails(s, socket, 2, "", "it does not know our token");
}

static _Noreturn void search_fails(const Search *s)
{
    const TcpStoreConfig *c = s->config;
    const TcpPlace *place = &c->places[0];
    char more[32] = "";
    if (c->count > 1)
        snprintf(more, sizeof more, " and %d places more", c->count - 1);
    if (s->final)
        FAIL(s->why.hint, "rank %d of %d: rank 0 at %s:%d%s does not let it in: %s", c->rank,
             c->size, place->address, place->port, more, s->why.text);
    FAIL(s->why.hint[0] ? s->why.hint : "is rank 0 started, and at this address? does a firewall "
         "stand in between? --timeout gives more time",
         "rank %d of %d has not found rank 0 at %s:%d%s within %.3g s: %s", c->rank, c->size,
         place->address, place->port, more, c->timeout, s->why.text);
}

// Rank 0 may start later, so a refusal counts only once there is no time left, or when rank 0
// itself says that it is final.
static int find_rank0(const TcpStoreConfig *c, StorePerson *rank0)
{
    Search s = { .config = c }, before = s; // of all places, the last time
    double patience = c->count > 1 ? 0.5 : 2, left = c->timeout > 0 ? c->timeout : 1e9;
    left += c->supervised ? courtesy : 0;       // the supervisor may know more
    for (double pause = 0.01;; pause = pause < 0.2 ? 2 * pause : pause) {
        before = s;
        s.telling = 0;
        for (int i = 0; i < c->count; i++) {
            double begun = clock_now();
            Error err;
            int socket = tcp_connect(&c->places[i], c->from, patience, &err);
            if (socket < 0 && s.telling == 0)
                s.why = err;
            else if (socket >= 0)
                socket = shake_hands(&s, socket, patience, rank0);
            if (socket >= 0)
                return socket;
            double took = clock_now() - begun;
            left -= took < 2 * patience ? took : 2 * patience;  // we may have been stopped
            if (s.final || left <= 0)
                search_fails(s.telling < before.telling ? &before : &s);
        }
        interrupt_leave();
        sleep_s(pause);
        left -= pause;
    }
}

// --- a life --------------------------------------------------------------------------------------

void tcp_store_add(TcpStoreConfig *c, const char *host, int port)
{
    Error err;
    c->places[c->count].port = port;
    if (!tcp_resolve(host, c->places[c->count++].address, &err))
        FAIL_ERROR(&err);
}

void tcp_store_bind(TcpStoreConfig *c)
{
    Error err = { .text = "" };
    int kept = 0;
    for (int i = 0; i < c->count && !(c->first_free && kept == 1); i++) {
        int socket = tcp_bind(&c->places[i], &err);
        if (socket >= 0 && c->first_free && listen(socket, 128) != 0) {
            close(socket);              // another run bound it too, and listens
            socket = tcp_bind(&c->places[i], &err);
        }
        if (socket < 0)
            continue;
        c->places[kept] = tcp_place(socket, false);
        c->sockets[kept++] = socket;
    }
    if (kept == 0)
        FAIL_ERROR(&err);
    c->count = kept;
}

void tcp_store_join(const TcpStoreConfig *config, World *world)
{
    static TcpStore store;              // a process has one
    TcpStore *s = &store;
    StorePerson self = person_of(config);
    *s = (TcpStore){ .rank = config->rank, .size = config->size, .timeout = config->timeout,
                     .supervised = config->supervised, .lock = PTHREAD_MUTEX_INITIALIZER };
    alive_wait_begin();
    if (config->rank == 0)
        s->server = tcp_store_server_new(config, &self);
    s->socket = find_rank0(config, &s->rank0);
    static TcpPlace own;
    own = tcp_place(s->socket, false);
    s->thread = thread_start(beat, s, "signs of life");
    get(s, "run", s->run, sizeof s->run);
    alive_wait_end();
    world->address = own.address;
    world->run = s->run;
    world->store = (Store){ put, get, end, s };
}

// The server answers END, and may be gone before it does.
void tcp_store_end(World *world)
{
    TcpStore *s = world->store.arg;
    StoreHead head = { .what = STORE_END };
    char buffer[sizeof head];
    pthread_mutex_lock(&s->lock);
    s->leaving = true;
    if (!send_all(s->socket, &head, sizeof head, farewell))
        receive_all(s->socket, buffer, sizeof buffer, farewell);
    shutdown(s->socket, SHUT_RDWR);     // wakes the thread
    bool lost = s->lost;
    pthread_mutex_unlock(&s->lock);
    if (!lost)
        pthread_join(s->thread, NULL);
    close(s->socket);
    tcp_store_server_free(s->server);
}
