// tcp_store.c - a rank's side: finds rank 0, asks, and sends signs of life.
//
//   training thread   join ........ | put | get ......... |                      | end
//   meeting's thread        | pulse | put | get pulse  <- | pulse  pulse  pulse  | leave
//
// The connection is the thread's alone. The training thread leaves one request at a time where it
// finds it, and waits.
#include "world/tcp_store_message.h"
#include "interrupt.h"
#include "tcp.h"
#include "threads.h"
#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static const double courtesy = 1;       // s for rank 0's own words, or those of who started us
static const double farewell = 2;       // s for rank 0 to take note that we leave
static const double shyness = 0.5;      // s for the first rank of a machine to speak

typedef enum { JOINING, GOING, OVER } Phase;

struct TcpStore {
    int rank, first;
    double timeout, pulse;              // s; between two pulses
    TcpAddress address;
    TcpStorePerson rank0;
    TcpStoreServer *server;              // rank 0's, else NULL
    ForkStoreServer *alone;                 // where nobody else is, else NULL
    Channel *wire;
    TcpStoreMessage *in, *out;           // the thread's
    pthread_t thread;
    int wake;                           // what the thread waits for besides the connection
    double heard, looked, pulsed;       // s: rank 0; when the thread last ran, last sent one
    double left;                        // when it said that we leave (s), or 0

    pthread_mutex_t lock;               // over all that follows
    pthread_cond_t changed;
    Phase phase;
    bool leaving;
    char run[TCP_STORE_NAME];
    const TcpStoreMessage *request;      // that is to be sent
    size_t request_bytes;
    bool answered;                      // there is one to the last GET
    void *value;
    size_t capacity, bytes;
};

// --- the thread: bad news ------------------------------------------------------------------------

// On rank 0's machine rank 0 speaks; it does for itself.
static bool speaks(const TcpStore *m)
{
    return m->rank != 0 && (m->first < 0 || m->first == m->rank);
}

static void sleep_s(double s)
{
    struct timespec left = { (time_t)s, (long)(1e9 * (s - (double)(time_t)s)) };
    while (nanosleep(&left, &left) != 0) {
    }
}

// Rank 0 has ended the run, and said why. It waits for our connection to close.
static _Noreturn void be_ended(TcpStore *m, const Error *words)
{
    channel_free(m->wire);
    if (speaks(m))
        FAIL(words->hint, "rank 0 (%s, pid %d) ends the run: %s", m->rank0.host,
             (int)m->rank0.pid, words->text);
    sleep_s(m->rank == 0 ? 10 * shyness : shyness);
    tcp_store_leave_silently();
}

// On rank 0's machine rank 1 speaks.
static _Noreturn void lose(const TcpStore *m, const char *text)
{
    sleep_s(courtesy);
    if (m->first < 0 || m->rank == (m->first == 0 ? 1 : m->first))
        FAIL("what rank 0 or its machine said last tells why", "rank 0 (%s, pid %d) %s",
             m->rank0.host, (int)m->rank0.pid, text);
    sleep_s(shyness);
    tcp_store_leave_silently();
}

// --- the thread ----------------------------------------------------------------------------------

static void name_copy(char to[ALIVE_NAME], const _Atomic char from[ALIVE_NAME])
{
    for (int i = 0; i < ALIVE_NAME - 1; i++)
        to[i] = atomic_load_explicit(&from[i], memory_order_relaxed);
    to[ALIVE_NAME - 1] = '\0';
}

static void take_signs(TcpStoreSigns *signs)
{
    const Alive *a = alive_here();
    signs->waiting = atomic_load(&a->waiting);  // before the beats, see alive_wait_end
    signs->outside = atomic_load(&a->outside);
    signs->beats = atomic_load(&a->beats);
    signs->joined = atomic_load(&a->joined);
    signs->done = atomic_load(&a->done);
    signs->epoch = atomic_load(&a->epoch);
    signs->step = atomic_load(&a->step);
    signs->begun = atomic_load(&a->begun);
    signs->ended = atomic_load(&a->ended);
    signs->count = atomic_load(&a->count);
    name_copy(signs->operation, a->operation);
    name_copy(signs->communicator, a->communicator);
}

