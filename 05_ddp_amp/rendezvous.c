// rendezvous.c - finds out who this process is, and brings it together with the others.
//
//   who am I?   the command line, else RANK and its kin, else Open MPI, else alone
//   where?      rank 0 listens; MASTER_ADDR and MASTER_PORT say where, or MPI tells the others
//   meet        every rank connects to rank 0, which keeps the store from then on (tcp_store.h)
//   agree       the same program? the same options? who is on one machine with whom?
//
// MPI answers the first two questions only, and is finished with then: from there on it is one
// program, whoever has started it.
#include "rendezvous.h"         // uses: RendezvousConfig, World
#include "alive.h"              // uses: alive_inherit
#include "check.h"              // uses: fail_at, FAIL_ERROR, check_set_speaker
#include "deadline.h"           // uses: deadline_set, deadline_met
#include "from_launcher.h"      // uses: from_launcher_end, from_launcher_socket, from_launcher_token
#include "interrupt.h"          // uses: interrupt_silence
#include "machine.h"            // uses: machine_parent_cores, machine_program
#include "tcp_store.h"          // uses: TcpStore, tcp_store_join
#include "network_interface.h"  // uses: interface_common, interface_prefer
#include "agree.h"              // uses: agree_same, agree_neighbours
#include "tcp.h"                // uses: TcpAddress, tcp_listen, tcp_resolve
#include "trace.h"              // uses: trace_among

#include <ctype.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WRONG(hint, ...) fail_at(__FILE__, __LINE__, EXIT_USAGE, hint, __VA_ARGS__)

enum { MOST = 65535 };           // ranks, and ports
static TcpStore *meeting;        // a process has one, for as long as it lives

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
}

// --- who am I? -----------------------------------------------------------------------------------

