// Learning rates, compared with the documented formulas of PyTorch's StepLR, MultiStepLR,
// CosineAnnealingLR and LinearLR, and of Horovod.
#include "args.h"
#include "optim.h"
#include "test.h"

// An epoch has 10 steps. The rate must be wanted[i] in steps i * every to (i + 1) * every - 1; if
// `between`, only in the first of them.
static const struct {
    OptimConfig config;
    int epochs, every;
    bool between;
    int count;
    double wanted[9];
} schedules[] = {
    { { .schedule = "constant" }, 5, 49, false, 1, { 0.4 } },
    { { .schedule = "step", .milestones = "2,4", .gamma = 0.5 }, 5, 10, false, 5,
      { 0.4, 0.4, 0.2, 0.2, 0.1 } },
    { { .schedule = "step", .milestones = "1,3,4", .gamma = 0.1 }, 5, 10, false, 5,
      { 0.4, 0.04, 0.04, 0.004, 0.0004 } },
    // 0.2 (1 + cos(pi i / 8)), also within an epoch
    { { .schedule = "cosine" }, 4, 5, true, 9,
      { 0.4, 0.3847759065, 0.3414213562, 0.2765366865, 0.2, 0.1234633135, 0.0585786438,
        0.0152240935, 0 } },
};

TEST(schedules_are_pytorchs)
{
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        OptimConfig c = schedules[i].config;
        c.lr = 0.4;
        c.warmup = "0";
        int every = schedules[i].every, step = schedules[i].between ? every : 1;
        for (int at = 0; at < schedules[i].count * every; at += step)
            EXPECT_NEAR(optim_lr(&c, 1, at, 10, schedules[i].epochs), schedules[i].wanted[at / every],
                        1e-9);
    }
}

TEST(warm_up_rises_step_by_step)
{
    OptimConfig c = { .lr = 0.4, .schedule = "constant", .warmup = "1.5" };
    for (int step = 0; step <= 15; step++)
        EXPECT_NEAR(optim_lr(&c, 1, step, 10, 5), 0.4 * (step + 1) / 16, 1e-12);
    c.warmup = "15steps";
    for (int step = 0; step <= 15; step++)
        EXPECT_NEAR(optim_lr(&c, 1, step, 99, 5), 0.4 * (step + 1) / 16, 1e-12);
}

// As in nanoGPT.
TEST(cosine_to_a_least_rate)
{
    OptimConfig c = { .lr = 1e-3, .schedule = "cosine", .min_lr = 1e-4, .cosine_steps = 20, .warmup = "0" };
    static const struct {
        int step;
        double rate;
    } wanted[] = { { 0, 1e-3 }, { 5, 8.681980515e-4 }, { 10, 5.5e-4 }, { 20, 1e-4 }, { 33, 1e-4 } };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        EXPECT_NEAR(optim_lr(&c, 1, wanted[i].step, 10, 5), wanted[i].rate, 1e-12);
    c.min_lr = 1;           // above the rate: it stays
    EXPECT_NEAR(optim_lr(&c, 1, 20, 10, 5), 1e-3, 1e-12);
}

static OptimConfig parsed(const char *options)
{
    static char text[200];
    static OptimConfig c;
    char *argv[16] = { NULL };
    int argc = 0;
    Args args = { 0 };
    snprintf(text, sizeof text, "train --lr-scale linear %s", options);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    optim_options(&args, &c);
    optim_scale_options(&args, &c);
    args_parse(&args, argc, argv);
    return c;
}

// Horovod's adjust_learning_rate (in its pytorch_imagenet_resnet50.py) computes in the warm-up
//   epoch += (batch_idx + 1) / len(train_loader)
//   lr = base_lr * size * (1 / size * (epoch * (size - 1) / warmup_epochs + 1))
// Python's `fractions` module gave the first 4 rates (base_lr 0.01, 5 epochs of warm-up). The others are by hand. With
// a warm-up of 2.5 epochs, the rate is 0.01 (1 + 2 epoch / 2.5). The scale multiplies each schedule.
static const struct {
    const char *options;
    int ranks, step, steps, epochs;     // steps: of an epoch
    double rate;
} scaled[] = {
    { "", 4, 0, 10, 10, 0.0106 },
    { "", 4, 9, 10, 10, 0.016 },
    { "", 4, 49, 10, 10, 0.04 },
    { "", 4, 99, 10, 10, 0.04 },
    { "--warmup 2.5", 3, 0, 8, 10, 0.011 },
    { "--warmup 2.5", 3, 19, 8, 10, 0.03 },
    { "--warmup 0", 3, 0, 8, 10, 0.03 },
    { "--warmup 20steps", 3, 9, 8, 10, 0.02 },
    { "--schedule cosine", 4, 0, 10, 20, 0.0106 },
    { "--schedule cosine", 4, 100, 10, 20, 0.02 },
    { "--schedule step --milestones 2,7", 4, 24, 10, 20, 0.0025 },
    { "--schedule step --milestones 2,7", 4, 70, 10, 20, 0.0004 },
    { "--lr-scale sqrt", 4, 0, 10, 10, 0.0102 },
};

TEST(scaled_by_ranks)
{
    for (size_t i = 0; i < sizeof scaled / sizeof *scaled; i++) {
        OptimConfig c = parsed(scaled[i].options);
        EXPECT_NEAR(optim_lr(&c, scaled[i].ranks, scaled[i].step, scaled[i].steps, scaled[i].epochs),
                    scaled[i].rate, 1e-15);
    }
}

TEST(one_rank_is_not_scaled)
{
    OptimConfig c = parsed("");
    for (int step = 0; step < 100; step++)
        EXPECT_NEAR(optim_lr(&c, 1, step, 10, 10), 0.01, 1e-15);
    c = optim_defaults();   // without --lr-scale, 4 ranks are not scaled
    EXPECT_NEAR(optim_lr(&c, 4, 0, 10, 10), 0.01, 0);
}

TEST_MAIN