static void send_signs(TcpStore *m, TcpStoreWhat what)
{
    memset(m->out, 0, tcp_store_bytes(what));
    m->out->what = what;
    take_signs(&m->out->signs);
    channel_send(m->wire, m->out, tcp_store_bytes(what));
    m->pulsed = clock_now();
}

// The lock is held.
static void take_message(TcpStore *m, size_t bytes)
{
    const TcpStoreMessage *in = m->in;
    if (in->what == TCP_STORE_GO && m->phase == JOINING) {
        m->phase = GOING;
        snprintf(m->run, sizeof m->run, "%s", in->run);
    } else if (in->what == TCP_STORE_HERE && m->value) {
        m->bytes = bytes - tcp_store_bytes(TCP_STORE_HERE);
        memcpy(m->value, in->store.value, m->bytes < m->capacity ? m->bytes : m->capacity);
        m->value = NULL;
        m->answered = true;
    } else if (in->what == TCP_STORE_BYE) {
        m->phase = OVER;
    }
}

// Returns whether the meeting goes on.
static bool take_messages(TcpStore *m)
{
    const void *message;
    size_t bytes;
    bool over = false;
    while ((message = channel_next(m->wire, &bytes)) != NULL) {
        if (!tcp_store_take(m->in, message, bytes))
            continue;
        m->heard = clock_now();
        if (m->in->what == TCP_STORE_END || m->in->what == TCP_STORE_NO)
            be_ended(m, &m->in->words);
        pthread_mutex_lock(&m->lock);
        take_message(m, bytes);
        over = m->phase == OVER;
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->lock);
    }
    return !over;
}

// What the training thread wants. Returns whether it goes on.
static bool take_wishes(TcpStore *m)
{
    pthread_mutex_lock(&m->lock);
    if (m->request && m->phase != OVER)
        channel_send(m->wire, m->request, m->request_bytes);
    m->request = NULL;
    bool leaving = m->leaving, over = m->phase == OVER;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (leaving && m->left == 0 && !over) {
        m->left = clock_now();
        send_signs(m, TCP_STORE_LEAVE);
    }
    return !over && !(m->left > 0 && (channel_turn(m->wire) == CHANNEL_CLOSED ||
                                      clock_now() > m->left + farewell));
}

static void await_news(const TcpStore *m)
{
    uint64_t count;
    double due = 1000 * (m->pulsed + m->pulse - clock_now());
    int ms = due > TCP_STORE_SLICE ? TCP_STORE_SLICE : due < 1 ? 1 : (int)due + 1;
    struct pollfd fds[2] = { { .fd = channel_socket(m->wire), .events = channel_events(m->wire) },
                             { .fd = m->wake, .events = POLLIN } };
    poll(fds, 2, ms);
    if (fds[1].revents && read(m->wake, &count, sizeof count) < 0)
        return;                         // there was nothing after all
}

// Has it gone, or is it silent for too long? Returns false when nobody needs to look any more: all
// is done here, and rank 0 was faster to leave.
static bool look_after_rank0(TcpStore *m, ChannelState state)
{
    char text[256];
    if (tcp_store_absence(&m->looked) > 0)
        m->heard = m->looked;           // we were stopped ourselves
    bool silent = m->rank > 0 && m->timeout > 0 && m->looked - m->heard > m->timeout;
    if (m->left > 0 || (state != CHANNEL_CLOSED && !silent))
        return true;
    if (alive_here()->done)
        return false;
    if (state == CHANNEL_CLOSED)
        snprintf(text, sizeof text, "is gone: %s", channel_why(m->wire));
    else
        snprintf(text, sizeof text, "has not answered for %.3g s: it is stopped or its machine is "
                 "out of reach", m->timeout);
    lose(m, text);
}

