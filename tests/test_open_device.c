// test_open_device.c - which simulated GPU each rank opens, when every rank sees all GPUs or only its
// own, and whether ranks share it. Also agree_same: do all ranks have the same options?
// ctest: SANITIZERS asan
#include "device.h"
#include "agree.h"
#include "test.h"

#include "../tools/ranks.h"

static int seen;
static bool own;                        // each rank sees only its own
static int rank_here, opened;
static bool shared;

static int made_up_count(void) { return seen; }

static const char *made_up_uuid(int index)
{
    static char text[32];
    snprintf(text, sizeof text, "GPU-%d", own ? rank_here : index);
    return text;
}


static Device *made_up_open(int index, int threads)
{
    opened = index;
    return NULL;
}

static void made_up_turns(Device *device) { shared = true; }

#define device_count made_up_count
#define device_uuid made_up_uuid
#define device_open made_up_open
#define device_takes_turns made_up_turns
#include "../common/comm/comm.c"

static int take_device(void *arg, const World *world)
{
    test_redirect(arg);
    World mine = *world;
    rank_here = world->rank;
    comm_open_device(&mine, 1);
    return 10 + opened + (shared ? 100 + 10 * mine.gpu_place : 0);
}

static const char *said;
static void start(int size, int (*run)(void *arg, const World *world), int statuses[])
{
    static char path[4096];
    pid_t pids[RANKS_MAX];
    Store *store = ranks_store_new();
    snprintf(path, sizeof path, "%s", test_path("said"));
    unlink(path);
    ranks_start(size, store, run, path, pids);
    for (int rank = 0; rank < size; rank++)
        statuses[rank] = ranks_join(pids[rank]);
    said = test_read(path);
    ranks_store_free(store);
}

static void expect(int size, int gpus, bool each_its_own, const int wanted[], const char *text)
{
    int statuses[RANKS_MAX];
    seen = gpus;
    own = each_its_own;
    start(size, take_device, statuses);
    for (int rank = 0; rank < size; rank++)
        EXPECT(statuses[rank] == wanted[rank], "%d GPUs: rank %d of %d ends with %d, wanted %d", gpus, rank,
               size, statuses[rank], wanted[rank]);
    EXPECT_HAS(said, text);
}

TEST(each_rank_has_a_gpu)
{
    expect(2, 2, false, (const int[]){ 10, 11 }, "");
    expect(2, 4, false, (const int[]){ 10, 11 }, "");
    expect(3, 1, true, (const int[]){ 10, 10, 10 }, "");
    expect(3, 0, false, (const int[]){ 10, 11, 12 }, "");       // no GPUs: any index will do
}

// Each rank's status is 110 + its GPU + 10 times its place there.
TEST(ranks_share_gpus_evenly)
{
    expect(2, 1, false, (const int[]){ 110, 120 }, "[init] == 2 ranks share 1 GPU and take turns: ");
    expect(4, 2, false, (const int[]){ 110, 111, 120, 121 }, "[init] == 4 ranks share 2 GPUs and take turns: ");
    expect(5, 2, false, (const int[]){ 110, 111, 120, 121, 130 }, "5 ranks share 2 GPUs");
    const char *line = strstr(said, "ranks share");
    EXPECT(line && !strstr(line + 1, "ranks share"), "only rank 0 says so: %s", said);
}

static const char *const options[] = { "--lr 1\n--seed 2\n", "--lr 1\n--seed 2\n", "--lr 1\n" };

static int compare_options(void *arg, const World *world)
{
    test_redirect(arg);
    agree_same(world, "options", options[world->rank]);
    return 10;
}

TEST(different_options_are_named)
{
    int statuses[3];
    start(2, compare_options, statuses);
    EXPECT(statuses[0] == 10 && statuses[1] == 10, "output: %s", said);
    start(3, compare_options, statuses);
    EXPECT(statuses[0] == EXIT_REPORTED, "output: %s", said);  // in a run, this status ends the others
    EXPECT(strstr(said, "options: rank 2 (") && strstr(said, ") has nothing, but rank 0 has --seed 2\n"),
           "output: %s", said);
}

TEST_MAIN
