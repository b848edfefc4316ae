// threads.h - starts threads that leave all signals to the main thread.
#pragma once
#include <pthread.h>

// Calls run(arg) in a thread in which all signals are blocked. `what` names the thread in an error
// message: "worker 3".
pthread_t thread_start(void *(*run)(void *arg), void *arg, const char *what);

int core_count(void);   // cores in this thread's affinity mask

// Starts OpenMP's threads for parallel regions of this size, with all signals blocked: the main
// thread handles signals, since it has a stack for them (interrupt.c).
void threads_start_openmp(int threads);