static void *run(void *arg)
{
    TcpStore *m = arg;
    while (take_wishes(m)) {
        if (m->left == 0 && clock_now() >= m->pulsed + m->pulse)
            send_signs(m, TCP_STORE_PULSE);
        await_news(m);
        ChannelState state = channel_turn(m->wire);
        if (take_messages(m) && !look_after_rank0(m, state))
            break;
    }
    pthread_mutex_lock(&m->lock);
    m->phase = OVER;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

// --- the training thread: finding rank 0 ---------------------------------------------------------

// One try at a port ends with a welcome, or with a reason.
typedef struct Search {
    const TcpStoreConfig *config;
    TcpStoreMessage *in;
    double deadline;                    // s, 0: none
    double patience;                    // s for one try
    double looked;
    Error why;                          // why not
    int telling;                        // how much it tells: 0 nobody is there ... 2 tokens differ
    int strangers;                      // tries in a row that ended for want of the right token
    bool fatal;
} Search;

static bool is_late(Search *s)
{
    interrupt_leave();
    double absence = tcp_store_absence(&s->looked);
    if (s->deadline > 0)
        s->deadline += absence;
    return s->deadline > 0 && s->looked > s->deadline;
}

// Until it is open; or a message has come, which is in s->in then.
static bool await_wire(Search *s, Channel *wire, bool message)
{
    const void *next;
    size_t bytes;
    double until = clock_now() + s->patience;
    while (!is_late(s)) {
        ChannelState state = channel_turn(wire);
        if (message && (next = channel_next(wire, &bytes)) != NULL)
            return tcp_store_take(s->in, next, bytes);
        if (state == CHANNEL_CLOSED)
            return error_set(&s->why, "", "%s", channel_why(wire));
        if (state == CHANNEL_OPEN && !message)
            return true;
        if (s->looked > until)
            return error_set(&s->why, "", "it does not answer");
        struct pollfd fd = { .fd = channel_socket(wire), .events = channel_events(wire) };
        poll(&fd, 1, 100);
    }
    return false;                       // what was the reason before is still the best
}

static void introduce_oneself(const TcpStoreConfig *c, Channel *wire)
{
    TcpStoreMessage *m = xcalloc(1, sizeof *m);
    m->what = TCP_STORE_JOIN;
    m->person = (TcpStorePerson){ c->rank, c->size, c->first, (int32_t)getpid(), c->generation };
    gethostname(m->person.host, sizeof m->person.host - 1);
    snprintf(m->person.name, sizeof m->person.name, "%s", c->name ? c->name : "");
    channel_send(wire, m, tcp_store_bytes(TCP_STORE_JOIN));
    free(m);
}

static bool be_welcomed(Search *s, Channel *wire)
{
    const TcpStoreConfig *c = s->config;
    if (!await_wire(s, wire, false)) {
        bool token = channel_turn(wire) == CHANNEL_CLOSED && channel_fault(wire) == CHANNEL_TOKEN;
        s->strangers = token ? s->strangers + 1 : 0;
        s->telling = token ? 2 : 0;
        return false;
    }
    s->strangers = 0;
    s->telling = 1;
    if (!c->token && tcp_is_loopback(c->address) && !tcp_same_user(channel_socket(wire)))
        return error_set(&s->why, "another port, or a token (--token-file)",
                         "it belongs to another user");
    introduce_oneself(c, wire);
    if (!await_wire(s, wire, true))
        return false;
    if (s->in->what == TCP_STORE_WELCOME)
        return true;
    if (s->in->what == TCP_STORE_NO || s->in->what == TCP_STORE_LATER || s->in->what == TCP_STORE_END)
        s->why = s->in->words;
    s->fatal = s->in->what == TCP_STORE_END;
    return false;
}

// Returns the connection, or NULL.
static Channel *try_port(Search *s, int port)
{
    const TcpStoreConfig *c = s->config;
    Error err;
    int socket = tcp_connect(c->address, port, c->from, &err);
    s->telling = 0;
    if (socket < 0) {
        s->why = err;
        return NULL;
    }
    Channel *wire = channel_new(socket, false, c->token);
    s->in->what = 0;
    if (be_welcomed(s, wire))
        return wire;
    channel_free(wire);
    return NULL;
}

// why: of the port that told most
static _Noreturn void search_fails(const Search *s, const Error *why, bool token)
{
    const TcpStoreConfig *c = s->config;
    char ports[32] = "";
    if (c->ports > 1)
        snprintf(ports, sizeof ports, " to %d", c->port + c->ports - 1);
    if (c->first >= 0 && c->rank != c->first)
        sleep_s(shyness);               // who ends a machine's ranks together has done so then
    if (s->fatal)
        FAIL(why->hint, "rank %d of %d: rank 0 at %s:%d does not let it in: %s", c->rank, c->size,
             c->address, c->port, why->text);
    if (token)
        FAIL("all ranks need the same: --token-file FILE, or one launcher for all",
             "rank %d of %d: rank 0 at %s:%d%s does not let it in: %s", c->rank, c->size,
             c->address, c->port, ports, why->text);
    FAIL(why->hint[0] ? why->hint : "is rank 0 started, and at this address? does a firewall "
         "stand in between? --timeout gives more time",
         "rank %d of %d has not found rank 0 at %s:%d%s within %.3g s: %s", c->rank, c->size,
         c->address, c->port, ports, c->timeout, why->text);
}

// Rank 0 may come later, so nothing counts as an answer but a welcome, words that end it, or that
// the tokens differ, again and again; where there are several ports, another run may have that one.
static Channel *find_rank0(const TcpStoreConfig *c, TcpStoreMessage *in)
{
    enum { STRANGERS = 3 };
    int ports = c->ports > 1 ? c->ports : 1;
    double now = clock_now();
    Search s = { .config = c, .in = in, .deadline = c->timeout > 0 ? now + c->timeout : 0,
                 .patience = ports > 1 ? 0.5 : 2, .looked = now };
    error_set(&s.why, "", "it does not answer");
    Error best = s.why;
    int known = 0;                      // how much it tells
    for (int us = 10000;; us = us < 200000 ? 2 * us : us) {
        for (int i = 0, told = -1; i < ports; i++) {
            Channel *wire = try_port(&s, c->port + i);
            if (wire)
                return wire;
            bool late = is_late(&s);    // then this try may have been cut short
            if (s.fatal || (s.telling > told && !late)) {
                best = s.why;
                told = known = s.telling;
            }
            if (s.fatal || late || (ports == 1 && s.strangers >= STRANGERS))
                search_fails(&s, &best, known == 2);
        }
        usleep((useconds_t)us);
        s.patience = s.patience < 5 ? 2 * s.patience : 5;
    }
}

// --- the training thread: meeting ----------------------------------------------------------------

static int listen_somewhere(const TcpStoreConfig *c)
{
    Error err;
    if (c->listening >= 0)
        return c->listening;
    for (int i = 0; i < (c->ports > 1 ? c->ports : 1); i++) {
        int socket = tcp_listen(c->address, c->port + i, &err);
        if (socket >= 0)
            return socket;
    }
    FAIL_ERROR(&err);
}

// Rank 0 is one of those that its server waits for: it joins as everybody does.
static TcpStoreServer *open_server(TcpStoreConfig *c)
{
    if (c->rank != 0)
        return NULL;
    int listening = listen_somewhere(c);
    c->port = tcp_port(listening);
    c->ports = 1;
    return tcp_store_server_new(c, listening);
}

static void tcp_store_locks(TcpStore *m)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void start_thread(TcpStore *m)
{
    m->heard = m->looked = clock_now();
    m->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(m->wake >= 0, "ulimit -n", "eventfd: %s", strerror(errno));
    m->thread = thread_start(run, m, "the meeting");
}

// The lock is held. Waits a while for the thread; a signal ends the process here.
static void await_change(TcpStore *m)
{
    struct timespec until;
    interrupt_leave();
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 100000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&m->changed, &m->lock, &until);
}

