// ranks.h - runs a function on several ranks.
#pragma once
#include "../03_ddp_fork/spawn.c"

// Starts ranks that call run(arg, world), and waits for them. Returns 0 if each returned 0. Call it before starting
// threads.
static int ranks_run(int size, int (*run)(void *arg, const World *world), void *arg)
{
    World world;
    int status = -1;
    fflush(NULL);
    pid_t parent = fork();      // of the ranks: spawn never returns in it
    if (parent == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        spawn(&(SpawnConfig){ .ranks = size, .timeout = 100 }, &world);
        int failed = run(arg, &world);
        store_leave(&world);
        exit(failed);
    }
    waitpid(parent, &status, 0);
    return status;
}
