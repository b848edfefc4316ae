#include "thread.h"
#include "check.h"

#include <signal.h>
#include <string.h>

// A thread inherits what is blocked where it is made.
pthread_t thread_start(void *(*run)(void *arg), void *arg, const char *what)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = pthread_create(&thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    CHECK(status == 0, "ulimit -u and the container's limit on pids say how many threads may be",
          "pthread_create: %s: %s", what, strerror(status));
    return thread;
}
