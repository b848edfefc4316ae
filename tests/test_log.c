// test_log.c - the progress bar on a pseudo-terminal, the articles' lines elsewhere, JSON lines, and
// how a run ends that cannot go on.
#include "alive.h"
#include "check.h"
#include "log.h"
#include "test.h"
#include <fcntl.h>
#include <math.h>
#include <pty.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// --- running something with its output caught ----------------------------------------------------

typedef struct Caught {
    char text[1 << 20];
    size_t size;
    int status; // as exit gave it; 128 + n: killed by signal n
} Caught;

static Caught caught;

static void collect(int fd, pid_t child)
{
    ssize_t n;
    caught.size = 0;
    while (caught.size < sizeof caught.text - 1 &&
           (n = read(fd, caught.text + caught.size, sizeof caught.text - 1 - caught.size)) > 0)
        caught.size += (size_t)n;
    caught.text[caught.size] = '\0';
    close(fd);
    int status;
    waitpid(child, &status, 0);
    caught.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void run_on_terminal(void (*work)(void), int columns)
{
    int fd;
    struct winsize size = { .ws_row = 24, .ws_col = (unsigned short)columns };
    fflush(NULL);
    pid_t child = forkpty(&fd, NULL, NULL, &size);
    if (child == 0) {
        work();
        exit(0);
    }
    collect(fd, child);
}

static void run_in_pipe(void (*work)(void))
{
    int ends[2];
    if (pipe(ends) != 0)
        FAIL("", "pipe");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        work();
        exit(0);
    }
    close(ends[1]);
    collect(ends[0], child);
}

// --- a screen ------------------------------------------------------------------------------------
// What is left of each line after the last carriage return, without "erase to the end of the line".

static const char *screen[8];
static int rows, redraws;
static size_t widest;

static void show(void)
{
    char *line = caught.text;
    rows = redraws = 0;
    widest = 0;
    for (char *end; (end = strstr(line, "\r\n")); line = end + 2) {   // as a terminal ends lines
        *end = '\0';
        char *last = line, *erase;
        for (char *p = line; (p = strchr(p, '\r')); last = ++p)
            redraws++;
        if ((erase = strstr(last, "\033[K")))
            memmove(erase, erase + 3, strlen(erase + 3) + 1);
        if (rows < 8)
            screen[rows++] = last;
        widest = strlen(last) > widest ? strlen(last) : widest;
    }
    for (int i = rows; i < 8; i++)
        screen[i] = "";
}

static bool has(const char *line, const char *text)
{
    return EXPECT(strstr(line, text) != NULL, "'%s' is not in '%s'", text, line);
}

// --- what is run ---------------------------------------------------------------------------------

static const char *metrics;
static int steps = 196, delay_ms, print_freq = 50, stop_after = 100000;

