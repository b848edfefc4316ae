// meeting.c - a rank's side: finds rank 0, asks, and sends signs of life.
//
//   training thread   join ........ | put | get ......... |                      | end
//   meeting's thread        | pulse | put | get pulse  <- | pulse  pulse  pulse  | leave
//
// The connection is the thread's alone. The training thread leaves one request at a time where it
// finds it, and waits.
#include "meeting_internal.h"
#include "interrupt.h"
#include "tcp.h"
#include "thread.h"
#include "watch.h"      // uses: watch_now

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

struct Meeting {
    int rank, first;
    double timeout, pulse;              // s; between two pulses
    TcpAddress address;
    MeetingPerson rank0;
    MeetingServer *server;              // rank 0's, else NULL
    StoreServer *alone;                 // where nobody else is, else NULL
    Wire *wire;
    MeetingMessage *in, *out;           // the thread's
    pthread_t thread;
    int wake;                           // what the thread waits for besides the connection
    double heard, looked, pulsed;       // s: rank 0; when the thread last ran, last sent one
    double left;                        // when it said that we leave (s), or 0

    pthread_mutex_t lock;               // over all that follows
    pthread_cond_t changed;
    Phase phase;
    bool leaving;
    char run[MEETING_NAME];
    const MeetingMessage *request;      // that is to be sent
    size_t request_bytes;
    bool answered;                      // there is one to the last GET
    void *value;
    size_t capacity, bytes;
};

// --- messages ------------------------------------------------------------------------------------

static size_t part_of(MeetingWhat what)
{
    switch (what) {
    case MEETING_JOIN: case MEETING_WELCOME: return sizeof(MeetingPerson);
    case MEETING_PULSE: case MEETING_LEAVE: return sizeof(MeetingSigns);
    case MEETING_GO: return MEETING_NAME;
    case MEETING_NO: case MEETING_LATER: case MEETING_END: return sizeof(Error);
    case MEETING_PUT: case MEETING_GET: case MEETING_HERE: return STORE_KEY_BYTES;
    default: return 0;
    }
}

size_t meeting_bytes(MeetingWhat what) { return offsetof(MeetingMessage, person) + part_of(what); }

static void person_end(MeetingPerson *person)
{
    person->host[sizeof person->host - 1] = '\0';
    person->name[sizeof person->name - 1] = '\0';
}

bool meeting_take(MeetingMessage *to, const void *message, size_t bytes)
{
    if (bytes < meeting_bytes(0) || bytes > sizeof *to)
        return false;
    memcpy(to, message, bytes);
    bool has_value = to->what == MEETING_PUT || to->what == MEETING_HERE;
    size_t least = meeting_bytes(to->what);
    if (to->what < MEETING_JOIN || to->what > MEETING_BYE || bytes < least ||
        (bytes > least && !has_value))
        return false;
    if (part_of(to->what) == sizeof(MeetingPerson))
        person_end(&to->person);
    if (has_value || to->what == MEETING_GET)
        to->store.key[STORE_KEY_BYTES - 1] = '\0';
    if (to->what == MEETING_GO)
        to->run[sizeof to->run - 1] = '\0';
    if (part_of(to->what) == sizeof(Error)) {
        to->words.text[sizeof to->words.text - 1] = '\0';
        to->words.hint[sizeof to->words.hint - 1] = '\0';
    }
    return true;
}

double meeting_absence(double *looked)
{
    double now = watch_now(), absence = now - *looked;
    *looked = now;
    return absence > 1 ? absence : 0;
}

void meeting_leave_silently(void)
{
    if (ftrylockfile(stdout) == 0)      // who holds it may be stuck there
        fflush(stdout);
    check_clean_up();
    _exit(EXIT_FAILED);
}

// --- the thread: bad news ------------------------------------------------------------------------

// On rank 0's machine rank 0 speaks; it does for itself.
static bool speaks(const Meeting *m)
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
static _Noreturn void be_ended(Meeting *m, const Error *words)
{
    wire_free(m->wire);
    if (speaks(m))
        FAIL(words->hint, "rank 0 (%s, pid %d) ends the run: %s", m->rank0.host,
             (int)m->rank0.pid, words->text);
    sleep_s(m->rank == 0 ? 10 * shyness : shyness);
    meeting_leave_silently();
}

