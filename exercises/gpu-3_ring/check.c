// Prints how many numbers each rank sends. LATE: rank 0 is late by 0.15 s with its first send.
#include "wrap.h"
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static size_t sent;

static void be_late(void *arg) { (void)arg, usleep(150000); }

WRAPPED(ncclSend);
ncclResult_t __wrap_ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream)
{
    int rank;
    ncclCommUserRank(comm, &rank);
    if (getenv("LATE") && rank == 0 && sent == 0)
        cudaLaunchHostFunc(stream, be_late, NULL);
    sent += count;
    return __real_ncclSend(from, count, type, peer, comm, stream);
}

WRAPPED(MPI_Finalize);
int __wrap_MPI_Finalize(void)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr, "spy: rank %d sends %zu numbers\n", rank, sent);
    return __real_MPI_Finalize();
}
