// spawn.h - one process for each rank, as torch.multiprocessing.spawn starts them.
#pragma once
#include "args.h"
#include "world.h"

typedef struct SpawnConfig {
    int ranks;          // processes; 0: one for each GPU, or two on a CPU
    double timeout;     // seconds without progress until the run ends; 0: never
} SpawnConfig;
// Sets the defaults and adds the options.
void spawn_options(Args *args, SpawnConfig *config);

// Like fork, spawn returns once in each rank, with that rank's World. The caller's own process
// never returns: it waits for the ranks, and exits when all have ended. Call spawn before anything
// that starts threads or touches a GPU. A rank that exits before it calls store_leave (world.h)
// counts as dead, even with status 0.
void spawn(const SpawnConfig *config, World *world);