// Who may know it, the strongest first, and what they call what we want to know. The first that has
// a rank or a number of ranks is believed, and no other: half of this and half of that would be
// somebody who does not exist.
enum { RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, ADDRESS, PORT, THINGS };
enum { COMMAND_LINE, ENVIRONMENT, MPIRUN, PMIX, ALONE };
static const struct {
    const char *name, *words[THINGS];
} sources[] = {
    { "command line", { "--rank", "--world-size", "--local-rank", NULL, "--master-addr",
                        "--master-port" } },
    { "environment", { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                       "MASTER_PORT" } },
    { "Open MPI", { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" } }, // the rest says MPI itself
    { "Open MPI", { "PMIX_RANK" } },    // srun --mpi=pmix sets no more than this
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
    const char *word = sources[source].words[thing], *text = word ? getenv(word) : NULL;
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
        WRONG("unset it", "%s is '%s', which is not a number from 0 to %d", sources[source].words[thing],
              text, MOST);
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
    if (by_mpi(who))
        return;
    if (who->rank < 0 || who->size < 0)
        WRONG("whoever sets one must set the other", "%s is %d, but there is no %s",
              words[who->rank < 0 ? SIZE : RANK], who->rank < 0 ? who->size : who->rank,
              words[who->rank < 0 ? RANK : SIZE]);
    if (who->size > 1 && (!who->address || who->port <= 0))
        WRONG("the host of rank 0, and any free port there, the same for all ranks",
              "%s is %d, but %s does not say where to meet", words[SIZE], who->size,
              words[who->address ? PORT : ADDRESS]);
}

// The strongest source's answer. --local-rank (old launchers add it), --master-addr and
// --master-port go with any.
static Who find_out(const RendezvousConfig *c)
{
    int s = 0;
    while (!said(c, s, RANK) && !said(c, s, SIZE))
        s++;
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

// The line that each rank prints. One write: ranks' lines do not mix.
static void introduce(const RendezvousConfig *c, const Who *who, const World *world)
{
    char line[800];
    int n = snprintf(line, sizeof line, "[init] == local rank: %d, global rank: %d of %d: %s%s "
                     "==\n", world->local_rank, world->rank, world->size,
                     sources[who->source].name, denied(c, who));
    fflush(stdout);
    if (write(STDOUT_FILENO, line, (size_t)n) < 0)
        return;
}

// What to do as soon as it is known. If two believe that they are the same rank they never meet, and
// never introduce themselves: so who is doubted says so now.
static void be_rank(const RendezvousConfig *c, const Who *who)
{
    char name[32];
    snprintf(name, sizeof name, "rank %d/%d ", who->rank, who->size);
    check_set_speaker(who->size > 1 ? name : "");
    if (who->rank > 0)
        interrupt_silence();
    if (who->size > 1 && who->rank >= 0 && denied(c, who)[0])
        WARN("what is left over in your shell must be unset", "rank %d of %d by the word of: %s%s",
             who->rank, who->size, sources[who->source].name, denied(c, who));
}

// --- where are the others? -----------------------------------------------------------------------

// What a TcpStoreConfig points to.
typedef struct Place {
    TcpAddress address;                 // rank 0's; that, and two more things, can come by MPI
    int port;
    unsigned char token[CHANNEL_KEY];
    TcpAddress own;                     // ours, with --iface
    char name[128];
} Place;

static void read_options(const RendezvousConfig *c, Place *place, TcpStoreConfig *m)
{
    Error error;
    int found = from_launcher_token(c->token_file, place->token, &error);
    if (found < 0 || (c->interface && !tcp_interface_address(c->interface, place->own, &error)))
        WRONG(error.hint, "%s", error.text);
    m->token = found ? place->token : NULL;
    m->from = c->interface ? place->own : NULL;
    if (c->interface)
        interface_prefer(c->interface);
}

// The contract: everybody knows address and port. On one host the loopback will do. torchrun's own
// agent listens at the port: rank 0 takes one of those behind it, and the others look for it.
static void follow_contract(const RendezvousConfig *c, const Who *who, Place *place,
                            TcpStoreConfig *m)
{
    Error error;
    const char *id = getenv("TORCHELASTIC_RUN_ID"), *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    const char *restarts = getenv("TORCHELASTIC_RESTART_COUNT");
    const char *start = getenv("DDP_GENERATION");
    bool one_host = who->size == 1 || who->local_size == who->size;
    const char *host = !one_host ? who->address : c->interface ? place->own : "127.0.0.1";
    if (!tcp_resolve(host, place->address, &error))
        FAIL_ERROR(&error);
    snprintf(place->name, sizeof place->name, "%.100s:%d", id ? id : "", who->port);
    m->ports = agent && strcmp(agent, "True") == 0 ? 16 : 1;
    m->port = who->port + (m->ports > 1);
    m->generation = atoll(start ? start : restarts ? restarts : "0");
    m->first = getenv("GROUP_RANK") && who->local_rank >= 0 ? who->rank - who->local_rank : -1;
    m->listening = who->rank == 0 ? from_launcher_socket(m->address, m->port) : -1;
    if (who->size > 1 && !m->token && c->require_token)
        WRONG("--token-file FILE, or DDP_TOKEN: the same on all hosts", "there is no token");
    if (who->size > 1 && !m->token && who->rank == 0 && !tcp_is_loopback(m->address))
        WARN("--token-file FILE, the same on all hosts, keeps others out; --require-token insists",
             "no token: whoever can reach %s:%d can take part in this run", m->address, m->port);
}

// MPI knows who we are, and tells everybody where rank 0 listens, and a secret. Then it is finished
// with; but mpirun still sees how each process ends, and ends the others.
static void ask_mpi(const RendezvousConfig *c, Who *who, Place *place, TcpStoreConfig *m)
{
    Error error;
    int local_rank;
    MPI_Comm here;
    const char *directory = getenv("PMIX_SERVER_TMPDIR");
    if (directory)                  // mpirun's: nothing stays in /dev/shm if that is killed now
        setenv("OMPI_MCA_btl_vader_backing_directory", directory, 0);
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
    MPI_Allreduce(&who->rank, &m->first, 1, MPI_INT, MPI_MIN, here);
    MPI_Comm_free(&here);
    who->local_rank = who->local_rank >= 0 ? who->local_rank : local_rank;
    be_rank(c, who);
    const char *host = who->address ? who->address : c->interface ? place->own
                       : who->local_size == who->size ? "127.0.0.1" : NULL;
    bool known = host ? tcp_resolve(host, place->address, &error)
                      : interface_common(m->first == 0, place->address, &error);
    if (!known && who->rank == 0)
        FAIL_ERROR(&error);
    if (who->rank == 0 && who->size > 1) {
        m->listening = tcp_listen(place->address, who->port > 0 ? who->port : 0, &error);
        if (m->listening < 0)
            FAIL_ERROR(&error);
        place->port = tcp_port(m->listening);
        if (!m->token)
            channel_key_random(place->token);
    }
    MPI_Bcast(place, offsetof(Place, own), MPI_BYTE, 0, MPI_COMM_WORLD);
    m->port = place->port;
    m->token = place->token;
    MPI_Finalize();
    deadline_met();
}

// --- together ------------------------------------------------------------------------------------

void rendezvous(const RendezvousConfig *config, const Args *args, World *world)
{
    static Place place;
    if (alive_inherit())
        interrupt_silence();            // whoever looks also answers Ctrl-C
    from_launcher_end();
    Who who = find_out(config);
    be_rank(config, &who);
    TcpStoreConfig m = { .first = -1, .listening = -1, .address = place.address, .ports = 1,
                        .name = place.name, .timeout = config->timeout };
    read_options(config, &place, &m);
    if (by_mpi(&who))
        ask_mpi(config, &who, &place, &m);
    else
        follow_contract(config, &who, &place, &m);
    m.rank = who.rank;
    m.size = who.size;
    meeting = who.size > 1 ? tcp_store_join(&m) : tcp_store_alone();
    *world = (World){ .rank = who.rank, .size = who.size, .local_rank = who.local_rank,
                      .local_size = who.local_size, .run = tcp_store_run(meeting),
                      .address = m.from ? m.from : tcp_store_address(meeting),
                      .store = tcp_store_store(meeting) };
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

void rendezvous_agree(const World *world, const char *what, const char *value)
{
    agree_same(world, what, value);
}

bool rendezvous_ask(const World *world, const char *what, bool answer)
{
    if (world->rank == 0)
        world->store.put(world->store.arg, what, &answer, sizeof answer);
    world->store.get(world->store.arg, what, &answer, sizeof answer);
    return answer;
}

void rendezvous_end(World *world) { (void)world; tcp_store_end(meeting); }
