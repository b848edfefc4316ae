// test_log.c - the progress bar on a terminal (a real one: a pseudo-terminal with a tiny emulator
// behind it), the articles' lines elsewhere, and the JSON lines.
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

// --- a terminal that understands what the bar uses -----------------------------------------------

typedef struct Screen {
    char lines[200][600]; // as text; a block character counts as one column
    int row, column;      // of the cursor
    int widest;           // most columns that any line ever had
    int redraws;          // carriage returns
    bool odd;             // something came that is not understood
} Screen;

static Screen screen;

static void put_character(const char *bytes, int length)
{
    char *line = screen.lines[screen.row];
    char rest[600];
    int at = 0;
    for (int column = 0; column < screen.column; column++)
        for (at++; ((unsigned char)line[at] & 0xC0) == 0x80;)
            at++;
    int next = at + (line[at] != '\0');
    while (((unsigned char)line[next] & 0xC0) == 0x80)
        next++;
    snprintf(rest, sizeof rest, "%s", line + next);
    snprintf(line + at, sizeof screen.lines[0] - (size_t)at, "%.*s%s", length, bytes, rest);
    screen.column++;
    if (screen.column > screen.widest)
        screen.widest = screen.column;
}

static void erase_to_end(void)
{
    char *line = screen.lines[screen.row];
    int at = 0;
    for (int column = 0; column < screen.column && line[at]; column++)
        for (at++; ((unsigned char)line[at] & 0xC0) == 0x80;)
            at++;
    line[at] = '\0';
}

