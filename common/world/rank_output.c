// rank_output.c - a thread for each stream that gets a prefix: a slow reader makes nobody else
// wait.
#include "rank_output.h"
#include "threads.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Lines {
    struct Lines *next;
    int from, to;
    char prefix[32];
    atomic_bool ending, over;
} Lines;

static Lines *all;

enum { MOST = 4096 };                   // bytes that a pipe takes as a whole (PIPE_BUF)

// One line, with the prefix in front of it: one write, so that nothing comes between. Returns false
// when nobody reads; the program is to notice.
static bool pass_line(Lines *l, const char *line, size_t bytes)
{
    char text[MOST];
    size_t head = strlen(l->prefix);
    memcpy(text, l->prefix, head);
    memcpy(text + head, line, bytes);
    text[head + bytes] = '\n';
    return write(l->to, text, head + bytes + 1) > 0;
}

// False: nothing more comes. A program that lives on, with its launcher's other children gone, may
// keep the pipe open and write nothing.
static bool await(const Lines *l)
{
    struct pollfd fd = { .fd = l->from, .events = POLLIN };
    while (poll(&fd, 1, 100) <= 0)
        if (atomic_load(&l->ending))
            return false;
    return true;
}

// A line that is too long becomes several, and the last gets an end if it has none.
static void *pass_on(void *arg)
{
    Lines *l = arg;
    char text[MOST - sizeof l->prefix];
    size_t filled = 0;
    ssize_t n;
    bool good = true;
    while (good && await(l) && (n = read(l->from, text + filled, sizeof text - filled)) > 0) {
        filled += (size_t)n;
        for (char *end; good && ((end = memchr(text, '\n', filled)) || filled == sizeof text);) {
            size_t bytes = end ? (size_t)(end - text) : filled, taken = bytes + (end != NULL);
            good = pass_line(l, text, bytes);
            filled -= taken;
            memmove(text, text + taken, filled);
        }
    }
    if (good && filled > 0)
        pass_line(l, text, filled);
    close(l->from);
    atomic_store(&l->over, true);
    return NULL;
}

static int lines_to(int to, const char *prefix)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    Lines *l = xcalloc(1, sizeof *l);
    *l = (Lines){ .next = all, .from = ends[0], .to = to };
    snprintf(l->prefix, sizeof l->prefix, "%s", prefix);
    all = l;
    pthread_detach(thread_start(pass_on, l, "output"));
    return ends[1];
}

bool output_open(int ends[2], const char *file, const char *prefix, Error *err)
{
    for (int i = 0; i < 2; i++) {
        int ours = STDOUT_FILENO + i;
        ends[i] = file     ? open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666)
                  : prefix ? lines_to(ours, prefix)
                           : fcntl(ours, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        if (ends[i] < 0)
            return error_set(err, "--log-dir: a directory that can be written", "%.300s: %s",
                             file ? file : "output", strerror(errno));
    }
    return true;
}

void output_close(int ends[2])
{
    close(ends[0]);
    close(ends[1]);
}

bool output_left(void)
{
    bool left = false;
    for (Lines *l = all; l; l = l->next) {
        atomic_store(&l->ending, true);
        left = left || !atomic_load(&l->over);
    }
    return left;
}
