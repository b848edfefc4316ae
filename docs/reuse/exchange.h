// exchange.h - the one thing that ranks exchange in each step: a sum.
#pragma once

void exchange_begin(int rank, int size);    // after MPI_Init
void exchange_sum(float *values, int count);    // over all ranks, on all ranks
void exchange_end(void);
