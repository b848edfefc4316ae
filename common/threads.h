// threads.h - threads beside the main one, and teams of them. Signals stay the main thread's.
#pragma once
#include <pthread.h>

// Runs it in a thread in which all signals are blocked. Fails where there are no more threads to be
// had; what: for that line, "worker 3".
pthread_t thread_start(void *(*run)(void *arg), void *arg, const char *what);

// A team does the same in all its threads at the same time, each on something of its own.
typedef struct Team Team;

// A team of `count`: the caller is number 0, the others get a thread each.
Team *team_new(int count);
// Calls part(arg, i) once in each thread; returns when all have returned.
void team_run(Team *team, void (*part)(void *arg, int i), void *arg);
void team_free(Team *team);
