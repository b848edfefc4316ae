// tcp_store.c - a rank's side of the store: finds rank 0, sends it requests and heartbeats.
//
//   training thread   join | put | get ........ |                       | end
//   store's thread         | beat  | beat  | beat  | beat  | beat  ...  |
//
// Both threads use one connection, one request at a time.
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

struct Store {
    int socket;
    double timeout;                     // s that an answer may take
    Welcome rank0;
    TcpStoreServer *server;             // rank 0's, else NULL
    sem_t silent;                       // posted when the thread that beats has ended
    pthread_mutex_t lock;               // held from a request to its answer
    char run[STORE_NAME];
    TcpAddress own;
};

// Rank 0 is gone or silent: ends this process. Returns only if this rank is done and about to exit.
static void lose_rank0(const Store *s, const char *how)
{
    if (alive_here()->done)
        return;
    usleep(STORE_LAUNCHER_US);
    WARN("its last output, or its machine's log, may show why", "rank 0 (%s, pid %d) is lost: %s",
         s->rank0.host, (int)s->rank0.pid, how);
    leave_at_once(EXIT_REPORTED);
}

// Returns the answer, whose value the caller frees; or OVER if lose_rank0 has returned. If OVER
// arrives, ends this process. Copies our page under the lock, so that copies arrive in order.
static StoreMessage request(Store *s, StoreWhat what, const char *key, const void *value,
                            size_t bytes)
{
    CHECK(strlen(key) < STORE_KEY && bytes <= STORE_MOST, "a key has at most 63 bytes, a value 16 "
          "MiB", "store: %.80s: a key of %zu bytes or a value of %zu is too long", key, strlen(key),
          bytes);
    Alive page = { .beats = 0 };
    StoreMessage message = { { .what = what, .bytes = (uint32_t)bytes }, (void *)value, 0 };
    StoreMessage answer = { .moved = 0 };
    memcpy(message.head.key, key, strlen(key));
    pthread_mutex_lock(&s->lock);
    alive_copy(&page, alive_here());
    if (what == STORE_BEAT)
        message.value = &page;
    const char *unsent = store_transfer(s->socket, true, &message, s->timeout);  // OVER may come
    const char *lost = store_transfer(s->socket, false, &answer, s->timeout);
    if (!lost && answer.head.what == STORE_OVER) {
        usleep(answer.head.key[0] ? STORE_LAUNCHER_US : 0);     // see end_run
        leave_at_once(EXIT_REPORTED);
    }
    if (unsent || lost) {
        lose_rank0(s, lost ? lost : unsent);
        free(answer.value);
        answer = (StoreMessage){ { .what = STORE_OVER }, NULL, 0 };
    }
    pthread_mutex_unlock(&s->lock);
    return answer;
}

void store_put(const World *world, const char *key, const void *value, size_t bytes)
{
    alive_wait_begin();
    free(request(world->store, STORE_PUT, key, value, bytes).value);
    alive_wait_end();
}

// Asks again until the value is there, after 1 ms at first, and later every 32 ms.
size_t store_get(const World *world, const char *key, void *value, size_t capacity)
{
    Store *s = world->store;
    alive_wait_begin();
    StoreMessage answer = request(s, STORE_GET, key, NULL, 0);
    for (useconds_t pause = 1000; answer.head.what == STORE_NOT_YET;) {
        free(answer.value);
        interrupt_leave();
        usleep(pause);
        pause = pause < 20000 ? 2 * pause : pause;
        answer = request(s, STORE_GET, key, NULL, 0);
    }
    alive_wait_end();
    memcpy(value, answer.value, answer.head.bytes < capacity ? answer.head.bytes : capacity);
    free(answer.value);
    return answer.head.bytes;
}

void store_end_run(const World *world) { request(world->store, STORE_OVER, "", NULL, 0); }

