// spawn.c - forks the ranks, and waits for them. When one dies, the parent ends all others. If one
// hangs, rank 0 notices it (store.h).
//
//   parent   binds a port, fork fork | waitpid .......................... rank 1 | TERM | exit
//   rank 0                 |     | meets | step | step | waits for rank 1 ...           X
//   rank 1                      || meets | step | step X
//
// fork copies the process, and both copies return from it. A child has the parent's options, and
// the socket on which rank 0 will listen, but not the parent's threads. CUDA does not work in a
// child if the parent has used it. So each rank, not the parent, opens a device.
#include "spawn.h"
#include "check.h"
#include "comm.h"
#include "launcher.h"
#include "store.h"
#include "supervise.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 256, GRACE = 2 };        // GRACE: seconds before ranks are killed

static pid_t pids[RANKS_MAX];               // each rank's process; 0: it has ended
static volatile sig_atomic_t asked;         // the signal that asked the parent to end, or 0
static volatile sig_atomic_t over;          // GRACE has passed: the remaining ranks were killed

void spawn_options(Args *args, SpawnConfig *config)
{
    *config = (SpawnConfig){ .timeout = 300 };
    args_add(args, ARGS_ROWS(
        { "ranks", 'n', ARG_INT, &config->ranks, "N", "number of ranks (0: one per GPU; CPU: 2)",
          .max = RANKS_MAX, .first = true },
        { "timeout", 0, ARG_DOUBLE, &config->timeout, "SECONDS",
          "end the run if no rank progresses for this long (0: never)", .min = 0, .max = 1e6 }));
}

// --- in a child ----------------------------------------------------------------------------------

static void become_rank(int rank, StoreConfig *store, pid_t parent, World *world)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);       // a rank does not outlive its parent
    if (getppid() != parent)                // the parent died before the line above
        _exit(EXIT_REPORTED);
    check_set_rank(rank, store->size);      // messages name the rank
    if (rank > 0)
        close(store->socket);               // only rank 0 listens on this socket
    store->rank = rank;
    store_join(store, world);               // returns when all ranks have joined
    world->rank = world->local_rank = rank;
    world->size = world->local_size = world->sharers = store->size;
}

// --- in the parent -------------------------------------------------------------------------------

// SIGCONT wakes a rank that is stopped, so that it can end by itself.
static void end_ranks(int number)
{
    for (int i = 0; i < RANKS_MAX; i++)
        if (pids[i] > 0) {
            kill(pids[i], number);
            kill(pids[i], SIGCONT);
        }
}

static void kill_ranks(int number)
{
    over = 1;
    end_ranks(SIGKILL);
}

// Passes the signal on to all ranks. A second signal does not extend the alarm of the first.
static void pass_on(int number)
{
    if (!asked)
        alarm(GRACE);                       // kill_ranks runs after GRACE seconds
    asked = number;
    end_ranks(number);
}

static int rank_of(pid_t pid)
{
    int rank = RANKS_MAX - 1;
    while (rank >= 0 && pids[rank] != pid)
        rank--;
    return rank;
}

// Returns the run's exit status: that of the first rank that failed by itself. After a signal to
// the parent, returns 128 + the signal, unless a rank failed before or ends with EXIT_RANKS_DIFFER.
static int wait_for_ranks(int size)
{
    int status = 0, first = 0, failed = 0;  // first: the status of the first rank that failed
    for (int left = size; left > 0;) {
        pid_t pid = waitpid(-1, &status, 0);
        int rank = rank_of(pid), code = exit_code(status);
        if (rank < 0)
            continue;                       // a child of the script that exec'ed this program
        pids[rank] = 0;
        left--;
        if (code == 0 || first || over || (asked && code != EXIT_RANKS_DIFFER))
            continue;
        failed = 1;
        alarm(GRACE);                       // kill_ranks runs after GRACE seconds: a rank may hang
        if (code == EXIT_REPORTED)
            continue;                       // waitpid has yet to return the failed rank (check.h)
        first = code;
        report_death(rank, size, pid, status);
        end_ranks(SIGTERM);
    }
    if (asked)
        fputs("all ranks have ended; to continue a saved run: --save FILE --resume auto\n", stderr);
    return first ? first : asked ? 128 + asked : failed ? EXIT_FAILED : 0;
}

void spawn(const SpawnConfig *config, World *world)
{
    signal(SIGCHLD, SIG_DFL);               // some shells leave it ignored, which hides deaths
    signal(SIGPIPE, SIG_IGN);               // the reader of this process's output may end first
    launcher_check(1);                      // mpirun would start several parents
    int size = config->ranks > 0 ? config->ranks : comm_gpus();
    size = size > 0 ? size : 2;
    StoreConfig store = { .size = size, .place = { "127.0.0.1", 0 }, .timeout = config->timeout,
                          .supervised = true };     // this process names a rank that dies
    pid_t parent = getpid();
    store_new_token(store.token);           // so that no other program's processes can join
    store.socket = tcp_bind(&store.place);  // the system chooses a port
    fflush(NULL);                           // else every child would print what is buffered
    for (int rank = 0; rank < size; rank++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "start fewer ranks (-n)", "cannot fork rank %d: %s", rank, strerror(errno));
        if (pid == 0) {
            become_rank(rank, &store, parent, world);
            return;
        }
        pids[rank] = pid;
        dprintf(STDOUT_FILENO, "[init] == rank %d of %d: pid %d\n", rank, size, (int)pid);
    }
    close(store.socket);
    signal(SIGINT, pass_on);
    signal(SIGTERM, pass_on);
    signal(SIGALRM, kill_ranks);
    exit(wait_for_ranks(size));
}
