// check.h - errors that end the program, warnings, and memory allocation that never returns NULL.
//
//   [node1:4711] train.c:401: run.st: the header ends 9 bytes after the end of the file
//   hint: the file is damaged, or not a safetensors file; copy it again
//
// docs/troubleshooting.md lists the exit statuses.
#pragma once
#include <stdbool.h>
#include <stdio.h>

// EXIT_RANKS_DIFFER is above 128 + any signal: a launcher that reports the highest status of its
// processes then reports EXIT_RANKS_DIFFER.
enum {
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,             // wrong options, or ranks that differ in them: no work was done
    EXIT_DIVERGED = 3,          // the loss or a gradient is not finite
    EXIT_REPORTED = 4,          // another rank has failed; another process prints which and why
    EXIT_RANKS_DIFFER = 200,    // the ranks' weights differ
};

// An error that a function returns, so that its caller decides what to do. hint may be empty.
typedef struct Error {
    char text[512];
    char hint[256];
} Error;

// Fills err and returns false, so that a function can write: return error_set(err, "", "...", ...);
bool error_set(Error *err, const char *hint, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Prints one line on stderr, and the hint unless it is NULL or empty; then calls leave_at_once.
void fail_at(const char *file, int line, int status, const char *hint, const char *format, ...)
    __attribute__((noreturn, format(printf, 5, 6)));

#define FAIL(hint, ...) fail_at(__FILE__, __LINE__, EXIT_FAILED, hint, __VA_ARGS__)
#define FAIL_USAGE(hint, ...) fail_at(__FILE__, __LINE__, EXIT_USAGE, hint, __VA_ARGS__)
#define FAIL_ERROR(err) FAIL((err)->hint, "%s", (err)->text)
#define CHECK(condition, hint, ...)          \
    do {                                     \
        if (!(condition))                    \
            FAIL(hint, __VA_ARGS__);         \
    } while (0)

void warn_at(const char *file, int line, const char *hint, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define WARN(hint, ...) warn_at(__FILE__, __LINE__, hint, __VA_ARGS__)

// Replaces ASCII's control characters with '?': they could end a message's line, or control the
// terminal.
void blank_controls(char *text);

// Sets this process's rank. With several ranks, messages name the rank ("[rank 2/4
// node1:4711]"), and only rank 0 prints what concerns the whole run. Default: rank 0 of 1.
void check_set_rank(int rank, int ranks);
int own_rank(void);
int rank_count(void);

// Ends the process without exit(), which would run the destructors of libraries that other threads
// still use. Async-signal-safe.
void leave_at_once(int status) __attribute__((noreturn));
// From now on leave_at_once, in any thread, ends this process with `status`, not its argument.
void leave_only_with(int status);

void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t size);
char *xstrdup(const char *text);

static inline size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }
