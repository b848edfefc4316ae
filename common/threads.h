// threads.h - starting threads. Only the main thread handles signals.
#pragma once
#include <pthread.h>

// Calls run(arg) in a thread in which all signals are blocked. Fails if the thread cannot be
// created; the message calls it `what`, for example "worker 3".
pthread_t thread_start(void *(*run)(void *arg), void *arg, const char *what);

int core_count(void);   // cores in this process's affinity mask

// Starts OpenMP's threads for parallel regions of this size, with all signals blocked: the main
// thread handles signals, since it has a stack for them (interrupt.c).
void threads_start_openmp(int threads);
