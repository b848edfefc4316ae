// threads.c - starts threads that leave all signals to the main thread.
#include "threads.h"
#include "check.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

int core_count(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// A thread inherits the signal mask of the thread that creates it.
pthread_t thread_start(void *(*run)(void *arg), void *arg, const char *what)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = pthread_create(&thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    CHECK(status == 0,
          "raise ulimit -u, or the container's limit on pids: threads count as processes",
          "cannot start a thread (%s): %s", what, strerror(status));
    return thread;
}

void threads_start_openmp(int threads)
{
    sigset_t all, before;
    atomic_int started = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#pragma omp parallel num_threads(threads)
    atomic_fetch_add(&started, 1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
