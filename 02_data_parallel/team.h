// team.h - threads that do the parts of a piece of work at the same time.
#pragma once

typedef struct Team Team;

// A team of `count`: the caller is number 0, and each of the others gets a thread.
Team *team_new(int count);
// Calls part(arg, i) once in each thread; returns when all have returned.
void team_run(Team *team, void (*part)(void *arg, int i), void *arg);
void team_free(Team *team);
