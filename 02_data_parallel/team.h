// team.h - a team of threads that run one function in parallel, each with its own number.
#pragma once

typedef struct Team Team;

// Starts count - 1 threads, numbered from 1. The caller's own thread is number 0.
Team *team_new(int count);
// Calls part(arg, i) once in each thread; returns when all have returned.
void team_run(Team *team, void (*part)(void *arg, int i), void *arg);
void team_free(Team *team);
