// rendezvous.c - finds this process's rank, and connects it to the other ranks.
//
//   which rank? the command line, else RANK and so on, else Open MPI, else alone
//   where?      rank 0 listens: MASTER_ADDR and MASTER_PORT give the address, or MPI sends it
//   meet        each rank connects to rank 0, which keeps the store from then on (tcp_store.h)
//   agree       the same program? the same options? which ranks share a machine?
#include "rendezvous.h"
#include "alive.h"
#include "agree.h"
#include "check.h"
#include "deadline.h"
#include "interrupt.h"
#include "machine.h"
#include "supervise.h"
#include "tcp_store.h"
#include "trace.h"

#include <ctype.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WRONG(hint, ...) fail_at(__FILE__, __LINE__, EXIT_USAGE, hint, __VA_ARGS__)

enum { MOST = 65535 };           // ranks, and ports

void rendezvous_options(Args *args, RendezvousConfig *c)
{
    *c = (RendezvousConfig){ .rank = -1, .size = -1, .local_rank = -1, .port = -1, .timeout = 30 };
    args_add(args, ARGS_ROWS(
        { "rank", 0, ARG_INT, &c->rank, "N", "this process's rank", -1, MOST, .own = true },
        { "world-size", 0, ARG_INT, &c->size, "N", "number of ranks", -1, MOST, .own = true },
        { "local-rank", 0, ARG_INT, &c->local_rank, "N", "rank on machine", -1, MOST, .own = true },
        { "master-addr", 0, ARG_STRING, &c->address, "HOST", "rank 0's host", .own = true },
        { "master-port", 0, ARG_INT, &c->port, "PORT", "rank 0's port", -1, MOST, .own = true },
        { "iface", 0, ARG_STRING, &c->interface, "NAME", "network, such as eth0", .own = true },
        { "token-file", 0, ARG_STRING, &c->token_file, "FILE", "secret of 64 hexadecimal digits, "
          "the same on all hosts: keeps other processes out", .own = true },
        { "require-token", 0, ARG_FLAG, &c->require_token, NULL, "fail without one" },
        { "timeout", 0, ARG_DOUBLE, &c->timeout, "SECONDS", "limit for all ranks to connect; "
          "later, for a rank without a sign of life (0: none)", .min = 0, .max = 1e6 }));
}

// --- which rank is this? -------------------------------------------------------------------------

// The sources in order of priority, and their names for the same things. The first that has a rank
// or a number of ranks is used, and no other: a rank from one source would not match a size from a
// different one.
enum { RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, PORT, ADDRESS, THINGS };
enum { COMMAND_LINE, ENVIRONMENT, MPI, ALONE };
static const struct {
    const char *name, *words[THINGS];
} sources[] = {
    { "command line", { "--rank", "--world-size", "--local-rank", NULL, "--master-port",
                        "--master-addr" } },
    { "environment", { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT",
                       "MASTER_ADDR" } },
    { "Open MPI", { "PMIX_RANK", "OMPI_COMM_WORLD_SIZE" } },    // MPI itself knows the rest
    { "alone", { NULL } },
};

typedef struct Who {
    int source;
    int rank, size, local_rank, local_size, port;   // -1: not known
    const char *address;                            // where rank 0 is; NULL: not known
} Who;

static const char *text_of(int source, int thing)
{
    const char *word = sources[source].words[thing], *text = word ? getenv(word) : NULL;
    return text && text[0] ? text : NULL;
}

static int number_of(const RendezvousConfig *c, int source, int thing)
{
    const char *text = text_of(source, thing);
    char *end = NULL;
    if (source == COMMAND_LINE)
        return (const int[]){ c->rank, c->size, c->local_rank, -1, c->port }[thing];
    if (!text)
        return -1;
    long value = strtol(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end || value > MOST)
        WRONG("unset it", "%s is '%s', which is not a number from 0 to %d",
              sources[source].words[thing], text, MOST);
    return (int)value;
}

static void check_who(const Who *who)
{
    const char *const *words = sources[who->source].words;
    if (who->source == MPI)
        return;
    if (who->rank < 0 || who->size < 0)
        WRONG("set both, or neither", "%s is set, but there is no %s",
              words[who->rank < 0 ? SIZE : RANK], words[who->rank < 0 ? RANK : SIZE]);
    if (who->rank >= who->size)
        WRONG("ranks count from 0", "%s is %d, but %s is %d", words[RANK], who->rank, words[SIZE],
              who->size);
    if (who->size > 1 && (!who->address || who->port <= 0))
        WRONG("the host of rank 0, and any free port there, the same for all ranks",
              "%s is %d, but %s does not say where to meet", words[SIZE], who->size,
              words[who->address ? PORT : ADDRESS]);
}

// --local-rank (old launchers add it), --master-addr and --master-port go with any source.
static Who find_out(const RendezvousConfig *c)
{
    int s = c->rank >= 0 || c->size >= 0 ? COMMAND_LINE : ENVIRONMENT;
    while (s > COMMAND_LINE && s < ALONE && !text_of(s, RANK) && !text_of(s, SIZE))
        s++;
    Who who = { s, number_of(c, s, RANK), number_of(c, s, SIZE), number_of(c, s, LOCAL_RANK),
                number_of(c, s, LOCAL_SIZE), number_of(c, s, PORT), text_of(s, ADDRESS) };
    if (s == ALONE) {
        who.rank = 0;
        who.size = 1;
    }
    who.local_rank = c->local_rank >= 0 ? c->local_rank : who.local_rank;
    who.address = c->address ? c->address : who.address;
    who.port = c->port >= 0 ? c->port : who.port;
    check_who(&who);
    return who;
}

