// check.h - what ddp.c, broadcast.c and sampler.c use of common/check.h.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { EXIT_RANKS_DIFFER = 200 };

#define WARN(hint, ...) (fprintf(stderr, __VA_ARGS__), fprintf(stderr, "\nhint: %s\n", hint))
#define CHECK(condition, hint, ...)     \
    do {                                \
        if (!(condition)) {             \
            WARN(hint, __VA_ARGS__);    \
            leave_at_once(1);           \
        }                               \
    } while (0)

// Not exit: its clean-up would wait for streams, and they for a rank that no longer answers.
static inline void leave_at_once(int status)
{
    fflush(NULL);
    _exit(status);
}

static inline void leave_only_with(int status) { (void)status; }   // nothing else ends a rank here

static inline void *xmalloc(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    CHECK(memory, "use less", "out of memory");
    return memory;
}