static void show(void)
{
    memset(&screen, 0, sizeof screen);
    for (const char *p = caught.text; *p;) {
        int length = (unsigned char)*p >= 0xE0 ? 3 : 1;
        if (*p == '\r') {
            screen.redraws++;
            screen.column = 0;
        } else if (*p == '\n') {
            screen.row++;
        } else if (strncmp(p, "\033[K", 3) == 0) {
            erase_to_end();
            length = 3;
        } else if (strncmp(p, "\033[32m", 5) == 0) {
            length = 5;
        } else if (strncmp(p, "\033[0m", 4) == 0) {
            length = 4;
        } else {
            screen.odd |= (unsigned char)*p < 0x20;
            put_character(p, length);
        }
        p += length;
    }
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

static void broken_off_at(void)
{
    Log *log = new_log(false);
    one_epoch(log, 1);
    sleep_ms(110); // so that the next call draws
    log_step(log, &(LogStep){ .epoch = 1, .epochs = 5, .step = stop_after, .steps = steps,
                              .stats = { .count = 1 } });
    log_free(log);
}

static void dying(void)
{
    Log *log = new_log(false);
    stop_after = 60;
    one_epoch(log, 1);
    FAIL("give up", "it is over");
}

static void impatient(void)
{
    Log *log = new_log(false);
    stop_after = 60;
    one_epoch(log, 1);
    check_clean_up(); // as the handler of a second Ctrl-C does
    _exit(130);
}

// --- the bar -------------------------------------------------------------------------------------

static void plain_terminal(void)
{
    setenv("TERM", "xterm", 1);
    setenv("LANG", "C.UTF-8", 1);
    unsetenv("LC_ALL");
    unsetenv("LC_CTYPE");
    unsetenv("NO_COLOR");
    metrics = NULL;
}

TEST(bar_on_a_terminal)
{
    plain_terminal();
    delay_ms = 1;
    run_on_terminal(two_epochs, 100);
    show();
    EXPECT_EQ_INT(caught.status, 0);
    EXPECT_EQ_STR(screen.lines[0], "[init] == ready ==");
    EXPECT(strncmp(screen.lines[1], "epoch 1/5: 100%|██████", 22) == 0, "line 1: %s",
           screen.lines[1]);
    EXPECT(strstr(screen.lines[1], "█| 196/196 [00:00<00:00, ") != NULL, "line 1: %s",
           screen.lines[1]);
    EXPECT(strstr(screen.lines[1], " img/s, loss 1.804, acc 28.6%]") != NULL, "line 1: %s",
           screen.lines[1]);
    EXPECT_EQ_STR(screen.lines[2], "   == test: 65%");
    EXPECT(strncmp(screen.lines[3], "epoch 2/5: 100%|", 16) == 0, "line 3: %s", screen.lines[3]);
    EXPECT_EQ_STR(screen.lines[4], "the end");
    EXPECT_EQ_INT(screen.row, 5);
    EXPECT_EQ_INT(screen.column, 0);
    EXPECT(!screen.odd, "control characters that were not expected");
    EXPECT(strstr(caught.text, "\033[32m") != NULL, "no colour");
    EXPECT(strstr(caught.text, "== step") == NULL, "lines and a bar");
}

// Two epochs of about 0.3 s each: ten redraws a second, the ends, the messages.
TEST(bar_is_redrawn_at_most_ten_times_a_second)
{
    plain_terminal();
    struct timespec begin, end;
    print_freq = 1; // numbers at every step must not lead to more
    delay_ms = 1;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    run_on_terminal(two_epochs, 100);
    clock_gettime(CLOCK_MONOTONIC, &end);
    print_freq = 50;
    show();
    double seconds =
        (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
    int most = (int)(10 * seconds) + 6 + 5; // a newline on a terminal brings a return, too
    EXPECT(screen.redraws >= 4 && screen.redraws <= most, "%d redraws in %.2f s", screen.redraws,
           seconds);
}

TEST(bar_never_wraps)
{
    plain_terminal();
    delay_ms = 0;
    for (int columns = 1; columns <= 130; columns += columns < 80 ? 1 : 7) {
        run_on_terminal(two_epochs, columns);
        show();
        // The messages are longer than the narrowest terminals; the bar is not.
        int most = columns - 1 > 18 ? columns - 1 : 18;
        EXPECT(screen.widest <= most && caught.status == 0, "%d of %d columns", screen.widest,
               columns);
    }
    run_on_terminal(two_epochs, 45);
    show();
    EXPECT(strstr(screen.lines[1], "loss 1.804") != NULL, "45 columns have room for the loss: %s",
           screen.lines[1]);
}

// Half of a bar of 40 columns and some eighths: 101 / 196 * 40 = 20.6 columns.
TEST(blocks_come_in_eighths)
{
    plain_terminal();
    stop_after = 101;
    run_on_terminal(broken_off_at, 130);
    stop_after = 100000;
    show();
    EXPECT(strstr(screen.lines[0], "|████████████████████▌                   | 101/196") != NULL,
           "line 0: %s", screen.lines[0]);
}

TEST(no_colour_no_unicode)
{
    plain_terminal();
    setenv("NO_COLOR", "1", 1);
    setenv("LC_ALL", "C", 1);
    run_on_terminal(two_epochs, 100);
    show();
    EXPECT(strstr(caught.text, "\033[3") == NULL, "colours");
    EXPECT(strstr(caught.text, "█") == NULL, "blocks in the C locale");
    EXPECT(strncmp(screen.lines[1], "epoch 1/5: 100%|######", 22) == 0, "line 1: %s",
           screen.lines[1]);
}

TEST(a_dumb_terminal_gets_lines)
{
    plain_terminal();
    setenv("TERM", "dumb", 1);
    run_on_terminal(two_epochs, 100);
    EXPECT(strchr(caught.text, '\033') == NULL && strstr(caught.text, "epoch 1/5:") == NULL,
           "a bar");
    EXPECT(strstr(caught.text, "   == step: [ 50/196] [1/5] | loss: 1.950") != NULL, "no lines");
}

TEST(messages_stand_above_a_bar_that_goes_on)
{
    plain_terminal();
    delay_ms = 0;
    run_on_terminal(broken_off, 100);
    show();
    EXPECT_EQ_STR(screen.lines[0], "a message");
    EXPECT(strncmp(screen.lines[1], "epoch 1/5:  30%|", 16) == 0, "line 1: %s", screen.lines[1]);
    EXPECT(strstr(screen.lines[1], " 60/196 [") != NULL, "line 1: %s", screen.lines[1]);
    EXPECT(strstr(screen.lines[1], "loss 1.950") != NULL, "the last known loss: %s",
           screen.lines[1]);
    EXPECT_EQ_STR(screen.lines[2], "the hash");
    EXPECT_EQ_INT(screen.row, 3);
}

// The cursor was never hidden, so there is nothing to bring back; the line is what matters.
TEST(errors_and_interruptions_leave_a_clean_screen)
{
    plain_terminal();
    run_on_terminal(dying, 100);
    show();
    EXPECT_EQ_INT(caught.status, EXIT_FAILED);
    EXPECT(strstr(screen.lines[0], "test_log.c:") && strstr(screen.lines[0], ": it is over"),
           "line 0: %s", screen.lines[0]);
    EXPECT_EQ_STR(screen.lines[1], "hint: give up");
    EXPECT_EQ_INT(screen.row, 2);
    EXPECT_EQ_INT(screen.column, 0);

    run_on_terminal(impatient, 100);
    show();
    EXPECT_EQ_INT(caught.status, 130);
    EXPECT(strncmp(screen.lines[0], "epoch 1/5:", 10) == 0, "line 0: %s", screen.lines[0]);
    EXPECT_EQ_INT(screen.row, 1);
    EXPECT_EQ_INT(screen.column, 0);
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
    plain_terminal();
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
    plain_terminal();
    metrics = test_path("terminal.jsonl");
    run_on_terminal(two_epochs, 80);
    const char *text = read_all(metrics);
    EXPECT_EQ_INT(count_lines(text), 8);
    EXPECT(strstr(text, "\"step\":1,") == NULL && strstr(text, "\"step\":196,"), "steps");
    EXPECT(strstr(text, "\"data_wait_ms\":1.000") != NULL, "the wait of step 1 is lost: %.200s",
           text);
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
    if (truncate(metrics, 29) != 0)
        FAIL("", "truncate");
    Log *log = new_log(true);
    log_event(log, "end", "%s", "");
    log_free(log);
    EXPECT_EQ_STR(read_all(metrics),
                  "{\"event\":\"eval\",\"n\":0}\n{\"even\n{\"event\":\"end\"}\n");
    log = new_log(false);
    log_event(log, "end", "\"n\":%d", 1);
    log_free(log);
    EXPECT_EQ_STR(read_all(metrics), "{\"event\":\"end\",\"n\":1}\n");
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
        "\",\"cpu\":\"",
        "\",\"cores\":",
        ",\"device\":\"CPU \\\"x\\\"\",\"options\":{",
        "\"options\":{\"max_epochs\":5,\"data\":\"auto\"},\"train\":50000}\n",
        "\"options\":{\"max_epochs\":5,\"data\":\"auto\"}}\n"
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        EXPECT(strstr(text, wanted[i]) != NULL, "'%s' is not in %s", wanted[i], text);
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

// One warning, whole lines only, and the run goes on to its end.
TEST(metrics_on_a_full_disk)
{
    metrics = test_path("full.jsonl");
    steps = 20;
    run_in_pipe(full_disk);
    EXPECT_EQ_INT(caught.status, 0);
    char *warning = strstr(caught.text, "full.jsonl: write: File too large: lines are missing");
    EXPECT(warning != NULL, "no warning in %s", caught.text);
    EXPECT(warning && strstr(warning + 1, "full.jsonl: write") == NULL, "said twice");
    EXPECT(strstr(caught.text, "hint: training goes on") != NULL, "no hint");
    EXPECT(strstr(caught.text, "the end\n") != NULL, "did not go on");
    const char *text = read_all(metrics);
    EXPECT(strlen(text) > 500 && text[strlen(text) - 1] == '\n', "a torn line: %s", text);

    metrics = "/dev/full";
    run_in_pipe(full_disk);
    EXPECT_EQ_INT(caught.status, 0);
    EXPECT(strstr(caught.text, "No space left on device") != NULL, "says %s", caught.text);
    steps = 196;
}

static void say_to_a_full_disk(void)
{
    dup2(STDOUT_FILENO, STDERR_FILENO);
    int full = open("/dev/full", O_WRONLY);
    dup2(full, STDOUT_FILENO);
    Log *log = new_log(false);
    log_say(log, "nobody hears this");
    log_say(log, "nor this");
    log_free(log);
}

TEST(a_screen_on_a_full_disk)
{
    metrics = NULL;
    run_in_pipe(say_to_a_full_disk);
    EXPECT_EQ_INT(caught.status, 0);
    char *warning = strstr(caught.text, "standard output: No space left on device: lines are");
    EXPECT(warning != NULL, "no warning in %s", caught.text);
    EXPECT(warning && strstr(warning + 1, "standard output:") == NULL, "said twice");
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
    EXPECT(strstr(caught.text, "no/such/file: open: No such file or directory\nhint: ") != NULL,
           "says %s", caught.text);
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
    plain_terminal();
    run_rank(on_wide_terminal, 0, NULL);
    show();
    EXPECT(strstr(screen.lines[1], "loss 3.000, acc 0.0%, rank 0]") != NULL, "line 1: %s",
           screen.lines[1]);
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

typedef struct Told {
    double norm, loss_scale;
    int64_t skipped;
} Told;

static const Told *told;    // at the steps of an epoch, one after the other
static int told_count;
static const char *told_whose;

static void tell(void)
{
    LogConfig config = log_defaults();
    config.print_freq = 1;
    config.metrics = metrics;
    config.whose = told_whose;
    Log *log = log_new(&config, false);
    log_progress(log, 1, 1, 0, told_count, 0);
    for (int i = 0; i < told_count; i++) {
        log_progress(log, 1, 1, i + 1, told_count, 10);
        log_step(log, &(LogStep){ .epoch = 1, .epochs = 1, .step = i + 1, .steps = told_count,
                                  .lr = 0.01, .norm = told[i].norm,
                                  .loss_scale = told[i].loss_scale, .skipped = told[i].skipped,
                                  .stats = { .batch_loss_sum = 5, .batch_count = 10,
                                             .loss_sum = 5, .count = 10, .correct1 = 3 } });
    }
    log_free(log);
}

static void set_told(const Told *steps_, int count, const char *whose)
{
    told = steps_;
    told_count = count;
    told_whose = whose;
}

static const Told told_steps[] = {
    { 0, 0, 0 },
    { 0, 0, 7 },                    // without a scale there is nothing to skip for
    { 2.3138, 0, 0 },
    { 0, 65536, 0 },
    { 2.3138, 65536, 0 },
    { INFINITY, 32768, 1 },
    { NAN, 0.5, 12345678901 },
    { -NAN, 0x1p-24, 2 },
    { 123456.7, 0x1p60, 3 },
    { 0.00031234, 1234.5, 0 },
};
enum { TOLD = sizeof told_steps / sizeof *told_steps };

TEST(norm_and_scale_in_lines)
{
    static const char *const wanted[TOLD] = {
        "",
        "",
        " | norm: 2.314",
        " | scale: 65536",
        " | norm: 2.314 | scale: 65536",
        " | norm: inf | scale: 32768 | skipped: 1",
        " | norm: nan | scale: 0.5 | skipped: 12345678901",
        " | norm: nan | scale: 5.96046e-08 | skipped: 2",
        " | norm: 1.235e+05 | scale: 1.15292e+18 | skipped: 3",
        " | norm: 0.0003123 | scale: 1234.5",
    };
    metrics = NULL;
    for (int whose = 0; whose < 2; whose++) {
        char all[4096] = "";
        for (int i = 0; i < TOLD; i++) {
            size_t length = strlen(all);
            snprintf(all + length, sizeof all - length,
                     "   == step: [%3d/%d] [1/1] | loss: 0.500 | acc: 30.000%%%s%s\n", i + 1, TOLD,
                     whose ? " | rank 0" : "", wanted[i]);
        }
        set_told(told_steps, TOLD, whose ? "rank 0" : NULL);
        run_in_pipe(tell);
        EXPECT_EQ_INT(caught.status, 0);
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

// The norm of a step that was left out is no number, in JSON; and who reads it finds only the
// members that were told. The rest of the line is as ever.
TEST(norm_and_scale_in_events)
{
    static const char *const wanted[TOLD][3] = {
        { "", "", "" },
        { "", "", "" },
        { "2.3138", "", "" },
        { "", "65536", "0" },
        { "2.3138", "65536", "0" },
        { "null", "32768", "1" },
        { "null", "0.5", "12345678901" },
        { "null", "5.96046448e-08", "2" },
        { "123456.7", "1.1529215e+18", "3" },
        { "0.00031234", "1234.5", "0" },
    };
    metrics = test_path("amp.jsonl");
    set_told(told_steps, TOLD, "rank 0");
    run_in_pipe(tell);
    metrics = NULL;
    const char *line = read_all(test_path("amp.jsonl"));
    EXPECT_EQ_INT(count_lines(line), TOLD);
    for (int i = 0; i < TOLD && strchr(line, '\n'); i++, line = strchr(line, '\n') + 1) {
        char text[64];
        EXPECT_EQ_STR(member(line, "gradient_norm", text), wanted[i][0]);
        EXPECT_EQ_STR(member(line, "loss_scale", text), wanted[i][1]);
        EXPECT_EQ_STR(member(line, "skipped_steps", text), wanted[i][2]);
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

static void screen_of(const Told *step, int columns)
{
    plain_terminal();
    set_told(step, 1, "rank 0");
    run_on_terminal(tell, columns);
    show();
    EXPECT_EQ_INT(caught.status, 0);
    EXPECT_EQ_INT(screen.row, 1);
    EXPECT(screen.widest <= columns - 1, "%d of %d columns", screen.widest, columns);
}

static bool on_screen(const char *text) { return strstr(screen.lines[0], text) != NULL; }

TEST(scale_in_the_bar)
{
    static const Told clean = { 2.3, 65536, 0 }, skipped = { INFINITY, 512, 12 }, none = { 0 };
    screen_of(&clean, 130);
    EXPECT(on_screen(" img/s, loss 0.500, acc 30.0%, rank 0, norm 2.3, scale 65536]"), "%s",
           screen.lines[0]);
    screen_of(&skipped, 130);
    EXPECT(on_screen(" img/s, loss 0.500, acc 30.0%, rank 0, norm inf, scale 512, skipped 12]"),
           "%s", screen.lines[0]);
    screen_of(&none, 120);
    EXPECT(on_screen(" img/s, loss 0.500, acc 30.0%, rank 0]"), "%s", screen.lines[0]);
}

// It goes whole, and before anything else does.
TEST(scale_goes_first_where_it_is_narrow)
{
    static const Told skipped = { 2.3, 65536, 12 };
    bool before = false;
    for (int columns = 20; columns <= 140; columns++) {
        screen_of(&skipped, columns);
        bool all = on_screen(
            " img/s, loss 0.500, acc 30.0%, rank 0, norm 2.3, scale 65536, skipped 12]");
        EXPECT(all || !(on_screen("norm") || on_screen("scale") || on_screen("skipped")),
               "%d columns: half of it: %s", columns, screen.lines[0]);
        EXPECT(all || columns < 130, "%d columns have room: %s", columns, screen.lines[0]);
        EXPECT(columns != 95 || on_screen(" img/s, loss 0.500, acc 30.0%, rank 0]"),
               "95 columns have room for the rest: %s", screen.lines[0]);
        before |= !all;
    }
    EXPECT(before, "20 columns have room for everything");
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

// AddressSanitizer asks for this: malloc is to fail as it does elsewhere.
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }

static void hopeless(void)
{
    dup2(STDOUT_FILENO, STDERR_FILENO);
    volatile size_t bytes = (size_t)1 << 62;
    free(xmalloc(bytes));
}

TEST(out_of_memory)
{
    run_in_pipe(hopeless);
    EXPECT_EQ_INT(caught.status, EXIT_FAILED);
    EXPECT(strstr(caught.text, "check.c:") != NULL, "says %s", caught.text);
    EXPECT(strstr(caught.text, "out of memory: the host has no 4398046511104.0 MiB left\nhint: ") !=
               NULL,
           "says %s", caught.text);
}

int main(void)
{
    bar_on_a_terminal();
    bar_is_redrawn_at_most_ten_times_a_second();
    bar_never_wraps();
    blocks_come_in_eighths();
    no_colour_no_unicode();
    a_dumb_terminal_gets_lines();
    messages_stand_above_a_bar_that_goes_on();
    errors_and_interruptions_leave_a_clean_screen();
    numbers_come_once_a_second_on_a_terminal();
    lines_elsewhere();
    step_events();
    step_events_on_a_terminal();
    append_and_truncate();
    config_event();
    numbers_that_json_has_not();
    metrics_on_a_full_disk();
    a_screen_on_a_full_disk();
    metrics_nowhere();
    messages();
    out_of_memory();
    rank_0_speaks();
    metrics_of_ranks();
    norm_and_scale_in_lines();
    norm_and_scale_in_events();
    events_are_json();
    scale_in_the_bar();
    scale_goes_first_where_it_is_narrow();
    how_a_run_diverges();
    steps_are_signs_of_life();
    return test_done();
}
