// turns.h - computations that take turns in one thread.
#pragma once

typedef struct Turns Turns;
Turns *turns_new(int count);
void turns_free(Turns *turns);

// Runs compute(arg, 0) to compute(arg, count - 1), and returns when all have ended.
void turns_run(Turns *turns, void (*compute)(void *arg, int i), void *arg);
// To be called by each of them, equally often: stops it until all others have made the same call,
// or have ended.
void turns_pass(Turns *turns);