TcpStore *tcp_store_join(const TcpStoreConfig *config)
{
    TcpStoreConfig c = *config;
    TcpStore *m = xcalloc(1, sizeof *m);
    *m = (TcpStore){ .rank = c.rank, .first = c.first, .timeout = c.timeout };
    m->pulse = c.timeout <= 0 || c.timeout > 8 ? 1 : c.timeout < 0.4 ? 0.05 : c.timeout / 8;
    m->in = xcalloc(1, sizeof *m->in);
    m->out = xcalloc(1, sizeof *m->out);
    tcp_store_locks(m);
    alive_wait_begin();
    m->server = open_server(&c);
    m->wire = find_rank0(&c, m->in);
    m->rank0 = m->in->person;
    tcp_own_address(channel_socket(m->wire), m->address);
    start_thread(m);
    pthread_mutex_lock(&m->lock);
    while (m->phase == JOINING)
        await_change(m);
    CHECK(m->phase == GOING, "what it said last tells why",
          "rank 0 has left before all were there");
    pthread_mutex_unlock(&m->lock);
    alive_wait_end();
    return m;
}

TcpStore *tcp_store_alone(void)
{
    TcpStore *m = xcalloc(1, sizeof *m);
    m->alone = fork_store_server_new();
    snprintf(m->run, sizeof m->run, "alone-%d", (int)getpid());
    snprintf(m->address, sizeof m->address, "127.0.0.1");
    return m;
}

