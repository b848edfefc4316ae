// test_log.c - the lines of a run without a terminal, and JSON lines.
#include "check.h"
#include "log.h"
#include "test.h"
#include <time.h>

// An epoch without a step in this run has no line.
static void two_epochs(const void *metrics)
{
    check_set_rank(0, 2);
    Log *log = log_new(&(LogConfig){ .print_freq = 3, .metrics = metrics }, false);
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
    const char *metrics = test_path("epochs.jsonl");
    EXPECT_EQ_INT(test_child(two_epochs, metrics), 0);
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
    EXPECT_HAS(text, ",\"data_wait_ms\":500.0,\"rank\":0}\n");
    EXPECT_HAS(text, "{\"event\":\"epoch\",\"epoch\":2,\"train_loss\":0.5,\"train_acc\":30.0,\"seconds\":");
}

TEST_MAIN
