// launch.c - starts this machine's ranks, and can restart all when one fails: a small torchrun.
//
//   launch   binds | fork fork | waitpid ...... rank 1 | TERM | pause | fork fork | waitpid ...
//   rank 0         | exec | meet | step | step | waits        X       | exec | resume ...
//   rank 1         |   exec | meet | step | step X                    |   exec | resume ...
//
// launch forks and waits as spawn() does in the step before. But each child then executes another
// program, which reads its rank from the environment. All processes that a rank starts must end
// with it, so each rank has its own process group. Ctrl-C and Ctrl-Z then reach only launch.
//
// Several machines have a launch each. The launches do not communicate. When a rank fails, the
// ranks on the other machines notice it (store.h) and end. Then each launch can restart its ranks.
#include "args.h"
#include "check.h"
#include "interrupt.h"
#include "machine.h"
#include "store.h"
#include "supervise.h"
#include "threads.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 256, GRACE = 2 };        // GRACE: seconds before ranks are killed

static pid_t groups[RANKS_MAX];             // each rank's process group; 0: no process is left
static volatile sig_atomic_t asked, asks;   // asked: last signal, or 0; asks: count of INTs, TERMs
static volatile sig_atomic_t over;          // the remaining ranks were killed
static sigset_t held;                       // pass_on's signals: blocked, except while launch waits

typedef struct Launch {
    int ranks, nodes, node, port, restarts;     // the options
    const char *each, *master;                  // the values of -n and --master-addr
    char **program;
    TcpPlace place;         // the address and port on which rank 0 listens
    int bound;              // rank 0's socket, if rank 0 runs on this machine
} Launch;

// --- options -------------------------------------------------------------------------------------

static void add_options(Args *args, Launch *l)
{
    args_add(args, ARGS_ROWS(
        { "nproc-per-node", 'n', ARG_STRING, &l->each, "N|gpu", "local ranks (gpu: one per GPU)" },
        { "nnodes", 0, ARG_INT, &l->nodes, "N", "number of machines", .min = 1, .max = 4096 },
        { "node-rank", 0, ARG_INT, &l->node, "N", "this machine's number, from 0", 0, 4095 },
        { "master-addr", 0, ARG_STRING, &l->master, "HOST", "with --nnodes: rank 0's machine" },
        { "master-port", 0, ARG_INT, &l->port, "PORT", "rank 0's port (0: a free one; with several "
          "machines 29500)", .min = 0, .max = 65535 },
        { "max-restarts", 0, ARG_INT, &l->restarts, "N", "restarts after a rank fails", 0, 1e6 }));
}

static int count_ranks(const Args *args, const char *text)
{
    char *end = NULL;
    long ranks = strcmp(text, "gpu") == 0 ? machine_gpus_listed() : strtol(text, &end, 10);
    if ((end && *end) || ranks < 1 || ranks > RANKS_MAX)
        args_reject(args, "nproc-per-node", end ? "'%s' is not a number from 1 to %d"
                    : "%s needs 1 to %d GPUs: check nvidia-smi -L", text, RANKS_MAX);
    return (int)ranks;
}

static void parse(Launch *l, int argc, char **argv)
{
    Args args = { .summary = "Starts a program once per rank; can restart all ranks if one fails.",
                  .operands = "-- PROGRAM [ARGUMENTS]" };
    add_options(&args, l);
    args_parse(&args, argc, argv);
    l->program = args.rest;
    l->ranks = count_ranks(&args, l->each);
    if (l->nodes > 1 && l->port == 0)
        l->port = 29500;                    // all machines must know the port
    if (!l->program[0])
        FAIL_USAGE("for example: launch -n 2 -- PROGRAM", "launch: no program was given");
}

// --- the contract: the environment of a rank -----------------------------------------------------

static void set_number(const char *name, long long value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    setenv(name, text, 1);
}