const char *tcp_store_run(const TcpStore *m) { return m->run; }
const char *tcp_store_address(const TcpStore *m) { return m->address; }

static void wake(const TcpStore *m)
{
    static const uint64_t one = 1;
    if (write(m->wake, &one, sizeof one) < 0)
        return;                         // it is awake
}

void tcp_store_end(TcpStore *m)
{
    if (m->alone) {
        fork_store_server_free(m->alone);
        free(m);
        return;
    }
    pthread_mutex_lock(&m->lock);
    m->leaving = true;
    pthread_mutex_unlock(&m->lock);
    wake(m);
    pthread_join(m->thread, NULL);
    channel_free(m->wire);
    tcp_store_server_free(m->server);
    close(m->wake);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m->out);
    free(m->in);
    free(m);
}

// --- the training thread: the store --------------------------------------------------------------

// Hands a request over, and waits until it is sent; with an answer, until that is there.
static void request(TcpStore *m, const TcpStoreMessage *message, size_t bytes, bool answer)
{
    pthread_mutex_lock(&m->lock);
    m->request = message;
    m->request_bytes = bytes;
    wake(m);
    while (m->phase != OVER && (m->request || (answer && !m->answered)))
        await_change(m);
    CHECK(m->request == NULL && (!answer || m->answered), "what it said last tells why",
          "store: %s: rank 0 has left", message->store.key);
    m->answered = false;
    pthread_mutex_unlock(&m->lock);
}

static void put(void *arg, const char *key, const void *value, size_t bytes)
{
    TcpStore *m = arg;
    fork_store_check(key, bytes);
    if (m->alone) {
        fork_store_keep(m->alone, key, value, bytes);
        return;
    }
    TcpStoreMessage *message = xcalloc(1, sizeof *message);
    message->what = TCP_STORE_PUT;
    snprintf(message->store.key, sizeof message->store.key, "%s", key);
    memcpy(message->store.value, value, bytes);
    alive_wait_begin();
    request(m, message, tcp_store_bytes(TCP_STORE_PUT) + bytes, false);
    alive_wait_end();
    free(message);
}

static size_t get_alone(TcpStore *m, const char *key, void *value, size_t capacity)
{
    size_t bytes;
    const void *found = fork_store_find(m->alone, key, &bytes);
    CHECK(found, "", "store: nobody will ever put %s: this rank is alone", key);
    memcpy(value, found, bytes < capacity ? bytes : capacity);
    return bytes;
}

static size_t get(void *arg, const char *key, void *value, size_t capacity)
{
    TcpStore *m = arg;
    fork_store_check(key, 0);
    if (m->alone)
        return get_alone(m, key, value, capacity);
    TcpStoreMessage *message = xcalloc(1, sizeof *message);
    message->what = TCP_STORE_GET;
    snprintf(message->store.key, sizeof message->store.key, "%s", key);
    alive_wait_begin();
    pthread_mutex_lock(&m->lock);
    m->value = value;
    m->capacity = capacity;
    pthread_mutex_unlock(&m->lock);
    request(m, message, tcp_store_bytes(TCP_STORE_GET), true);
    alive_wait_end();
    free(message);
    return m->bytes;
}

Store tcp_store_store(TcpStore *meeting) { return (Store){ put, get, meeting }; }