static void be_rank(const Who *who)
{
    check_set_rank(who->rank, who->size);
    if (who->rank > 0)
        interrupt_silence();
}

// --- where do the ranks meet? --------------------------------------------------------------------

// launch has bound rank 0's socket already, so that no other program can take the port.
static bool inherit_socket(TcpStoreConfig *m)
{
    const char *text = getenv("DDP_LISTEN");
    m->sockets[0] = text ? atoi(text) : -1;
    unsetenv("DDP_LISTEN");
    return m->sockets[0] > STDERR_FILENO && tcp_place(m->sockets[0], false).port == m->places[0].port;
}

// The contract: every rank knows address and port. On one host the loopback is enough. torchrun
// itself listens at that port, so rank 0 takes one of the next ports, and the others try them all.
static void follow_contract(const Who *who, TcpStoreConfig *m)
{
    const char *id = getenv("TORCHELASTIC_RUN_ID"), *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    bool one_host = who->local_size == who->size && !m->from[0];
    m->first_free = agent && strcmp(agent, "True") == 0;
    tcp_store_add(m, one_host ? "127.0.0.1" : who->address, who->port + m->first_free,
                  m->first_free ? STORE_PLACES : 1);
    snprintf(m->name, sizeof m->name, "%.40s:%d", id ? id : "", who->port);
    if (who->rank == 0 && !inherit_socket(m))
        tcp_store_bind(m);
}

// MPI gives rank and machine. Rank 0 listens at all its addresses, and MPI broadcasts them, and a
// secret. MPI is not used after that. If a process fails, mpirun ends the others.
static void ask_mpi(const RendezvousConfig *c, Who *who, TcpStoreConfig *m)
{
    MPI_Comm here;
    int local_rank;
    const char *directory = getenv("PMIX_SERVER_TMPDIR");
    if (directory) {                // mpirun's: a kill leaves nothing in /dev/shm
        setenv("OMPI_MCA_btl_vader_backing_directory", directory, 0);   // Open MPI 4's name, and 5's
        setenv("OMPI_MCA_btl_sm_backing_directory", directory, 0);
    }
    setenv("TERM", "dumb", 1);      // stdout is a terminal, but Open MPI's own: no progress bar
    deadline_set(c->timeout, "does Open MPI try a network that leads nowhere? --iface NAME names a "
                 "better one; --timeout gives more time", "Open MPI has not joined all ranks");
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &who->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &who->size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    MPI_Comm_rank(here, &local_rank);
    MPI_Comm_size(here, &who->local_size);
    who->local_rank = who->local_rank >= 0 ? who->local_rank : local_rank;
    m->rank = who->rank;
    m->size = who->size;
    be_rank(who);
    if (who->rank == 0)
        tcp_store_offer(m, who->address, who->port, who->local_size == who->size);
    MPI_Bcast(&m->count, sizeof m->count, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Bcast(m->places, sizeof m->places, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Bcast(&m->secret, sizeof m->secret, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Comm_free(&here);
    MPI_Finalize();
    deadline_met();
}

// --- the rendezvous ------------------------------------------------------------------------------

// The line of each rank. Its pid: so that you can kill one.
static void introduce(const Who *who, const World *world)
{
    char line[400];
    snprintf(line, sizeof line, "[init] == local rank: %d, global rank: %d of %d: %s == host %s, "
             "pid %d\n", world->local_rank, world->rank, world->size, sources[who->source].name,
             machine_here().host, (int)getpid());
    agree_print(world, line);
}

void rendezvous(const RendezvousConfig *config, const Args *args, World *world)
{
    Error error;
    Who who = find_out(config);
    TcpStoreConfig m = { .rank = who.rank, .size = who.size, .timeout = config->timeout,
                         .supervised = supervise_inherit() };
    be_rank(&who);
    alive_patience(config->timeout);
    if ((config->interface && !tcp_use_interface(config->interface, m.from, &error)) ||
        !secret_find(config->token_file, &m.secret, &error))
        WRONG(error.hint, "%s", error.text);
    unsetenv("DDP_TOKEN");              // the programs that this process starts do not need it
    if (who.source == MPI)
        ask_mpi(config, &who, &m);
    else if (who.size == 1)
        tcp_store_offer(&m, "127.0.0.1", 0, true);
    else
        follow_contract(&who, &m);
    if (m.size > 1 && !m.secret.text[0] && config->require_token)
        WRONG("--token-file FILE, or DDP_TOKEN: the same on all hosts", "there is no token");
    *world = (World){ .rank = who.rank, .size = who.size, .local_rank = who.local_rank,
                      .local_size = who.local_size };
    tcp_store_join(&m, world);
    trace_among(world->rank, world->size > 1 ? world->run : NULL);
    int cores = agree_neighbours(world), all = machine_parent_cores();
    if (who.source == MPI && who.rank == 0 && cores < all)
        WARN("mpirun --bind-to none gives all", "the ranks on this machine may use %d of %d cores",
             cores, all);
    introduce(&who, world);
    char *options = args_shared(args);
    agree_same(world, "program", machine_program());
    agree_same(world, "options", options);
    free(options);
}

void rendezvous_end(World *world) { tcp_store_end(world); }
