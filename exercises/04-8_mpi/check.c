// Linked into the learner's program. Writes a line to mpi.RANK for each of these calls:
//
//   hook COUNT 0 0              how many floats the hook gets
//   mpi COUNT MAIN LEVEL        how many numbers MPI_Allreduce adds up. MAIN: 1 in the main thread.
//                               LEVEL: 1 if MPI was initialised for calls from this thread
//   other COUNT 0 0             how many numbers comm_all_reduce adds up
#include "check.h"
#include "ddp.h"
#include "wrap.h"

#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static DdpHook hook;
static void *hook_arg;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void record(const char *what, long long count, int in_main, int level)
{
    char name[64];
    pthread_mutex_lock(&lock);
    snprintf(name, sizeof name, "mpi.%s", getenv("OMPI_COMM_WORLD_RANK"));
    FILE *out = fopen(name, "a");
    CHECK(out, "", "%s cannot be written", name);
    fprintf(out, "%s %lld %d %d\n", what, count, in_main, level);
    fclose(out);
    pthread_mutex_unlock(&lock);
}

WRAPPED(MPI_Allreduce);
int __wrap_MPI_Allreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op,
                         MPI_Comm comm)
{
    int level, in_main = getpid() == syscall(SYS_gettid);
    MPI_Query_thread(&level);
    record("mpi", count, in_main, in_main || level >= MPI_THREAD_SERIALIZED);
    return __real_MPI_Allreduce(from, to, count, type, op, comm);
}

WRAPPED(comm_all_reduce);
void __wrap_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    record("other", (long long)count, 0, 0);
    __real_comm_all_reduce(comm, stream, values, count, type);
}

static void spy(void *arg, Comm *comm, Stream *stream, float *grads, size_t count)
{
    record("hook", (long long)count, 0, 0);
    hook(hook_arg, comm, stream, grads, count);
}

WRAPPED(ddp_set_hook);
void __wrap_ddp_set_hook(Ddp *ddp, DdpHook theirs, void *arg)
{
    hook = theirs;
    hook_arg = arg;
    __real_ddp_set_hook(ddp, spy, NULL);
}
