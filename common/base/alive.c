// alive.c - writes this process's page of heartbeats, and reads the pages of other processes.
#include "alive.h"
#include "check.h"
#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static Alive own;                       // used until alive_publish
static Alive *_Atomic here = &own;

static Alive *alive(void) { return atomic_load_explicit(&here, memory_order_relaxed); }

void alive_publish(Alive *where) { atomic_store(&here, where); }

const Alive *alive_here(void) { return alive(); }

void alive_beat(void)
{
    atomic_fetch_add_explicit(&alive()->beats, 1, memory_order_relaxed);
}

void alive_wait_begin(void)
{
    alive_beat();
    atomic_fetch_add(&alive()->waits_for_ranks, 1);
}

// The beat comes first: a watcher that sees the end of the wait also sees a fresh beat.
void alive_wait_end(void)
{
    alive_beat();
    atomic_fetch_sub(&alive()->waits_for_ranks, 1);
}

static bool is_main_thread(void) { return syscall(SYS_gettid) == getpid(); }

void alive_watched(void) { atomic_store(&alive()->watched, true); }

void alive_joined(void)
{
    alive_beat();
    atomic_store(&alive()->joined, true);
}

static double next_wait;                // s: for the data of the next step
static double step_ended;               // s: when this epoch's last step ended; 0: none has

void alive_waited(double seconds) { next_wait = seconds; }

void alive_own(double seconds)
{
    alive()->own = alive()->own + seconds;
    alive()->messages++;
}

void alive_step(int64_t epoch, int64_t step)
{
    Alive *a = alive();
    double now = clock_now();
    alive_beat();
    if (epoch != a->epoch) {
        a->steps = a->messages = 0;
        a->waited = a->own = a->spent = step_ended = 0;
    }
    a->steps++;
    a->waited = a->waited + next_wait;
    a->spent = a->spent + (step_ended > 0 ? now - step_ended : 0);
    step_ended = now;
    atomic_store_explicit(&a->epoch, epoch, memory_order_relaxed);
    atomic_store_explicit(&a->step, step, memory_order_relaxed);
}

void alive_device_step(double seconds)
{
    if (seconds < 0 || seconds > alive()->device_step)
        atomic_store(&alive()->device_step, seconds);
}

// Texts are stored in atomic pieces of 8 bytes, so a reader may see half of a new text. The last
// byte is always zero, so the reader still finds the end.
static void text_set(_Atomic uint64_t *to, int pieces, const char *from)
{
    uint64_t text[ALIVE_DOING / 8] = { 0 };
    snprintf((char *)text, 8 * (size_t)pieces, "%s", from);
    for (int i = 0; i < pieces; i++)
        atomic_store(&to[i], text[i]);
}

static void text_get(char *to, int pieces, const _Atomic uint64_t *from)
{
    for (int i = 0; i < pieces; i++)
        memcpy(to + 8 * i, &(uint64_t){ from[i] }, 8);
}

void alive_section(const char *name)
{
    if (is_main_thread())
        text_set(alive()->section, 3, name);
}

void alive_doing(const Alive *a, char text[ALIVE_DOING])
{
    text_get(text, ALIVE_DOING / 8, a->doing);
}

static _Atomic uint64_t slowest[ALIVE_DOING / 8];
void alive_slowest_set(const char *text) { text_set(slowest, ALIVE_DOING / 8, text); }
void alive_slowest(char text[ALIVE_DOING]) { text_get(text, ALIVE_DOING / 8, slowest); }

static AliveOutside *oldest;            // of all threads' waits: it may be why the newer ones wait
static pthread_mutex_t outside_lock = PTHREAD_MUTEX_INITIALIZER;

static void publish_oldest(void)
{
    char text[ALIVE_DOING];
    if (oldest) {
        snprintf(text, sizeof text, "%s %s", oldest->doing, oldest->what);
        text_set(alive()->doing, ALIVE_DOING / 8, text);
    }
    atomic_store(&alive()->outside, oldest ? oldest->kind : 0);
}

void alive_outside_begin(AliveOutside *wait)
{
    AliveOutside **at = &oldest;
    if (wait->kind == ALIVE_ENDLESS && !is_main_thread())
        return;
    pthread_mutex_lock(&outside_lock);
    while (*at)
        at = &(*at)->newer;
    *at = wait;
    publish_oldest();
    pthread_mutex_unlock(&outside_lock);
}

void alive_outside_end(AliveOutside *wait)
{
    AliveOutside **at = &oldest;
    alive_beat();
    pthread_mutex_lock(&outside_lock);
    while (*at && *at != wait)
        at = &(*at)->newer;
    if (*at)
        *at = wait->newer;
    publish_oldest();
    pthread_mutex_unlock(&outside_lock);
}

void alive_outside_changed(void)
{
    pthread_mutex_lock(&outside_lock);
    publish_oldest();
    pthread_mutex_unlock(&outside_lock);
}

