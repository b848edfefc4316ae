// exercises.c - the mock for exercises gpu-1 to gpu-4, as fake.h describes it. mpirun starts the ranks. Each has one
// GPU, and all its communicators have the same ranks.
//
//   GPU_SLOW=compute:MS | nccl:MS   delays every copy, fill and host function, or every collective, send and receive
//   GPU_TIMEOUT=S                   ends the run if for S seconds (default 30; 0: no limit) a rank neither makes a call
//                                   nor waits, or all ranks wait. Prints what these ranks did last
//   GPU_TRACE=FILE                  a timeline of all streams and ranks, for https://ui.perfetto.dev
#include "communicators.h"

#include "check.h"
#include "progress.h"
#include "store.h"
#include "trace.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const bool fake_step = false;
char fake_name[24];
static double slow[2];          // GPU_SLOW's delay (ms): of copies, fills and host functions; of calls of NCCL

static void on_fault(int signal, siginfo_t *info, void *context)
{
    static const char text[] = "the host touched device memory: a pointer from cudaMalloc is only for calls of CUDA "
                               "and NCCL, and cudaMemcpy copies to the host\n";
    if (fake_in_arena(info->si_addr))
        (void)!write(STDERR_FILENO, text, sizeof text - 1);
    sigaction(signal, &(struct sigaction){ .sa_handler = SIG_DFL }, NULL);
}

static void set_rank(int rank, int size)
{
    check_set_rank(rank, size);
    snprintf(fake_name, sizeof fake_name, "rank %d", rank);
}

// Runs before main. Reads the rank from Open MPI's variables. The ranks of a run share one timeline: MPI_Init waits
// until all have opened it.
__attribute__((constructor)) static void start(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    const char *what = getenv("GPU_SLOW");
    sscanf(what ? what : "", "compute:%lf", &slow[0]);
    sscanf(what ? what : "", "nccl:%lf", &slow[1]);
    setenv("FAKE_GPUS", "8", 0);
    set_rank(rank ? atoi(rank) : 0, size ? atoi(size) : 1);
    trace_open(getenv("GPU_TRACE"));
    sigaction(SIGSEGV, &(struct sigaction){ .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO }, NULL);
}

void fake_beat(void) { progress_beat(); }
void fake_thread(const char *name) { trace_thread(name); }
void fake_end(void) { trace_end(); }

void fake_begin(const char *name)
{
    trace_begin(name);
    usleep((useconds_t)(1e3 * slow[strncmp(name, "nccl", 4) == 0]));
}

void fake_wait(const char *call)
{
    static _Thread_local ProgressFile waits;        // as PROGRESS_DOING, but until the next call, not the block's end
    if (waits.what)
        progress_file_end(&waits);
    waits = (ProgressFile){ NULL, "in", call, false };
    if (call) {
        progress_call("%s", call);
        progress_file_begin(&waits);
    }
}

// --- how the ranks find and watch each other -----------------------------------------------------

typedef struct Id {
    char magic[8];
    TcpPlace place;             // where rank 0 keeps the store
    char token[STORE_TOKEN];
} Id;
static const char magic[8] = "gpushim";
static StoreConfig offer;
static World world;             // of all communicators

void fake_offer(void *to, size_t bytes)
{
    Id id;
    _Static_assert(sizeof id <= sizeof(ncclUniqueId) - 8, "");
    if (!offer.token[0])
        store_offer(&offer, NULL, 0, true);
    memset(&id, 0, sizeof id);
    memcpy(id.magic, magic, sizeof magic);
    memcpy(id.token, offer.token, sizeof id.token);
    id.place = offer.place;
    memcpy(to, &id, sizeof id);
}

static void leave(int status, void *arg)
{
    store_leave(&world);
    fflush(NULL);
}

static void join(const Id *id, int rank, int size)
{
    const char *limit = getenv("GPU_TIMEOUT");
    StoreConfig config = { rank, size, id->place, offer.socket, .timeout = limit ? atof(limit) : 30 };
    memcpy(config.token, id->token, sizeof config.token);
    world = (World){ .rank = rank, .size = size, .local_rank = rank, .local_size = size, .sharers = size };
    set_rank(rank, size);
    store_join(&config, &world);
    on_exit(leave, NULL);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId unique, int rank)
{
    static const char rule[] = "Rank 0 calls ncclGetUniqueId, and passes its id on to all ranks, as with MPI_Bcast";
    Id id;
    memcpy(&id, unique.internal + 8, sizeof id);
    *comm = NULL;
    if (memcmp(id.magic, magic, sizeof id.magic) != 0)
        return (ncclResult_t)fake_refuse(ncclInvalidArgument, "ncclCommInitRank: rank %d has no id. %s", rank, rule);
    if (rank < 0 || rank >= ranks)
        return (ncclResult_t)fake_refuse(ncclInvalidArgument, "ncclCommInitRank: there is no rank %d of %d", rank,
                                         ranks);
    if ((rank == 0) != (memcmp(id.token, offer.token, sizeof id.token) == 0))
        return (ncclResult_t)fake_refuse(ncclInvalidUsage, "ncclCommInitRank: rank %d has an id that %s made. %s",
                                         rank, rank == 0 ? "a different rank" : "it", rule);
    if (!world.store)
        join(&id, rank, ranks);
    return fake_comm_new(comm, ranks, &unique, rank);
}