// The socket stays open across restarts, so that no other program can take the port.
static void bind_place(Launch *l)
{
    if (l->nodes > 1 && !l->master)
        return;                             // the program itself must know rank 0's address
    l->place = tcp_resolve(l->nodes > 1 ? l->master : "127.0.0.1", l->port);
    if (l->nodes > 1 && tcp_is_loopback(l->place.address) && strcmp(l->master, l->place.address))
        WARN("give an address that ip -brief address shows on rank 0's machine", "--master-addr "
             "%.200s is %s here, which no other machine can reach", l->master, l->place.address);
    if (l->node == 0)
        l->bound = tcp_bind(&l->place);
}

static void set_environment(const Launch *l, int start)
{
    int share = core_count() / l->ranks;
    char token[STORE_TOKEN];
    store_new_token(token);
    if (l->nodes == 1)                      // with several machines, their tokens would differ
        setenv("DDP_TOKEN", token, 0);
    if (!getenv("OMP_NUM_THREADS"))
        set_number("OMP_NUM_THREADS", share > 1 ? share : 1);
    setenv("GOMP_SPINCOUNT", "2000", 0);    // a short spin: other threads need the core
    if (l->place.port > 0) {
        setenv("MASTER_ADDR", l->place.address, 1);
        set_number("MASTER_PORT", l->place.port);
    }
    set_number("WORLD_SIZE", l->nodes * l->ranks);
    set_number("LOCAL_WORLD_SIZE", l->ranks);
    set_number("GROUP_RANK", l->node);
    set_number("TORCHELASTIC_RESTART_COUNT", start);
}

// --- starting ------------------------------------------------------------------------------------

static void set_handlers(void (*handler)(int))
{
    static const int passed[] = { SIGINT, SIGTERM, SIGUSR1 };
    for (int i = 0; i < 3; i++) {
        signal(passed[i], handler);
        sigaddset(&held, passed[i]);
    }
    signal(SIGPIPE, handler == SIG_DFL ? SIG_DFL : SIG_IGN);
}

// Runs in the child.
static _Noreturn void run_program(const Launch *l, int local, pid_t parent)
{
    int rank = l->node * l->ranks + local;
    prctl(PR_SET_PDEATHSIG, SIGKILL);       // a rank does not outlive launch
    if (getppid() != parent)
        _exit(EXIT_REPORTED);
    setpgid(0, 0);
    set_number("RANK", rank);
    set_number("LOCAL_RANK", local);
    if (rank == 0 && l->bound > 0) {
        set_number("DDP_LISTEN", l->bound);
        fcntl(l->bound, F_SETFD, 0);
    }
    set_handlers(SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &held, NULL);
    execvp(l->program[0], l->program);
    if (local > 0)
        _exit(EXIT_REPORTED);
    FAIL_USAGE("check that the program and, for a script, its interpreter (line 1) are executable",
               "%.200s cannot be started: %s", l->program[0], strerror(errno));
}

static void start_all(Launch *l, int start)
{
    pid_t parent = getpid();
    set_environment(l, start);
    fflush(NULL);
    for (int local = 0; local < l->ranks; local++) {
        pid_t pid = fork();
        CHECK(pid >= 0, "start fewer ranks (-n)", "cannot start a rank: fork: %s", strerror(errno));
        if (pid == 0)
            run_program(l, local, parent);
        setpgid(pid, pid);                  // here and in the child: either may be first
        groups[local] = pid;
    }
}

// --- waiting -------------------------------------------------------------------------------------

static int send_to_ranks(int number)        // returns how many groups still have a process
{
    int live = 0;
    for (int i = 0; i < RANKS_MAX; i++)
        live += groups[i] > 0 && kill(-groups[i], number) == 0;
    return live;
}

static void kill_ranks(int number)
{
    over = 1;
    send_to_ranks(SIGKILL);
}

// The second INT or TERM makes our programs end at once. The third ends any program.
static void pass_on(int number)
{
    asked = number;
    asks += number != SIGUSR1;
    if (asks == 1 && number != SIGUSR1)
        interrupt_announce();
    send_to_ranks(number);
    send_to_ranks(SIGCONT);                 // wakes stopped ranks, which can then end by themselves
    if (asks > 2)
        kill_ranks(number);
}