void alive_collective_begin(uint64_t place, const char *communicator, const char *operation,
                            int64_t count, const char *section)
{
    Alive *a = alive();
    AliveCollective *c = &a->collectives[place % ALIVE_KEPT];
    text_set(c->communicator, 3, communicator);
    text_set(c->operation, 3, operation);
    text_set(c->section, 3, section);
    atomic_store(&c->count, count);
    atomic_store(&c->place, place);
    atomic_store(&a->latest, place);
    atomic_fetch_add(&a->begun, 1);
}

void alive_collective_end(void) { atomic_fetch_add(&alive()->ended, 1); }

void alive_done(void)
{
    alive_beat();
    atomic_store(&alive()->done, true);
}

bool alive_seen(const Alive *page)
{
    return atomic_load(&page->beats) > 0 || atomic_load(&page->timeout) > 0;
}

void alive_limits(double timeout, double patience)
{
    atomic_store(&alive()->timeout, timeout);
    atomic_store(&alive()->patience, patience);
}

// Word by word, in order: `waits_for_ranks` must be read before `beats` (see alive_wait_end).
void alive_copy(Alive *to, const Alive *from)
{
    typedef uint64_t __attribute__((may_alias)) Word;
    for (size_t i = 0; i < sizeof *to / sizeof(Word); i++)
        ((Word *)to)[i] = __atomic_load_n((const Word *)from + i, __ATOMIC_ACQUIRE);
}

const AliveCollective *alive_collective(const Alive *a, uint64_t place)
{
    const AliveCollective *c = &a->collectives[place % ALIVE_KEPT];
    return place > 0 && c->place == place ? c : NULL;
}

void alive_describe(const AliveCollective *c, char text[ALIVE_TEXT])
{
    char operation[24], communicator[24], section[24], values[32] = "";
    text_get(operation, 3, c->operation);
    text_get(communicator, 3, c->communicator);
    text_get(section, 3, c->section);
    if (c->count > 0)
        snprintf(values, sizeof values, " of %lld", (long long)c->count);
    snprintf(text, ALIVE_TEXT, "%s%s (%s)%s%s", operation, values, communicator,
             section[0] ? ", in " : "", section);
}

void alive_progress(const Alive *a, char *text, int size)
{
    char name[ALIVE_TEXT], collective[160] = "no collective yet", steps[80], section[24];
    uint64_t begun = a->begun, latest = a->latest;
    text_get(section, 3, a->section);
    if (begun > 0) {
        alive_describe(&a->collectives[latest % ALIVE_KEPT], name);
        snprintf(collective, sizeof collective, "#%llu %s%s", (unsigned long long)latest, name,
                 begun > a->ended ? "" : ", completed");
    }
    snprintf(steps, sizeof steps, "after epoch %lld, step %lld", (long long)atomic_load(&a->epoch),
             (long long)atomic_load(&a->step));
    snprintf(text, (size_t)size, "%s%s%s; last collective: %s",
             atomic_load(&a->step) > 0 ? steps
             : atomic_load(&a->joined) ? "before the end of its first step"
                                       : "before it met the other ranks",
             section[0] ? ", in " : "", section, collective);
}

// These seals keep the pages' file from shrinking while it is mapped. alive_inherit recognises the
// file by them.
enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

Alive *alive_pages(int count, int *descriptor)
{
    size_t bytes = (size_t)count * sizeof(Alive);
    int fd = memfd_create("alive", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0, "raise ulimit -n, the limit on open files",
          "memory for heartbeats: memfd_create: %s", strerror(errno));
    CHECK(ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0,
          "raise ulimit -f: it also limits files in memory", "memory for heartbeats: %s",
          strerror(errno));
    Alive *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(pages != MAP_FAILED, "free -m and ulimit -v show how much memory may be used",
          "memory for heartbeats: mmap: %s", strerror(errno));
    *descriptor = fd;
    return pages;
}

void alive_pages_free(Alive *pages, int count) { munmap(pages, (size_t)count * sizeof *pages); }

void alive_bequeath(int descriptor, int number)
{
    char text[32];
    snprintf(text, sizeof text, "%d %d", descriptor, number);
    setenv("DDP_ALIVE", text, 1);
    fcntl(descriptor, F_SETFD, 0);
}

bool alive_inherit(void)
{
    const char *text = getenv("DDP_ALIVE");
    int fd = -1, number = -1;
    char more;
    struct stat file;
    bool named = text && sscanf(text, "%d %d%c", &fd, &number, &more) == 2;
    unsetenv("DDP_ALIVE");              // not for this process's own children
    if (!named || fd <= STDERR_FILENO || number < 0 || fcntl(fd, F_GET_SEALS) != SEALS
        || fstat(fd, &file) != 0 || (size_t)file.st_size / sizeof(Alive) <= (size_t)number)
        return false;
    Alive *pages = mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (pages != MAP_FAILED)
        alive_publish(&pages[number]);
    return pages != MAP_FAILED;
}
