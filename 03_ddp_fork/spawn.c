// spawn.c - starts the ranks, and watches them until the last one is gone.
//
//   parent   fork fork | the store | watches: deaths, signs of life, signals        | exits
//   rank 0       |     | put   get | step | step | step | evaluate | save | done |
//   rank 1            || ...   get | step | step | step | ...waits...     | done |
//
//   when one dies:
//   parent   ......... names it; INT and TERM to the others; after 2 s KILL; reaps all | exits
//   rank 0   step | step, waiting for rank 1 ... | cleans up, ends
//   rank 1   step | X
//
// The parent has one thread and no GPU, and starts no library: a process that has done that cannot
// fork. It knows its ranks by three things only: what waitpid says, the page of memory where each
// leaves its signs of life (alive.h), and a socket to each, over which it serves the store.
#include "spawn.h"       // uses: SpawnConfig, World, comm_shares_devices
#include "check.h"       // uses: CHECK, check_set_speaker
#include "clock.h"       // uses: clock_now
#include "device.h"      // uses: device_backend, device_count
#include "interrupt.h"   // uses: interrupt_answer, interrupt_silence
#include "fork_store.h"  // uses: fork_store_over, fork_store_serve
#include "trace.h"       // uses: trace_among
#include "supervise.h"   // uses: Supervisor, supervise_look, supervise_judge

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const double glance = 0.1;       // s between two looks at the signs of life
static const double patience = 2;       // s from TERM to KILL

enum { RUN_NAME = 64 };
typedef struct Parent {
    pid_t pid;
    char run[RUN_NAME];
    Supervisor watch;            // over the ranks
    ForkStoreServer *store;
    int *sockets;           // to them; -1: closed
    int signals;            // a descriptor from which they are read
    int asked;              // how often somebody asked to end
    double kill_at;         // the ranks are being ended: when patience ends (s), else 0
    int status;             // of the program
} Parent;

// --- options -------------------------------------------------------------------------------------

void spawn_options(Args *args, SpawnConfig *config)
{
    *config = (SpawnConfig){ .timeout = 30 };
    args_add(args, ARGS_ROWS(
        { "ranks", 'n', ARG_INT, &config->ranks, "N", "processes (0: one per GPU; 2 on a CPU)",
          .min = 0, .max = 256 },
        { "timeout", 0, ARG_DOUBLE, &config->timeout, "SECONDS",
          "without a sign of life a rank is lost (0: never)", .min = 0, .max = 1e6 }));
}

// --- before there are ranks ----------------------------------------------------------------------

// To count GPUs is to start CUDA, after which a process cannot fork: a child does it, and goes.
static int count_gpus(void)
{
    int ends[2], count = 0, status = 0;
    CHECK(pipe2(ends, O_CLOEXEC) == 0, "", "pipe2: %s", strerror(errno));
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0, "", "fork: %s", strerror(errno));
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        count = device_count();
        _exit(write(ends[1], &count, sizeof count) != sizeof count);
    }
    close(ends[1]);
    bool told = read(ends[0], &count, sizeof count) == sizeof count;
    close(ends[0]);
    waitpid(child, &status, 0);
    if (!told && WIFEXITED(status))
        exit(WEXITSTATUS(status));      // it has said why
    CHECK(told, "does nvidia-smi work?", "counting GPUs: killed by signal %d", WTERMSIG(status));
    return count;
}

static int how_many(const SpawnConfig *config)
{
    if (strcmp(device_backend, "cpu") == 0)
        return config->ranks > 0 ? config->ranks : 2;
    int gpus = count_gpus();
    CHECK(gpus > 0, "nvidia-smi shows the GPUs; CUDA_VISIBLE_DEVICES may hide them; --backend cpu "
          "needs none", "no GPU is there");
    CHECK(config->ranks <= gpus || comm_shares_devices, "fewer ranks (-n), at most one per GPU",
          "%d ranks, but %d GPU%s", config->ranks, gpus, gpus == 1 ? "" : "s");
    return config->ranks > 0 ? config->ranks : gpus;
}

static Parent parent_new(const SpawnConfig *config)
{
    uint64_t noise = 0;
    int size = how_many(config);
    Parent p = { .pid = getpid(), .watch = supervise_new(size, config->timeout) };
    if (getrandom(&noise, sizeof noise, 0) < 0)
        noise = (uint64_t)(1e9 * clock_now());
    snprintf(p.run, sizeof p.run, "%d-%llx-%llx", (int)p.pid, (long long)time(NULL),
             (unsigned long long)noise);
    p.store = fork_store_server_new();
    p.sockets = xcalloc((size_t)size, sizeof *p.sockets);
    Alive *pages = alive_pages(size);
    for (int i = 0; i < size; i++)
        p.watch.children[i].alive = &pages[i];
    return p;
}

static void parent_free(Parent *p)
{
    free(p->sockets);
    fork_store_server_free(p->store);
    free(p->watch.children);
}

// --- a birth -------------------------------------------------------------------------------------

