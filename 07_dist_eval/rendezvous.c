// rendezvous.c - finds this process's rank, and connects it to the other ranks.
//
//   which rank? from RANK and so on; else from Open MPI or Slurm; else the process is alone
//   where?      rank 0's address: from MASTER_ADDR and MASTER_PORT (meet_at), MPI, Slurm or a file
//   meet        each rank connects to rank 0, which keeps the store from then on (store.h)
//   agree       the same program? the same options? which ranks share a machine?
#include "rendezvous.h"
#include "agree.h"
#include "check.h"
#include "interrupt.h"
#include "launcher.h"
#include "machine.h"
#include "openmpi.h"
#include "rendezvous_file.h"
#include "slurm.h"
#include "store.h"

#include <ctype.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 65535 };           // the largest rank or port

void rendezvous_options(Args *args, RendezvousConfig *c)
{
    *c = (RendezvousConfig){ .port = -1, .timeout = 300 };
    args_add(args, ARGS_ROWS(
        { "master-addr", 0, ARG_STRING, &c->address, "HOST", "rank 0's host", .local = true },
        { "master-port", 0, ARG_INT, &c->port, "PORT",
          "rank 0's port (-1: from MASTER_PORT, or automatic)", -1, MOST, true },
        { "iface", 0, ARG_STRING, &c->interface, "NAME",
          "network interface for this rank's connections", .local = true },
        { "timeout", 0, ARG_DOUBLE, &c->timeout, "SECONDS",
          "end the run if no rank progresses for this long (0: never)", .min = 0, .max = 1e6 },
        { "rendezvous", 0, ARG_STRING, &c->meet, "file:PATH", "under Slurm or launch: meet through "
          "a file on a disk that all hosts see", .local = true }));
}

static void name_rank(const World *world)       // from now on, messages name this rank
{
    check_set_rank(world->rank, world->size);
    if (world->rank > 0)
        interrupt_silence();
}

// --- from the environment ------------------------------------------------------------------------

// The number in an environment variable; -1 if it is empty or not set.
static int number(const char *variable)
{
    const char *text = getenv(variable);
    char *end = NULL;
    if (!text || !text[0])
        return -1;
    long value = strtol(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end || value > MOST)
        FAIL_USAGE("correct or unset this environment variable", "%s is '%s', which is not a "
                   "number from 0 to %d", variable, text, MOST);
    return (int)value;
}

// launch passes rank 0 an already bound socket, so that no other program can take the port. Returns
// false if there is no such socket for this address and port.
static bool inherit_socket(StoreConfig *store)
{
    store->socket = number("DDP_LISTEN");
    unsetenv("DDP_LISTEN");
    TcpPlace bound = tcp_place(store->socket);
    return store->socket > STDERR_FILENO && bound.port == store->place.port &&
           strcmp(bound.address, store->place.address) == 0;
}

// Every rank knows rank 0's address and port. On one host, without --iface, the loopback is enough.
// If torchrun's own store listens on that port, rank 0 takes the next one.
static void meet_at(const char *host, int port, const World *world, StoreConfig *store)
{
    const char *id = getenv("TORCHELASTIC_RUN_ID"), *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    bool one_host = world->local_size == world->size && !store->from[0];
    bool torchrun = agent && strcmp(agent, "True") == 0;
    snprintf(store->run, sizeof store->run, "%.40s:%d", id ? id : "", port);
    store->place = tcp_resolve(one_host ? "127.0.0.1" : host, port + torchrun);
    if (world->rank == 0 && !inherit_socket(store))
        store->socket = tcp_bind(&store->place);
}

// Reads the variables that torchrun and launch set. --master-addr and --master-port take precedence
// over MASTER_ADDR and MASTER_PORT.
static void from_environment(const RendezvousConfig *c, World *world, StoreConfig *store)
{
    const char *host = c->address ? c->address : getenv("MASTER_ADDR");
    int port = c->port >= 0 ? c->port : number("MASTER_PORT");
    *world = (World){ .rank = number("RANK"), .size = number("WORLD_SIZE"),
                      .local_rank = number("LOCAL_RANK"),
                      .local_size = number("LOCAL_WORLD_SIZE") };
    if (world->rank < 0 || world->size < 0)
        FAIL_USAGE("set both, or neither", "only one of RANK and WORLD_SIZE is set");
    if (world->rank >= world->size)
        FAIL_USAGE("ranks are numbered from 0 to the world size - 1",
                   "the rank is %d, but the world size is %d", world->rank, world->size);
    name_rank(world);
    if (c->meet) {
        store->rank = world->rank;
        snprintf(store->run, sizeof store->run, "launch");
        rendezvous_file(c, world->local_size == world->size, store);
        return;
    }
    if (world->size > 1 && (!host || port <= 0))
        FAIL_USAGE("give all ranks rank 0's host and a free port there",
                   "the world size is %d, but no %s is given", world->size,
                   host ? "MASTER_PORT (--master-port) above 0" : "MASTER_ADDR (--master-addr)");
    if (world->size > 1)
        meet_at(host, port, world, store);
}

