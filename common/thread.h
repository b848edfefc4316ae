// thread.h - threads beside the main one.
#pragma once
#include <pthread.h>

// Runs it in a thread in which all signals are blocked: they are the main thread's. what: for the
// line with which it fails where there are no more threads to be had, "worker 3".
pthread_t thread_start(void *(*run)(void *arg), void *arg, const char *what);
