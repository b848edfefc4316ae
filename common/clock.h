// clock.h - a clock that never goes back.
#pragma once
#include <time.h>

// Seconds since an arbitrary moment.
static inline double clock_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
