// crew.c - all threads meet at one barrier before a part, and at another behind it.
#include "crew.h"
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct Hand {
    Crew *crew;
    int number;
    pthread_t thread;
} Hand;

struct Crew {
    int count;
    pthread_barrier_t begin, end;
    void (*part)(void *arg, int i); // under way, or NULL: it is over
    void *arg;
    Hand hands[];                   // (count)
};

static void *hand_run(void *arg)
{
    Hand *hand = arg;
    Crew *crew = hand->crew;
    while (pthread_barrier_wait(&crew->begin), crew->part) {
        crew->part(crew->arg, hand->number);
        pthread_barrier_wait(&crew->end);
    }
    return NULL;
}

Crew *crew_new(int count)
{
    Crew *crew = xcalloc(1, sizeof *crew + (size_t)count * sizeof(Hand));
    sigset_t signals, before;
    crew->count = count;
    pthread_barrier_init(&crew->begin, NULL, (unsigned)count);
    pthread_barrier_init(&crew->end, NULL, (unsigned)count);
    sigfillset(&signals);
    pthread_sigmask(SIG_SETMASK, &signals, &before);
    for (int i = 1; i < count; i++) {
        crew->hands[i] = (Hand){ .crew = crew, .number = i };
        int status = pthread_create(&crew->hands[i].thread, NULL, hand_run, &crew->hands[i]);
        CHECK(status == 0, "ulimit -u shows how many there may be",
              "pthread_create: thread %d of %d: %s", i, count, strerror(status));
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return crew;
}

void crew_do(Crew *crew, void (*part)(void *arg, int i), void *arg)
{
    crew->part = part;
    crew->arg = arg;
    pthread_barrier_wait(&crew->begin);
    part(arg, 0);
    pthread_barrier_wait(&crew->end);
}

void crew_free(Crew *crew)
{
    crew->part = NULL;
    pthread_barrier_wait(&crew->begin);
    for (int i = 1; i < crew->count; i++)
        pthread_join(crew->hands[i].thread, NULL);
    pthread_barrier_destroy(&crew->end);
    pthread_barrier_destroy(&crew->begin);
    free(crew);
}
