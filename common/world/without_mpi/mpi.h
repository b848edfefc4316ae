// mpi.h - for builds without MPI: a program that mpirun starts fails, other launchers work.
#pragma once
#include "check.h"

typedef int MPI_Comm;
enum { MPI_COMM_WORLD };

static inline int MPI_Init(int *argc, char ***argv)
{
    FAIL("install Open MPI and build again, or start the ranks with launch, torchrun or srun",
         "this program was started by mpirun, but built without MPI");
}

// Never called: MPI_Init does not return.
static inline int MPI_Finalize(void) { return 0; }
static inline int MPI_Comm_rank(MPI_Comm comm, int *rank) { return *rank = 0; }
static inline int MPI_Comm_size(MPI_Comm comm, int *size) { return *size = 1; }
static inline int MPI_Comm_free(MPI_Comm *comm) { return *comm = 0; }
#define MPI_Comm_split_type(comm, type, key, info, to) (*(to) = (comm))
#define MPI_Bcast(values, count, type, root, comm) ((void)(values))
