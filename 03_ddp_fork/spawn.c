// spawn.c - starts the ranks and supervises them until the last one has ended.
//
//   parent   binds a port, fork fork | watches: deaths, heartbeats, signals      | exits
//   rank 0                 |     | listens  meet | step | step | evaluate | save |
//   rank 1                      || connects meet | step | step | ...waits...     |
//
// The parent has one thread, and starts neither CUDA nor a library with threads: its children could
// then not use them. To find the others, each rank gets a number, a port, and a token that no
// other run has.
#include "spawn.h"
#include "check.h"
#include "device.h"
#include "supervise.h"
#include "tcp_store.h"
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void spawn_options(Args *args, SpawnConfig *config)
{
    *config = (SpawnConfig){ .timeout = 30 };
    args_add(args, ARGS_ROWS(
        { "ranks", 'n', ARG_INT, &config->ranks, "N", "number of ranks (0: one per GPU; CPU: 2)",
          .min = 0, .max = 256 },
        { "timeout", 0, ARG_DOUBLE, &config->timeout, "SECONDS",
          "seconds without a heartbeat until the run ends (0: never)", .min = 0, .max = 1e6 }));
}

// --- the number of ranks -------------------------------------------------------------------------

// Counting GPUs starts CUDA, which ranks that are forked later could not use. So a child counts.
static int count_gpus(void)
{
    int ends[2], count = 0, status = 0;
    CHECK(pipe2(ends, O_CLOEXEC) == 0, "raise ulimit -n", "pipe2: %s", strerror(errno));
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0, "raise ulimit -u", "counting GPUs failed: fork: %s", strerror(errno));
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        count = device_count();
        _exit(write(ends[1], &count, sizeof count) != sizeof count);
    }
    close(ends[1]);
    bool counted = read(ends[0], &count, sizeof count) == sizeof count;
    close(ends[0]);
    waitpid(child, &status, 0);
    if (!counted && WIFEXITED(status))
        exit(WEXITSTATUS(status));      // the child has printed why
    CHECK(counted, "does nvidia-smi work?", "counting GPUs failed: signal %d", WTERMSIG(status));
    return count;
}

static int count_ranks(const SpawnConfig *config)
{
    if (strcmp(device_backend, "cpu") == 0)
        return config->ranks > 0 ? config->ranks : 2;
    int gpus = count_gpus();
    CHECK(gpus > 0, "nvidia-smi shows the GPUs, and CUDA_VISIBLE_DEVICES may hide them; to train "
          "on the CPU: ./ddp run STEP --backend cpu", "this process finds no GPU");
    return config->ranks > 0 ? config->ranks : gpus;
}

// --- the ranks -----------------------------------------------------------------------------------

// In the child: meets the other ranks at rank 0, and fills in the World.
static void join(TcpStoreConfig *store, int rank, World *world)
{
    check_set_rank(rank, store->size);
    if (rank > 0)
        close(store->socket);
    store->rank = rank;
    tcp_store_join(store, world);
    world->rank = world->local_rank = rank;
    world->size = world->local_size = world->sharers = store->size;
    trace_among(rank, world->run);
}

void spawn(const SpawnConfig *config, World *world)
{
    TcpStoreConfig store = {
        .size = count_ranks(config), .place = { "127.0.0.1", 0 }, .supervised = true,
    };
    tcp_store_new_token(store.token);
    store.socket = tcp_bind(&store.place);
    Supervisor *parent = supervise_new(store.size, 0, store.size);
    for (int rank = 0; rank < store.size; rank++) {
        pid_t pid = supervise_fork(parent, rank, config->timeout > 0 ? config->timeout : INFINITY);
        CHECK(pid >= 0, "start fewer ranks (-n)", "cannot fork rank %d: %s", rank, strerror(errno));
        if (pid == 0) {
            join(&store, rank, world);
            return;
        }
    }
    close(store.socket);
    exit(supervise(parent));
}
