// slurm.h - rank, size and meeting point from the variables that srun sets.
#pragma once
#include "tcp_store.h"
#include "rendezvous.h"

// Adds --rendezvous file:PATH, which sets *meet.
void slurm_options(Args *args, const char **meet);

// Is this process a task of a step, started by srun?
bool slurm_is_task(void);
// Sets the task's rank, size, local_rank and local_size. --local-rank takes precedence over Slurm's
// number.
void slurm_rank(const RendezvousConfig *config, World *world);

// Sets where the ranks of a step meet; rank 0 also binds its socket there. The place is a port of
// the first host, or --master-port of --master-addr. With --rendezvous, rank 0 writes its address
// to a file, and the others wait for it (rendezvous_file.h). Fails if there is no such place.
void slurm_place(const RendezvousConfig *config, const World *world, TcpStoreConfig *store);
// The first host of the step.
const char *slurm_first_host(void);

// Ends the process if its job has several tasks and this process is none of them: it runs in the
// batch script or in salloc's shell. Prints the command to use instead.
void slurm_refuse(void);
