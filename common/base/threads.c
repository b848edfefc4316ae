// threads.c - a team waits at one barrier before each part, and at a second one after it.
#include "threads.h"
#include "check.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
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
    CHECK(status == 0, "ulimit -u and the container's limit on pids limit the number of threads",
          "cannot start a thread (%s): %s", what, strerror(status));
    return thread;
}

// --- teams ---------------------------------------------------------------------------------------

typedef struct Member {
    Team *team;
    int number;
    pthread_t thread;
} Member;

struct Team {
    int count;
    pthread_barrier_t begin, end;
    void (*part)(void *arg, int i); // the current one; NULL: the team ends
    void *arg;
    Member members[];               // (count)
};

static void *member_run(void *arg)
{
    Member *member = arg;
    Team *team = member->team;
    while (pthread_barrier_wait(&team->begin), team->part) {
        team->part(team->arg, member->number);
        pthread_barrier_wait(&team->end);
    }
    return NULL;
}

Team *team_new(int count)
{
    Team *team = xcalloc(1, sizeof *team + (size_t)count * sizeof(Member));
    team->count = count;
    pthread_barrier_init(&team->begin, NULL, (unsigned)count);
    pthread_barrier_init(&team->end, NULL, (unsigned)count);
    for (int i = 1; i < count; i++) {
        char what[40];
        snprintf(what, sizeof what, "thread %d of %d", i, count);
        team->members[i] = (Member){ .team = team, .number = i };
        team->members[i].thread = thread_start(member_run, &team->members[i], what);
    }
    return team;
}

void team_run(Team *team, void (*part)(void *arg, int i), void *arg)
{
    team->part = part;
    team->arg = arg;
    pthread_barrier_wait(&team->begin);
    part(arg, 0);
    pthread_barrier_wait(&team->end);
}

void team_free(Team *team)
{
    team->part = NULL;
    pthread_barrier_wait(&team->begin);
    for (int i = 1; i < team->count; i++)
        pthread_join(team->members[i].thread, NULL);
    pthread_barrier_destroy(&team->end);
    pthread_barrier_destroy(&team->begin);
    free(team);
}
