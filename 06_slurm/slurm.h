// slurm.h - rank, size and meeting point from the variables that srun sets.
#pragma once
#include "tcp_store.h"
#include "rendezvous.h"

// Adds --rendezvous file:PATH, for config->meet.
void slurm_options(Args *args, const char **meet);

// Is this process a task of a step, started by srun?
bool slurm_is_task(void);
// The value of one of Slurm's variables, translated if necessary: for SLURM_GTIDS, how many ranks
// are on this node; for SLURM_STEP_NODELIST, the first host; for SLURM_STEP_ID, the first of a few
// ports for this step. NULL: not set.
const char *slurm_said(const char *name);

// Sets where the ranks of a step meet; rank 0 also binds its sockets there. That is at `port` (or
// one of the next ports) of the first host or of --master-addr. With --rendezvous, rank 0 writes
// its addresses to a file, and the others wait for it (rendezvous_file.h). Fails if that is
// impossible.
void slurm_place(const RendezvousConfig *config, const char *first, int port, TcpStoreConfig *m);

// Ends the process if its job has several tasks but it is none of them: if it runs in the batch
// script or in salloc's shell. Prints the command to use instead.
void slurm_refuse(void);
