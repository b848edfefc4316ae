// launch.c - starts this machine's ranks, and can restart all when one fails: a small torchrun.
//
//   launch   binds | fork fork | watches: deaths, signals  | ends all | pause | fork fork | ...
//   rank 0         | exec | meet | step | step | waits ...         |        | exec | resume ...
//   rank 1         |   exec | meet | step | step X                 |        |   exec | resume ...
//
// Several machines have a launch each. The launches do not communicate. When a rank fails, the
// ranks on the other machines must notice it and end. Then each launch can restart its ranks.
//
// launch starts any program. If the program sends heartbeats (alive.h), launch reports how far a
// failed rank had come.
#include "args.h"
#include "check.h"
#include "supervise.h"
#include "tcp_store.h"
#include "threads.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct Launch {
    int ranks, nodes, node, port, restarts;     // the options
    const char *each, *master, *logs;           // each: ranks per node, as text
    char **program;
    TcpPlace place;         // where rank 0 listens
    int bound;              // rank 0's socket, if rank 0 runs on this machine
    Supervisor *supervisor;
} Launch;

// --- options -------------------------------------------------------------------------------------

static void add_options(Args *args, Launch *l)
{
    args_add(args, ARGS_ROWS(
        { "nproc-per-node", 'n', ARG_STRING, &l->each, "N|gpu", "ranks per node; gpu: one for each "
          "GPU of this machine" },
        { "nnodes", 0, ARG_INT, &l->nodes, "N", "number of machines", .min = 1, .max = 4096 },
        { "node-rank", 0, ARG_INT, &l->node, "N", "this machine's number, from 0", 0, 4095 },
        { "master-addr", 0, ARG_STRING, &l->master, "HOST", "with --nnodes: machine of rank 0" },
        { "master-port", 0, ARG_INT, &l->port, "PORT", "port of rank 0 (0: a free one; default "
          "with several machines: 29500)", .min = 0, .max = 65535 },
        { "max-restarts", 0, ARG_INT, &l->restarts, "N", "how often to restart all ranks after one "
          "has failed", .min = 0, .max = 1e6 },
        { "log-dir", 0, ARG_STRING, &l->logs, "DIR", "write rank N's output to DIR/rankN.log" }));
}

// GPUs that the ranks may use. Asks nvidia-smi, because loading CUDA would take longer.
static int count_gpus(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    FILE *list = visible ? NULL : popen("nvidia-smi -L 2>/dev/null", "re");
    char line[512];
    int count = visible && visible[0] ? 1 : 0;
    for (; visible && *visible; visible++)
        count += *visible == ',';
    while (list && fgets(line, sizeof line, list))
        count += strncmp(line, "GPU ", 4) == 0;
    if (list)
        pclose(list);
    return count;
}

static int count_ranks(const Args *args, const char *text)
{
    char *end = NULL;
    bool gpu = strcmp(text, "gpu") == 0;
    long ranks = gpu ? count_gpus() : strtol(text, &end, 10);
    if (gpu && ranks == 0)
        args_reject(args, "nproc-per-node", "gpu: nvidia-smi -L shows no GPU, or "
                    "CUDA_VISIBLE_DEVICES is empty");
    if ((!gpu && *end) || ranks < 1 || ranks > 256)
        args_reject(args, "nproc-per-node", "'%s' is neither a number from 1 to 256 nor gpu", text);
    return (int)ranks;
}

static void parse(Launch *l, int argc, char **argv)
{
    Args args = { .summary = "Starts a program once per rank, and can restart all when one fails.",
                  .operands = "-- PROGRAM [ARGUMENTS]" };
    add_options(&args, l);
    args_parse(&args, argc, argv);
    l->program = args.rest;
    l->ranks = count_ranks(&args, l->each);
    if (l->node >= l->nodes)
        args_reject(&args, "node-rank", "%d is too large: --nnodes is %d", l->node, l->nodes);
    if (l->nodes > 1 && !l->master)
        args_reject(&args, "master-addr", "is needed with --nnodes: all hosts must know it");
    if (l->nodes > 1 && !args_given(&args, "master-port"))
        l->port = 29500;
    if (l->nodes > 1 && l->port == 0)
        args_reject(&args, "master-port", "cannot be 0 with --nnodes: all hosts must know it");
    if (!l->program[0])
        FAIL_USAGE("launch -n 2 -- PROGRAM", "launch: no program was given");
    if (l->logs && mkdir(l->logs, 0777) != 0 && errno != EEXIST)
        FAIL_USAGE("does a writable parent exist?", "--log-dir %s: %s", l->logs, strerror(errno));
}

// --- the contract: the environment of a rank -----------------------------------------------------

static void set_number(const char *name, long long value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    setenv(name, text, 1);
}

// The token keeps other runs out. Each machine's launch would make a different one, so a run on
// several machines has a token only if you set it (DDP_TOKEN).
static void set_token(const Launch *l)
{
    char token[STORE_TOKEN];
    if (l->nodes > 1 || (getenv("DDP_TOKEN") && getenv("DDP_TOKEN")[0]))
        return;
    tcp_store_new_token(token);
    setenv("DDP_TOKEN", token, 1);
}

