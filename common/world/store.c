// store.c - a rank's side of the store: finds rank 0, sends it requests and this rank's record.
//
//   training thread   join | put | get ........ |                       | leave
//   store's thread         | beat  | beat  | beat  | beat  | beat  ...  |
//
// Both threads use one connection, one request at a time. Rank 0 itself has no connection.
#include "world/store_rank0.h"
#include "clock.h"
#include "interrupt.h"
#include "threads.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const double answer_limit = 2;   // seconds to connect, and to get the answer to HELLO
static const double early_line = 10;    // seconds without rank 0 before a line is printed

struct Store {
    int rank, socket;
    atomic_bool left;
    pthread_t thread;
    pthread_mutex_t lock;               // held from a request to its answer
    char rank0[STORE_NAME + 32];        // rank 0's process: "node1, pid 4711"
    TcpAddress own;
};

// --- requests ------------------------------------------------------------------------------------

// Returns the head of rank 0's answer. Ends this process if the run is over, or if rank 0 is gone.
static StoreHead ask(Store *s, StoreHead request, const void *sent, void **value)
{
    StoreHead answer = { .what = STORE_DONE };
    pthread_mutex_lock(&s->lock);
    const char *lost = s->left ? NULL : store_send(s->socket, request, sent);
    if (!lost && !s->left)
        lost = store_receive(s->socket, &answer, value, STORE_MOST);
    if (lost) {
        usleep((useconds_t)(1e6 * death_delay));
        WARN("check rank 0's last output and its machine's log", "rank 0 (%s) is lost: %s",
             s->rank0, lost);
    }
    if (lost || answer.what == STORE_END)
        leave_at_once(EXIT_REPORTED);
    s->left = s->left || (request.what == STORE_BEAT && ((const Progress *)sent)->done);
    pthread_mutex_unlock(&s->lock);
    return answer;
}

// Returns the length of the answer's value, or -1 if there is none (yet).
static int64_t request(const World *world, StoreWhat what, const char *key, const void *sent,
                       size_t bytes, void *to, size_t capacity)
{
    Store *s = world->store;
    StoreHead head = { .what = what, .bytes = (uint32_t)bytes }, answer;
    void *received = NULL;
    const void *value;
    CHECK(strlen(key) < STORE_KEY && bytes <= STORE_MOST, "use at most 63 bytes for a key, and 16 "
          "MiB for a value", "store: the key '%.80s' or its value of %zu bytes is too long", key,
          bytes);
    memcpy(head.key, key, strlen(key));
    if (s->rank == 0) {
        answer = store_answer(0, &head, sent, &value);
        while (answer.what == STORE_END)
            pause();                    // a thread of this process is ending the run
    } else {
        answer = ask(s, head, sent, &received);
        value = received;
    }
    if (answer.what == STORE_VALUE)
        memcpy(to, value, answer.bytes < capacity ? answer.bytes : capacity);
    free(received);
    return answer.what == STORE_VALUE ? (int64_t)answer.bytes : -1;
}

void store_put(const World *world, const char *key, const void *value, size_t bytes)
{
    request(world, STORE_PUT, key, value, bytes, NULL, 0);
}

// Asks again until the value is there, after 1 ms at first, and later every 32 ms.
size_t store_get(const World *world, const char *key, void *value, size_t capacity)
{
    int64_t bytes;
    progress_beat();
    for (useconds_t us = 1000; (bytes = request(world, STORE_GET, key, NULL, 0, value, capacity))
         < 0; us = us < 20000 ? 2 * us : us) {
        interrupt_leave();
        usleep(us);
    }
    return (size_t)bytes;
}

// Rank 0 collects the values, and puts all of them under one key.
void store_gather(const World *world, const char *what, const void *mine, size_t bytes, void *all)
{
    char key[STORE_KEY];
    size_t total = (size_t)world->size * bytes;
    progress_call("gather %s", what);
    snprintf(key, sizeof key, "%.40s %d", what, world->rank);
    store_put(world, key, mine, bytes);
    for (int i = 0; world->rank == 0 && i < world->size; i++) {
        snprintf(key, sizeof key, "%.40s %d", what, i);
        store_get(world, key, (char *)all + (size_t)i * bytes, bytes);
    }
    snprintf(key, sizeof key, "%.40s of all", what);
    if (world->rank == 0)
        store_put(world, key, all, total);
    else
        store_get(world, key, all, total);
}

