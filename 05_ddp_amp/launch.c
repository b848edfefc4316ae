// launch.c - starts this machine's ranks, and again when one has failed: a small torchrun.
//
//   launch   binds | fork fork | watches: deaths, signals  | ends all | pause | fork fork | ...
//   rank 0         | exec | meet | step | step | waits ...         |        | exec | resume ...
//   rank 1         |   exec | meet | step | step X                 |        |   exec | resume ...
//
// With several machines each has its launch. They know nothing of each other: when a rank fails all
// ranks end, and every launch starts its own again. DDP_GENERATION grows with each start, so that
// nobody who is left over from the one before is taken for a new one.
//
// Any program will do; ours leaves signs of life, which tell how far it had come. Only deaths count
// here: that a rank hangs is the business of rank 0 (tcp_store.h), who sees all machines.
#include "alive.h"           // uses: alive_share
#include "args.h"            // uses: args_add, args_parse, args_reject
#include "check.h"           // uses: CHECK, FAIL_ERROR, WARN
#include "clock.h"           // uses: clock_now
#include "interrupt.h"       // uses: interrupt_answer
#include "rank_output.h"     // uses: output_open, output_pass
#include "subprocess.h"      // uses: subprocess_parent, subprocess_start, subprocess_orphans
#include "tcp.h"             // uses: tcp_resolve, tcp_bind
#include "supervise.h"       // uses: Supervisor, supervise_look, supervise_judge
#include "signed_channel.h"  // uses: channel_key_from_file, channel_key_random

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const double glance = 0.1;       // s between two looks, when nothing happens
static const double patience = 2;       // s from TERM to KILL

typedef struct Launch {
    int ranks, nodes, node, port, restarts;     // the options
    const char *master, *logs, *token_file;
    bool prefix;
    char **program;
    TcpAddress address;     // of rank 0
    int listening;          // there, if it is one of ours
    int64_t generation;
    Supervisor watch;            // over all ranks: those of other machines count as done
    Alive *pages, elsewhere;    // signs of life; who is elsewhere gives none
    int memory;             // the descriptor of the pages
    Output outputs[256];    // of each rank
    int signals;            // a descriptor from which they are read
    int asked, wish;        // how often somebody asked to end; the last signal that did
    double kill_at;         // the ranks are being ended: when patience ends (s), else 0
    int restart, status;    // starts that have failed; how the last one ended
} Launch;

static int rank_of(const Launch *l, int local) { return l->node * l->ranks + local; }

// --- options -------------------------------------------------------------------------------------

static void add_options(Args *args, Launch *l)
{
    args_add(args, ARGS_ROWS(
        { "nproc-per-node", 'n', ARG_INT, &l->ranks, "N", "ranks on each", .min = 1, .max = 256 },
        { "nnodes", 0, ARG_INT, &l->nodes, "N", "machines", .min = 1, .max = 4096 },
        { "node-rank", 0, ARG_INT, &l->node, "N", "which of them this is", .min = 0, .max = 4095 },
        { "master-addr", 0, ARG_STRING, &l->master, "HOST", "several machines: the first of them" },
        { "master-port", 0, ARG_INT, &l->port, "PORT", "where rank 0 listens (0: a free one; with "
          "several machines 29500)", .min = 0, .max = 65535 },
        { "token-file", 0, ARG_STRING, &l->token_file, "FILE", "the ranks' secret, hexadecimal" },
        { "max-restarts", 0, ARG_INT, &l->restarts, "N", "how often to start all again after one "
          "has failed", .min = 0, .max = 1e6 },
        { "prefix", 0, ARG_FLAG, &l->prefix, NULL, "put [rank 3] in front of each line of output" },
        { "log-dir", 0, ARG_STRING, &l->logs, "DIR", "output goes to DIR/rank3.log instead" }));
}