static void sleep_ms(int ms)
{
    if (ms > 0)
        nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

// An epoch as train.c goes through it.
static void one_epoch(Log *log, int epoch)
{
    for (int step = 1; step <= steps && step <= stop_after; step++) {
        sleep_ms(delay_ms);
        log_progress(log, epoch, 5, step, steps, 256);
        if (log_wants(log, step, steps))
            log_step(log, &(LogStep){ .epoch = epoch,
                                      .epochs = 5,
                                      .step = step,
                                      .steps = steps,
                                      .lr = 0.01,
                                      .data_wait_ms = 0.5,
                                      .stats = { .batch_loss_sum = 25,
                                                 .batch_count = 10,
                                                 .batch_correct1 = 1,
                                                 .loss_sum = (2.0 - step * 0.001) * 25600,
                                                 .correct1 = 7330,
                                                 .count = 25600 } });
    }
}

static Log *new_log(bool append)
{
    LogConfig config = log_defaults();
    config.print_freq = print_freq;
    config.metrics = metrics;
    return log_new(&config, append);
}

static void two_epochs(void)
{
    Log *log = new_log(false);
    log_say(log, "[init] == %s ==", "ready");
    one_epoch(log, 1);
    log_say(log, "   == test: 65%%");
    one_epoch(log, 2);
    log_say(log, "the end");
    log_free(log);
}

static void broken_off(void)
{
    Log *log = new_log(false);
    stop_after = 60;
    one_epoch(log, 1);
    log_say(log, "a message");
    log_progress_end(log);
    log_say(log, "the hash");
    log_free(log);
}

static void dying(void)
{
    Log *log = new_log(false);
    stop_after = 60;
    one_epoch(log, 1);
    FAIL("give up", "it is over");
}

// --- the bar -------------------------------------------------------------------------------------

TEST(bar_on_a_terminal)
{
    setenv("TERM", "xterm", 1);
    delay_ms = 1;
    run_on_terminal(two_epochs, 100);
    delay_ms = 0;
    EXPECT(strstr(caught.text, "== step") == NULL, "lines and a bar");
    show();
    EXPECT_EQ_INT(caught.status, 0);
    EXPECT_EQ_INT(rows, 5);
    EXPECT_EQ_STR(screen[0], "[init] == ready ==");
    has(screen[1], "epoch 1/5 |######");
    has(screen[1], "#| 196/196 [00:0");
    has(screen[1], " img/s] loss: 1.804 | acc: 28.633%");
    EXPECT_EQ_STR(screen[2], "   == test: 65%");
    has(screen[3], "epoch 2/5 |####");
    EXPECT_EQ_STR(screen[4], "the end");
    // Two epochs of about 0.3 s: ten redraws a second, the ends, the messages.
    EXPECT(redraws >= 4 && redraws <= 60, "%d redraws", redraws);
}

TEST(bar_never_wraps)
{
    for (int columns = 20; columns <= 130; columns += 10) {
        run_on_terminal(two_epochs, columns);
        show();
        EXPECT(widest <= (size_t)columns - 1 && rows == 5, "%zu of %d columns", widest, columns);
    }
}

TEST(a_dumb_terminal_gets_lines)
{
    setenv("TERM", "dumb", 1);
    run_on_terminal(two_epochs, 100);
    setenv("TERM", "xterm", 1);
    EXPECT(strchr(caught.text, '\033') == NULL, "a bar");
    has(caught.text, "   == step: [ 50/196] [1/5] | loss: 1.950");
}

TEST(messages_stand_above_a_bar_that_goes_on)
{
    run_on_terminal(broken_off, 100);
    stop_after = 100000;
    show();
    EXPECT_EQ_INT(rows, 3);
    EXPECT_EQ_STR(screen[0], "a message");
    has(screen[1], "epoch 1/5 |####");
    has(screen[1], "| 60/196 [");
    has(screen[1], "loss: 1.950");
    EXPECT_EQ_STR(screen[2], "the hash");
}

TEST(an_error_replaces_the_bar)
{
    run_on_terminal(dying, 100);
    show();
    EXPECT_EQ_INT(caught.status, EXIT_FAILED);
    EXPECT_EQ_INT(rows, 2);
    has(screen[0], "test_log.c:");
    has(screen[0], ": it is over");
    EXPECT_EQ_STR(screen[1], "hint: give up");
}

static void slow_steps(void)
{
    Log *log = new_log(false);
    int wanted = 0;
    for (int step = 1; step <= 7; step++) {
        sleep_ms(200);
        log_progress(log, 1, 1, step, 1000, 10);
        if (!log_wants(log, step, 1000))
            continue;
        wanted++;
        log_step(log, &(LogStep){ .epoch = 1,
                                  .epochs = 1,
                                  .step = step,
                                  .steps = 1000,
                                  .data_wait_ms = 0.25,
                                  .stats = { .loss_sum = step, .count = 1 } });
    }
    log_free(log);
    exit(wanted);
}

// Where steps are slow, a person does not wait for step 50 to see a loss; a log file does.
TEST(numbers_come_once_a_second_on_a_terminal)
{
    run_on_terminal(slow_steps, 100);
    EXPECT(caught.status >= 2 && caught.status <= 3, "%d times in 1.4 s", caught.status);
    run_in_pipe(slow_steps);
    EXPECT_EQ_INT(caught.status, 0);
}

// --- lines ---------------------------------------------------------------------------------------

TEST(lines_elsewhere)
{
    delay_ms = 0;
    metrics = NULL;
    run_in_pipe(two_epochs);
    EXPECT_EQ_STR(caught.text, "[init] == ready ==\n"
                               "   == step: [ 50/196] [1/5] | loss: 1.950 | acc: 28.633%\n"
                               "   == step: [100/196] [1/5] | loss: 1.900 | acc: 28.633%\n"
                               "   == step: [150/196] [1/5] | loss: 1.850 | acc: 28.633%\n"
                               "   == step: [196/196] [1/5] | loss: 1.804 | acc: 28.633%\n"
                               "   == test: 65%\n"
                               "   == step: [ 50/196] [2/5] | loss: 1.950 | acc: 28.633%\n"
                               "   == step: [100/196] [2/5] | loss: 1.900 | acc: 28.633%\n"
                               "   == step: [150/196] [2/5] | loss: 1.850 | acc: 28.633%\n"
                               "   == step: [196/196] [2/5] | loss: 1.804 | acc: 28.633%\n"
                               "the end\n");
}

// --- metrics -------------------------------------------------------------------------------------

static char *read_all(const char *path)
{
    static char text[1 << 16];
    FILE *in = fopen(path, "r");
    text[in ? fread(text, 1, sizeof text - 1, in) : 0] = '\0';
    if (in)
        fclose(in);
    return text;
}

static int count_lines(const char *text)
{
    int lines = 0;
    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

TEST(step_events)
{
    metrics = test_path("steps.jsonl");
    run_in_pipe(two_epochs);
    const char *text = read_all(metrics);
    EXPECT_EQ_INT(count_lines(text), 8);
    static const char first[] =
        "{\"event\":\"step\",\"epoch\":1,\"step\":50,\"steps\":196,\"loss\":2.5,\"acc\":10.0000,"
        "\"running_loss\":1.95,\"running_acc\":28.6328,\"lr\":0.01,\"samples_per_s\":";
    EXPECT(strncmp(text, first, sizeof first - 1) == 0, "%.200s", text);
}

// On a terminal numbers are asked for more often; the events and their sums stay the same.
TEST(step_events_on_a_terminal)
{
    metrics = test_path("terminal.jsonl");
    run_on_terminal(two_epochs, 80);
    const char *text = read_all(metrics);
    EXPECT_EQ_INT(count_lines(text), 8);
    EXPECT(strstr(text, "\"step\":1,") == NULL && strstr(text, "\"step\":196,"), "steps");
    has(text, "\"data_wait_ms\":1.000");    // that of step 1 is part of it
}

TEST(append_and_truncate)
{
    metrics = test_path("append.jsonl");
    for (int i = 0; i < 3; i++) {
        Log *log = new_log(i > 0);
        log_event(log, "eval", "\"n\":%d", i);
        log_free(log);
    }
    EXPECT_EQ_STR(read_all(metrics), "{\"event\":\"eval\",\"n\":0}\n{\"event\":\"eval\",\"n\":1}\n"
                                     "{\"event\":\"eval\",\"n\":2}\n");
    Log *log = new_log(false);
    log_event(log, "end", "%s", "");
    log_free(log);
    EXPECT_EQ_STR(read_all(metrics), "{\"event\":\"end\"}\n");
}

TEST(config_event)
{
    Args args = { .program = "./tr\"ain" };
    int epochs = 5;
    const char *data = "auto";
    args_add(&args, ARGS_ROWS({ "max-epochs", 0, ARG_INT, &epochs, "N", "" },
                              { "data", 0, ARG_STRING, &data, "DIR", "" }));
    metrics = test_path("config.jsonl");
    Log *log = new_log(false);
    log_config(log, &args, "CPU \"x\"", "\"train\":50000");
    log_config(log, &args, "CPU", NULL);
    log_free(log);
    const char *text = read_all(metrics);
    static const char *const wanted[] = {
        "{\"event\":\"config\",\"program\":\"./tr\\\"ain\",\"revision\":\"",
        "\",\"time\":\"20",
        "Z\",\"host\":\"",
        "\",\"cores\":",
        ",\"device\":\"CPU \\\"x\\\"\",\"options\":{",
        "\"options\":{\"max_epochs\":5,\"data\":\"auto\"},\"train\":50000}\n",
        "\"options\":{\"max_epochs\":5,\"data\":\"auto\"}}\n"
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        has(text, wanted[i]);
    EXPECT_EQ_INT(count_lines(text), 2);
}

TEST(numbers_that_json_has_not)
{
    char out[LOG_NUMBER];
    EXPECT_EQ_STR(log_number(NAN, out), "null");
    EXPECT_EQ_STR(log_number(-INFINITY, out), "null");
    EXPECT_EQ_STR(log_number(-1e-300, out), "-1e-300");
    EXPECT_EQ_STR(log_number(0.1, out), "0.1");
}

static void full_disk(void)
{
    struct rlimit limit = { 1000, 1000 };
    dup2(STDOUT_FILENO, STDERR_FILENO);
    setrlimit(RLIMIT_FSIZE, &limit);
    print_freq = 1;
    two_epochs();
}

// One warning, and the run goes on to its end.
TEST(metrics_on_a_full_disk)
{
    steps = 20;
    for (int i = 0; i < 2; i++) {
        metrics = i ? "/dev/full" : test_path("full.jsonl");
        run_in_pipe(full_disk);
        EXPECT_EQ_INT(caught.status, 0);
        char *warning = strstr(caught.text, ": the metrics end here\nhint: training continues\n");
        EXPECT(warning && !strstr(warning + 9, "the metrics end here"), "%s", caught.text);
        has(caught.text, i ? "/dev/full: write: No space" : "full.jsonl: write: No space");
        has(caught.text, "the end\n");
    }
    steps = 196;
}

static void open_nowhere(void)
{
    dup2(STDOUT_FILENO, STDERR_FILENO);
    metrics = test_path("no/such/file");
    new_log(false);
}

TEST(metrics_nowhere)
{
    run_in_pipe(open_nowhere);
    EXPECT_EQ_INT(caught.status, EXIT_FAILED);
    has(caught.text, "no/such/file: open: No such file or directory\nhint: ");
}

// --- messages ------------------------------------------------------------------------------------

static void ending(void)
{
    if (write(STDERR_FILENO, "cleaned\n", 8) < 0)
        _exit(99);
}

static void message(void)
{
    dup2(STDOUT_FILENO, STDERR_FILENO);
    check_set_speaker("rank 2/4 ");
    check_on_exit(ending);
    printf("before ");
    fail_at("/a/b/comm.c", 88, EXIT_DIVERGED, "two\nlines", "bad\tname '%s'", "x\033[2J");
}

TEST(messages)
{
    char host[65] = "", wanted[400];
    gethostname(host, sizeof host - 1);
    run_in_pipe(message);
    EXPECT_EQ_INT(caught.status, EXIT_DIVERGED);
    snprintf(wanted, sizeof wanted, "before [rank 2/4 %s:", host);
    EXPECT(strncmp(caught.text, wanted, strlen(wanted)) == 0, "says %s", caught.text);
    static const char rest[] = "] comm.c:88: bad?name 'x?[2J'\nhint: two?lines\ncleaned\n";
    const char *bracket = strchr(caught.text + 8, ']');
    EXPECT_EQ_STR(bracket ? bracket : "", rest);
}

// --- ranks ---------------------------------------------------------------------------------------

static int rank_of_this;
static const char *rank_metrics;

static void as_a_rank(void)
{
    LogConfig config = log_defaults();
    config.metrics = rank_metrics;
    config.rank = rank_of_this;
    config.whose = "rank 0";
    config.print_freq = 1;
    Log *log = log_new(&config, false);
    log_say(log, "a message");
    log_progress(log, 1, 2, 0, 3, 0);
    for (int step = 1; step <= 3; step++) {
        log_progress(log, 1, 2, step, 3, 10);
        if (log_wants(log, step, 3))
            log_step(log, &(LogStep){ .epoch = 1, .epochs = 2, .step = step, .steps = 3,
                                      .stats = { .loss_sum = step, .count = 1 } });
    }
    log_end(log, 1, 1);
    log_free(log);
}

static void run_rank(void (*run)(void (*work)(void)), int rank, const char *file)
{
    rank_of_this = rank;
    rank_metrics = file ? test_path(file) : NULL;
    run(as_a_rank);
    EXPECT_EQ_INT(caught.status, 0);
}

static void on_wide_terminal(void (*work)(void)) { run_on_terminal(work, 120); }

TEST(rank_0_speaks)
{
    run_rank(run_in_pipe, 0, NULL);
    EXPECT_EQ_STR(caught.text, "a message\n"
                               "   == step: [  1/3] [1/2] | loss: 1.000 | acc:  0.000% | rank 0\n"
                               "   == step: [  2/3] [1/2] | loss: 2.000 | acc:  0.000% | rank 0\n"
                               "   == step: [  3/3] [1/2] | loss: 3.000 | acc:  0.000% | rank 0\n"
                               "weight hash: 0000000000000001\n");
    run_rank(run_in_pipe, 1, NULL);
    EXPECT_EQ_STR(caught.text, "");
    run_rank(on_wide_terminal, 0, NULL);
    show();
    has(screen[1], "img/s] loss: 3.000 | acc:  0.000% | rank 0");
    run_rank(on_wide_terminal, 1, NULL);
    EXPECT_EQ_STR(caught.text, "");
}

TEST(metrics_of_ranks)
{
    run_rank(run_in_pipe, 1, "one.jsonl");
    EXPECT(access(test_path("one.jsonl"), F_OK) != 0, "rank 1 wrote into rank 0's file");
    run_rank(run_in_pipe, 0, "one.jsonl");
    EXPECT_EQ_INT(count_lines(read_all(test_path("one.jsonl"))), 4);
    for (int rank = 0; rank < 2; rank++) {
        char wanted[32];
        run_rank(run_in_pipe, rank, "%r of many.jsonl");
        snprintf(wanted, sizeof wanted, ",\"rank\":%d}\n", rank);
        const char *text = read_all(test_path(rank ? "1 of many.jsonl" : "0 of many.jsonl"));
        EXPECT_EQ_INT(count_lines(text), 4);
        EXPECT(strstr(text, wanted) != NULL, "no %s in %.300s", wanted, text);
    }
    EXPECT(access(test_path("%r of many.jsonl"), F_OK) != 0, "a file of this very name");
}

// --- mixed precision -----------------------------------------------------------------------------

// At each step, and what the line and the event then have of it: the norm, the scale, the skipped.
static const struct {
    double norm, loss_scale;
    int64_t skipped;
    const char *line, *event[3];
} cases[] = {
    { 0, 0, 0, "", { "", "", "" } },
    { 0, 0, 7, "", { "", "", "" } },        // without a scale there is nothing to skip for
    { 2.3138, 0, 0, " | norm: 2.314", { "2.3138", "", "" } },
    { 0, 65536, 0, " | scale: 65536", { "", "65536", "0" } },
    { INFINITY, 32768, 1, " | norm: inf | scale: 32768 | skipped: 1", { "null", "32768", "1" } },
    { -NAN, 0.5, 12345678901, " | norm: nan | scale: 0.5 | skipped: 12345678901",
      { "null", "0.5", "12345678901" } },
    { 0.00031234, 1234.5, 0, " | norm: 0.0003123 | scale: 1234.5",
      { "0.00031234", "1234.5", "0" } },
};
enum { CASES = sizeof cases / sizeof *cases };
static const char *whose_cases;

static void tell_cases(void)
{
    LogConfig config = log_defaults();
    config.print_freq = 1;
    config.metrics = metrics;
    config.whose = whose_cases;
    Log *log = log_new(&config, false);
    for (int i = 0; i < CASES; i++) {
        log_progress(log, 1, 1, i + 1, CASES, 10);
        log_step(log, &(LogStep){ .epoch = 1, .epochs = 1, .step = i + 1, .steps = CASES,
                                  .lr = 0.01, .norm = cases[i].norm,
                                  .loss_scale = cases[i].loss_scale, .skipped = cases[i].skipped,
                                  .stats = { .batch_loss_sum = 5, .batch_count = 10,
                                             .loss_sum = 5, .count = 10, .correct1 = 3 } });
    }
    log_free(log);
}

TEST(norm_and_scale_in_lines)
{
    metrics = NULL;
    for (int whose = 0; whose < 2; whose++) {
        char all[4096] = "";
        for (int i = 0; i < CASES; i++) {
            size_t length = strlen(all);
            snprintf(all + length, sizeof all - length,
                     "   == step: [%3d/%d] [1/1] | loss: 0.500 | acc: 30.000%%%s%s\n", i + 1, CASES,
                     whose ? " | rank 0" : "", cases[i].line);
        }
        whose_cases = whose ? "rank 0" : NULL;
        run_in_pipe(tell_cases);
        EXPECT_EQ_STR(caught.text, all);
    }
}

// What a member of the event is, up to the next comma or brace; "" when it is not there.
static const char *member(const char *line, const char *name, char out[64])
{
    char key[64];
    int n = snprintf(key, sizeof key, ",\"%s\":", name);
    const char *at = strstr(line, key), *end = strchr(line, '\n');
    out[0] = '\0';
    if (at && at < end)
        snprintf(out, 64, "%.*s", (int)strcspn(at + n, ",}\n"), at + n);
    return out;
}

// JSON has no NaN and no infinity.
TEST(norm_and_scale_in_events)
{
    static const char *const names[] = { "gradient_norm", "loss_scale", "skipped_steps" };
    metrics = test_path("amp.jsonl");
    whose_cases = "rank 0";
    run_in_pipe(tell_cases);
    metrics = NULL;
    const char *line = read_all(test_path("amp.jsonl"));
    EXPECT_EQ_INT(count_lines(line), CASES);
    for (int i = 0; i < CASES && strchr(line, '\n'); i++, line = strchr(line, '\n') + 1) {
        char text[64];
        for (int k = 0; k < 3; k++)
            EXPECT_EQ_STR(member(line, names[k], text), cases[i].event[k]);
        EXPECT_EQ_STR(member(line, "rank", text), "0");
    }
}

// By another's parser, where there is one. (NaN, which it would take, is none of JSON's.)
TEST(events_are_json)
{
    if (system("command -v python3 >/dev/null") != 0)
        return;
    char command[8192];
    snprintf(command, sizeof command,
             "python3 -c 'import json, sys\n"
             "for line in open(sys.argv[1]):\n"
             "    json.loads(line, parse_constant=sys.exit)' '%s'", test_path("amp.jsonl"));
    EXPECT_EQ_INT(system(command), 0);
}

// --- not finite ----------------------------------------------------------------------------------

static const Stats *diverged_stats;     // NULL: with a scale
static bool scale_fixed;

static void diverging(void)
{
    LogConfig config = log_defaults();
    config.rank = rank_of_this;
    dup2(STDOUT_FILENO, STDERR_FILENO);
    check_on_exit(ending);
    Log *log = log_new(&config, false);
    if (diverged_stats)
        log_diverged(log, diverged_stats, 1, 15);
    log_scale_failed(log, scale_fixed ? 1024 : 0.5, scale_fixed, 1, 15);
}

// says: behind the name of the file and the line; NULL: nothing.
static void expect_end(const Stats *stats, int rank, const char *says)
{
    diverged_stats = stats;
    rank_of_this = rank;
    run_in_pipe(diverging);
    EXPECT_EQ_INT(caught.status, EXIT_DIVERGED);
    const char *text = strstr(caught.text, "log.c:");
    text = text ? text + strcspn(text, " ") + 1 : caught.text;
    char wanted[512];
    snprintf(wanted, sizeof wanted, "%scleaned\n", says ? says : "");
    EXPECT_EQ_STR(text, wanted);
}

TEST(how_a_run_diverges)
{
    static const Stats loss = { .not_finite = 1 }, gradient = { .bad_gradients = 1 },
                       both = { .not_finite = 1, .bad_gradients = 1 };
    static const char of_loss[] =
        "the loss is not finite in epoch 1, by step 15; nothing was saved since\n"
        "hint: a smaller --lr or a --warmup may help\n";
    expect_end(&loss, 0, of_loss);
    expect_end(&loss, 1, of_loss);      // nobody else has seen it
    expect_end(&both, 1, of_loss);
    expect_end(&gradient, 0,
               "a gradient (of some rank) is not finite in epoch 1, by step 15; nothing was saved "
               "since\nhint: a smaller --lr or a --warmup may help\n");
    expect_end(&gradient, 1, NULL);
    expect_end(NULL, 0,
               "gradients (of some rank) stay infinite, though the loss scale has fallen to 0.5, "
               "in epoch 1, by step 15\n"
               "hint: a smaller --lr or a --warmup may help, or --amp bf16\n");
    expect_end(NULL, 1, NULL);
    scale_fixed = true;
    expect_end(NULL, 0,
               "gradients (of some rank) are not finite with a loss scale of 1024, in epoch 1, by "
               "step 15; nothing was saved since\n"
               "hint: a smaller --loss-scale, or none: in fp16 it then adapts\n");
    scale_fixed = false;
}

// Whoever watches sees the last step of a rank that says nothing, and of a resumed epoch no step
// before its first.
TEST(steps_are_signs_of_life)
{
    static Alive seen;
    alive_publish(&seen);
    LogConfig config = log_defaults();
    config.rank = 3;
    Log *log = log_new(&config, false);
    log_progress(log, 2, 5, 7, 196, 0);
    EXPECT_EQ_INT(seen.step, 0);
    log_progress(log, 2, 5, 8, 196, 10);
    EXPECT_EQ_INT(seen.epoch, 2);
    EXPECT_EQ_INT(seen.step, 8);
    log_free(log);
    alive_publish(NULL);
}

int main(void)
{
    bar_on_a_terminal();
    bar_never_wraps();
    a_dumb_terminal_gets_lines();
    messages_stand_above_a_bar_that_goes_on();
    an_error_replaces_the_bar();
    numbers_come_once_a_second_on_a_terminal();
    lines_elsewhere();
    step_events();
    step_events_on_a_terminal();
    append_and_truncate();
    config_event();
    numbers_that_json_has_not();
    metrics_on_a_full_disk();
    metrics_nowhere();
    messages();
    rank_0_speaks();
    metrics_of_ranks();
    norm_and_scale_in_lines();
    norm_and_scale_in_events();
    events_are_json();
    how_a_run_diverges();
    steps_are_signs_of_life();
    return test_done();
}