void store_end_run(const World *world)
{
    if (world->rank == 0)
        store_end_all();
    for (;;)
        pause();                        // the next beat gets END and ends this process
}

// --- this rank -----------------------------------------------------------------------------------

static void beat(Store *s)
{
    Progress record;
    void *value = NULL;
    progress_read(&record);
    ask(s, (StoreHead){ .what = STORE_BEAT, .bytes = sizeof record }, &record, &value);
    free(value);
}

// Between two beats, waits for input; the wait also ends at once if the connection does.
static void *beat_on(void *arg)
{
    Store *s = arg;
    for (struct pollfd fd = { .fd = s->socket, .events = POLLIN }; !s->left; poll(&fd, 1, 1000))
        beat(s);
    return NULL;
}

// Does this run's rank 0 accept this rank? False: not yet, for the reason in err.
static bool hello(const StoreConfig *c, Store *s, Error *err)
{
    StoreHello hello = { .rank = c->rank, .size = c->size, .pid = (int32_t)getpid() };
    StoreHead head = { .what = STORE_HELLO, .bytes = sizeof hello };
    void *value = NULL;
    gethostname(hello.host, sizeof hello.host - 1);
    memcpy(hello.run, c->run, sizeof hello.run);
    memcpy(hello.token, c->token, sizeof hello.token);
    const char *why = store_send(s->socket, head, &hello);
    why = why ? why : store_receive(s->socket, &head, &value, STORE_REASON);
    if (!why && head.what == STORE_DONE)
        snprintf(s->rank0, sizeof s->rank0, "%.*s", (int)head.bytes, (char *)value);
    else if (!why && head.what == STORE_NO)
        error_set(err, "", "rank 0 refuses this rank: %.*s", (int)head.bytes, (char *)value);
    else
        error_set(err, "", "%s:%d: %s", c->place.address, c->place.port,
                  why ? why : "a different program or version of ddp.c answers there");
    free(value);
    return !why && head.what == STORE_DONE;
}

static bool try_to_join(StoreConfig *c, Store *s, Error *err)
{
    if (c->locate && !c->locate(c, err))
        return false;
    s->socket = tcp_connect(&c->place, answer_limit, err);
    if (s->socket < 0 || hello(c, s, err))
        return s->socket >= 0;
    close(s->socket);
    return false;
}

// Tries again and again, since rank 0 may start later.
static void find_rank0(StoreConfig c, Store *s)
{
    double begun = clock_now(), waited = 0;
    for (Error error; !try_to_join(&c, s, &error);) {
        bool early = waited < early_line;
        interrupt_leave();
        usleep(100000);
        waited = clock_now() - begun;
        CHECK(c.timeout == 0 || waited < c.timeout, "check that rank 0 of this run is running and "
              "can be reached", "rank %d of %d could not join rank 0 within %g s: %s", c.rank,
              c.size, c.timeout, error.text);
        if (early && waited >= early_line)
            WARN("", "rank %d of %d could not join rank 0 within %.4g s, and tries again: %s",
                 c.rank, c.size, waited, error.text);
    }
    tcp_limit(s->socket, c.timeout);
}

void store_offer(StoreConfig *c, const char *host, int port, bool one_host)
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
        store_new_token(c->token);
}

void store_join(const StoreConfig *c, World *world)
{
    static Store store;                 // one per process
    Store *s = &store;
    char all[2];
    *s = (Store){ .rank = c->rank, .lock = PTHREAD_MUTEX_INITIALIZER };
    progress_call("meet");
    if (c->rank == 0) {
        store_serve(c);
    } else {
        find_rank0(*c, s);
        s->thread = thread_start(beat_on, s, "heartbeats");
    }
    TcpPlace here = c->rank == 0 ? c->place : tcp_place(s->socket);
    memcpy(s->own, c->from[0] ? c->from : here.address, sizeof s->own);
    world->store = s;
    world->address = s->own;
    store_get(world, "run", all, sizeof all);
}

// The last beat reports that this rank is done. shutdown wakes the thread that waits for input.
void store_leave(World *world)
{
    Store *s = world->store;
    progress_done();
    if (s->rank == 0) {
        store_await_leaving(30);        // if it left first, their next beats would find it lost
        return;
    }
    beat(s);
    shutdown(s->socket, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->socket);
}