static void stop_all(int number)            // on Ctrl-Z; fg continues all ranks
{
    send_to_ranks(SIGSTOP);
    raise(SIGSTOP);
    send_to_ranks(SIGCONT);
}

static int local_rank_of(pid_t pid)
{
    int local = RANKS_MAX - 1;
    while (local >= 0 && groups[local] != pid)
        local--;
    return local;
}

// Has a signal ended the rank? Our programs save, and exit with 128 + the signal; other programs
// may be killed by it. A batch system may send the signal to the ranks, and not to launch.
static bool ends_as_asked(int status)
{
    int number = exit_code(status) - 128;
    bool stops = WIFEXITED(status) && sigismember(&held, number) == 1;
    return number > 0 && (number == asked || stops);
}

// Returns the status of the first rank that failed by itself, not because of another rank or of a
// signal. If all ended because of a rank on another machine, returns 1, so they can restart, too.
static int wait_for_ranks(const Launch *l)
{
    int status = 0, first = 0, failed = 0, stopped = 0;
    sigprocmask(SIG_UNBLOCK, &held, NULL);  // passes on the signals that came while ranks started
    for (int left = l->ranks; left > 0;) {
        pid_t pid = waitpid(-1, &status, 0);
        int local = local_rank_of(pid), code = exit_code(status);
        if (local < 0)
            continue;                       // a child of the script that exec'ed this program
        groups[local] = kill(-pid, 0) == 0 ? pid : 0;
        left--;
        failed = failed || code != 0;
        if (code == 0 || first || over)
            continue;
        if (ends_as_asked(status)) {
            stopped = code;
            asked = code - 128;
            continue;                       // the other ranks may still be saving
        }
        alarm(GRACE);                       // kill_ranks runs after GRACE seconds: a rank may hang
        if (code == EXIT_REPORTED)
            continue;                       // waitpid has yet to return the rank that failed
        first = code;
        report_death(l->node * l->ranks + local, l->nodes * l->ranks, pid, status);
        send_to_ranks(SIGTERM);
        send_to_ranks(SIGCONT);
    }
    alarm(0);
    if (!asked)
        send_to_ranks(SIGTERM);             // after a signal, ranks' children may still be saving
    for (int tenths = 0; tenths < 10 * GRACE && send_to_ranks(0) > 0; tenths++)
        usleep(100000);
    send_to_ranks(SIGKILL);
    sigprocmask(SIG_BLOCK, &held, NULL);
    over = 0;
    if (first || stopped)
        return first ? first : stopped;
    return failed && asks > 2 ? 128 + asked : failed ? EXIT_FAILED : 0;
}

// After a failure: waits for 0.5 s, and returns whether to restart.
static bool wait_to_restart(const Launch *l, int start, int *status)
{
    if (*status == 0 || asked || start == l->restarts)
        return false;
    if (*status == EXIT_USAGE || *status == EXIT_DIVERGED || *status == EXIT_RANKS_DIFFER) {
        WARN("", "status %d, no restart: it would %s", *status,
             *status == EXIT_RANKS_DIFFER ? "hide why the weights differ" : "fail again");
        return false;
    }
    WARN("", "restart %d of %d in 0.5 s", start + 1, l->restarts);
    int number = sigtimedwait(&held, NULL, &(struct timespec){ .tv_nsec = 500000000 });
    *status = number > 0 ? 128 + number : *status;      // a signal ends the wait
    return number <= 0;
}

int main(int argc, char **argv)
{
    Launch l = { .each = "1", .nodes = 1 };
    int status = 0, start = 0;
    signal(SIGCHLD, SIG_DFL);               // some shells leave it ignored, which hides deaths
    parse(&l, argc, argv);
    bind_place(&l);
    set_handlers(pass_on);
    signal(SIGALRM, kill_ranks);
    signal(SIGTSTP, stop_all);
    signal(SIGTTOU, SIG_IGN);               // also in the ranks: stty tostop must not stop them
    sigprocmask(SIG_BLOCK, &held, NULL);
    do {
        start_all(&l, start);
        status = wait_for_ranks(&l);
    } while (wait_to_restart(&l, start++, &status));
    return status;
}
