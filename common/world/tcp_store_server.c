// tcp_store_server.c - rank 0's thread: lets ranks in, keeps the store, hears from everybody, judges.
//
//   a connection:   opening  ->  open  ->  JOIN: a rank  ->  LEAVE, or closed
//                      |           |
//                      strangers: 5 s each; of too many the oldest goes
//
// Nothing here waits for one connection: who says nothing costs one place among the strangers.
#include "world/tcp_store_message.h"
#include "tcp.h"
#include "threads.h"
#include "clock.h"
#include "supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { STRANGERS = 64, AT_ONCE = 32 };  // besides one for each rank; taken in between two looks
static const double politeness = 5;     // s for a connection to say who it is
static const double farewell = 2;       // s for the others to leave, when rank 0 does
static const double last_words = 0.5;   // s for words to arrive

typedef struct Guest {
    Channel *wire;                         // NULL: to be forgotten
    double since;                       // s
    bool open, told;                    // it was told to go, or has said that it does
    int rank;                           // -1: not yet
    char wanted[STORE_KEY_BYTES];       // what it waits for; empty: nothing
    char peer[TCP_ADDRESS + 8];
} Guest;

struct TcpStoreServer {
    int size, listening, wake;
    double timeout, begun, looked;      // s
    double deaf;                        // s: no more connections until then
    bool loopback, has_token;
    unsigned char token[CHANNEL_KEY];
    char name[TCP_STORE_NAME];
    TcpStorePerson self;                 // rank 0
    Guest *guests;                      // by age
    int count, most;
    struct pollfd *fds;                 // (most + 2)
    TcpStorePerson *persons;             // (size) by rank: who it is, or was
    TcpStorePerson *newest;              // (size) by the first rank of a machine: generation, host
    bool *here;                         // (size) by rank
    int there;                          // how many are
    bool going;
    Supervisor watch;
    ForkStoreServer *store;
    TcpStoreMessage *in, *out;
    int refused;
    char refusal[256];                  // the last
    atomic_bool stop;
    pthread_t thread;
};

// --- words ---------------------------------------------------------------------------------------

static void send_out(TcpStoreServer *s, Guest *guest, TcpStoreWhat what, size_t more)
{
    s->out->what = what;
    channel_send(guest->wire, s->out, tcp_store_bytes(what) + more);
}

static void send_words(TcpStoreServer *s, Guest *guest, TcpStoreWhat what, const Error *words)
{
    memset(s->out, 0, tcp_store_bytes(what));
    s->out->words = *words;
    send_out(s, guest, what, 0);
}

// It is to close the connection itself: then it has read what we said.
static void send_away(TcpStoreServer *s, Guest *guest, TcpStoreWhat what, const char *hint,
                      const char *format, ...) __attribute__((format(printf, 5, 6)));
static void send_away(TcpStoreServer *s, Guest *guest, TcpStoreWhat what, const char *hint,
                      const char *format, ...)
{
    Error words;
    va_list args;
    va_start(args, format);
    vsnprintf(words.text, sizeof words.text, format, args);
    va_end(args);
    snprintf(words.hint, sizeof words.hint, "%s", hint);
    send_words(s, guest, what, &words);
    guest->told = true;
    guest->since = s->looked;
    guest->rank = -1;
}

// Until all that was sent has arrived, or the time is over; with `gone`: until all but rank 0's own
// connection have closed.
static void send_rest(TcpStoreServer *s, double time, bool gone)
{
    double until = clock_now() + time;
    bool busy = true;
    while (busy && clock_now() < until) {
        busy = false;
        for (int i = 0; i < s->count; i++) {
            Guest *guest = &s->guests[i];
            size_t bytes;
            if (!guest->open || guest->rank == 0 || channel_turn(guest->wire) == CHANNEL_CLOSED)
                continue;
            while (channel_next(guest->wire, &bytes) != NULL)
                continue;
            busy = busy || gone || (channel_events(guest->wire) & POLLOUT);
        }
        if (busy)
            usleep(5000);
    }
}

// For everybody. Said here, if it has not been; the first ranks of other machines repeat it.
static _Noreturn void end_run(TcpStoreServer *s, const Error *words, bool said)
{
    if (!said)
        WARN(words->hint, "%s", words->text);
    for (int i = 0; i < s->count; i++)
        if (s->guests[i].open && s->guests[i].rank != 0 && !s->guests[i].told)
            send_words(s, &s->guests[i], TCP_STORE_END, words);
    send_rest(s, last_words, true);
    tcp_store_leave_silently();
}

