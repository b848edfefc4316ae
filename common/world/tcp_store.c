// tcp_store.c - a rank's side of the store: finds rank 0, asks, and sends heartbeats.
//
//   training thread   join | put | get ........ |                       | end
//   store's thread         | beat  | beat  | beat  | beat  | beat  ...  |
//
// Both threads ask over one connection, one question at a time.
#include "world/tcp_store_message.h"
#include "clock.h"
#include "interrupt.h"
#include "threads.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SLICE_MS = 100 };

struct Store {
    int socket;
    bool supervised;
    double timeout;                     // s that an answer may take
    Person rank0;
    TcpStoreServer *server;             // rank 0's, else NULL
    sem_t silent;                       // posted when the thread that beats has ended
    pthread_mutex_t lock;               // held from a question to its answer
    char run[STORE_NAME];
    TcpAddress own;
};

// --- one connection ------------------------------------------------------------------------------

// Sends or receives all of it. Returns NULL, or what went wrong. Waits in slices: if this process
// was stopped, only one slice of that time counts.
static const char *transfer(int socket, bool sends, StoreMessage *message, double seconds)
{
    struct pollfd fd = { .fd = socket, .events = sends ? POLLOUT : POLLIN };
    int moved;
    while ((moved = store_move(socket, sends, message, STORE_MOST)) == 0)
        if (poll(&fd, 1, SLICE_MS) <= 0 && (seconds -= SLICE_MS / 1000.0) <= 0)
            return "does not answer: it is stopped, or its machine is out of reach";
    return moved < 0 ? "is gone: the connection is closed" : NULL;
}

// Rank 0 is gone or silent. First waits: our supervisor may know more and end this process.
// Returns if this rank is done and the main thread is about to exit.
static void lose_rank0(const Store *s, const char *how)
{
    if (alive_here()->done)
        return;
    usleep(s->supervised ? 3000000 : 900000);
    WARN("its last output, or its machine's, shows why", "rank 0 (%s, pid %d) %s", s->rank0.host,
         (int)s->rank0.pid, how);
    leave_at_once(EXIT_REPORTED);
}

// --- questions -----------------------------------------------------------------------------------

// Returns the answer; the caller frees its value. Does not return when the run is over. A BEAT's
// value is our page, copied under the lock, so that a newer copy never precedes an older one.
static StoreMessage ask(Store *s, StoreWhat what, const char *key, const void *value, size_t bytes)
{
    CHECK(strlen(key) < STORE_KEY && bytes <= STORE_MOST, "", "store: %.80s: a key of %zu bytes, a "
          "value of %zu: too long", key, strlen(key), bytes);
    Alive page = { .beats = 0 };
    StoreMessage question = { { .what = what, .bytes = (uint32_t)bytes }, (void *)value, 0 };
    StoreMessage answer = { .moved = 0 };
    memcpy(question.head.key, key, strlen(key));
    pthread_mutex_lock(&s->lock);
    alive_copy(&page, alive_here());
    if (what == STORE_BEAT)
        question.value = &page;
    const char *why = transfer(s->socket, true, &question, s->timeout);
    const char *heard = transfer(s->socket, false, &answer, s->timeout);    // it may be OVER
    if (!heard && answer.head.what == STORE_OVER)
        leave_at_once(EXIT_REPORTED);
    if (why || heard) {
        lose_rank0(s, heard ? heard : why);
        free(answer.value);
        answer = (StoreMessage){ { .what = STORE_OVER }, NULL, 0 };
    }
    pthread_mutex_unlock(&s->lock);
    return answer;
}

void store_put(const World *world, const char *key, const void *value, size_t bytes)
{
    alive_wait_begin();
    free(ask(world->store, STORE_PUT, key, value, bytes).value);
    alive_wait_end();
}

// Asks again until the value is there, at most 50 times a second.
size_t store_get(const World *world, const char *key, void *value, size_t capacity)
{
    Store *s = world->store;
    alive_wait_begin();
    StoreMessage answer = ask(s, STORE_GET, key, NULL, 0);
    for (useconds_t pause = 1000; answer.head.what == STORE_NOT_YET;) {
        free(answer.value);
        interrupt_leave();
        usleep(pause);
        pause = pause < 20000 ? 2 * pause : pause;
        answer = ask(s, STORE_GET, key, NULL, 0);
    }
    alive_wait_end();
    memcpy(value, answer.value, answer.head.bytes < capacity ? answer.head.bytes : capacity);
    free(answer.value);
    return answer.head.bytes;
}

