// openmpi.h - what a rank that mpirun has started needs from MPI: its World, and a broadcast.
#pragma once
#include "world.h"

#include <stddef.h>

// Starts MPI, and sets the world's rank, size, local_rank and local_size. Ends the run if this
// program was built without Open MPI.
void openmpi_begin(World *world);
// Sends rank 0's bytes to all ranks.
void openmpi_broadcast(void *values, size_t bytes);
// Ends MPI, which is not used again. If a process fails later, mpirun still ends the others.
void openmpi_end(void);
