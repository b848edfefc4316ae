// rank_output.c - a thread for each stream that gets a prefix, so that a slow reader delays no
// other stream.
#include "rank_output.h"
#include "threads.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 4096 };                   // bytes that a pipe takes as a whole (PIPE_BUF)

typedef struct Lines {
    int from, to;
    size_t head, filled;                // bytes of the prefix; and of the line so far
    char text[MOST];                    // the prefix and the line
} Lines;

static atomic_int open_streams;
static atomic_bool ending;

// One write, so that lines do not mix. A line that is too long becomes several. False: the reader
// has closed its end, so the program's pipe must be closed, too.
static bool pass_line(Lines *l, size_t bytes)
{
    size_t taken = bytes + (bytes < l->filled);     // with its newline, if there is one
    l->text[l->head + bytes] = '\n';
    bool good = write(l->to, l->text, l->head + bytes + 1) > 0;
    l->filled -= taken;
    memmove(l->text + l->head, l->text + l->head + taken, l->filled);
    return good;
}

// Waits for output. False: no more will come. Once `ending` is set it does not wait for the end of
// the pipe, which a process that has left its group may keep open.
static bool fill(Lines *l)
{
    struct pollfd fd = { .fd = l->from, .events = POLLIN };
    while (poll(&fd, 1, 100) <= 0)
        if (ending)
            return false;
    ssize_t n = read(l->from, l->text + l->head + l->filled, MOST - 1 - l->head - l->filled);
    l->filled += n > 0 ? (size_t)n : 0;
    return n > 0;
}

static void *pass_on(void *arg)
{
    Lines *l = arg;
    bool good = true;
    while (good && fill(l))
        for (char *end; good && ((end = memchr(l->text + l->head, '\n', l->filled)) ||
                                 l->head + l->filled == MOST - 1);)
            good = pass_line(l, end ? (size_t)(end - l->text) - l->head : l->filled);
    if (good && l->filled > 0)
        pass_line(l, l->filled);
    close(l->from);
    free(l);
    open_streams--;
    return NULL;
}

static int lines_to(int to, const char *prefix)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    Lines *l = xcalloc(1, sizeof *l);
    *l = (Lines){ .from = ends[0], .to = to, .head = strlen(prefix) };
    memcpy(l->text, prefix, l->head);
    ending = false;
    open_streams++;
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

bool output_left(void)
{
    ending = true;
    return open_streams > 0;
}
