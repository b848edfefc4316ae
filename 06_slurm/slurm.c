// slurm.c - rank, world size and rank 0's address, from the variables that srun sets.
//
//   job       sbatch, salloc   SLURM_JOB_ID, SLURM_NTASKS: the request, in every shell of the job
//     script  on one node      SLURM_PROCID=0: looks like rank 0 of all tasks, but is not a task
//       step  srun             SLURM_STEP_ID, SLURM_STEP_NUM_TASKS: perhaps fewer than the job's
//         task                 SLURM_PROCID in the step, SLURM_LOCALID on this node
//
// Ranks and hosts come only from a step's own variables.
#include "slurm.h"
#include "rendezvous_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Step IDs from here on stand for the batch script and, on some clusters, salloc's shell.
static const unsigned long last_step = 0xfffffff0;

// --- which rank is this? -------------------------------------------------------------------------

static const char *get(const char *name)
{
    const char *text = getenv(name);
    return text && text[0] ? text : NULL;
}

bool slurm_is_task(void)
{
    const char *step = get("SLURM_STEP_ID");
    return step && strtoul(step, NULL, 10) < last_step && get("SLURM_PROCID") &&
           get("SLURM_STEP_NUM_TASKS");
}

static int number(const char *name) { return get(name) ? atoi(get(name)) : -1; }

// Counts this node's `ranks`, from SLURM_GTIDS: "0,1", or with a cyclic distribution "0,2,4".
static int count_ranks(const char *ranks)
{
    int count = 1;
    for (; *ranks; ranks++)
        count += *ranks == ',';
    return count;
}

void slurm_rank(World *world)
{
    const char *ranks = get("SLURM_GTIDS");
    *world = (World){ .rank = number("SLURM_PROCID"), .size = number("SLURM_STEP_NUM_TASKS"),
                      .local_rank = number("SLURM_LOCALID"),
                      .local_size = ranks ? count_ranks(ranks) : -1 };
}

// Returns cluster, job, step, and the job's number of requeues: "ddp 12.0, restart 1".
static const char *run_name(void)
{
    static char text[64];
    const char *cluster = get("SLURM_CLUSTER_NAME"), *job = get("SLURM_JOB_ID");
    const char *step = get("SLURM_STEP_ID"), *restarts = get("SLURM_RESTART_COUNT");
    snprintf(text, sizeof text, "%.20s %.10s.%.10s, restart %.8s", cluster ? cluster : "slurm",
             job ? job : "?", step ? step : "?", restarts ? restarts : "0");
    return text;
}

// --- where do the ranks meet? --------------------------------------------------------------------

// The list's first host: "gpu7-a" for "gpu[7-9,12]-a,gpu20-a". The next call overwrites the result.
static const char *first_host(const char *list)
{
    static char host[256];
    size_t n = 0;
    while (*list && *list != ',' && n < sizeof host - 1)
        if (*list != '[') {
            host[n++] = *list++;
        } else {
            for (list++; !strchr("-,]", *list) && n < sizeof host - 1;)
                host[n++] = *list++;
            list += strcspn(list, "]");
            list += *list == ']';
        }
    host[n] = '\0';
    return host;
}

// A port below those that Linux assigns by default. Two jobs on one node rarely get the same port.
static int step_port(void)
{
    const char *job = get("SLURM_JOB_ID"), *step = get("SLURM_STEP_ID");
    unsigned long number = 31 * (job ? strtoul(job, NULL, 10) : 0) + strtoul(step, NULL, 10);
    return 20000 + (int)(number % 12288);
}

const char *slurm_first_host(void)
{
    const char *hosts = get("SLURM_STEP_NODELIST");
    CHECK(hosts, "give rank 0's host with --master-addr", "SLURM_STEP_NODELIST is not set");
    return first_host(hosts);
}

// Many machines resolve their own name to 127.0.1.1. This takes their first other address instead.
static void leave_loopback(const char *host, TcpAddress address)
{
    Error error;
    const char *node = get("SLURMD_NODENAME");
    if (tcp_is_loopback(address) && node && strcmp(host, node) == 0)
        tcp_own_address(NULL, address, &error);
    CHECK(!tcp_is_loopback(address),
          "use --master-addr ADDRESS; or --rendezvous file:PATH --iface NAME",
          "%s is %s on this host: no other host can reach it", host, address);
}

// SLURM_STEP_NODELIST has the order of the cluster's nodes. Tasks may have a different order: that
// of the network (from Slurm 26.05 on, with a topology plugin), or the user's (SLURM_HOSTFILE).
static void check_first(const char *host)
{
    const char *node = get("SLURMD_NODENAME");
    CHECK(!node || strcmp(host, node) == 0,
          "use srun --distribution=plane=N, with N tasks on each node; or give the program "
          "--rendezvous file:PATH",
          "rank 0 is on %s, but the others expect it on the step's first host, %s", node, host);
}

// Rank 0 listens on --master-addr. Without it, rank 0 listens on the first host's address; but if
// there is only one host, on --iface's address or the loopback.
static void place_by_name(const RendezvousConfig *c, bool one_host, StoreConfig *store)
{
    const char *host = c->address, *local = store->from[0] ? store->from : "127.0.0.1";
    if (!host)
        host = one_host ? local : slurm_first_host();
    if (store->rank == 0 && !one_host && !c->address)
        check_first(host);
    store->place = tcp_resolve(host, c->port > 0 ? c->port : step_port());
    if (!one_host && !c->address)
        leave_loopback(host, store->place.address);
    if (store->rank == 0)
        store->socket = tcp_bind(&store->place);
}

void slurm_place(const RendezvousConfig *c, const World *world, StoreConfig *store)
{
    bool one_host = number("SLURM_STEP_NUM_NODES") == 1;
    snprintf(store->run, sizeof store->run, "%s", run_name());
    store->rank = world->rank;
    if (world->size > 1 || c->meet)
        (c->meet ? rendezvous_file : place_by_name)(c, one_host, store);
}

// --- not a task ----------------------------------------------------------------------------------

// The job's number of tasks; by default, one per node. 0 outside a job.
static int tasks_of_job(void)
{
    const char *tasks = get("SLURM_NTASKS"), *nodes = get("SLURM_JOB_NUM_NODES");
    return !get("SLURM_JOB_ID") ? 0 : tasks ? atoi(tasks) : nodes ? atoi(nodes) : 1;
}

void slurm_refuse(void)
{
    const char *cores = get("SLURM_CPUS_PER_TASK");    // srun 22.05 and 23.02 do not inherit it
    int tasks = tasks_of_job();
    if (tasks <= 1)
        return;
    WARN("", "job %s has %d tasks, and this process is not one of them; start them with srun:",
         get("SLURM_JOB_ID"), tasks);
    fprintf(stderr, "\n    srun --kill-on-bad-exit=1%s%s %s ...\n\n",
            cores ? " --cpus-per-task=" : "", cores ? cores : "",
            program_invocation_name);
    exit(EXIT_USAGE);
}
