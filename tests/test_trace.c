// test_trace.c - the timeline: whole after every event, spans that pair up, tracks by name.
// ctest: SANITIZERS asan tsan
#include "check.h"
#include "test.h"
#include "trace.h"
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char text[8 << 20];

static const char *read_all(const char *path)
{
    FILE *in = fopen(path, "r");
    text[in ? fread(text, 1, sizeof text - 1, in) : 0] = '\0';
    if (in)
        fclose(in);
    return text;
}

// "[" and then events, each on a line: what is in a string has no newline of its own.
static int torn_lines(void)
{
    int torn = strncmp(text, "[\n", 2) != 0;
    for (const char *line = text + strcspn(text, "\n"), *end; *line && line[1]; line = end) {
        end = line + 1 + strcspn(line + 1, "\n");
        torn += !*end || strncmp(line + 1, "{\"ph\":\"", 7) != 0 || strncmp(end - 2, "},", 2) != 0;
    }
    return torn;
}

static bool is_whole(void) { return torn_lines() == 0; }

static int count(const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}

// --- tests ---------------------------------------------------------------------------------------

TEST(whole_after_every_event)
{
    const char *path = test_path("each.json");
    trace_open(path, 3, "rank 3");
    read_all(path);
    EXPECT(is_whole(), "at first: %s", text);
    trace_thread("main \"loop\"\n");
    for (int i = 0; i < 20; i++) {
        trace_begin(i % 2 ? "forward" : "backward");
        read_all(path);
        EXPECT(is_whole(), "after a begin: %s", text);
        trace_begin("inner");
        trace_end();
        trace_end();
    }
    trace_span("comm", "all-reduce", 1234567, 2234567);
    trace_close();
    read_all(path);
    EXPECT(is_whole(), "closed: %s", text);
    EXPECT_EQ_INT(count("\"ph\":\"B\""), 40);
    EXPECT_EQ_INT(count("\"ph\":\"E\""), 40);
    EXPECT_EQ_INT(count("\"pid\":3"), 84);
    EXPECT_EQ_INT(
        count("\"name\":\"thread_name\",\"args\":{\"name\":\"main \\\"loop\\\"\\u000"), 1);
    EXPECT_EQ_INT(count("\"name\":\"process_name\",\"args\":{\"name\":\"rank 3\"}"), 1);
    EXPECT_EQ_INT(count("{\"ph\":\"X\",\"pid\":3,\"tid\":2,\"ts\":1234.567,\"dur\":1000.000,"
                        "\"name\":\"all-reduce\"}"),
                  1);
}

TEST(an_end_too_many_is_left_out)
{
    const char *path = test_path("unpaired.json");
    trace_open(path, 0, "rank 0");
    trace_end();
    trace_begin("open");
    trace_end();
    trace_end();
    trace_close();
    read_all(path);
    EXPECT(is_whole(), "%s", text);
    EXPECT_EQ_INT(count("\"ph\":\"E\""), 1);
}

TEST(long_names_are_cut)
{
    const char *path = test_path("long.json");
    char name[2000];
    memset(name, '\n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    trace_open(path, 0, name);
    trace_thread(name);
    trace_begin(name);
    trace_end();
    trace_span(name, name, 1, 1);
    trace_close();
    read_all(path);
    EXPECT(is_whole(), "%s", text);
    EXPECT_EQ_INT(count("\"ph\":"), 5);
}

enum { THREADS = 4, SPANS = 200 };

static void *work(void *arg)
{
    char name[32];
    snprintf(name, sizeof name, "loader %d", (int)(long)arg);
    if (arg)
        trace_thread(name); // number 0 has no name
    for (int i = 0; i < SPANS; i++) {
        trace_begin("load");
        trace_end();
    }
    return NULL;
}

TEST(threads_have_tracks_of_their_own)
{
    const char *path = test_path("threads.json");
    pthread_t threads[THREADS];
    trace_open(path, 0, "rank 0");
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    trace_close();
    read_all(path);
    EXPECT(is_whole(), "not whole");
    EXPECT_EQ_INT(count("\"ph\":\"B\""), THREADS * SPANS);
    EXPECT_EQ_INT(count("\"ph\":\"E\""), THREADS * SPANS);
    EXPECT_EQ_INT(count("\"thread_name\""), THREADS);
    EXPECT_EQ_INT(count("\"name\":\"loader "), THREADS - 1);
    EXPECT_EQ_INT(count("\"name\":\"thread "), 1);
    for (int tid = 1; tid <= THREADS; tid++) { // one span at a time on each track
        char begin[64], end[64];
        int depth = 0, worst = 0;
        snprintf(begin, sizeof begin, "{\"ph\":\"B\",\"pid\":0,\"tid\":%d,", tid);
        snprintf(end, sizeof end, "{\"ph\":\"E\",\"pid\":0,\"tid\":%d,", tid);
        for (const char *line = text; line;
             line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
            depth += strncmp(line, begin, strlen(begin)) == 0;
            depth -= strncmp(line, end, strlen(end)) == 0;
            worst = depth > 1 || depth < 0 ? 1 : worst;
        }
        EXPECT(depth == 0 && worst == 0, "track %d", tid);
    }
}

// A process that is killed in the middle leaves a timeline that can be looked at.
TEST(killed_in_the_middle)
{
    const char *path = test_path("killed.json");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        trace_open(path, 0, "rank 0");
        for (;;) {
            trace_begin("x");
            trace_end();
            usleep(20); // so that what comes fits into `text`
        }
    }
    struct stat st = { 0 };
    for (int ms = 0; ms < 10000 && st.st_size < 20000; ms++, usleep(1000))
        stat(path, &st);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    read_all(path);
    EXPECT(is_whole(), "not whole: ...%s",
           text + (strlen(text) > 200 ? strlen(text) - 200 : 0));
    EXPECT(count("\"ph\":\"B\"") > 10, "only %d events", count("\"ph\":\"B\""));
}

