// spawn.h - forks a process for each rank. torch.multiprocessing.spawn starts new interpreters.
#pragma once
#include "args.h"
#include "comm.h"

typedef struct SpawnConfig {
    int ranks;          // processes; 0: one for each GPU, or two on a CPU
    double timeout;     // seconds without a heartbeat until a rank counts as lost; 0: never
} SpawnConfig;
// Sets the defaults and adds the options.
void spawn_options(Args *args, SpawnConfig *config);

// Like fork, spawn returns once in each rank, with that rank's World. The caller's own process
// never returns: it supervises the ranks and exits when all have ended. Call spawn before anything
// that starts threads or touches a GPU. A rank that exits before it calls alive_done() (alive.h)
// counts as dead, even with status 0.
void spawn(const SpawnConfig *config, World *world);
