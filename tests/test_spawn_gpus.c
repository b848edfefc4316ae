// test_spawn_gpus.c - how many ranks spawn starts on a machine with (simulated) GPUs.
// ctest: SANITIZERS asan
#include "progress.h"
#include "device.h"
#include "machine.h"
#include "test.h"

#include "../03_ddp_fork/spawn.h"

static int gpus;
static int made_up_count(void) { return gpus; }

#define device_backend "cuda"
#define machine_gpus_listed made_up_count
#include "../common/comm/gpus.c"
#include "../03_ddp_fork/spawn.c"

static void spawn_ranks(const void *ranks)
{
    World world;
    spawn(&(SpawnConfig){ .ranks = *(const int *)ranks, .timeout = 5 }, &world);
    dprintf(STDERR_FILENO, "rank of %d\n", world.size);
    store_leave(&world);
    _exit(0);
}

static void expect(int there, int asked, int status, const char *text)
{
    gpus = there;
    EXPECT_EQ_INT(test_child(spawn_ranks, &asked), status);
    EXPECT_HAS(test_said, text);
}

int main(void)
{
    expect(3, 0, 0, "rank of 3\n");                 // by default one rank per GPU
    expect(3, 2, 0, "rank of 2\n");
    expect(1, 2, 0, "rank of 2\n");                 // ranks may share a GPU
    expect(0, 0, 1, "this process finds no GPU");
    return test_done();
}