static void parse(Launch *l, int argc, char **argv)
{
    Args args = { .summary = "Starts a program once for each rank, and all again when one fails.",
                  .operands = "-- PROGRAM [ARGUMENTS]" };
    add_options(&args, l);
    args_parse(&args, argc, argv);
    l->program = args.rest;
    if (l->node >= l->nodes)
        args_reject(&args, "node-rank", "%d of --nnodes %d: they count from 0", l->node, l->nodes);
    if (l->nodes > 1 && !l->master)
        args_reject(&args, "master-addr", "on several machines all must know where rank 0 is");
    if (l->nodes > 1 && !args_given(&args, "master-port"))
        l->port = 29500;
    if (l->nodes > 1 && l->port == 0)
        args_reject(&args, "master-port", "on several machines all must know it: not 0");
    if (l->prefix && l->logs)
        args_reject(&args, "prefix", "not with --log-dir: each rank has a file of its own");
    if (!l->program[0])
        fail_at(__FILE__, __LINE__, EXIT_USAGE, "launch -- PROGRAM", "which program?");
}

// --- what the ranks are told ---------------------------------------------------------------------

static void tell(const char *name, long long value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    setenv(name, text, 1);
}

// Given, or made here; but several machines would each make another: then there is none.
static void tell_token(const Launch *l)
{
    Error err;
    unsigned char key[CHANNEL_KEY];
    char text[2 * CHANNEL_KEY + 1];
    const char *given = l->token_file ? NULL : getenv("DDP_TOKEN");
    if (given && !channel_key_from_text(given, key))
        fail_at(__FILE__, __LINE__, EXIT_USAGE, "openssl rand -hex 32 makes some",
                "DDP_TOKEN is not 64 hexadecimal digits");
    if (given || (!l->token_file && l->nodes > 1))
        return;
    if (!l->token_file)
        channel_key_random(key);
    else if (!channel_key_from_file(l->token_file, key, &err))
        fail_at(__FILE__, __LINE__, EXIT_USAGE, err.hint, "%s", err.text);
    channel_key_to_text(key, text);
    setenv("DDP_TOKEN", text, 1);
}

// The socket is kept over restarts: nobody else gets the port in between. Rank 0 listens.
static void bind_address(Launch *l)
{
    Error err;
    const char *name = l->nodes > 1 ? l->master : "127.0.0.1";
    if (!tcp_resolve(name, l->address, &err))
        FAIL_ERROR(&err);
    if (l->nodes > 1 && tcp_is_loopback(l->address) && strcmp(name, l->address) != 0)
        WARN("ip -brief address shows the one to give", "--master-addr %.200s is %s here, which no "
             "other machine can reach", name, l->address);
    if (l->node == 0 && (l->listening = tcp_bind(l->address, l->port, &err)) < 0)
        FAIL_ERROR(&err);
    l->port = l->node == 0 ? tcp_port(l->listening) : l->port;
}

static void tell_all(Launch *l)
{
    cpu_set_t cores;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t generation = now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
    l->generation = generation > l->generation ? generation : l->generation + 1;
    int share = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) / l->ranks : 1;
    if (!getenv("OMP_NUM_THREADS"))
        tell("OMP_NUM_THREADS", share > 1 ? share : 1);
    if (!getenv("OMP_WAIT_POLICY") && !getenv("GOMP_SPINCOUNT"))
        tell("GOMP_SPINCOUNT", 2000);   // who waits spins on a core that another rank needs
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");   // of another launcher, who has started this one
    unsetenv("TORCHELASTIC_RUN_ID");
    setenv("MASTER_ADDR", l->address, 1);
    tell("MASTER_PORT", l->port);
    tell("WORLD_SIZE", l->watch.size);
    tell("LOCAL_WORLD_SIZE", l->ranks);
    tell("GROUP_RANK", l->node);
    tell("TORCHELASTIC_RESTART_COUNT", l->restart);
    tell("TORCHELASTIC_MAX_RESTARTS", l->restarts);
    tell("DDP_GENERATION", l->generation);
}

