// rendezvous.h - who is this process, and where are the others?
#pragma once
#include "args.h"
#include "comm.h"

typedef struct RendezvousConfig {
    int rank, size, local_rank;         // -1: not on the command line
    const char *address;                // where rank 0 listens
    int port;
    const char *interface;              // the network that the ranks use, or NULL
    const char *token_file;
    bool require_token;
    double timeout;                     // s for all to come, and without a sign of life later; 0: any
} RendezvousConfig;
// Sets the defaults and adds the options.
void rendezvous_options(Args *args, RendezvousConfig *config);

// Finds out which rank this is, of how many: from the command line, else the environment that
// torchrun and launch set, else from Open MPI, else it is alone; meets the others, and makes sure
// that all are the same program with the same options.
void rendezvous(const RendezvousConfig *config, const Args *args, World *world);
// All that was to be done together is done.
void rendezvous_end(World *world);
