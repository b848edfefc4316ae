// test_log.c - the lines of a run, JSON lines, and error messages.
#include "check.h"
#include "log.h"
#include "test.h"
#include <math.h>
#include <time.h>
#include <unistd.h>

static int status;

static void call(const void *work) { (*(void (*const *)(void))work)(); }

static void run(void (*work)(void))
{
    status = test_child(call, &work);
}

static const char *metrics;
static int steps = 196, rank, ranks = 1;

static Log *new_log(int print_freq)
{
    check_set_rank(rank, ranks);
    return log_new(&(LogConfig){ .print_freq = print_freq, .metrics = metrics }, false);
}

static void wait_ms(int ms) { nanosleep(&(struct timespec){ 0, ms * 1000000 }, NULL); }

static void one_epoch(Log *log, int epoch)
{
    log_progress_begin(log, epoch, 5);
    for (int step = 1; step <= steps; step++) {
        wait_ms(1);
        log_progress(log, step, 256);
        if (log_wants(log, step, steps))
            log_step(log, &(LogStep){ .epoch = epoch, .epochs = 5, .step = step, .steps = steps,
                                      .lr = 0.01, .data_wait_ms = 0.5,
                                      .stats = { .batch_loss_sum = 25, .batch_count = 10,
                                                 .batch_correct1 = 1,
                                                 .loss_sum = (2.0 - step * 0.001) * 25600,
                                                 .correct1 = 7330, .count = 25600 } });
    }
    log_progress_end(log);
}

static void two_epochs(void)
{
    Log *log = new_log(50);
    log_say(log, "[init] == %s ==", "ready");
    one_epoch(log, 1);
    log_say(log, "   == test: 65%%");
    one_epoch(log, 2);
    log_say(log, "the end");
    log_free(log);
}

TEST(lines)
{
    char all[2000] = "[init] == ready ==\n";
    for (int epoch = 1; epoch <= 2; epoch++) {
        for (int step = 50; step < 246; step += 50)
            sprintf(all + strlen(all), "   == step: [%3d/196] [%d/5] | loss: %.3f | acc: 28.633%%\n",
                    step < 196 ? step : 196, epoch, 2.0 - (step < 196 ? step : 196) * 0.001);
        strcat(all, epoch == 1 ? "   == test: 65%\n" : "the end\n");
    }
    run(two_epochs);
    EXPECT_EQ_STR(test_said, all);
}

TEST(step_events)
{
    metrics = test_path("steps.jsonl");
    run(two_epochs);
    const char *text = test_read(metrics);
    EXPECT_EQ_INT(test_times(text, "\n"), 8);
    static const char first[] =
        "{\"event\":\"step\",\"epoch\":1,\"step\":50,\"steps\":196,\"loss\":2.5,\"acc\":10.0,"
        "\"running_loss\":1.95,\"running_acc\":28.6328125,\"lr\":0.01,\"samples_per_s\":";
    EXPECT(strncmp(text, first, sizeof first - 1) == 0, "%.200s", text);
    EXPECT_HAS(text, "\"data_wait_ms\":0.5}\n");
}

// Rate and time exclude the evaluation. An epoch without a step in this run has no line.
static void an_epoch(void)
{
    Stats stats = { .loss_sum = 5, .count = 10 };
    Log *log = new_log(1);
    log_unit(log, "characters", 32);
    for (int from = 0; from <= 4; from += 4) {
        log_progress_begin(log, 2, 5);
        for (int step = from + 1; step <= 4; step++) {
            wait_ms(20);
            log_progress(log, step, 8);
            log_step(log, &(LogStep){ .epoch = 2, .epochs = 5, .step = step, .steps = 4,
                                      .lr = step * 0.25, .data_wait_ms = 500, .stats = stats });
        }
        log_progress_end(log);
        log_epoch(log, 2, &stats, &stats);
    }
    log_free(log);
}

TEST(the_line_of_an_epoch)
{
    metrics = test_path("epochs.jsonl");
    ranks = 2;
    run(an_epoch);
    ranks = 1;
    const char *seconds = strstr(test_read(metrics), "\"seconds\":");
    double spent = seconds ? strtod(strchr(seconds, ':') + 1, NULL) : 0;
    char line[200];
    EXPECT(spent >= 0.08, "an epoch of 4 times 20 ms took %g s", spent);
    snprintf(line, sizeof line,
             "\n   == epoch: [2/5] | %.1f s | %.0f characters/s | data wait 2.0 s | lr 1\n", spent,
             2 * 4 * 8 * 32 / spent);
    EXPECT_HAS(test_said, line);
    EXPECT_EQ_INT(test_times(test_said, "== epoch"), 1);
    metrics = NULL;
}

