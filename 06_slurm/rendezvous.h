// rendezvous.h - this process's rank, and the connection to the other ranks.
#pragma once
#include "args.h"
#include "comm.h"

typedef struct RendezvousConfig {
    const char *address;                // where rank 0 listens
    int port;
    const char *interface;              // the network that the ranks use, or NULL
    const char *meet;                   // the value of --rendezvous, "file:PATH", or NULL
    double timeout;                     // seconds without progress until the run ends; 0: never
} RendezvousConfig;
// Sets the defaults and adds the options.
void rendezvous_options(Args *args, RendezvousConfig *config);

// Finds this process's rank and the world size: in the variables that torchrun and launch set, or
// from Open MPI or Slurm; without any of these, the process is alone.
// Then connects the ranks, until store_leave (world.h). Fails unless all ranks run the same program
// with the same options, except local ones (args.h).
void rendezvous(const RendezvousConfig *config, const Args *args, World *world);