// Sends a heartbeat. False: the connection is over.
static bool beat(Store *s)
{
    StoreMessage answer = request(s, STORE_BEAT, "", NULL, sizeof(Alive));
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

// Does this run's rank 0 accept this rank? Returns NULL, or why not. *refused: something answered,
// but did not accept.
static const char *handshake(const TcpStoreConfig *c, int socket, double timeout, Welcome *rank0,
                             bool *refused)
{
    static char refusal[200];
    Hello hello = { .rank = c->rank, .size = c->size, .pid = (int32_t)getpid(),
                    .supervised = c->supervised };
    StoreMessage message = { { .what = STORE_HELLO, .bytes = sizeof hello }, &hello, 0 };
    StoreMessage answer = { .moved = 0 };
    gethostname(hello.host, sizeof hello.host - 1);
    memcpy(hello.run, c->run, sizeof hello.run);
    memcpy(hello.token, c->token, sizeof hello.token);
    const char *why = store_transfer(socket, true, &message, timeout);
    why = why ? why : store_transfer(socket, false, &answer, timeout);
    if (!why && answer.head.what == STORE_OVER)
        leave_at_once(EXIT_REPORTED);   // this rank contradicts another: rank 0 prints both
    if (!why && answer.head.what == STORE_NO) {
        snprintf(refusal, sizeof refusal, "rank 0 refuses this rank: %.*s", (int)answer.head.bytes,
                 (char *)answer.value);
        why = refusal;
    } else if (!why && (answer.head.what != STORE_WELCOME || answer.head.bytes != sizeof *rank0)) {
        why = "another program listens there, or another version of ddp.c";
    } else if (!why) {
        memcpy(rank0, answer.value, sizeof *rank0);
    }
    *refused = answer.head.what > 0 && why;
    free(answer.value);
    return why;
}

// Tries again and again, since rank 0 may start later. Ends this process if it has been refused for
// --timeout seconds: until then an older run may be ending at this address.
static int find_rank0(const TcpStoreConfig *c, Welcome *rank0)
{
    const double most = 2;              // s for one connection, and for one answer
    double timeout = alive_here()->timeout, refused_for = 0;
    char where[sizeof(Error) + 40] = "";
    ALIVE_OUTSIDE("looking for rank 0 at", where);
    for (;;) {
        Error error;
        double begun = clock_now();
        bool refused = false;
        int socket = tcp_connect(&c->place, most, &error);
        const char *no = socket < 0 ? error.text : handshake(c, socket, most, rank0, &refused);
        if (!no)
            return socket;
        snprintf(where, sizeof where, "%s:%d (%s)", c->place.address, c->place.port, no);
        alive_outside_changed();
        if (socket >= 0)
            close(socket);
        interrupt_leave();
        // A try counts for up to 4 s: in a longer one this process was stopped.
        refused_for += refused ? 0.1 + fmin(clock_now() - begun, 2 * most) : 0;
        CHECK(timeout == 0 || refused_for < timeout, "check that this run's rank 0 listens there",
              "rank %d of %d could not join rank 0 at %s within %.3g s", c->rank, c->size, where,
              timeout);
        usleep(100000);
    }
}

// Rank 0 serves the store, and needs no network for its own connection.
static int serve_rank0(Store *s, const TcpStoreConfig *c)
{
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
          "raise ulimit -n, the limit on open files", "socketpair: %s", strerror(errno));
    s->server = tcp_store_server_new(c, ends[1]);
    handshake(c, ends[0], INFINITY, &s->rank0, &(bool){ false });
    return ends[0];
}

void tcp_store_offer(TcpStoreConfig *c, const char *host, int port, bool one_host)
{
    Error err;
    TcpAddress own = "127.0.0.1";
    if (!host && c->from[0])
        host = c->from;
    if (!host && !one_host && !tcp_own_address(NULL, own, &err))
        FAIL_ERROR(&err);
    c->place = tcp_resolve(host ? host : own, port > 0 ? port : 0);
    c->socket = tcp_bind(&c->place);
    if (!c->token[0])
        tcp_store_new_token(c->token);
}

void tcp_store_join(const TcpStoreConfig *config, World *world)
{
    static Store store;                 // one per process
    Store *s = &store;
    double timeout = alive_here()->timeout;
    *s = (Store){ .timeout = timeout > 0 ? timeout : INFINITY, .lock = PTHREAD_MUTEX_INITIALIZER };
    tcp_expect_sockets(config->rank == 0 ? config->size : 1);
    alive_wait_begin();
    s->socket = config->rank == 0 ? serve_rank0(s, config) : find_rank0(config, &s->rank0);
    TcpPlace here = config->rank == 0 ? config->place : tcp_place(s->socket, false);
    memcpy(s->own, config->from[0] ? config->from : here.address, sizeof s->own);
    sem_init(&s->silent, 0, 0);
    pthread_detach(thread_start(beat_on, s, "heartbeats"));     // step 03 never calls tcp_store_end
    alive_watched();
    world->store = s;
    world->address = s->own;
    world->run = s->run;
    store_get(world, "run", s->run, sizeof s->run);
    alive_wait_end();
}

// The last beat reports that this rank is done. shutdown wakes the thread that waits for input.
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
