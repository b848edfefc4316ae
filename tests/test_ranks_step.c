// test_ranks_step.c - one training step on several ranks, compared with PyTorch's.
// ctest: PROCESSORS 2 SANITIZERS none
//
// With BatchNorm statistics per rank (the default), two ranks must match two processes of PyTorch's
// DistributedDataParallel. With --sync-bn, two and four ranks must match one process that has the whole batch.
#include "../03_ddp_fork/ddp.c"
#include "../03_ddp_fork/broadcast.c"
#include "ranks.h"
#include "step_reference.h"

#include <sys/mman.h>

typedef struct Seen {
    double losses[RANKS_MAX];
    uint64_t hash;          // of rank 0's weights after the step
    size_t hooked, grads;   // values passed to rank 0's hook; gradients of the model
} Seen;

typedef struct Trial {
    const char *file;
    double bucket_mb;
    bool sync_bn;
    DdpHook hook;
    Seen *seen;             // shared
} Trial;

static void wait_for_average(void *arg) { ddp_wait(arg); }

static int take_step(void *arg, const World *world)
{
    const Trial *trial = arg;
    Device *device = device_open(0, 1);
    Ops *ops = ops_new(device, &(OpsConfig){ 0 });
    StepRun run;
    step_open(&run, trial->file);
    int rows = run.batch / world->size;
    EXPECT_EQ_INT(rows * world->size, run.batch);
    ModelConfig config = step_config(&run, rows);
    Model *model = model_new(device, ops, &config);
    step_begin(&run, model, rows * world->rank, rows);

    Comm *comm = comm_new(world, device, "gradients", NULL);
    Comm *norms = trial->sync_bn ? comm_share_norms(world, device, ops, NULL) : NULL;
    Ddp *ddp = ddp_new(model->grads, model->ready_count, device, comm, trial->bucket_mb * 0x1p20);
    size_t hooked = 0;
    if (trial->hook)
        ddp_set_hook(ddp, trial->hook, &hooked);
    trial->seen->losses[world->rank] = step_take(&run, 1, ddp_ready, wait_for_average, ddp);
    uint64_t hash = model_hash(model);
    compare_hashes(comm, device, hash);     // also waits for all losses
    double loss = 0;
    for (int rank = 0; rank < world->size; rank++)
        loss += trial->seen->losses[rank] / world->size;
    if (world->rank == 0) {
        trial->seen->hash = hash;
        trial->seen->hooked = hooked;
        trial->seen->grads = model->grad_count;
        step_compare(&run, loss);
    }
    comm_free(norms);
    comm_free(comm);
    ddp_free(ddp);
    step_close(&run);
    model_free(model);
    ops_free(ops);
    device_close(device);
    return test_failed > 0;
}

static Seen try_with(int size, const char *file, double bucket_mb, bool sync_bn, DdpHook hook)
{
    Seen *seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Trial trial = { file, bucket_mb, sync_bn, hook, seen };
    printf("%d ranks, buckets of %g MiB%s: ", size, bucket_mb, sync_bn ? ", sync-bn" : "");
    EXPECT_EQ_INT(ranks_run(size, take_step, &trial), 0);
    Seen result = *seen;
    munmap(seen, sizeof *seen);
    return result;
}

TEST(statistics_of_all_ranks) { try_with(4, "resnet18-1.step.safetensors", 25, true, NULL); }

// A hook that computes the average differently. With two ranks the result has the same bits.
static void average_twice(void *arg, Comm *comm, Stream *stream, float *grads, size_t count)
{
    *(size_t *)arg += count;
    comm_all_reduce(comm, stream, grads, count, COMM_F32);
    comm_all_reduce(comm, stream, grads, count, COMM_F32);
    values_scale(stream, grads, count, 1.0f / (float)(comm_size(comm) * comm_size(comm)));
}

// BatchNorm uses each rank's own statistics. The weights must not depend on the buckets.
TEST(hooks_see_every_gradient_once)
{
    Seen plain = try_with(2, "resnet18-ranks2-1.step.safetensors", 25, false, NULL);
    for (double mb = 1; mb > 0.0005; mb /= 1000) {
        Seen hooked = try_with(2, "resnet18-ranks2-1.step.safetensors", mb, false, average_twice);
        EXPECT(plain.hash == hooked.hash, "the hook or the buckets changed the weights");
        EXPECT_EQ_INT(hooked.hooked, hooked.grads + MODEL_SPARE);
    }
}

TEST_MAIN
