// check.h - what a program says when it cannot go on, and memory that does not fail.
//
//   [node1:4711] checkpoint.c:88: run.safetensors: the header ends behind the end of the file
//   hint: the file is truncated; copy it again
//
// Exit statuses of every program of the series: 0 done, 1 something failed, 2 wrong options,
// 3 the loss is not finite, 4 a rank was lost and another line says which, 128 + the signal
// interrupted (130 for Ctrl-C).
#pragma once
#include <stdbool.h>
#include <stdio.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_DIVERGED = 3, EXIT_REPORTED = 4 };

// What went wrong, from a reader that leaves the decision to its caller. hint may be empty.
typedef struct Error {
    char text[512];
    char hint[256];
} Error;

// Fills err and returns false, so that a reader can write: return error_set(err, "", "...", ...);
bool error_set(Error *err, const char *hint, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Prints one line (and the hint, unless it is NULL or empty) on stderr and exits with status.
_Noreturn void fail_at(const char *file, int line, int status, const char *hint,
                       const char *format, ...) __attribute__((format(printf, 5, 6)));

#define FAIL(hint, ...) fail_at(__FILE__, __LINE__, EXIT_FAILED, hint, __VA_ARGS__)
#define FAIL_ERROR(err) FAIL((err)->hint, "%s", (err)->text)
#define CHECK(condition, hint, ...)          \
    do {                                     \
        if (!(condition))                    \
            FAIL(hint, __VA_ARGS__);         \
    } while (0)

// The same lines for something that the run survives.
void warn_at(const char *file, int line, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define WARN(hint, ...) warn_at(__FILE__, __LINE__, hint, __VA_ARGS__)

// Who speaks: put before the host in every line, e.g. "rank 2/4 ". Empty unless set.
void check_set_speaker(const char *speaker);

// Called once on the way out of fail_at (and by an impatient Ctrl-C): removes what is half done,
// so it must be async-signal-safe. NULL clears it.
void check_on_exit(void (*clean_up)(void));
void check_clean_up(void);

// Ends the process with EXIT_REPORTED and without a word, whatever its other threads are doing.
_Noreturn void leave_at_once(void);

// malloc and calloc that do not return without memory. The caller frees.
void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t size);
char *xstrdup(const char *text);