static void refuse(TcpStoreServer *s, const char *who, const char *why)
{
    snprintf(s->refusal, sizeof s->refusal, "%s: %s", who, why);
    if (s->refused++ == 0)
        WARN("it is not let in; others are counted", "somebody at %s knocks: %s", who, why);
}

static const char *name_of(const TcpStorePerson *person, char text[160])
{
    snprintf(text, 160, "rank %d (%s, pid %d)", (int)person->rank, person->host, (int)person->pid);
    return text;
}

// --- who may join --------------------------------------------------------------------------------

static bool same_machine(const TcpStorePerson *a, const TcpStorePerson *b)
{
    return strcmp(a->host, b->host) == 0 && a->first == b->first &&
           (a->first >= 0 || a->rank == b->rank);
}

static TcpStorePerson *newest_of(TcpStoreServer *s, const TcpStorePerson *person)
{
    int first = person->first >= 0 && person->first < s->size ? person->first : person->rank;
    return &s->newest[first];
}

// Does it contradict what is known?
static bool fits(const TcpStoreServer *s, const TcpStorePerson *person, Error *words)
{
    char who[160], other[160];
    name_of(person, who);
    if (person->size != s->size)
        return error_set(words, "all ranks need the same world size", "%s says that there are %d "
                         "ranks, %s says %d", who, (int)person->size, name_of(&s->self, other),
                         s->size);
    if (person->rank < 0 || person->rank >= s->size)
        return error_set(words, "ranks are numbered from 0", "%s comes, but there are %d ranks: 0 "
                         "to %d", who, s->size, s->size - 1);
    const TcpStorePerson *present = &s->persons[person->rank];
    bool itself = present->pid == person->pid && strcmp(present->host, person->host) == 0;
    bool anew = present->generation != person->generation && same_machine(present, person);
    if (s->here[person->rank] && !s->going && !itself && !anew)
        return error_set(words, "each process needs a rank of its own; do two machines have the "
                         "same --node-rank?", "%s is there twice: %s, pid %d, comes too",
                         name_of(present, other), person->host, (int)person->pid);
    return true;
}

// All of the machine's that are older than this one.
static void evict(TcpStoreServer *s, const TcpStorePerson *newer)
{
    Error words;
    for (int i = 0; i < s->count; i++) {
        Guest *guest = &s->guests[i];
        const TcpStorePerson *old = guest->rank < 0 ? NULL : &s->persons[guest->rank];
        if (guest->wire == NULL || old == NULL || !same_machine(old, newer) ||
            (old->generation == newer->generation && old->rank != newer->rank))
            continue;
        error_set(&words, "", "the ranks of %s were started anew, this is one of before",
                  old->host);
        if (guest->rank == 0)
            end_run(s, &words, false);
        s->here[guest->rank] = false;
        s->there--;
        send_away(s, guest, TCP_STORE_END, "", "%s", words.text);
    }
}

// It comes too late for this run. If it is of a newer start, one of ours is gone, and the others
// need to start anew as well.
static void come_late(TcpStoreServer *s, Guest *guest, const TcpStorePerson *person)
{
    Error words;
    const TcpStorePerson *newest = newest_of(s, person);
    if (!same_machine(newest, person) || person->generation <= newest->generation) {
        send_away(s, guest, TCP_STORE_END, "one process too many? another run may have this port",
                  "the run has begun: all %d ranks are there", s->size);
        return;
    }
    send_away(s, guest, TCP_STORE_LATER, "", "the run of before is just ending");
    error_set(&words, "", "rank %d was started anew on %s: its run cannot go on without it",
              (int)person->rank, person->host);
    end_run(s, &words, false);
}

static void welcome(TcpStoreServer *s, Guest *guest, const TcpStorePerson *person)
{
    s->persons[person->rank] = *person;
    s->here[person->rank] = true;
    s->there++;
    guest->rank = person->rank;
    memset(s->out, 0, tcp_store_bytes(TCP_STORE_WELCOME));
    s->out->person = s->self;
    send_out(s, guest, TCP_STORE_WELCOME, 0);
}

