// exchange_mpi.c - for CPUs: MPI adds up.
#include "exchange.h"

#include <mpi.h>

void exchange_begin(int rank, int size) { (void)rank, (void)size; }

void exchange_sum(float *values, int count)
{
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

void exchange_end(void) { }
