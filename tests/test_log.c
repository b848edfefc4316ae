// test_log.c - the lines of a run without a terminal, and JSON lines.
#include "check.h"
#include "log.h"
#include "test.h"
#include <math.h>
#include <time.h>

static void call(const void *work) { (*(void (*const *)(void))work)(); }

static int run(void (*work)(void)) { return test_child(call, &work); }

static const char *metrics;
static int rank, ranks = 1;

static Log *new_log(int print_freq)
{
    check_set_rank(rank, ranks);
    return log_new(&(LogConfig){ .print_freq = print_freq, .metrics = metrics }, false);
}

// An epoch without a step in this run has no line.
static void two_epochs(void)
{
    Log *log = new_log(3);
    log_unit(log, "characters", 32);
    log_say(log, "[init] == %s ==", "ready");
    for (int from = 0; from <= 4; from += 4) {
        Stats stats = { .loss_sum = 5, .count = 10, .correct1 = 3, .batch_loss_sum = 25, .batch_count = 10,
                        .batch_correct1 = 1 };
        log_progress_begin(log, 2, 5);
        for (int step = from + 1; step <= 4; step++) {
            nanosleep(&(struct timespec){ 0, 20000000 }, NULL);
            log_progress(log, step, 8);
            if (log_wants(log, step, 4))
                log_step(log, &(LogStep){ .epoch = 2, .epochs = 5, .step = step, .steps = 4, .lr = step * 0.25,
                                          .data_wait_ms = 500, .stats = stats });
        }
        log_progress_end(log);
        log_epoch(log, 2, &stats, &(Stats){ 0 });
    }
    log_free(log);
}

TEST(lines_and_events)
{
    char all[1000];
    metrics = test_path("epochs.jsonl");
    ranks = 2;
    run(two_epochs);
    const char *text = test_read(metrics), *seconds = strstr(text, "\"seconds\":");
    double spent = seconds ? strtod(strchr(seconds, ':') + 1, NULL) : 0;
    EXPECT(spent >= 0.08, "an epoch of 4 times 20 ms took %g s", spent);
    snprintf(all, sizeof all, "[init] == ready ==\n"
             "   == step: [  3/4] [2/5] | loss: 0.500 | acc: 30.000%% | rank 0\n"
             "   == step: [  4/4] [2/5] | loss: 0.500 | acc: 30.000%% | rank 0\n"
             "   == epoch: [2/5] | %.1f s | %.0f characters/s | data wait 1.0 s | lr 1\n", spent,
             2 * 4 * 8 * 32 / spent);
    EXPECT_EQ_STR(test_said, all);
    EXPECT_EQ_INT(test_times(text, "\n"), 4);
    EXPECT_HAS(text, "{\"event\":\"step\",\"epoch\":2,\"step\":3,\"steps\":4,\"loss\":2.5,\"acc\":10.0,"
                     "\"running_loss\":0.5,\"running_acc\":30.0,\"lr\":0.75,\"samples_per_s\":");
    EXPECT_HAS(text, "{\"event\":\"epoch\",\"epoch\":2,\"train_loss\":0.5,\"train_acc\":30.0,\"seconds\":");
    metrics = NULL;
    ranks = 1;
}

static void as_a_rank(void)
{
    Log *log = new_log(1);
    log_step(log, &(LogStep){ .epoch = 1, .epochs = 1, .step = 1, .steps = 1, .norm = INFINITY, .loss_scale = 32768,
                              .skipped = 1, .data_wait_ms = 2,
                              .stats = { .loss_sum = 5, .count = 10, .correct1 = 3 } });
    log_end(log, 1, 1);
    log_free(log);
}

// Only rank 0 prints. Other ranks write metrics only if the name has %r.
TEST(each_rank_has_metrics_of_its_own)
{
    ranks = 2;
    for (rank = 1; rank >= 0; rank--) {
        metrics = test_path("rank0.jsonl");
        run(as_a_rank);
        EXPECT(!rank || access(metrics, F_OK) != 0, "rank 1 wrote into rank 0's file");
        metrics = test_path("%r.jsonl");
        run(as_a_rank);
        EXPECT(!rank || !*test_said, "rank 1 prints %s", test_said);
        EXPECT_HAS(test_read(test_path(rank ? "1.jsonl" : "0.jsonl")), "\"data_wait_ms\":2.0,\"gradient_norm\":null,"
                   "\"loss_scale\":32768.0,\"skipped_steps\":1,\"rank\":");
    }
    EXPECT_HAS(test_said, " [1/1] | loss: 0.500 | acc: 30.000% | rank 0 | norm: inf | scale: 32768 | skipped: 1\n");
    EXPECT_HAS(test_said, "\nweight hash: 0000000000000001\n");
}

TEST_MAIN