static void join(TcpStoreServer *s, Guest *guest, const TcpStorePerson *person)
{
    char who[160];
    Error words;
    if (!s->has_token && s->loopback && !tcp_same_user(channel_socket(guest->wire))) {
        refuse(s, guest->peer, "it belongs to another user, and there is no token");
        send_away(s, guest, TCP_STORE_END, "another port, or a token (--token-file)",
                  "it belongs to another user");
    } else if (strcmp(person->name, s->name) != 0) {
        send_away(s, guest, TCP_STORE_NO, "another port", "another run is there ('%s', not '%s')",
                  s->name, person->name);
    } else if (!fits(s, person, &words)) {
        if (!s->going)
            end_run(s, &words, false);
        send_away(s, guest, TCP_STORE_END, words.hint, "%s", words.text);
    } else {
        TcpStorePerson *newest = newest_of(s, person);
        bool known = newest->size > 0 && same_machine(newest, person);
        if (known && person->generation < newest->generation) {
            send_away(s, guest, TCP_STORE_END, "", "%s belongs to an earlier start of its machine's "
                      "ranks", name_of(person, who));
        } else if (s->going) {
            come_late(s, guest, person);
        } else {
            evict(s, person);
            *newest = *person;
            welcome(s, guest, person);
        }
    }
}

// --- what ranks say ------------------------------------------------------------------------------

static void hear(TcpStoreServer *s, int rank, const TcpStoreSigns *signs)
{
    Child *child = &s->watch.children[rank];
    Alive *a = child->alive;
    child->heard = s->looked;
    a->beats = signs->beats;
    a->waiting = signs->waiting;
    a->outside = signs->outside;
    a->joined = signs->joined != 0;
    a->done = signs->done != 0;
    a->epoch = signs->epoch;
    a->step = signs->step;
    a->begun = signs->begun;
    a->ended = signs->ended;
    a->count = signs->count;
    for (int i = 0; i < ALIVE_NAME - 1; i++) {
        a->operation[i] = signs->operation[i];
        a->communicator[i] = signs->communicator[i];
    }
}

static void leave(TcpStoreServer *s, Guest *guest)
{
    Child *child = &s->watch.children[guest->rank];
    child->alive->done = true;
    child->ended = s->looked;
    guest->told = true;
    guest->since = s->looked;
    send_out(s, guest, TCP_STORE_BYE, 0);
}

static void answer(TcpStoreServer *s, Guest *guest)
{
    size_t bytes;
    const void *value = fork_store_find(s->store, guest->wanted, &bytes);
    if (value == NULL)
        return;
    memset(s->out, 0, tcp_store_bytes(TCP_STORE_HERE));
    memcpy(s->out->store.value, value, bytes);
    guest->wanted[0] = '\0';
    send_out(s, guest, TCP_STORE_HERE, bytes);
}

static void keep(TcpStoreServer *s, size_t bytes)
{
    const TcpStoreMessage *m = s->in;
    fork_store_keep(s->store, m->store.key, m->store.value, bytes);
    for (int i = 0; i < s->count; i++)
        if (s->guests[i].wire && strcmp(s->guests[i].wanted, m->store.key) == 0)
            answer(s, &s->guests[i]);
}

static void take_message(TcpStoreServer *s, Guest *guest, size_t bytes)
{
    const TcpStoreMessage *m = s->in;
    if (guest->told)
        return;
    if (guest->rank < 0) {
        if (m->what == TCP_STORE_JOIN)
            join(s, guest, &m->person);
    } else if (m->what == TCP_STORE_PULSE) {
        hear(s, guest->rank, &m->signs);
        send_out(s, guest, TCP_STORE_WELL, 0);
    } else if (m->what == TCP_STORE_LEAVE) {
        hear(s, guest->rank, &m->signs);
        leave(s, guest);
    } else if (m->what == TCP_STORE_PUT) {
        keep(s, bytes - tcp_store_bytes(TCP_STORE_PUT));
    } else if (m->what == TCP_STORE_GET) {
        snprintf(guest->wanted, sizeof guest->wanted, "%s", m->store.key);
        answer(s, guest);
    }
}

// --- connections ---------------------------------------------------------------------------------

static void forget(TcpStoreServer *s, Guest *guest)
{
    int rank = guest->told ? -1 : guest->rank;
    if (rank >= 0 && s->going) {
        s->watch.children[rank].ended = s->looked;
    } else if (rank >= 0) {
        s->here[rank] = false;
        s->there--;
    }
    channel_free(guest->wire);
    *guest = (Guest){ .rank = -1 };
}

