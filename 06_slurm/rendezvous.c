// rendezvous.c - finds out who this process is, and brings it together with the others.
//
//   who am I?   the command line, else RANK and its kin, else Open MPI, else Slurm, else alone
//   where?      rank 0 listens: MASTER_ADDR and MASTER_PORT say where, MPI does, or Slurm (slurm.h)
//   meet        each rank connects to rank 0, which keeps the store from then on (tcp_store.h)
//   agree       the same program? the same options? who is on one machine with whom?
#include "rendezvous.h"  // uses: RendezvousConfig, World
#include "alive.h"       // uses: alive_patience
#include "agree.h"       // uses: agree_same, agree_neighbours
#include "check.h"       // uses: fail_at, FAIL_ERROR, check_set_speaker
#include "deadline.h"    // uses: deadline_set, deadline_met
#include "interrupt.h"   // uses: interrupt_silence
#include "machine.h"     // uses: machine_parent_cores, machine_program
#include "rendezvous_file.h"  // uses: rendezvous_file_remove
#include "slurm.h"       // uses: slurm_said, slurm_is_task, slurm_place
#include "supervise.h"   // uses: supervise_inherit
#include "tcp_store.h"   // uses: TcpStoreConfig, tcp_store_bind, tcp_store_join
#include "trace.h"       // uses: trace_among

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
        { "rank", 0, ARG_INT, &c->rank, "N", "which process this is", -1, MOST, .own = true },
        { "world-size", 0, ARG_INT, &c->size, "N", "of how many", -1, MOST, .own = true },
        { "local-rank", 0, ARG_INT, &c->local_rank, "N", "which here", -1, MOST, .own = true },
        { "master-addr", 0, ARG_STRING, &c->address, "HOST", "where rank 0 is", .own = true },
        { "master-port", 0, ARG_INT, &c->port, "PORT", "and listens", -1, MOST, .own = true },
        { "iface", 0, ARG_STRING, &c->interface, "NAME", "the network: eth0", .own = true },
        { "token-file", 0, ARG_STRING, &c->token_file, "FILE", "64 hexadecimal digits, the same on "
          "all hosts: who does not know them stays out", .own = true },
        { "require-token", 0, ARG_FLAG, &c->require_token, NULL, "do not meet without one" },
        { "timeout", 0, ARG_DOUBLE, &c->timeout, "SECONDS", "until all ranks are there; later, "
          "until one without a sign of life is lost (0: any)", .min = 0, .max = 1e6 }));
    slurm_options(args, &c->meet);
}

// --- who am I? -----------------------------------------------------------------------------------