TEST(config_event)
{
    Args args = { .program = "./tr\"ain" };
    const char *data = "auto";
    args_add(&args, ARGS_ROWS({ "data-set", 0, ARG_STRING, &data, "DIR", "" }));
    metrics = test_path("config.jsonl");
    Log *log = new_log(50);
    log_config(log, &args, "CPU \"x\"", json_pack("{s:i}", "train", 50000));
    log_config(log, &args, "CPU", NULL);
    log_free(log);
    const char *text = test_read(metrics);
    EXPECT_HAS(text, "{\"event\":\"config\",\"program\":\"./tr\\\"ain\",\"revision\":\"");
    EXPECT_HAS(text, "\"device\":\"CPU \\\"x\\\"\",\"options\":{\"data_set\":\"auto\"},\"train\":50000}\n");
    EXPECT_HAS(text, "\"options\":{\"data_set\":\"auto\"}}\n");
}

TEST(a_resumed_run_continues_the_file)
{
    const char *path = test_file("resumed", "{\"event\":\"a\"}\n", 14);
    Log *log = log_new(&(LogConfig){ .print_freq = 50, .metrics = path }, true);
    log_event(log, "b", json_pack("{s:o}", "loss", log_number(NAN)));
    log_free(log);
    EXPECT_EQ_STR(test_read(path), "{\"event\":\"a\"}\n{\"event\":\"b\",\"loss\":null}\n");
}

static void message(void)
{
    check_set_rank(2, 4);
    printf("before ");
    fail_at("/a/b/comm.c", 88, EXIT_DIVERGED, "two\nlines", "bad\tname '%s'", "x\033[2J");
}

TEST(messages)
{
    char host[65] = "", wanted[400];
    gethostname(host, sizeof host - 1);
    run(message);
    EXPECT_EQ_INT(status, EXIT_DIVERGED);
    snprintf(wanted, sizeof wanted, "before [rank 2/4 %s:", host);
    EXPECT(strncmp(test_said, wanted, strlen(wanted)) == 0, "printed: %s", test_said);
    EXPECT_HAS(test_said, "] comm.c:88: bad?name 'x?[2J'\nhint: two?lines\n");
}

static const struct {
    double norm, loss_scale;
    int64_t skipped;
    const char *line, *event;
} cases[] = {
    { 0, 0, 7, "", "" },                    // without a loss scale, skipped steps are not shown
    { 2.3138, 0, 0, " | norm: 2.314", ",\"gradient_norm\":2.3138" },
    { 0, 65536, 0, " | scale: 65536", ",\"loss_scale\":65536.0,\"skipped_steps\":0" },
    { INFINITY, 32768, 1, " | norm: inf | scale: 32768 | skipped: 1",
      ",\"gradient_norm\":null,\"loss_scale\":32768.0,\"skipped_steps\":1" },
    { -NAN, 0.5, 0, " | norm: nan | scale: 0.5",
      ",\"gradient_norm\":null,\"loss_scale\":0.5,\"skipped_steps\":0" },
};
enum { CASES = sizeof cases / sizeof *cases };

static void as_a_rank(void)
{
    Log *log = new_log(1);
    for (int i = 0; i < CASES; i++)
        log_step(log, &(LogStep){ .epoch = 1, .epochs = 1, .step = i + 1, .steps = CASES,
                                  .norm = cases[i].norm, .loss_scale = cases[i].loss_scale,
                                  .skipped = cases[i].skipped, .data_wait_ms = 2,
                                  .stats = { .loss_sum = 5, .count = 10, .correct1 = 3 } });
    log_end(log, 1, 1);
    log_free(log);
}

TEST(only_rank_0_prints)
{
    char all[2000] = "", line[200];
    for (int i = 0; i < CASES; i++)
        sprintf(all + strlen(all),
                "   == step: [%3d/%d] [1/1] | loss: 0.500 | acc: 30.000%% | rank 0%s\n", i + 1,
                CASES, cases[i].line);
    strcat(all, "weight hash: 0000000000000001\n");
    metrics = test_path("ranks.jsonl");
    ranks = 2;
    for (rank = 1; rank >= 0; rank--) {
        run(as_a_rank);
        EXPECT_EQ_STR(test_said, rank ? "" : all);
        EXPECT(!rank || access(metrics, F_OK) != 0, "rank 1 wrote into rank 0's file");
    }
    metrics = test_path("%r.jsonl");
    for (rank = 0; rank < 2; rank++)
        run(as_a_rank);
    for (rank = 0; rank < 2; rank++) {
        const char *text = test_read(test_path(rank ? "1.jsonl" : "0.jsonl"));
        for (int i = 0; i < CASES; i++) {
            snprintf(line, sizeof line, "\"data_wait_ms\":2.0%s,\"rank\":%d}\n", cases[i].event, rank);
            EXPECT_HAS(text, line);
        }
    }
    rank = 0;
    ranks = 1;
}

TEST_MAIN
