// check.c - error messages, and the end of the process.
#include "check.h"
#include "progress.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int this_rank, all_ranks = 1;
static atomic_int decided;     // the only exit status of this process from now on; 0: any

bool error_set(Error *err, const char *hint, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    snprintf(err->hint, sizeof err->hint, "%s", hint);
    return false;
}

void check_set_rank(int rank, int ranks)
{
    this_rank = rank;
    all_ranks = ranks;
}

int own_rank(void) { return this_rank; }
int rank_count(void) { return all_ranks; }

void blank_controls(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F)
            *text = '?';
}

// Prints with one write, so that the lines of several processes do not mix.
static void print_message(const char *file, int line, const char *hint, const char *format,
                          va_list args)
{
    char rank[32] = "", host[65] = "?", message[1024], hint_line[300] = "", text[1600];
    if (all_ranks > 1)
        snprintf(rank, sizeof rank, "rank %d/%d ", this_rank, all_ranks);
    gethostname(host, sizeof host - 1);
    vsnprintf(message, sizeof message, format, args);
    blank_controls(message);
    if (hint && hint[0])
        snprintf(hint_line, sizeof hint_line, "hint: %s", hint);
    blank_controls(hint_line);

    PROGRESS_WRITING("to stderr");
    int n = snprintf(text, sizeof text, "[%s%s:%d] %s:%d: %s\n%s%s", rank, host, (int)getpid(),
                     basename(file), line, message, hint_line, hint_line[0] ? "\n" : "");
    if (write(STDERR_FILENO, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1) < 0)
        return; // stderr may be closed
}

void warn_at(const char *file, int line, const char *hint, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_message(file, line, hint, format, args);
    va_end(args);
}

void leave_at_once(int status) { _exit(decided ? decided : status); }

void leave_only_with(int status) { decided = status; }

void fail_at(const char *file, int line, int status, const char *hint, const char *format, ...)
{
    static atomic_flag failing = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&failing))
        pause(); // a different thread is ending the process

    if (ftrylockfile(stdout) == 0)      // a stuck thread may hold stdout's lock
        fflush(stdout);
    va_list args;
    va_start(args, format);
    print_message(file, line, hint, format, args);
    va_end(args);
    leave_at_once(status);
}

static void *memory_or_fail(void *memory, size_t count, size_t size)
{
    CHECK(memory, "use a smaller batch (-b), model or data set",
          "out of memory: %.1f MiB requested", (double)count * (double)size / 0x1p20);
    return memory;
}

void *xmalloc(size_t bytes)
{
    return memory_or_fail(malloc(bytes ? bytes : 1), bytes, 1);
}

void *xcalloc(size_t count, size_t size)
{
    return memory_or_fail(calloc(count ? count : 1, size ? size : 1), count, size);
}

char *xstrdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    return memcpy(xmalloc(bytes), text, bytes);
}
