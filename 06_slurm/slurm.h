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

// Fills in where the tasks of a step meet, and binds rank 0's sockets there: at the first host, or
// --master-addr, and the port that was said, or those behind it; or with --rendezvous where rank
// 0's file says (rendezvous_file.h), for which the others wait. Fails when they cannot.
void slurm_place(const RendezvousConfig *config, const char *first, int port, TcpStoreConfig *m);

// Ends the process if it is in a job of several tasks but is none of them: in the batch script,
// or a shell that salloc has started. Prints the command to type instead.
void slurm_refuse(void);
