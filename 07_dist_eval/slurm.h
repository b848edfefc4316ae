// slurm.h - rank, world size and rank 0's address, from the variables that srun sets.
#pragma once
#include "store.h"
#include "rendezvous.h"

// Is this process a task of a step, started by srun?
bool slurm_is_task(void);
// Sets the task's rank, size, local_rank and local_size.
void slurm_rank(World *world);

// Sets where the ranks of a step meet; rank 0 also binds its socket there. The place is the step's
// first host, and a port that each rank computes from the numbers of job and step. Fails if rank 0
// is on another host. --master-addr replaces the host, --master-port the port; --rendezvous
// replaces both (rendezvous_file.h).
void slurm_place(const RendezvousConfig *config, const World *world, StoreConfig *store);
const char *slurm_first_host(void);

// Call it if slurm_is_task is false. In the batch script or salloc's shell of a job with several
// tasks, prints the command to use instead, and ends the process.
void slurm_refuse(void);
