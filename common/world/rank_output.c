// rank_output.c - lines with a name in front.
#include "rank_output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 4096 };                   // bytes that a pipe takes as a whole (PIPE_BUF)

struct Lines {
    int from, to;                       // from: -1 when nothing more comes
    bool ending;                        // what is not there yet does not come
    int head, filled;                   // bytes in text: of the name, and of all
    char text[MOST];                    // the name, and lines that are to be passed on
};

static Lines *lines_new(const char *prefix, int to, int *end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return NULL;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    Lines *l = xcalloc(1, sizeof *l);
    l->from = ends[0];
    l->to = to;
    l->head = l->filled = (int)strlen(prefix) < MOST / 2 ? (int)strlen(prefix) : MOST / 2;
    memcpy(l->text, prefix, (size_t)l->head);
    *end = ends[1];
    return l;
}

static void close_from(Lines *l)
{
    if (l->from >= 0)
        close(l->from);
    l->from = -1;
}

static bool is_full(const Lines *l) { return l->filled >= MOST - 1; }

// What has come stands in the way of more, or was the last: then the other side is waited for.
static struct pollfd lines_poll(const Lines *l)
{
    if (is_full(l) || (l->from < 0 && l->filled > l->head))
        return (struct pollfd){ .fd = l->to, .events = POLLOUT };
    return (struct pollfd){ .fd = l->from, .events = POLLIN };
}

// The end of the first line. One that is too long gets it where it has to, and the last one too.
static char *end_of_line(Lines *l)
{
    char *end = memchr(l->text + l->head, '\n', (size_t)(l->filled - l->head));
    if (end == NULL && l->filled > l->head && (is_full(l) || l->from < 0)) {
        end = &l->text[l->filled++];
        *end = '\n';
    }
    return end;
}

static void write_lines(Lines *l)
{
    struct pollfd out = { .fd = l->to, .events = POLLOUT };
    char *end;
    while ((end = end_of_line(l)) != NULL && poll(&out, 1, 0) > 0) {
        size_t bytes = (size_t)(end + 1 - l->text);
        ssize_t n = write(l->to, l->text, bytes);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0)
            close_from(l);              // nobody reads; the process is to notice
        l->filled -= (int)bytes - l->head;
        memmove(l->text + l->head, end + 1, (size_t)(l->filled - l->head));
    }
}

// Not for ever where a process writes faster than this: others have something to say too.
static bool lines_pass(Lines *l)
{
    for (int rounds = 0; rounds < 16; rounds++) {
        write_lines(l);
        if (l->from < 0 || is_full(l))
            break;
        ssize_t n = read(l->from, l->text + l->filled, (size_t)(MOST - 1 - l->filled));
        if (n < 0 && !l->ending)
            break;
        if (n <= 0)
            close_from(l);
        else
            l->filled += (int)n;
    }
    return l->from >= 0 || l->filled > l->head;
}

// --- both streams --------------------------------------------------------------------------------

bool output_open(Output *o, const char *file, const char *prefix, Error *err)
{
    *o = (Output){ .ends = { -1, -1 } };
    int fd = file ? open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    for (int i = 0; i < 2 && (fd >= 0 || !file); i++) {
        int ours = STDOUT_FILENO + i;
        if (!file && prefix)
            o->lines[i] = lines_new(prefix, ours, &o->ends[i]);
        else
            o->ends[i] = fcntl(file ? fd : ours, F_DUPFD_CLOEXEC, 0);
    }
    int error = errno;
    if (fd >= 0)
        close(fd);
    return (o->ends[0] >= 0 && o->ends[1] >= 0)
           || error_set(err, "--log-dir: a directory that can be written", "%.300s: %s",
                        file ? file : "output", strerror(error));
}

void output_close_ends(Output *o)
{
    for (int i = 0; i < 2; i++)
        if (o->ends[i] >= 0)
            close(o->ends[i]);
    o->ends[0] = o->ends[1] = -1;
}

void output_free(Output *o)
{
    output_close_ends(o);
    for (int i = 0; i < 2; i++) {
        if (o->lines[i])
            close_from(o->lines[i]);
        free(o->lines[i]);
        o->lines[i] = NULL;
    }
}

void output_poll(const Output *o, struct pollfd fds[2])
{
    for (int i = 0; i < 2; i++)
        fds[i] = o->lines[i] ? lines_poll(o->lines[i]) : (struct pollfd){ .fd = -1 };
}

bool output_pass(Output *o)
{
    bool left = false;
    for (int i = 0; i < 2; i++)
        left = (o->lines[i] && lines_pass(o->lines[i])) || left;
    return left;
}

void output_end(Output *o)
{
    for (int i = 0; i < 2; i++)
        if (o->lines[i])
            o->lines[i]->ending = true;
}
