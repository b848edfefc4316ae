// test_trace.c - the timeline: valid after every event, matching begins and ends, named tracks.
// ctest: SANITIZERS asan tsan
#include "check.h"
#include "test.h"
#include "trace.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *text;

// Counts lines that are not a whole event. A file is "[" and then one event per line.
static int torn_lines(void)
{
    int torn = strncmp(text, "[\n", 2) != 0;
    for (const char *line = text + strcspn(text, "\n"), *end; *line && line[1]; line = end) {
        end = line + 1 + strcspn(line + 1, "\n");
        torn += !*end || strncmp(line + 1, "{\"ph\":\"", 7) != 0 || strncmp(end - 2, "},", 2) != 0;
    }
    return torn;
}

static int count(const char *what) { return test_times(text, what); }

static void spans(int n)
{
    for (int i = 0; i < n; i++) {
        trace_begin("load");
        trace_end();
    }
}

// A process can open only one timeline, so each writer is a process.
static pid_t start(void (*write_it)(int rank, const char *path), int rank, const char *path)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        write_it(rank, path);
        trace_close();
        _exit(test_failed > 0);
    }
    return child;
}

static void expect_end(pid_t child)
{
    int status;
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
}

static void write_nested(int rank, const char *path)
{
    trace_begin("not yet open");
    trace_end();
    check_set_rank(rank, 4);
    trace_open(path);
    trace_thread("main loop");
    for (int i = 0; i < 20; i++) {
        trace_begin(i % 2 ? "forward" : "backward");
        trace_begin("inner");
        text = test_read(path);
        EXPECT(torn_lines() == 0, "within a span: %s", text);
        trace_end();
        trace_end();
    }
}

TEST(a_file_is_valid_after_every_event)
{
    const char *path = test_path("each.json");
    expect_end(start(write_nested, 3, path));
    text = test_read(path);
    EXPECT(torn_lines() == 0, "closed: %s", text);
    EXPECT_EQ_INT(count("\"ph\":\"B\""), 40);
    EXPECT_EQ_INT(count("\"ph\":\"E\""), 40);
    EXPECT_EQ_INT(count("\"pid\":3"), 82);
    EXPECT_EQ_INT(count("\"thread_name\",\"args\":{\"name\":\"main loop\"}"), 1);
    EXPECT_EQ_INT(count("\"name\":\"process_name\",\"args\":{\"name\":\"rank 3\"}"), 1);
}

static void write_a_call(int rank, const char *path)
{
    EXPECT_EQ_STR(trace_section(), "");
    for (int opened = 0; opened < 2; opened++) {
        trace_begin("epoch");
        for (int i = 0; i < 20; i++)
            trace_begin_call("all_reduce", "gradients #3");
        EXPECT_EQ_STR(trace_section(), "");     // nested too deep to be known
        for (int i = 0; i < 20; i++)
            trace_end();
        EXPECT_EQ_STR(trace_section(), "epoch");
        trace_end();
        EXPECT_EQ_STR(trace_section(), "");
        trace_open(opened ? NULL : path);
    }
}

TEST(sections_are_known_without_a_timeline)
{
    const char *path = test_path("calls.json");
    expect_end(start(write_a_call, 0, path));
    text = test_read(path);
    EXPECT_EQ_INT(count(",\"name\":\"all_reduce\",\"args\":{\"call\":\"gradients #3\"}},\n"), 20);
    EXPECT_EQ_INT(count("\"call\""), 20);
}

enum { THREADS = 4, SPANS = 200 };

static void *work(void *arg)
{
    char name[32];
    snprintf(name, sizeof name, "loader %d", (int)(long)arg);
    if (arg)
        trace_thread(name); // thread 0 stays unnamed
    spans(SPANS);
    return NULL;
}

static void write_in_threads(int rank, const char *path)
{
    pthread_t threads[THREADS];
    trace_open(path);
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

TEST(each_thread_has_a_track)
{
    const char *path = test_path("threads.json");
    expect_end(start(write_in_threads, 0, path));
    text = test_read(path);
    EXPECT_EQ_INT(torn_lines(), 0);
    EXPECT_EQ_INT(count("\"thread_name\""), THREADS);
    EXPECT_EQ_INT(count("\"name\":\"loader "), THREADS - 1);
    EXPECT_EQ_INT(count("\"name\":\"main\""), 1);
    for (int tid = 1; tid <= THREADS; tid++) {  // begins and ends must alternate on each track
        char track[32], open = 'E';
        int events = 0;
        snprintf(track, sizeof track, "\"pid\":0,\"tid\":%d,\"ts", tid);
        for (const char *at = text; (at = strstr(at, track)); at++, events++) {
            EXPECT(at[-3] != open, "track %d: %c twice in a row", tid, open);
            open = at[-3];
        }
        EXPECT_EQ_INT(events, 2 * SPANS);
    }
}

enum { WRITERS = 4 };
static pthread_barrier_t *meeting;      // of all processes

static void write_as(int rank, const char *path)
{
    check_set_rank(rank, WRITERS);
    trace_open(path);
    pthread_barrier_wait(meeting);
    trace_thread("train");
    spans(SPANS);
}

TEST(processes_write_one_file)
{
    char wanted[200];
    pid_t children[WRITERS];
    pthread_barrierattr_t shared;
    const char *path = test_file("joint.json", "an older file", 13);
    meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(meeting, &shared, WRITERS);
    for (int rank = 0; rank < WRITERS; rank++)
        children[rank] = start(write_as, rank, path);
    for (int rank = 0; rank < WRITERS; rank++)
        expect_end(children[rank]);
    text = test_read(path);
    EXPECT_EQ_INT(torn_lines(), 0);
    EXPECT_EQ_INT(count("["), 1);
    EXPECT_EQ_INT(count("\"process_name\""), WRITERS);
    for (int rank = 0; rank < WRITERS; rank++) {
        snprintf(wanted, sizeof wanted, "\"process_name\",\"args\":{\"name\":\"rank %d\"}", rank);
        EXPECT_EQ_INT(count(wanted), 1);
        snprintf(wanted, sizeof wanted, "{\"ph\":\"E\",\"pid\":%d,", rank);
        EXPECT_EQ_INT(count(wanted), SPANS);
    }
}

TEST_MAIN