static void turn(TcpStoreServer *s, Guest *guest)
{
    const void *message;
    size_t bytes;
    ChannelState state = channel_turn(guest->wire);
    guest->open = guest->open || state == CHANNEL_OPEN;
    while ((message = channel_next(guest->wire, &bytes)) != NULL)
        if (tcp_store_take(s->in, message, bytes))
            take_message(s, guest, bytes);
    if (state == CHANNEL_CLOSED) {
        ChannelFault fault = channel_fault(guest->wire);
        if (!guest->open && (fault == CHANNEL_TOKEN || fault == CHANNEL_NOT_OURS))
            refuse(s, guest->peer, channel_why(guest->wire));
        forget(s, guest);
    } else if ((guest->rank < 0 || guest->told) && s->looked - guest->since > politeness) {
        if (!guest->told)
            refuse(s, guest->peer, "it does not say who it is");
        forget(s, guest);
    }
}

static void forget_gone(TcpStoreServer *s)
{
    int kept = 0;
    for (int i = 0; i < s->count; i++)
        if (s->guests[i].wire)
            s->guests[kept++] = s->guests[i];
    s->count = kept;
}

// Who has waited for longest without having said who it is.
static bool make_room(TcpStoreServer *s)
{
    for (int i = 0; i < s->count; i++)
        if (s->guests[i].rank < 0 || s->guests[i].told) {
            forget(s, &s->guests[i]);
            forget_gone(s);
            return true;
        }
    return false;
}

static int strangers(const TcpStoreServer *s)
{
    int count = 0;
    for (int i = 0; i < s->count; i++)
        count += s->guests[i].rank < 0 || s->guests[i].told;
    return count;
}

static void let_in(TcpStoreServer *s)
{
    for (int i = 0; i < AT_ONCE; i++) {
        int socket = accept4(s->listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket < 0 && (errno == EMFILE || errno == ENFILE) && !make_room(s))
            s->deaf = s->looked + 0.5;
        if (socket < 0)
            return;
        if (strangers(s) >= s->size + STRANGERS)
            make_room(s);
        Guest *guest = &s->guests[s->count++];
        *guest = (Guest){ .since = s->looked, .rank = -1 };
        tcp_peer(socket, guest->peer);
        guest->wire = channel_new(socket, true, s->has_token ? s->token : NULL);
    }
}

// --- the thread ----------------------------------------------------------------------------------

static void go(TcpStoreServer *s)
{
    for (int i = 0; i < s->size; i++) {
        Child *child = &s->watch.children[i];
        child->pid = s->persons[i].pid;
        child->host = s->persons[i].host;
        child->heard = s->looked;
        child->beaten = s->looked;
    }
    uint64_t noise = 0;
    if (getrandom(&noise, sizeof noise, 0) < 0)
        noise = (uint64_t)(1e9 * s->looked);
    memset(s->out, 0, tcp_store_bytes(TCP_STORE_GO));
    snprintf(s->out->run, sizeof s->out->run, "%d-%llx-%llx", (int)s->self.pid,
             (long long)time(NULL), (unsigned long long)noise);
    for (int i = 0; i < s->count; i++)
        if (s->guests[i].wire && s->guests[i].rank >= 0)
            send_out(s, &s->guests[i], TCP_STORE_GO, 0);
    s->going = true;
}

static _Noreturn void give_up(TcpStoreServer *s)
{
    enum { NAMED = 16 };
    Error words;
    char missing[320] = "", hint[sizeof words.hint];
    int length = 0, named = 0;
    for (int i = 0; i < s->size; i++)
        if (!s->here[i] && named++ < NAMED)
            length += snprintf(missing + length, sizeof missing - (size_t)length, "%s%d%s",
                               length ? ", " : "", i, s->persons[i].size ? " (gone again)" : "");
    if (s->refused > 0)
        snprintf(hint, sizeof hint, "refused were %d; the last: %.160s", s->refused, s->refusal);
    else
        snprintf(hint, sizeof hint, "are they started, and do they look for rank 0 here? does a "
                 "firewall stand in between? --timeout gives more time");
    error_set(&words, hint, "%d of %d ranks came within %.3g s: missing %s %s%s", s->there, s->size,
              s->timeout, named > 1 ? "are" : "is", missing, named > NAMED ? ", ..." : "");
    end_run(s, &words, false);
}

static void await_guests(TcpStoreServer *s)
{
    uint64_t count;
    double slice = s->timeout > 0 ? 1 + 1000 * s->timeout / 10 : TCP_STORE_SLICE;
    bool deaf = s->looked < s->deaf;
    for (int i = 0; i < s->count; i++)
        s->fds[i] = (struct pollfd){ .fd = channel_socket(s->guests[i].wire),
                                     .events = channel_events(s->guests[i].wire) };
    s->fds[s->count] = (struct pollfd){ .fd = s->wake, .events = POLLIN };
    s->fds[s->count + 1] = (struct pollfd){ .fd = deaf ? -1 : s->listening, .events = POLLIN };
    poll(s->fds, (nfds_t)s->count + 2, slice < TCP_STORE_SLICE ? (int)slice : TCP_STORE_SLICE);
    if (s->fds[s->count].revents && read(s->wake, &count, sizeof count) < 0)
        return;
}