// Who may know it, the strongest first, and what they call what we want to know. The first that has
// a rank or a number of ranks is believed, and no other: a rank of one and a size of another would
// be a process that does not exist.
enum { RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, ADDRESS, PORT, THINGS };
enum { COMMAND_LINE, ENVIRONMENT, MPIRUN, PMIX, SLURM, ALONE };
static const struct {
    const char *name, *words[THINGS];
} sources[] = {
    { "command line", { "--rank", "--world-size", "--local-rank", NULL, "--master-addr",
                        "--master-port" } },
    { "environment", { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                       "MASTER_PORT" } },
    { "Open MPI", { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" } }, // the rest says MPI itself
    { "Open MPI", { "PMIX_RANK" } },    // srun --mpi=pmix sets no more than this
    { "Slurm", { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_GTIDS",
                 "SLURM_STEP_NODELIST", "SLURM_STEP_ID" } },
    { "alone", { "the rank", "the number of ranks", "the local rank" } },
};

typedef struct Who {
    int source;
    int rank, size, local_rank, local_size, port;   // -1: not known
    const char *address;                            // where rank 0 is; NULL: not known
} Who;

static bool by_mpi(const Who *who) { return who->source == MPIRUN || who->source == PMIX; }

// What a source says of a thing, as text; NULL: nothing.
static const char *said(const RendezvousConfig *c, int source, int thing)
{
    static char texts[THINGS][16];
    const int numbers[THINGS] = { c->rank, c->size, c->local_rank, -1, -1, c->port };
    const char *word = sources[source].words[thing], *text = word ? slurm_said(word) : NULL;
    if (source == ALONE)
        return (const char *[THINGS]){ "0", "1" }[thing];
    if (source != COMMAND_LINE)
        return text && text[0] ? text : NULL;
    if (thing == ADDRESS)
        return c->address;
    snprintf(texts[thing], sizeof texts[thing], "%d", numbers[thing]);
    return numbers[thing] >= 0 ? texts[thing] : NULL;
}

static int said_number(const RendezvousConfig *c, int source, int thing)
{
    char *end = NULL;
    const char *text = said(c, source, thing);
    long value = text ? strtol(text, &end, 10) : -1;
    if (text && (!isdigit((unsigned char)text[0]) || *end || value > MOST))
        WRONG("unset it", "%s is '%s', which is not a number from 0 to %d",
              sources[source].words[thing], text, MOST);
    return (int)value;
}

// What nobody has said contradicts nothing.
static void check_most(const char *word, int value, const char *of, int all, int below)
{
    if (value >= 0 && all >= 0 && value > all - below)
        WRONG(below ? "ranks count from 0" : "", "%s is %d, but %s is %d", word, value, of, all);
}

static void check_who(const RendezvousConfig *c, const Who *who)
{
    const char *const *words = sources[who->source].words;
    const char *local = c->local_rank >= 0 ? "--local-rank" : words[LOCAL_RANK];
    bool counted = who->local_size < 0;
    check_most(words[RANK], who->rank, words[SIZE], who->size, 1);
    check_most(words[LOCAL_SIZE], who->local_size, words[SIZE], who->size, 0);
    check_most(local, who->local_rank, words[counted ? SIZE : LOCAL_SIZE],
               counted ? who->size : who->local_size, 1);
    if (c->meet && who->source != SLURM)
        WRONG("srun --mpi=none", "--rendezvous: only Slurm says which run a file is of");
    if (by_mpi(who))
        return;
    if (who->rank < 0 || who->size < 0)
        WRONG("set both, or neither", "%s is %d, but there is no %s",
              words[who->rank < 0 ? SIZE : RANK], who->rank < 0 ? who->size : who->rank,
              words[who->rank < 0 ? RANK : SIZE]);
    if (who->size > 1 && (!who->address || who->port <= 0))
        WRONG("the host of rank 0, and any free port there, the same for all ranks",
              "%s is %d, but %s does not say where to meet", words[SIZE], who->size,
              words[who->address ? PORT : ADDRESS]);
}

// The strongest source's answer. --local-rank (old launchers add it), --master-addr and
// --master-port go with any. Other processes of a job have some of Slurm's words too.
static Who find_out(const RendezvousConfig *c)
{
    int s = 0;
    while (s == SLURM ? !slurm_is_task() : !said(c, s, RANK) && !said(c, s, SIZE))
        s++;
    if (s == ALONE)
        slurm_refuse();
    Who who = { s, said_number(c, s, RANK), said_number(c, s, SIZE), said_number(c, s, LOCAL_RANK),
                said_number(c, s, LOCAL_SIZE), said_number(c, s, PORT), said(c, s, ADDRESS) };
    who.local_rank = c->local_rank >= 0 ? c->local_rank : who.local_rank;
    who.address = c->address ? c->address : who.address;
    who.port = c->port >= 0 ? c->port : who.port;
    check_who(c, &who);
    return who;
}

// ", not RANK=3, not WORLD_SIZE=8": what weaker sources say instead.
static const char *denied(const RendezvousConfig *c, const Who *who)
{
    static char text[400];
    size_t n = 0;
    text[0] = '\0';
    for (int s = who->source + 1; s < ALONE; s++)
        for (int thing = RANK; thing <= SIZE; thing++) {
            const char *other = said(c, s, thing);
            if (other && atoi(other) != (thing == RANK ? who->rank : who->size))
                n += (size_t)snprintf(text + n, sizeof text - n, ", not %s=%.30s",
                                      sources[s].words[thing], other);
        }
    return text;
}

static void be_rank(const Who *who)
{
    char name[32];
    snprintf(name, sizeof name, "rank %d/%d ", who->rank, who->size);
    check_set_speaker(who->size > 1 ? name : "");
    if (who->rank > 0)
        interrupt_silence();
}

// --- where are the others? -----------------------------------------------------------------------

// launch has bound rank 0's socket already, so that no other program can take the port.
static bool inherit_socket(TcpStoreConfig *m)
{
    const char *text = getenv("DDP_LISTEN");
    m->sockets[0] = text ? atoi(text) : -1;
    unsetenv("DDP_LISTEN");
    return m->sockets[0] > STDERR_FILENO && tcp_place(m->sockets[0], false).port == m->places[0].port;
}

// The contract: every rank knows address and port. On one host the loopback will do. torchrun's
// agent listens at the port: rank 0 takes one of those behind it, and the others look for it there.
static void follow_contract(const Who *who, TcpStoreConfig *m)
{
    const char *id = getenv("TORCHELASTIC_RUN_ID"), *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    const char *restarts = getenv("TORCHELASTIC_RESTART_COUNT"), *start = getenv("DDP_GENERATION");
    bool one_host = who->local_size == who->size && !m->from;
    m->first_free = agent && strcmp(agent, "True") == 0;
    for (int i = 0; i < (m->first_free ? STORE_PLACES : 1); i++)
        tcp_store_add(m, one_host ? "127.0.0.1" : who->address, who->port + m->first_free + i);
    m->generation = atoll(start ? start : restarts ? restarts : "0");
    snprintf(m->name, sizeof m->name, "%.40s:%d", id ? id : "", who->port);
    if (who->rank == 0 && !inherit_socket(m))
        tcp_store_bind(m);
}

// One process: its store is its own.
static void meet_nobody(TcpStoreConfig *m)
{
    m->secret = secret_random();
    tcp_store_add(m, "127.0.0.1", 0);
    tcp_store_bind(m);
}

// MPI knows who we are. Rank 0 listens at all its addresses, and MPI tells the others where, and a
// secret. Then MPI is finished with; mpirun still sees how each process ends, and ends the others.
static void ask_mpi(const RendezvousConfig *c, Who *who, TcpStoreConfig *m)
{
    TcpAddress own[STORE_PLACES] = { "127.0.0.1" };
    MPI_Comm here;
    int local_rank, count = 1;
    const char *directory = getenv("PMIX_SERVER_TMPDIR");
    if (directory) {                // mpirun's: nothing stays in /dev/shm if that is killed now
        setenv("OMPI_MCA_btl_vader_backing_directory", directory, 0);   // Open MPI 4's name, and 5's
        setenv("OMPI_MCA_btl_sm_backing_directory", directory, 0);
    }
    setenv("TERM", "dumb", 1);      // stdout is a terminal, but Open MPI's own: no progress bar
    deadline_set(c->timeout, "is one of them stopped, or does Open MPI try a network that leads "
                 "nowhere? --iface NAME names a better one; --timeout gives more time",
                 "Open MPI has not brought all ranks together");
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
    if (who->rank == 0) {
        if (who->local_size < who->size && !who->address && !m->from)
            count = tcp_own_addresses(own, STORE_PLACES);
        for (int i = 0; i < count; i++)
            tcp_store_add(m, who->address ? who->address : m->from ? m->from : own[i],
                      who->port > 0 ? who->port : 0);
        tcp_store_bind(m);
        m->secret = m->secret.known ? m->secret : secret_random();
    }
    MPI_Bcast(&m->count, sizeof m->count, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Bcast(m->places, sizeof m->places, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Bcast(&m->secret, sizeof m->secret, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Comm_free(&here);
    MPI_Finalize();
    deadline_met();
}

// --- together ------------------------------------------------------------------------------------

static void read_token(const RendezvousConfig *c, TcpStoreConfig *m)
{
    Error error;
    const char *text = getenv("DDP_TOKEN");
    if (c->token_file && !secret_from_file(c->token_file, &m->secret, &error))
        WRONG(error.hint, "%s", error.text);
    if (!c->token_file && text && !secret_from_text(text, &m->secret))
        WRONG("launch sets it; there is --token-file FILE as well",
              "DDP_TOKEN: not 64 hexadecimal digits");
    unsetenv("DDP_TOKEN");              // what this process starts is not to have it
}

static void check_token(const RendezvousConfig *c, const TcpStoreConfig *m)
{
    if (m->size > 1 && !m->secret.known && c->require_token)
        WRONG("--token-file FILE, or DDP_TOKEN: the same on all hosts", "there is no token");
    if (m->size > 1 && !m->secret.known && m->rank == 0 && !tcp_is_loopback(m->places[0].address))
        WARN("--token-file FILE, the same on all hosts, keeps others out; --require-token insists",
             "no token: anyone who can reach %s:%d can take part in this run", m->places[0].address,
             m->places[0].port);
}

// The line of each rank. Its pid: to try what a killed rank costs.
static void introduce(const RendezvousConfig *c, const Who *who, const World *world)
{
    char line[800];
    snprintf(line, sizeof line, "[init] == local rank: %d, global rank: %d of %d: %s%s == host %s, "
             "pid %d\n", world->local_rank, world->rank, world->size, sources[who->source].name,
             denied(c, who), machine_here().host, (int)getpid());
    agree_print(world, line);
}

void rendezvous(const RendezvousConfig *config, const Args *args, World *world)
{
    static TcpAddress own;
    Error error;
    Who who = find_out(config);
    TcpStoreConfig m = { .rank = who.rank, .size = who.size, .timeout = config->timeout,
                         .supervised = supervise_inherit() };
    be_rank(&who);
    alive_patience(config->timeout);
    if (config->interface && !tcp_interface_address(config->interface, own, &error))
        WRONG(error.hint, "%s", error.text);
    m.from = config->interface ? own : NULL;
    if (config->interface)
        tcp_prefer_interface(config->interface);
    read_token(config, &m);
    if (by_mpi(&who))
        ask_mpi(config, &who, &m);
    else if (who.size == 1)
        meet_nobody(&m);
    else if (who.source == SLURM)
        slurm_place(config, who.address, who.port, &m);
    else
        follow_contract(&who, &m);
    check_token(config, &m);
    *world = (World){ .rank = who.rank, .size = who.size, .local_rank = who.local_rank,
                      .local_size = who.local_size };
    tcp_store_join(&m, world);
    rendezvous_file_remove();
    trace_among(world->rank, world->size > 1 ? world->run : NULL);
    int cores = agree_neighbours(world), all = machine_parent_cores();
    if (by_mpi(&who) && who.rank == 0 && cores < all)
        WARN("mpirun --bind-to none gives all", "the ranks on this machine may use %d of %d cores",
             cores, all);
    introduce(config, &who, world);
    char *options = args_shared(args);
    agree_same(world, "program", machine_program());
    agree_same(world, "options", options);
    free(options);
}

void rendezvous_end(World *world) { tcp_store_end(world); }