// The server ends this process after it has notified the others.
void store_end_run(const World *world) { ask(world->store, STORE_OVER, "", NULL, 0); }

// False: the connection is over.
static bool beat(Store *s)
{
    StoreMessage answer = ask(s, STORE_BEAT, "", NULL, sizeof(Alive));
    free(answer.value);
    return answer.head.what == STORE_DONE;
}

// Between two beats it waits for input: OVER, or the end of the connection, may come at any time.
static void *beat_on(void *arg)
{
    Store *s = arg;
    struct pollfd fd = { .fd = s->socket, .events = POLLIN };
    while (beat(s))
        poll(&fd, 1, s->timeout > 4 ? 1000 : (int)(250 * s->timeout));
    sem_post(&s->silent);
    return NULL;
}

// --- finding rank 0 ------------------------------------------------------------------------------

static Person person_of(const TcpStoreConfig *c)
{
    Person me = { c->rank, c->size, (int32_t)getpid(), c->supervised, "", "" };
    gethostname(me.host, sizeof me.host - 1);
    snprintf(me.run, sizeof me.run, "%s", c->name);
    return me;
}

// Is our rank 0 at the other end, and does it let this rank in? NULL: yes; else why not.
static const char *shake_hands(const TcpStoreConfig *c, int socket, double patience, Person *rank0)
{
    static char refusal[200];
    Hello hello = { .client = store_random(), .person = person_of(c) };
    StoreMessage greeting = { .moved = 0 }, answer = { .moved = 0 };
    StoreMessage question = { { .what = STORE_HELLO, .bytes = sizeof hello }, &hello, 0 };
    const char *why = transfer(socket, false, &greeting, patience);
    if (!why && greeting.head.what == STORE_GREETING && greeting.head.bytes == sizeof hello.server)
        memcpy(&hello.server, greeting.value, sizeof hello.server);
    else if (greeting.moved >= sizeof greeting.head)
        why = "another program listens there, or another version of this one";
    free(greeting.value);
    if (why)
        return why;
    if (!c->secret.text[0] && tcp_is_loopback(tcp_place(socket, true).address) && !tcp_same_user(socket))
        return "it belongs to another user: choose another port, or use a token (--token-file)";
    hello.proof = secret_prove(&c->secret, "rank", &hello, offsetof(Hello, proof));
    why = transfer(socket, true, &question, patience);
    why = why ? why : transfer(socket, false, &answer, patience);
    const Welcome *welcome = answer.value;
    if (!why && answer.head.what == STORE_OVER)
        leave_at_once(EXIT_REPORTED);   // its rank or size contradicts another's: rank 0 prints how
    if (!why && answer.head.what == STORE_NO) {
        snprintf(refusal, sizeof refusal, "it refuses this rank: %.*s", (int)answer.head.bytes,
                 (char *)answer.value);
        why = refusal;
    } else if (!why && (answer.head.what != STORE_WELCOME || answer.head.bytes != sizeof *welcome ||
                        !secret_proves(&c->secret, "rank 0", &hello, sizeof hello, &welcome->proof))) {
        why = "it does not know our token";
    } else if (!why) {
        *rank0 = welcome->rank0;
    }
    free(answer.value);
    return why;
}