// On rank 0's machine rank 1 speaks.
static _Noreturn void lose(const Meeting *m, const char *text)
{
    sleep_s(courtesy);
    if (m->first < 0 || m->rank == (m->first == 0 ? 1 : m->first))
        FAIL("what rank 0 or its machine said last tells why", "rank 0 (%s, pid %d) %s",
             m->rank0.host, (int)m->rank0.pid, text);
    sleep_s(shyness);
    meeting_leave_silently();
}

// --- the thread ----------------------------------------------------------------------------------

static void name_copy(char to[ALIVE_NAME], const _Atomic char from[ALIVE_NAME])
{
    for (int i = 0; i < ALIVE_NAME - 1; i++)
        to[i] = atomic_load_explicit(&from[i], memory_order_relaxed);
    to[ALIVE_NAME - 1] = '\0';
}

static void take_signs(MeetingSigns *signs)
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

static void send_signs(Meeting *m, MeetingWhat what)
{
    memset(m->out, 0, meeting_bytes(what));
    m->out->what = what;
    take_signs(&m->out->signs);
    wire_send(m->wire, m->out, meeting_bytes(what));
    m->pulsed = watch_now();
}

// The lock is held.
static void take_message(Meeting *m, size_t bytes)
{
    const MeetingMessage *in = m->in;
    if (in->what == MEETING_GO && m->phase == JOINING) {
        m->phase = GOING;
        snprintf(m->run, sizeof m->run, "%s", in->run);
    } else if (in->what == MEETING_HERE && m->value) {
        m->bytes = bytes - meeting_bytes(MEETING_HERE);
        memcpy(m->value, in->store.value, m->bytes < m->capacity ? m->bytes : m->capacity);
        m->value = NULL;
        m->answered = true;
    } else if (in->what == MEETING_BYE) {
        m->phase = OVER;
    }
}

