// Learning rates, compared with the documented formulas of PyTorch's StepLR, MultiStepLR, CosineAnnealingLR and
// LinearLR, and of Horovod.
#include "args.h"
#include "optim.h"
#include "test.h"
#include <math.h>

// Lines of options. By default the rate is 0.01, without schedule or warm-up.
//
// Horovod's adjust_learning_rate (in its pytorch_imagenet_resnet50.py) computes in the warm-up
//   epoch += (batch_idx + 1) / len(train_loader)
//   lr = base_lr * size * (1 / size * (epoch * (size - 1) / warmup_epochs + 1))
// Python's `fractions` module gave 0.0106 and 0.016. The other rates were computed by hand. With 3 ranks and a warm-up
// of 2.5 epochs, the rate is 0.01 (1 + 2 epoch / 2.5). --lr-scale multiplies the rates of each schedule.
static const struct {
    const char *options;
    int ranks, step, steps, epochs;         // steps: of an epoch
    double rate;
} cases[] = {
    { "--schedule step --milestones 2,4 --gamma 0.5", 1, 19, 10, 5, 0.01 },
    { "--schedule step --milestones 2,4 --gamma 0.5", 1, 20, 10, 5, 0.005 },
    { "--schedule step --milestones 2,4 --gamma 0.5", 1, 40, 10, 5, 0.0025 },
    { "--schedule cosine", 1, 0, 10, 4, 0.01 },             // 0.005 (1 + cos(pi i / 8)), also within an epoch
    { "--schedule cosine", 1, 5, 10, 4, 0.009619397663 },
    { "--schedule cosine", 1, 20, 10, 4, 0.005 },
    { "--schedule cosine", 1, 40, 10, 4, 0 },
    { "--schedule cosine --min-lr 1e-4 --cosine-steps 20", 1, 5, 10, 5, 0.008550178566873 },  // as in nanoGPT
    { "--schedule cosine --min-lr 1e-4 --cosine-steps 20", 1, 33, 10, 5, 1e-4 },
    { "--schedule cosine --min-lr 1 --cosine-steps 20", 1, 20, 10, 5, 0.01 },   // --min-lr above the rate has no effect
    { "--warmup 1.5", 1, 0, 10, 5, 0.01 / 16 },
    { "--warmup 1.5", 1, 14, 10, 5, 0.01 * 15 / 16 },
    { "--warmup 1.5", 1, 15, 10, 5, 0.01 },
    { "--warmup 15steps", 1, 3, 10, 5, 0.01 * 4 / 16 },
    { "--lr-scale linear --warmup 5", 4, 0, 10, 10, 0.0106 },
    { "--lr-scale linear --warmup 5", 4, 9, 10, 10, 0.016 },
    { "--lr-scale linear --warmup 5", 4, 99, 10, 10, 0.04 },
    { "--lr-scale linear", 4, 0, 10, 10, 0.0106 },           // the default warm-up: 5 epochs
    { "--lr-scale linear", 1, 0, 10, 10, 0.01 },             // one rank is not scaled
    { "--lr-scale linear --warmup 2.5", 3, 19, 8, 10, 0.03 },
    { "--lr-scale linear --warmup 0", 3, 0, 8, 10, 0.03 },
    { "--lr-scale linear --warmup 20steps", 3, 9, 8, 10, 0.02 },
    { "--lr-scale linear --schedule cosine", 4, 100, 10, 20, 0.02 },
    { "--lr-scale linear --schedule step --milestones 2,7", 4, 70, 10, 20, 0.0004 },
    { "--lr-scale sqrt", 4, 0, 10, 10, 0.0102 },
    { "", 4, 0, 10, 10, 0.01 },                              // without --lr-scale, 4 ranks are not scaled
};

static OptimConfig parsed(const char *options)
{
    static char text[200];
    static OptimConfig c;
    char *argv[16] = { NULL };
    int argc = 0;
    Args args = { 0 };
    snprintf(text, sizeof text, "train %s", options);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    optim_options(&args, &c);
    optim_scale_options(&args, &c);
    args_parse(&args, argc, argv);
    return c;
}

TEST(rates)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        OptimConfig c = parsed(cases[i].options);
        double rate = optim_lr(&c, cases[i].ranks, cases[i].step, cases[i].steps, cases[i].epochs);
        EXPECT(fabs(rate - cases[i].rate) <= 1e-12, "%s, %d ranks, step %d: %.13g", cases[i].options, cases[i].ranks,
               cases[i].step, rate);
    }
}

TEST_MAIN
