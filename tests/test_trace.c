// test_trace.c - the timeline of several processes with several threads: whole lines, matching begins and ends, named
// tracks.
// ctest: SANITIZERS asan tsan
#include "check.h"
#include "test.h"
#include "trace.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WRITERS = 4, THREADS = 3, SPANS = 200 };
static int ready[2], go[2];         // pipes, with a byte for each process
static const char *path;

// Counts lines that are not a whole event. A file is "[" and then one event per line.
static int torn_lines(const char *text)
{
    int torn = strncmp(text, "[\n", 2) != 0;
    for (const char *line = text + strcspn(text, "\n"), *end; *line && line[1]; line = end) {
        end = line + 1 + strcspn(line + 1, "\n");
        torn += !*end || strncmp(line + 1, "{\"ph\":\"", 7) != 0 || strncmp(end - 2, "},", 2) != 0;
    }
    return torn;
}

static void *spans(void *arg)
{
    char name[32];
    snprintf(name, sizeof name, "loader %d", (int)(long)arg);
    if (arg)
        trace_thread(name);     // thread 0 stays unnamed
    for (int i = 0; i < SPANS; i++) {
        trace_begin("load");
        trace_end();
    }
    return NULL;
}

// A process can open only one timeline. All open it before the first writes.
static void write_as(int rank)
{
    pthread_t threads[THREADS];
    trace_begin("not yet open");
    trace_end();
    check_set_rank(rank, WRITERS);
    trace_open(path);
    EXPECT(write(ready[1], "", 1) == 1 && read(go[0], &(char){ 0 }, 1) == 1, "pipes");
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, spans, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

TEST(processes_and_threads_write_one_file)
{
    char wanted[200];
    int status;
    pid_t children[WRITERS];
    path = test_file("joint.json", "an older file", 13);
    EXPECT(pipe(ready) == 0 && pipe(go) == 0, "pipes");
    for (int rank = 0; rank < WRITERS; rank++)
        if ((children[rank] = fork()) == 0) {
            write_as(rank);
            _exit(test_failed > 0);     // without trace_close: each event is in the file at once
        }
    for (int rank = 0; rank < WRITERS; rank++)
        EXPECT(read(ready[0], &(char){ 0 }, 1) == 1, "pipe");
    EXPECT(write(go[1], "gogo", WRITERS) == WRITERS, "pipe");
    for (int rank = 0; rank < WRITERS; rank++) {
        waitpid(children[rank], &status, 0);
        EXPECT_EQ_INT(status, 0);
    }
    const char *text = test_read(path);
    EXPECT_EQ_INT(torn_lines(text), 0);
    EXPECT_EQ_INT(test_times(text, "["), 1);
    EXPECT_EQ_INT(test_times(text, "\"process_name\""), WRITERS);
    EXPECT_EQ_INT(test_times(text, "\"thread_name\""), WRITERS * THREADS);
    EXPECT_EQ_INT(test_times(text, "\"name\":\"loader 2\""), WRITERS);
    EXPECT_EQ_INT(test_times(text, "\"name\":\"main\""), WRITERS);
    for (int i = 0; i < WRITERS * THREADS; i++) {       // begins and ends must alternate on each track
        char open = 'E';
        int events = 0;
        snprintf(wanted, sizeof wanted, "\"pid\":%d,\"tid\":%d,\"ts", i / THREADS, i % THREADS + 1);
        for (const char *at = text; (at = strstr(at, wanted)); at++, events++) {
            EXPECT(at[-3] != open, "%s: %c twice in a row", wanted, open);
            open = at[-3];
        }
        EXPECT_EQ_INT(events, 2 * SPANS);
    }
}

TEST_MAIN