// --- a birth -------------------------------------------------------------------------------------

// A file goes on where the last start's output ended.
static void open_output(const Launch *l, int rank, Output *output)
{
    Error err;
    char file[4096], prefix[32], when[64];
    time_t now = time(NULL);
    snprintf(prefix, sizeof prefix, "[rank %d] ", rank);
    snprintf(file, sizeof file, "%s/rank%d.log", l->logs, rank);
    if (!output_open(output, l->logs ? file : NULL, l->prefix ? prefix : NULL, &err))
        FAIL_ERROR(&err);
    strftime(when, sizeof when, "%F %T", localtime(&now));
    if (l->logs)
        dprintf(output->ends[0], "--- rank %d, start %d, %s\n", rank, l->restart + 1, when);
}

static void start_rank(Launch *l, int local)
{
    Error err;
    Output *output = &l->outputs[local];
    char page[32];
    int rank = rank_of(l, local);
    open_output(l, rank, output);
    snprintf(page, sizeof page, "%d %d", l->memory, local);
    setenv("DDP_ALIVE", page, 1);
    tell("RANK", rank);
    tell("LOCAL_RANK", local);
    tell("DDP_LISTEN", l->listening);
    if (rank > 0)
        unsetenv("DDP_LISTEN");
    pid_t pid = subprocess_start(&(Subprocess){ l->program, { output->ends[0], output->ends[1] },
                                          { l->memory, rank == 0 ? l->listening : -1 } }, &err);
    if (pid <= 0)
        fail_at(__FILE__, __LINE__, pid ? EXIT_FAILED : EXIT_USAGE, err.hint, "%s", err.text);
    l->watch.children[rank] = (Child){ .pid = pid, .alive = &l->pages[local] };
    output_close_ends(output);
}

static void start_all(Launch *l)
{
    l->watch = supervise_new(l->nodes * l->ranks, 0);
    l->watch.foreign = true;
    l->pages = alive_share(l->ranks, &l->memory);
    for (int i = 0; i < l->watch.size; i++)
        l->watch.children[i] = (Child){ .alive = &l->elsewhere, .ended = l->watch.looked };
    l->kill_at = l->status = 0;
    tell_all(l);
    for (int i = 0; i < l->ranks; i++)
        start_rank(l, i);
}

static void free_all(Launch *l)
{
    for (int i = 0; i < l->ranks; i++)
        output_free(&l->outputs[i]);
    free(l->watch.children);
    alive_unshare(l->pages, l->ranks, l->memory);
}

// --- signals, and the end of all -----------------------------------------------------------------

// As in spawn.c: the second signal means "at once"; who is stopped must wake up for it.
static void end_all(Launch *l, int status)
{
    l->status = status;
    l->kill_at = clock_now() + patience;
    supervise_signal(&l->watch, SIGINT);
    supervise_signal(&l->watch, SIGTERM);
    supervise_signal(&l->watch, SIGCONT);
}

// Our own program leaves it to us to answer; any other says itself what a signal means to it.
static void pass_on(Launch *l, int signal)
{
    bool end = signal == SIGINT || signal == SIGTERM;
    sigaddset(&l->watch.passed, signal);
    if (end && ++l->asked == 1 && l->kill_at == 0 && l->pages[0].beats > 0)
        interrupt_answer();
    if (end || signal == SIGHUP || signal == SIGQUIT)
        l->wish = signal;
    if (end && l->asked > 2) {
        l->status = 128 + signal;
        l->kill_at = clock_now();
    } else if (signal == SIGTSTP) {     // Ctrl-Z: all of us, until the shell says fg
        supervise_signal(&l->watch, SIGSTOP);
        raise(SIGSTOP);
        supervise_signal(&l->watch, SIGCONT);
    } else if (signal != SIGCHLD) {     // who died is asked for in any case
        supervise_signal(&l->watch, signal);
    }
}

