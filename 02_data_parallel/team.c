// team.c - threads that wait at one barrier before each part of the work, and at a second one after
// it:
//
//   the caller  | begin | part(0) | end | ...
//   thread 1    | begin | part(1) | end | begin ...
#include "team.h"
#include "check.h"
#include "threads.h"

#include <stdlib.h>

typedef struct Member {
    Team *team;
    int number;
    pthread_t thread;
} Member;

struct Team {
    int count;
    pthread_barrier_t begin, end;
    void (*part)(void *arg, int i); // the function that all threads call; NULL: they end
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