// Returns whether the meeting goes on.
static bool take_messages(Meeting *m)
{
    const void *message;
    size_t bytes;
    bool over = false;
    while ((message = wire_next(m->wire, &bytes)) != NULL) {
        if (!meeting_take(m->in, message, bytes))
            continue;
        m->heard = watch_now();
        if (m->in->what == MEETING_END || m->in->what == MEETING_NO)
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
static bool take_wishes(Meeting *m)
{
    pthread_mutex_lock(&m->lock);
    if (m->request && m->phase != OVER)
        wire_send(m->wire, m->request, m->request_bytes);
    m->request = NULL;
    bool leaving = m->leaving, over = m->phase == OVER;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (leaving && m->left == 0 && !over) {
        m->left = watch_now();
        send_signs(m, MEETING_LEAVE);
    }
    return !over && !(m->left > 0 && (wire_turn(m->wire) == WIRE_CLOSED ||
                                      watch_now() > m->left + farewell));
}

static void await_news(const Meeting *m)
{
    uint64_t count;
    double due = 1000 * (m->pulsed + m->pulse - watch_now());
    int ms = due > MEETING_SLICE ? MEETING_SLICE : due < 1 ? 1 : (int)due + 1;
    struct pollfd fds[2] = { { .fd = wire_socket(m->wire), .events = wire_events(m->wire) },
                             { .fd = m->wake, .events = POLLIN } };
    poll(fds, 2, ms);
    if (fds[1].revents && read(m->wake, &count, sizeof count) < 0)
        return;                         // there was nothing after all
}

// Has it gone, or is it silent for too long? Returns false when nobody needs to look any more: all
// is done here, and rank 0 was faster to leave.
static bool look_after_rank0(Meeting *m, WireState state)
{
    char text[256];
    if (meeting_absence(&m->looked) > 0)
        m->heard = m->looked;           // we were stopped ourselves
    bool silent = m->rank > 0 && m->timeout > 0 && m->looked - m->heard > m->timeout;
    if (m->left > 0 || (state != WIRE_CLOSED && !silent))
        return true;
    if (alive_here()->done)
        return false;
    if (state == WIRE_CLOSED)
        snprintf(text, sizeof text, "is gone: %s", wire_why(m->wire));
    else
        snprintf(text, sizeof text, "has not answered for %.3g s: it is stopped or its machine is "
                 "out of reach", m->timeout);
    lose(m, text);
}

static void *run(void *arg)
{
    Meeting *m = arg;
    while (take_wishes(m)) {
        if (m->left == 0 && watch_now() >= m->pulsed + m->pulse)
            send_signs(m, MEETING_PULSE);
        await_news(m);
        WireState state = wire_turn(m->wire);
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
    const MeetingConfig *config;
    MeetingMessage *in;
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
    double absence = meeting_absence(&s->looked);
    if (s->deadline > 0)
        s->deadline += absence;
    return s->deadline > 0 && s->looked > s->deadline;
}

// Until it is open; or a message has come, which is in s->in then.
static bool await_wire(Search *s, Wire *wire, bool message)
{
    const void *next;
    size_t bytes;
    double until = watch_now() + s->patience;
    while (!is_late(s)) {
        WireState state = wire_turn(wire);
        if (message && (next = wire_next(wire, &bytes)) != NULL)
            return meeting_take(s->in, next, bytes);
        if (state == WIRE_CLOSED)
            return error_set(&s->why, "", "%s", wire_why(wire));
        if (state == WIRE_OPEN && !message)
            return true;
        if (s->looked > until)
            return error_set(&s->why, "", "it does not answer");
        struct pollfd fd = { .fd = wire_socket(wire), .events = wire_events(wire) };
        poll(&fd, 1, 100);
    }
    return false;                       // what was the reason before is still the best
}

static void introduce_oneself(const MeetingConfig *c, Wire *wire)
{
    MeetingMessage *m = xcalloc(1, sizeof *m);
    m->what = MEETING_JOIN;
    m->person = (MeetingPerson){ c->rank, c->size, c->first, (int32_t)getpid(), c->generation };
    gethostname(m->person.host, sizeof m->person.host - 1);
    snprintf(m->person.name, sizeof m->person.name, "%s", c->name ? c->name : "");
    wire_send(wire, m, meeting_bytes(MEETING_JOIN));
    free(m);
}

static bool be_welcomed(Search *s, Wire *wire)
{
    const MeetingConfig *c = s->config;
    if (!await_wire(s, wire, false)) {
        bool token = wire_turn(wire) == WIRE_CLOSED && wire_fault(wire) == WIRE_TOKEN;
        s->strangers = token ? s->strangers + 1 : 0;
        s->telling = token ? 2 : 0;
        return false;
    }
    s->strangers = 0;
    s->telling = 1;
    if (!c->token && tcp_is_loopback(c->address) && !tcp_same_user(wire_socket(wire)))
        return error_set(&s->why, "another port, or a token (--token-file)",
                         "it belongs to another user");
    introduce_oneself(c, wire);
    if (!await_wire(s, wire, true))
        return false;
    if (s->in->what == MEETING_WELCOME)
        return true;
    if (s->in->what == MEETING_NO || s->in->what == MEETING_LATER || s->in->what == MEETING_END)
        s->why = s->in->words;
    s->fatal = s->in->what == MEETING_END;
    return false;
}

// Returns the connection, or NULL.
static Wire *try_port(Search *s, int port)
{
    const MeetingConfig *c = s->config;
    Error err;
    int socket = tcp_connect(c->address, port, c->from, &err);
    s->telling = 0;
    if (socket < 0) {
        s->why = err;
        return NULL;
    }
    Wire *wire = wire_new(socket, false, c->token);
    s->in->what = 0;
    if (be_welcomed(s, wire))
        return wire;
    wire_free(wire);
    return NULL;
}

// why: of the port that told most
static _Noreturn void search_fails(const Search *s, const Error *why, bool token)
{
    const MeetingConfig *c = s->config;
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
static Wire *find_rank0(const MeetingConfig *c, MeetingMessage *in)
{
    enum { STRANGERS = 3 };
    int ports = c->ports > 1 ? c->ports : 1;
    double now = watch_now();
    Search s = { .config = c, .in = in, .deadline = c->timeout > 0 ? now + c->timeout : 0,
                 .patience = ports > 1 ? 0.5 : 2, .looked = now };
    error_set(&s.why, "", "it does not answer");
    Error best = s.why;
    int known = 0;                      // how much it tells
    for (int us = 10000;; us = us < 200000 ? 2 * us : us) {
        for (int i = 0, told = -1; i < ports; i++) {
            Wire *wire = try_port(&s, c->port + i);
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

static int listen_somewhere(const MeetingConfig *c)
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
static MeetingServer *open_server(MeetingConfig *c)
{
    if (c->rank != 0)
        return NULL;
    int listening = listen_somewhere(c);
    c->port = tcp_port(listening);
    c->ports = 1;
    return meeting_server_new(c, listening);
}

static void meeting_locks(Meeting *m)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void start_thread(Meeting *m)
{
    m->heard = m->looked = watch_now();
    m->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(m->wake >= 0, "ulimit -n", "eventfd: %s", strerror(errno));
    m->thread = thread_start(run, m, "the meeting");
}

// The lock is held. Waits a while for the thread; a signal ends the process here.
static void await_change(Meeting *m)
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

Meeting *meeting_join(const MeetingConfig *config)
{
    MeetingConfig c = *config;
    Meeting *m = xcalloc(1, sizeof *m);
    *m = (Meeting){ .rank = c.rank, .first = c.first, .timeout = c.timeout };
    m->pulse = c.timeout <= 0 || c.timeout > 8 ? 1 : c.timeout < 0.4 ? 0.05 : c.timeout / 8;
    m->in = xcalloc(1, sizeof *m->in);
    m->out = xcalloc(1, sizeof *m->out);
    meeting_locks(m);
    alive_wait_begin();
    m->server = open_server(&c);
    m->wire = find_rank0(&c, m->in);
    m->rank0 = m->in->person;
    tcp_own_address(wire_socket(m->wire), m->address);
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

Meeting *meeting_alone(void)
{
    Meeting *m = xcalloc(1, sizeof *m);
    m->alone = store_server_new();
    snprintf(m->run, sizeof m->run, "alone-%d", (int)getpid());
    snprintf(m->address, sizeof m->address, "127.0.0.1");
    return m;
}

const char *meeting_run(const Meeting *m) { return m->run; }
const char *meeting_address(const Meeting *m) { return m->address; }

static void wake(const Meeting *m)
{
    static const uint64_t one = 1;
    if (write(m->wake, &one, sizeof one) < 0)
        return;                         // it is awake
}

void meeting_end(Meeting *m)
{
    if (m->alone) {
        store_server_free(m->alone);
        free(m);
        return;
    }
    pthread_mutex_lock(&m->lock);
    m->leaving = true;
    pthread_mutex_unlock(&m->lock);
    wake(m);
    pthread_join(m->thread, NULL);
    wire_free(m->wire);
    meeting_server_free(m->server);
    close(m->wake);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m->out);
    free(m->in);
    free(m);
}

// --- the training thread: the store --------------------------------------------------------------

// Hands a request over, and waits until it is sent; with an answer, until that is there.
static void request(Meeting *m, const MeetingMessage *message, size_t bytes, bool answer)
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
    Meeting *m = arg;
    store_check(key, bytes);
    if (m->alone) {
        store_keep(m->alone, key, value, bytes);
        return;
    }
    MeetingMessage *message = xcalloc(1, sizeof *message);
    message->what = MEETING_PUT;
    snprintf(message->store.key, sizeof message->store.key, "%s", key);
    memcpy(message->store.value, value, bytes);
    alive_wait_begin();
    request(m, message, meeting_bytes(MEETING_PUT) + bytes, false);
    alive_wait_end();
    free(message);
}

static size_t get_alone(Meeting *m, const char *key, void *value, size_t capacity)
{
    size_t bytes;
    const void *found = store_find(m->alone, key, &bytes);
    CHECK(found, "", "store: nobody will ever put %s: this rank is alone", key);
    memcpy(value, found, bytes < capacity ? bytes : capacity);
    return bytes;
}

static size_t get(void *arg, const char *key, void *value, size_t capacity)
{
    Meeting *m = arg;
    store_check(key, 0);
    if (m->alone)
        return get_alone(m, key, value, capacity);
    MeetingMessage *message = xcalloc(1, sizeof *message);
    message->what = MEETING_GET;
    snprintf(message->store.key, sizeof message->store.key, "%s", key);
    alive_wait_begin();
    pthread_mutex_lock(&m->lock);
    m->value = value;
    m->capacity = capacity;
    pthread_mutex_unlock(&m->lock);
    request(m, message, meeting_bytes(MEETING_GET), true);
    alive_wait_end();
    free(message);
    return m->bytes;
}

Store meeting_store(Meeting *meeting) { return (Store){ put, get, meeting }; }
