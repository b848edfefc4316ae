// The learning rate of every step, against what torch.optim.lr_scheduler's StepLR, MultiStepLR,
// CosineAnnealingLR and LinearLR are documented to give.
#include "optim.h"
#include "test.h"

static OptimConfig schedule(const char *name)
{
    OptimConfig c = optim_defaults();
    c.lr = 0.4;
    c.schedule = name;
    return c;
}

TEST(constant_stays)
{
    OptimConfig c = schedule("constant");
    EXPECT_NEAR(optim_lr(&c, 0, 10, 5), 0.4, 0);
    EXPECT_NEAR(optim_lr(&c, 49, 10, 5), 0.4, 0);
}

TEST(step_falls_between_epochs)
{
    OptimConfig c = schedule("step");
    c.step_size = 2;
    c.gamma = 0.5;
    static const double wanted[] = { 0.4, 0.4, 0.2, 0.2, 0.1 };
    for (int step = 0; step < 50; step++)
        EXPECT_NEAR(optim_lr(&c, step, 10, 5), wanted[step / 10], 1e-12);
}

TEST(multistep_falls_at_milestones)
{
    OptimConfig c = schedule("multistep");
    c.milestones = "1,3,4";
    c.gamma = 0.1;
    static const double wanted[] = { 0.4, 0.04, 0.04, 0.004, 0.0004 };
    for (int step = 0; step < 50; step++)
        EXPECT_NEAR(optim_lr(&c, step, 10, 5), wanted[step / 10], 1e-12);
}

TEST(cosine_ends_at_zero)
{
    OptimConfig c = schedule("cosine");
    static const double wanted[] = { 0.4, 0.3414213562, 0.2, 0.0585786438, 0 };
    for (int quarter = 0; quarter <= 4; quarter++)
        EXPECT_NEAR(optim_lr(&c, 10 * quarter, 10, 4), wanted[quarter], 1e-9);
}

// From one part in n + 1 of the rate to all of it, over n steps, on top of any schedule.
TEST(warm_up_rises_step_by_step)
{
    OptimConfig c = schedule("constant");
    c.warmup_epochs = 1.5;
    for (int step = 0; step < 15; step++)
        EXPECT_NEAR(optim_lr(&c, step, 10, 5), 0.4 * (step + 1) / 16, 1e-12);
    EXPECT_NEAR(optim_lr(&c, 15, 10, 5), 0.4, 1e-12);
}

int main(void)
{
    constant_stays();
    step_falls_between_epochs();
    multistep_falls_at_milestones();
    cosine_ends_at_zero();
    warm_up_rises_step_by_step();
    return test_done();
}