// Signals and output; returns after a moment even if there are none. Is there output left?
static bool take_news(Launch *l)
{
    struct pollfd fds[1 + 2 * l->ranks];
    struct signalfd_siginfo info;
    bool left = false;
    fds[0] = (struct pollfd){ .fd = l->signals, .events = POLLIN };
    for (int i = 0; i < l->ranks; i++)
        output_poll(&l->outputs[i], &fds[1 + 2 * i]);
    poll(fds, 1 + 2 * (nfds_t)l->ranks, (int)(1000 * glance));
    while (read(l->signals, &info, sizeof info) == sizeof info)
        pass_on(l, (int)info.ssi_signo);
    for (int i = 0; i < l->ranks; i++)
        left |= output_pass(&l->outputs[i]);
    return left;
}

static void look_after(Launch *l)
{
    while (supervise_lives(&l->watch)) {
        take_news(l);
        supervise_look(&l->watch);
        int status = l->kill_at == 0 ? supervise_judge(&l->watch) : 0;
        if (status)
            end_all(l, status);
        if (l->kill_at > 0 && clock_now() >= l->kill_at)
            supervise_signal(&l->watch, SIGKILL);
    }
    if (l->kill_at == 0)
        l->status = supervise_status(&l->watch);
}

// The ranks are gone. Whom they have left behind goes too; then their last words are passed on,
// unless somebody does not want to wait for that.
static void clear_up(Launch *l)
{
    double begun = clock_now();
    bool orphans = true;
    for (int signal = l->asked ? 0 : SIGTERM; orphans;) {
        orphans = false;
        for (int i = 0; i < l->ranks; i++)
            orphans |= subprocess_orphans(l->watch.children[rank_of(l, i)].pid, signal);
        signal = clock_now() < begun + patience ? 0 : SIGKILL;
        if (orphans)
            take_news(l);
    }
    for (int i = 0; i < l->ranks; i++)
        output_end(&l->outputs[i]);
    for (l->wish = 0; l->prefix && l->wish == 0 && take_news(l);) {
    }
}

// --- once more? ----------------------------------------------------------------------------------

// Waits a while first: 0.5 s, 1 s, 2 s ... 30 s.
static bool again(Launch *l)
{
    int signal = l->status - 128;       // where nobody was ended: ranks that have agreed to stop
    bool wished = signal > 0 && (l->kill_at == 0 || sigismember(&l->watch.passed, signal) == 1);
    double pause = l->restart < 6 ? 0.5 * (1 << l->restart) : 30, until = clock_now() + pause;
    if (l->status == 0 || l->asked > 0 || wished || l->restart == l->restarts)
        return false;
    if (l->status == EXIT_USAGE || l->status == EXIT_DIVERGED) {
        WARN("", "no restart: it would end with status %d again", l->status);
        return false;
    }
    WARN("", "restart %d of %d in %.3g s", ++l->restart, l->restarts, pause);
    for (l->wish = 0; l->wish == 0 && clock_now() < until;)
        take_news(l);
    l->status = 128 + l->wish;          // of no interest if there is another start
    return l->wish == 0;
}

int main(int argc, char **argv)
{
    static Launch l = { .ranks = 1, .nodes = 1, .listening = -1, .elsewhere.done = true };
    for (int fd = 0; fd >= 0 && fd <= STDERR_FILENO;)   // these three are there, if they can be
        fd = open("/dev/null", O_RDWR);
    parse(&l, argc, argv);
    if (l.logs && mkdir(l.logs, 0777) != 0 && errno != EEXIST)
        fail_at(__FILE__, __LINE__, EXIT_USAGE, "", "--log-dir %s: %s", l.logs, strerror(errno));
    tell_token(&l);
    bind_address(&l);
    l.signals = subprocess_parent();
    for (bool more = true; more; free_all(&l)) {
        start_all(&l);
        look_after(&l);
        clear_up(&l);
        more = again(&l);
    }
    return l.status;
}
