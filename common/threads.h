// threads.h - additional threads, and teams of them. Only the main thread handles signals.
#pragma once
#include <pthread.h>

// Calls run(arg) in a thread in which all signals are blocked. Fails if no thread can be created;
// `what` names it in the message, "worker 3".
pthread_t thread_start(void *(*run)(void *arg), void *arg, const char *what);

int core_count(void);   // cores in this process's affinity mask

// A team calls the same function in all its threads at the same time, each with its own index.
typedef struct Team Team;

// A team of `count`: the caller is number 0, and each of the others gets a thread.
Team *team_new(int count);
// Calls part(arg, i) once in each thread; returns when all have returned.
void team_run(Team *team, void (*part)(void *arg, int i), void *arg);
void team_free(Team *team);