// The socket stays open over restarts, so that no other program can take the port.
static void bind_place(Launch *l)
{
    const char *name = l->nodes > 1 ? l->master : "127.0.0.1";
    l->place = tcp_resolve(name, l->port);
    if (l->nodes > 1 && tcp_is_loopback(l->place.address) && strcmp(name, l->place.address) != 0)
        WARN("on rank 0's machine, ip -brief address shows its addresses", "--master-addr %.200s "
             "is %s here, which no other machine can reach", name, l->place.address);
    if (l->node == 0)
        l->bound = tcp_bind(&l->place);
}

static void set_environment(const Launch *l, int start)
{
    int share = core_count() / l->ranks;
    if (!getenv("OMP_NUM_THREADS"))
        set_number("OMP_NUM_THREADS", share > 1 ? share : 1);
    if (!getenv("OMP_WAIT_POLICY") && !getenv("GOMP_SPINCOUNT"))
        set_number("GOMP_SPINCOUNT", 2000);     // a short spin: other threads need the core
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");   // set if torchrun has started this launcher
    unsetenv("TORCHELASTIC_RUN_ID");
    setenv("MASTER_ADDR", l->place.address, 1);
    set_number("MASTER_PORT", l->place.port);
    set_number("WORLD_SIZE", l->nodes * l->ranks);
    set_number("LOCAL_WORLD_SIZE", l->ranks);
    set_number("GROUP_RANK", l->node);
    set_number("TORCHELASTIC_RESTART_COUNT", start);
    set_number("TORCHELASTIC_MAX_RESTARTS", l->restarts);
}

// --- starting ------------------------------------------------------------------------------------

// In the child, with --log-dir: appends the output to the rank's file.
static void redirect(const Launch *l, int rank, int start)
{
    char path[4096], when[64];
    time_t now = time(NULL);
    snprintf(path, sizeof path, "%s/rank%d.log", l->logs, rank);
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    CHECK(file >= 0, "--log-dir needs a writable directory", "%s: %s", path, strerror(errno));
    strftime(when, sizeof when, "%F %T", localtime(&now));
    dprintf(file, "--- rank %d, start %d, %s\n", rank, start + 1, when);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
}

// In the child.
static _Noreturn void run_program(const Launch *l, int local, int start)
{
    int rank = l->node * l->ranks + local, error = dup(STDERR_FILENO);
    fcntl(error, F_SETFD, FD_CLOEXEC);      // for a message if the program cannot be started
    set_number("RANK", rank);
    set_number("LOCAL_RANK", local);
    unsetenv("DDP_LISTEN");
    if (rank == 0) {
        set_number("DDP_LISTEN", l->bound);
        fcntl(l->bound, F_SETFD, 0);
    }
    if (isatty(STDIN_FILENO))           // a background process that reads a terminal is stopped
        dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    if (l->logs)
        redirect(l, rank, start);
    execvp(l->program[0], l->program);
    dup2(error, STDERR_FILENO);
    if (local > 0)
        _exit(EXIT_REPORTED);
    FAIL_USAGE("does it exist, is it executable, and does the interpreter in its first line exist?",
               "%.200s cannot be started: %s", l->program[0], strerror(errno));
}

static void start_all(Launch *l, int start)
{
    set_environment(l, start);
    for (int local = 0; local < l->ranks; local++) {
        pid_t pid = supervise_fork(l->supervisor, l->node * l->ranks + local, 0);
        CHECK(pid >= 0, "start fewer ranks (-n)", "cannot start a rank: fork: %s", strerror(errno));
        if (pid == 0)
            run_program(l, local, start);
    }
}

// Waits before a restart: 0.5 s, then 1 s, 2 s ... at most 30 s. Returns whether to restart.
static bool wait_to_restart(Launch *l, int start, int *status)
{
    double pause = start < 6 ? 0.5 * (1 << start) : 30;
    if (*status == 0 || start == l->restarts || supervise_pause(l->supervisor, 0))
        return false;
    bool differ = *status == EXIT_RANKS_DIFFER;
    if (differ || *status == EXIT_USAGE || *status == EXIT_DIVERGED) {
        WARN("", "status %d, no restart: %s", *status,
             differ ? "it would give all ranks rank 0's weights, and hide why theirs differ"
                    : "a rank would fail again");
        return false;
    }
    WARN("", "restart %d of %d in %.3g s", start + 1, l->restarts, pause);
    int signal = supervise_pause(l->supervisor, pause);
    *status = signal ? 128 + signal : 0;
    return !signal;
}

int main(int argc, char **argv)
{
    Launch l = { .each = "1", .nodes = 1 };
    parse(&l, argc, argv);
    set_token(&l);
    bind_place(&l);
    l.supervisor = supervise_new(l.ranks, l.node * l.ranks, l.nodes * l.ranks);
    int status = 0, start = 0;
    do {
        start_all(&l, start);
        status = supervise(l.supervisor);
    } while (wait_to_restart(&l, start++, &status));
    supervise_free(l.supervisor);
    return status;
}