static void judge(TcpStoreServer *s)
{
    if (!s->going && s->there == s->size)
        go(s);
    else if (!s->going && s->timeout > 0 && s->looked - s->begun > s->timeout)
        give_up(s);
    if (!s->going)
        return;
    supervise_look(&s->watch);
    if (supervise_judge(&s->watch))
        end_run(s, &s->watch.verdict, true);
}

static void *run(void *arg)
{
    TcpStoreServer *s = arg;
    double stopped = 0;
    while (stopped == 0 || (supervise_lives(&s->watch) && s->looked < stopped + farewell)) {
        await_guests(s);
        s->begun += tcp_store_absence(&s->looked);
        for (int i = s->count - 1; i >= 0; i--)
            turn(s, &s->guests[i]);
        forget_gone(s);
        let_in(s);
        judge(s);
        if (stopped == 0 && atomic_load(&s->stop))
            stopped = s->looked;
    }
    for (int i = 0; i < s->count; i++)
        if (s->guests[i].rank >= 0 && !s->guests[i].told)
            send_out(s, &s->guests[i], TCP_STORE_BYE, 0);
    send_rest(s, last_words, false);
    if (s->refused > 1)
        WARN("", "in all, %d connections were refused; the last: %s", s->refused, s->refusal);
    return NULL;
}

// --- from outside --------------------------------------------------------------------------------

static void remember(TcpStoreServer *s, const TcpStoreConfig *c)
{
    s->self = (TcpStorePerson){ c->rank, c->size, c->first, (int32_t)getpid(), c->generation };
    gethostname(s->self.host, sizeof s->self.host - 1);
    snprintf(s->name, sizeof s->name, "%s", c->name ? c->name : "");
    s->has_token = c->token != NULL;
    if (c->token)
        memcpy(s->token, c->token, CHANNEL_KEY);
}

static void make_places(TcpStoreServer *s)
{
    size_t size = (size_t)s->size;
    Alive *pages = alive_pages(s->size);
    s->watch = supervise_new(s->size, s->timeout);
    for (int i = 0; i < s->size; i++)
        s->watch.children[i].alive = &pages[i];
    s->persons = xcalloc(size, sizeof *s->persons);
    s->newest = xcalloc(size, sizeof *s->newest);
    s->here = xcalloc(size, sizeof *s->here);
    s->most = 2 * s->size + STRANGERS + AT_ONCE;
    s->guests = xcalloc((size_t)s->most, sizeof *s->guests);
    s->fds = xcalloc((size_t)s->most + 2, sizeof *s->fds);
}

TcpStoreServer *tcp_store_server_new(const TcpStoreConfig *config, int listening)
{
    TcpAddress address;
    TcpStoreServer *s = xcalloc(1, sizeof *s);
    s->size = config->size;
    s->timeout = config->timeout;
    s->begun = s->looked = clock_now();
    s->listening = listening;
    tcp_own_address(listening, address);
    s->loopback = tcp_is_loopback(address);
    fcntl(listening, F_SETFL, fcntl(listening, F_GETFL) | O_NONBLOCK);
    fcntl(listening, F_SETFD, FD_CLOEXEC);
    remember(s, config);
    make_places(s);
    s->store = fork_store_server_new();
    s->in = xcalloc(1, sizeof *s->in);
    s->out = xcalloc(1, sizeof *s->out);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(s->wake >= 0, "ulimit -n", "eventfd: %s", strerror(errno));
    s->thread = thread_start(run, s, "the meeting's server");
    return s;
}

void tcp_store_server_free(TcpStoreServer *s)
{
    static const uint64_t one = 1;
    if (s == NULL)
        return;
    atomic_store(&s->stop, true);
    if (write(s->wake, &one, sizeof one) < 0)
        WARN("", "eventfd: %s", strerror(errno));
    pthread_join(s->thread, NULL);
    for (int i = 0; i < s->count; i++)
        channel_free(s->guests[i].wire);
    close(s->wake);
    close(s->listening);
    fork_store_server_free(s->store);
    alive_pages_free(s->watch.children[0].alive, s->size);
    free(s->watch.children);
    free(s->persons);
    free(s->newest);
    free(s->here);
    free(s->guests);
    free(s->fds);
    free(s->in);
    free(s->out);
    free(s);
}
