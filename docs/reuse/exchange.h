// exchange.h - all that ranks need from each other. Three files define these functions: exchange_fork.c for the
// processors of one computer, exchange_mpi.c for those of many, exchange_nccl.c for GPUs.
#pragma once

void exchange_begin(int argc, char **argv, int *rank, int *size);   // which rank this is, and of how many
void exchange_broadcast(float *values, int count);                  // all ranks get the values of rank 0
void exchange_sum(float *values, int count);                        // all ranks get the sum over all ranks
void exchange_end(void);
