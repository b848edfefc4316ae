// A spy: each rank prints its barriers and all-reduces. If a run with two ranks hangs, check.sh shows these.
#include "comm.h"
#include "wrap.h"

#include <stdio.h>

WRAPPED(comm_barrier);
void __wrap_comm_barrier(Comm *comm)
{
    fprintf(stderr, "spy %d barrier\n", comm_rank(comm));
    __real_comm_barrier(comm);
}

WRAPPED(comm_all_reduce);
void __wrap_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    fprintf(stderr, "spy %d all-reduce\n", comm_rank(comm));
    __real_comm_all_reduce(comm, stream, values, count, type);
}