TEST(a_full_disk_ends_the_timeline)
{
    const char *path = test_path("full.json"), *said = test_path("said");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = { 2000, 2000 };
        if (!freopen(said, "w", stderr))
            _exit(9);
        dup2(fileno(stderr), STDERR_FILENO);
        setrlimit(RLIMIT_FSIZE, &limit);
        trace_open(path, 0, "rank 0");
        for (int i = 0; i < 100; i++) {
            trace_begin("x");
            trace_end();
        }
        trace_close();
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
    read_all(path);
    EXPECT(strlen(text) > 1800, "%zu bytes", strlen(text));
    read_all(said);
    EXPECT_EQ_INT(count("full.json: write: "), 1);
}

// --- several processes, one file -----------------------------------------------------------------

enum { WRITERS = 4 };

// Its first and last events come whenever the others' do: nobody waits for anybody.
static void write_as(int rank, const char *path, const char *run)
{
    trace_among(rank, run);
    trace_open(path, 0, "train");
    trace_thread("train");
    for (int i = 0; i < SPANS; i++) {
        trace_begin("step");
        trace_end();
    }
    trace_close();
    trace_among(0, NULL);
}

static void run_of_writers(const char *path, const char *run)
{
    int status, well = 0;
    fflush(NULL);
    for (int rank = 0; rank < WRITERS; rank++) {
        if (fork() == 0) {
            write_as(rank, path, run);
            _exit(0);
        }
    }
    while (wait(&status) > 0)
        well += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    EXPECT_EQ_INT(well, WRITERS);
}

static void expect_whole_run(const char *path, const char *run)
{
    char begin[200];
    snprintf(begin, sizeof begin, "[\n{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"run\","
             "\"args\":{\"name\":\"%s\"}},\n", run);
    read_all(path);
    EXPECT(is_whole(), "not whole");
    EXPECT(strncmp(text, begin, strlen(begin)) == 0, "begins with %.200s", text);
    EXPECT_EQ_INT(count("\"name\":\"run\""), 1);
    EXPECT_EQ_INT(count("\"process_name\""), WRITERS);
    for (int rank = 0; rank < WRITERS; rank++) {
        char ends[64], name[64];
        snprintf(name, sizeof name, "\"process_name\",\"args\":{\"name\":\"rank %d\"}", rank);
        EXPECT_EQ_INT(count(name), 1);
        snprintf(ends, sizeof ends, "{\"ph\":\"E\",\"pid\":%d,", rank);
        EXPECT_EQ_INT(count(ends), SPANS);
    }
}

TEST(processes_write_one_file)
{
    const char *path = test_path("joint.json");
    run_of_writers(path, "run 1");          // there was no file
    expect_whole_run(path, "run 1");
    run_of_writers(path, "run 12");         // another run's
    expect_whole_run(path, "run 12");
    write_as(7, path, "run 12");            // comes late, and joins
    read_all(path);
    EXPECT_EQ_INT(count("\"process_name\""), WRITERS + 1);
}

TEST(a_joint_file_is_valid_at_any_time)
{
    const char *path = test_path("joint_killed.json");
    pid_t children[WRITERS];
    fflush(NULL);
    for (int rank = 0; rank < WRITERS; rank++) {
        children[rank] = fork();
        if (children[rank] == 0)
            for (;;)
                write_as(rank, path, "the run");
    }
    usleep(30000);
    for (int rank = 0; rank < WRITERS; rank++) { // one after the other, wherever it is
        kill(children[rank], SIGKILL);
        waitpid(children[rank], NULL, 0);
        usleep(2000);
    }
    read_all(path);
    // A kill may cut a write at the end of a page: readers pass over such a line.
    EXPECT(torn_lines() <= WRITERS, "%d torn lines", torn_lines());
    EXPECT(count("\"ph\":\"B\"") > 10, "only %d events", count("\"ph\":\"B\""));
}

int main(void)
{
    whole_after_every_event();
    an_end_too_many_is_left_out();
    long_names_are_cut();
    threads_have_tracks_of_their_own();
    killed_in_the_middle();
    a_full_disk_ends_the_timeline();
    processes_write_one_file();
    a_joint_file_is_valid_at_any_time();
    return test_done();
}