// Tries the places in turn, again and again, since rank 0 may start later. If none lets this rank
// in, the message prefers a store's refusal to a failed connection.
static int find_rank0(const TcpStoreConfig *c, Person *rank0)
{
    double patience = c->count > 1 ? 0.5 : 2, left = c->timeout > 0 ? c->timeout : INFINITY;
    char why[sizeof(Error)] = "";
    bool store_spoke = false;
    left += c->supervised;              // 1 s for the supervisor to report first
    for (int i = 0; left > 0; i = (i + 1) % c->count) {
        Error error;
        double begun = clock_now();
        int socket = tcp_connect(&c->places[i], patience, &error);
        const char *no = socket < 0 ? error.text : shake_hands(c, socket, patience, rank0);
        if (!no)
            return socket;
        if (socket >= 0 || !store_spoke)
            snprintf(why, sizeof why, "%s", no);
        store_spoke = store_spoke || socket >= 0;
        if (socket >= 0)
            close(socket);
        interrupt_leave();
        usleep(i == c->count - 1 ? 100000 : 0);
        left -= fmin(clock_now() - begun, 2 * patience);    // this process may have been stopped
    }
    FAIL("is rank 0 started, and at this address? does a firewall block it? --timeout gives "
         "more time", "rank %d of %d has not found rank 0 at %s:%d within %.3g s: %s", c->rank,
         c->size, c->places[0].address, c->places[0].port, c->timeout, why);
}

// --- new and free --------------------------------------------------------------------------------

void tcp_store_add(TcpStoreConfig *c, const char *host, int port, int ports)
{
    Error err;
    TcpAddress address;
    if (!tcp_resolve(host, address, &err))
        FAIL_ERROR(&err);
    for (int i = 0; i < ports; i++) {
        TcpPlace *place = &c->places[c->count++];
        memcpy(place->address, address, sizeof address);
        place->port = port + i;
    }
}

// With first_free it listens at once, so that another run with the same place finds it taken.
void tcp_store_bind(TcpStoreConfig *c)
{
    Error err = { .text = "" };
    int kept = 0;
    for (int i = 0; i < c->count && !(c->first_free && kept == 1); i++) {
        int socket = tcp_bind(&c->places[i], c->first_free, &err);
        if (socket < 0)
            continue;
        c->places[kept] = tcp_place(socket, false);
        c->sockets[kept++] = socket;
    }
    if (kept == 0)
        FAIL_ERROR(&err);
    c->count = kept;
}

void tcp_store_offer(TcpStoreConfig *c, const char *host, int port, bool one_host)
{
    TcpAddress own[STORE_PLACES] = { "127.0.0.1" };
    const char *only = host || !c->from[0] ? host : c->from;
    int count = only || one_host ? 1 : tcp_own_addresses(NULL, own, STORE_PLACES);
    for (int i = 0; i < count; i++)
        tcp_store_add(c, only ? only : own[i], port > 0 ? port : 0, 1);
    tcp_store_bind(c);
    if (!c->secret.text[0])
        c->secret = secret_random();
}

void tcp_store_join(const TcpStoreConfig *config, World *world)
{
    static Store store;                 // one per process
    Store *s = &store;
    Person self = person_of(config);
    *s = (Store){ .supervised = config->supervised,
                  .timeout = config->timeout > 0 ? config->timeout : INFINITY,
                  .lock = PTHREAD_MUTEX_INITIALIZER };
    const TcpPlace *place = &config->places[0];
    if (config->rank == 0 && config->size > 1 && !config->secret.text[0] && !tcp_is_loopback(place->address))
        WARN("--token-file FILE, the same on all hosts, keeps others out; --require-token insists",
             "no token: anyone who can reach %s:%d can take part in this run", place->address, place->port);
    alive_wait_begin();
    if (config->rank == 0)
        s->server = tcp_store_server_new(config, &self);
    s->socket = find_rank0(config, &s->rank0);
    memcpy(s->own, config->from[0] ? config->from : tcp_place(s->socket, false).address, sizeof s->own);
    sem_init(&s->silent, 0, 0);
    pthread_detach(thread_start(beat_on, s, "signs of life"));  // step 03 never calls tcp_store_end
    world->store = s;
    world->address = s->own;
    world->run = s->run;
    store_get(world, "run", s->run, sizeof s->run);
    alive_wait_end();
}

// The last beat reports that this rank is done. Closing the connection then wakes the thread.
void tcp_store_end(World *world)
{
    Store *s = world->store;
    alive_done();
    beat(s);
    shutdown(s->socket, SHUT_RDWR);
    while (sem_wait(&s->silent) != 0) {
    }
    close(s->socket);
    tcp_store_server_free(s->server);
}
