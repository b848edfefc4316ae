// test_replicas.c - a step on two devices, compared with PyTorch's.
// ctest: PROCESSORS 2 BACKENDS cpu cuda fake
//
// Both replicas use device 0, so that the test needs only one GPU.
#include "device.h"
#define device_open(index, threads) device_open(0, threads)
#include "../02_data_parallel/replicas.c"
#undef device_open
#include "../02_data_parallel/team.c"
#include "step_reference.h"
#include "test_device.h"

static const OpsConfig ops_config = { .tf32 = false, .deterministic = true };

// Two devices must match two PyTorch processes, each with half of the batch and its own statistics.
TEST(a_step_matches_pytorch)
{
    StepRun run;
    step_open(&run, "resnet18-ranks2-1.step.safetensors");
    EXPECT_EQ_INT(file_int(&run.file, "ranks"), 2);
    Replicas *replicas = replicas_open(&(ReplicasConfig){ .devices = 2 }, 1);
    device = replicas_device(replicas);
    ops = ops_new(device, &ops_config);
    ModelConfig config = step_config(&run, run.batch);
    config.pass = replicas_chunk(replicas, run.batch);
    Model *model = model_new(device, ops, &config);
    Scalars scalars = { .set = step_recipe, .scale.value = 1 };
    replicas_add(replicas, model, &ops_config);
    step_begin(&run, model, 0, run.batch);
    send_to_device(model, run.scalars, &scalars, sizeof scalars);

    replicas_forward(replicas, run.inputs, run.batch, true);
    loss_cross_entropy(ops, run.batch, config.classes, model->logits, run.labels, run.scalars, run.stats,
                       model->dlogits);
    replicas_backward(replicas);
    sgd_update(ops, model->param_count, model->grad_count, model->params, model->grads, run.velocity, run.scalars);
    step_compare(&run, step_loss(&run));

    replicas_close(replicas);
    step_close(&run);
    model_free(model);
    ops_free(ops);
    device_close(device);
}

int main(void)
{
    test_needs_device();
    test_all();
    return test_done();
}
