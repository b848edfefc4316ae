#include "deadline.h"
#include "check.h"
#include "threads.h"

#include <pthread.h>
#include <time.h>

static double limit;                    // s
static const char *hint_text, *what_text;
static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static bool met;

// Small slices: of a time in which we were stopped, no more than one of them counts.
static void wait_slice(void)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 100000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&changed, &lock, &until);
}

static void *run(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&lock);
    for (double left = limit; !met && left > 0; left -= 0.1)
        wait_slice();
    if (!met)
        FAIL(hint_text, "%s within %.3g s", what_text, limit);
    pthread_mutex_unlock(&lock);
    return NULL;
}

void deadline_set(double seconds, const char *hint, const char *what)
{
    pthread_condattr_t attributes;
    limit = seconds;
    hint_text = hint;
    what_text = what;
    met = false;
    if (seconds <= 0)
        return;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
    thread = thread_start(run, NULL, "a deadline");
}

void deadline_met(void)
{
    if (limit <= 0)
        return;
    pthread_mutex_lock(&lock);
    met = true;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    pthread_cond_destroy(&changed);
}