// --- from MPI ------------------------------------------------------------------------------------

static void end_late(int none)
{
    static const char said[] = "MPI has not connected the ranks within --timeout: check that "
                               "mpirun and all ranks run, or choose a network with --iface NAME\n";
    ssize_t written = write(STDERR_FILENO, said, sizeof said - 1);
    (void)written;                          // stderr may be closed
    leave_at_once(EXIT_FAILED);
}

// MPI gives ranks and local ranks, but no addresses. So rank 0 listens, and MPI broadcasts rank 0's
// address and a token. MPI is not used after that. If a process fails, mpirun ends the others.
static void from_mpi(const RendezvousConfig *c, World *world, StoreConfig *store)
{
    signal(SIGALRM, end_late);              // the store does not watch this rank yet
    alarm(c->timeout > 0 ? (unsigned)c->timeout + 1 : 0);
    openmpi_begin(world);
    name_rank(world);
    if (world->rank == 0 && world->size > 1)
        store_offer(store, c->address, c->port, world->local_size == world->size);
    openmpi_broadcast(&store->place, sizeof store->place);
    openmpi_broadcast(store->token, sizeof store->token);
    openmpi_end();
    alarm(0);
    launcher_check(world->size);
}

// --- the rendezvous ------------------------------------------------------------------------------

static bool is_set(const char *variable) { return getenv(variable) && getenv(variable)[0]; }

// Rank and size come from one source: those of two sources might not match. --master-addr and
// --master-port work with any source. Returns the source's name.
static const char *find_rank(const RendezvousConfig *c, World *world, StoreConfig *store)
{
    if (is_set("RANK") || is_set("WORLD_SIZE")) {
        from_environment(c, world, store);
        return "environment";
    }
    // Where PMIx is the cluster's default, srun also sets PMIX_RANK.
    if (is_set("OMPI_COMM_WORLD_SIZE") || (is_set("PMIX_RANK") && !slurm_is_task())) {
        from_mpi(c, world, store);
        return "Open MPI";
    }
    if (slurm_is_task()) {
        slurm_rank(world);
        name_rank(world);
        slurm_place(c, world, store);
        return "Slurm";
    }
    slurm_refuse();
    *world = (World){ .rank = 0, .size = 1, .local_rank = -1, .local_size = 1 };
    launcher_check(world->size);
    return "alone";
}

// Prints a line for each rank, with its pid, so that you can kill one.
static void introduce(const char *source, const World *world)
{
    char line[400];
    snprintf(line, sizeof line, "[init] == local rank: %d, global rank: %d of %d: %s == host %s, "
             "pid %d\n", world->local_rank, world->rank, world->size, source, machine_here().host,
             (int)getpid());
    agree_print(world, line);
}

static void use_interface(const char *interface, TcpAddress address)
{
    Error error;
    if (!tcp_own_address(interface, address, &error))
        FAIL_USAGE(error.hint, "%s", error.text);
    tcp_set_library_interface(interface);
}

void rendezvous(const RendezvousConfig *config, const Args *args, World *world)
{
    const char *token = getenv("DDP_TOKEN");
    StoreConfig store = { .supervised = launcher_follow() };
    signal(SIGPIPE, SIG_IGN);           // after a restart, the reader of the output may be gone
    snprintf(store.token, sizeof store.token, "%s", token ? token : "");
    store.timeout = config->timeout;
    if (store.supervised)
        interrupt_silence();            // launch prints the line about Ctrl-C
    if (config->interface)
        use_interface(config->interface, store.from);
    const char *source = find_rank(config, world, &store);
    if (config->meet && (strcmp(source, "alone") == 0 || strcmp(source, "Open MPI") == 0))
        FAIL_USAGE("start the ranks with srun or launch",
                   "--rendezvous: neither srun nor launch started this process");
    store.rank = world->rank;
    store.size = world->size;
    store_join(&store, world);
    rendezvous_file_remove();
    agree_neighbours(world);
    introduce(source, world);
    char *options = args_shared(args);
    agree_same(world, "program", machine_program());
    agree_same(world, "options", options);
    free(options);
}
