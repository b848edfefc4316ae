// crew.h - threads that do the same at the same time, each with something of its own.
#pragma once

typedef struct Crew Crew;

// `count` hands: the caller is number 0, the others get a thread each. Signals stay the caller's.
// Fails if there are not so many threads to be had.
Crew *crew_new(int count);
// Calls part(arg, i) once in each thread; returns when all have returned.
void crew_do(Crew *crew, void (*part)(void *arg, int i), void *arg);
void crew_free(Crew *crew);