// In the child. The parent's death is SIGKILL here; unless it was faster.
static World be_rank(Parent *p, int rank, int ends[2], const sigset_t *mask)
{
    static int socket;                  // for as long as this process lives
    static char run[RUN_NAME], name[32];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != p->pid)
        _exit(EXIT_FAILED);
    setpgid(0, 0);                      // Ctrl-C is for the parent, who passes it on
    signal(SIGTTOU, SIG_IGN);           // a group in the background may print all the same
    for (int i = 0; i <= rank; i++)
        close(p->sockets[i]);
    snprintf(run, sizeof run, "%s", p->run);
    snprintf(name, sizeof name, "rank %d/%d ", rank, p->watch.size);
    socket = ends[1];
    check_set_speaker(name);
    interrupt_silence();
    trace_among(rank, run);
    alive_publish(p->watch.children[rank].alive);
    sigprocmask(SIG_SETMASK, mask, NULL);
    World world = {
        .rank = rank, .size = p->watch.size, .local_rank = rank, .local_size = p->watch.size,
        .sharers = p->watch.size, .address = "127.0.0.1", .run = run,
        .store = fork_store_over(&socket),
    };
    parent_free(p);
    return world;
}

// Returns true in the parent, false in the child, who then is this rank of the world.
static bool start_rank(Parent *p, int rank, const sigset_t *mask, World *world)
{
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0,
          "fewer ranks (-n); ulimit -n", "rank %d: socketpair: %s", rank, strerror(errno));
    p->sockets[rank] = ends[0];
    pid_t pid = fork();
    CHECK(pid >= 0, "fewer ranks (-n); ulimit -u", "rank %d: fork: %s", rank, strerror(errno));
    if (pid == 0) {
        *world = be_rank(p, rank, ends, mask);
        return false;
    }
    setpgid(pid, pid);                  // both sides: whoever comes first
    close(ends[1]);
    p->watch.children[rank].pid = pid;
    return true;
}

// --- the parent: signals, and the end of all -----------------------------------------------------

// The second of the two signals means "at once" (interrupt.h); who is stopped must wake up for it.
static void end_all(Parent *p, int status)
{
    p->status = status;
    p->kill_at = clock_now() + patience;
    supervise_signal(&p->watch, SIGINT);
    supervise_signal(&p->watch, SIGTERM);
    supervise_signal(&p->watch, SIGCONT);
}

static void pass_on(Parent *p, int signal)
{
    bool end = signal == SIGINT || signal == SIGTERM;
    sigaddset(&p->watch.passed, signal);
    if (end && ++p->asked == 1 && p->kill_at == 0)
        interrupt_answer();
    if (end && p->asked > 2) {
        p->status = 128 + signal;
        p->kill_at = clock_now();
    } else if (signal == SIGTSTP) {     // Ctrl-Z: all of us, until the shell says fg
        supervise_signal(&p->watch, SIGSTOP);
        raise(SIGSTOP);
        supervise_signal(&p->watch, SIGCONT);
    } else if (signal != SIGCHLD) {     // who died is asked for in any case
        supervise_signal(&p->watch, signal);
    }
}

// --- the parent ----------------------------------------------------------------------------------

// Signals and messages; returns after a moment even if there are none.
static void take_news(Parent *p)
{
    struct pollfd fds[p->watch.size + 1];
    struct signalfd_siginfo info;
    char who[32];
    for (int i = 0; i < p->watch.size; i++)
        fds[i] = (struct pollfd){ .fd = p->sockets[i], .events = POLLIN };
    fds[p->watch.size] = (struct pollfd){ .fd = p->signals, .events = POLLIN };
    poll(fds, (nfds_t)p->watch.size + 1, (int)(1000 * glance));
    while (read(p->signals, &info, sizeof info) == sizeof info)
        pass_on(p, (int)info.ssi_signo);
    for (int i = 0; i < p->watch.size; i++) {
        snprintf(who, sizeof who, "rank %d", i);
        if (fds[i].revents && !fork_store_serve(p->store, p->sockets[i], who)) {
            close(p->sockets[i]);
            p->sockets[i] = -1;
        }
    }
}

static void look_after(Parent *p)
{
    while (supervise_lives(&p->watch)) {
        take_news(p);
        supervise_look(&p->watch);
        int status = p->kill_at == 0 ? supervise_judge(&p->watch) : 0;
        if (status)
            end_all(p, status);
        if (p->kill_at > 0 && clock_now() >= p->kill_at)
            supervise_signal(&p->watch, SIGKILL);
    }
    if (p->kill_at == 0)
        p->status = supervise_status(&p->watch);    // all went well: 0, or they were stopped
}

static const int signals_taken[] = { SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2,
                                     SIGTSTP, SIGCONT };

void spawn(const SpawnConfig *config, World *world)
{
    sigset_t taken, before;
    Parent p = parent_new(config);
    sigemptyset(&taken);
    for (size_t i = 0; i < sizeof signals_taken / sizeof *signals_taken; i++)
        sigaddset(&taken, signals_taken[i]);
    signal(SIGCHLD, SIG_DFL);           // whoever started us may not have wanted to know of ends
    sigprocmask(SIG_BLOCK, &taken, &before);
    fflush(NULL);
    for (int i = 0; i < p.watch.size; i++)
        if (!start_rank(&p, i, &before, world))
            return;
    signal(SIGPIPE, SIG_IGN);           // nobody may be listening to what we say
    p.signals = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    CHECK(p.signals >= 0, "", "signalfd: %s", strerror(errno));
    look_after(&p);
    exit(p.status);                     // and gives back what it had
}
