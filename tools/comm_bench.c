// comm_bench.c - how long a collective takes, over sizes: what nccl-tests prints, for comm.h.
//
//   build/cpu/comm_bench -n 2 --op all_reduce          starts its processes, here
//   srun -N 2 build/cpu/comm_bench -n 0                is one of those that srun, launch or mpirun start
//
//   time    of one call, the slowest rank's; median over the calls
//   algbw   bytes / time: what the caller sees
//   busbw   what each connection carries: algbw times what a byte travels in the best algorithm,
//           2 (n-1)/n for all_reduce, (n-1)/n for all_gather, 1 for the others. It can be compared
//           with the hardware's, and between numbers of ranks
//
// At the end, how many bytes rank 0 gave to all these calls together, the first few included.
#include "../06_slurm/rendezvous.h"
#include "alive.h"
#include "args.h"
#include "check.h"
#include "comm/backend.h"
#include "ranks.h"
#include "trace.h"

#include <inttypes.h>
#include <unistd.h>

typedef struct Config {
    int ranks, factor, repeats, warmup;
    int64_t begin, end;     // bytes
    const char *op, *type;
    bool compare;
    RendezvousConfig rendezvous;
} Config;

// --- what can be measured ------------------------------------------------------------------------

typedef struct Bench {
    const Config *config;
    Device *device;
    Comm *comm;             // what is measured
    Comm *judge;            // between measurements
    CommType type;
    void *from, *to;
} Bench;

static void run_all_reduce(Bench *b, size_t count)
{
    comm_all_reduce(b->comm, device_stream(b->device), b->to, count, b->type);
}

static void run_broadcast(Bench *b, size_t count)
{
    comm_broadcast(b->comm, device_stream(b->device), b->to, count, b->type, 0);
}

// The size is that of what all give together, as in nccl-tests.
static void run_all_gather(Bench *b, size_t count)
{
    comm_all_gather(b->comm, device_stream(b->device), b->from, b->to,
                    count / (size_t)b->config->ranks, b->type);
}

static double two_ways(int n) { return 2.0 * (n - 1) / n; }
static double one_way(int n) { return (double)(n - 1) / n; }
static double whole(int n) { return n > 1; }

static const struct {
    const char *name;
    CallKind kind;
    void (*run)(Bench *bench, size_t count);
    double (*travels)(int ranks);
    const char *op;
} benches[] = {
    { "all_reduce", CALL_ALL_REDUCE, run_all_reduce, two_ways, "sum" },
    { "broadcast", CALL_BROADCAST, run_broadcast, whole, "-" },
    { "all_gather", CALL_ALL_GATHER, run_all_gather, one_way, "-" },
};

static int bench_of(const char *name)
{
    int i = 0;
    while (strcmp(benches[i].name, name) != 0)
        i++;
    return i;
}

static CommType type_of(const char *name)
{
    CommType type = COMM_U8;
    while (strcmp(comm_type_name(type), name) != 0)
        type++;
    return type;
}

// The library's own call, without what we put around it.
static bool run_raw(Bench *b, int which, size_t count)
{
    bool gather = benches[which].kind == CALL_ALL_GATHER;
    count = gather ? count / (size_t)b->config->ranks : count;
    return link_bare(b->comm->link, &(Call){
        .kind = benches[which].kind, .type = b->type, .count = count,
        .bytes = count * comm_width(b->type), .from = gather ? b->from : b->to, .to = b->to });
}

// --- one size ------------------------------------------------------------------------------------

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

// Fewer repeats of what takes long.
static int repeats_for(const Config *config, size_t bytes)
{
    int64_t most = (int64_t)(2e9 / (double)(bytes + 1));
    int64_t least = config->repeats < 5 ? config->repeats : 5;
    return (int)(config->repeats < most ? config->repeats : most > least ? most : least);
}

static double time_once(Bench *b, int which, size_t count, bool raw)
{
    comm_barrier(b->judge);
    int64_t begin = trace_now();
    if (raw)
        run_raw(b, which, count);
    else
        benches[which].run(b, count);
    stream_sync(device_stream(b->device));
    return (double)(trace_now() - begin) / 1e3;
}

// Each becomes the largest of all ranks' times.
static void slowest_of_ranks(Bench *b, double *times, size_t count)
{
    size_t ranks = (size_t)comm_size(b->judge), bytes = count * sizeof *times;
    double *all = xmalloc(ranks * bytes), *on_device = device_alloc(b->device, (ranks + 1) * bytes);
    Stream *stream = device_stream(b->device);
    copy_to_device(stream, on_device + ranks * count, times, bytes);
    comm_all_gather(b->judge, stream, on_device + ranks * count, on_device, count, COMM_F64);
    copy_to_host(stream, all, on_device, ranks * bytes);
    stream_sync(stream);
    for (size_t i = 0; i < ranks * count; i++)
        times[i % count] = all[i] > times[i % count] ? all[i] : times[i % count];
    device_free(b->device, on_device);
    free(all);
}

// Median microseconds of a call, the slowest rank's of each call; and of the library's own, in turn
// with them, if raw_us is not NULL.
static double measure(Bench *b, int which, size_t count, double *raw_us)
{
    int repeats = repeats_for(b->config, count * comm_width(b->type));
    double *times = xcalloc(2 * (size_t)repeats, sizeof *times);
    for (int i = -b->config->warmup; i < repeats; i++) {
        double ours = time_once(b, which, count, false);
        double raw = raw_us ? time_once(b, which, count, true) : 0;
        if (i >= 0) {
            times[i] = ours;
            times[repeats + i] = raw;
        }
    }
    slowest_of_ranks(b, times, 2 * (size_t)repeats);
    double us = median(times, repeats);
    if (raw_us)
        *raw_us = median(times + repeats, repeats);
    free(times);
    return us;
}

// --- a rank --------------------------------------------------------------------------------------

static void print_head(const Config *c, const Device *device)
{
    printf("# %s, %d ranks, %s on %s; median of up to %d calls\n", c->op, c->ranks, comm_backend,
           device_name(device), c->repeats);
    printf("#%11s %11s %5s %5s %11s %8s %8s%s\n", "size", "count", "type", "op", "time",
           "algbw", "busbw", c->compare ? "  of bare" : "");
    printf("#%11s %11s %5s %5s %11s %8s %8s%s\n", "(B)", "(values)", "", "", "(us)", "(GB/s)",
           "(GB/s)", c->compare ? "     time" : "");
}

static void print_row(const Bench *b, int which, size_t count, double us, double raw_us)
{
    const Config *c = b->config;
    double bytes = (double)(count * comm_width(b->type)), algbw = bytes / us / 1e3;
    printf("%12.0f %11zu %5s %5s %11.1f %8.2f %8.2f", bytes, count, c->type, benches[which].op, us,
           algbw, algbw * benches[which].travels(c->ranks));
    if (c->compare)
        printf("  %7.3f", us / raw_us);
    printf("\n");
    fflush(stdout);
}

static void bench_sizes(Bench *b)
{
    const Config *c = b->config;
    int which = bench_of(c->op);
    for (double bytes = (double)c->begin; bytes <= (double)c->end; bytes *= c->factor) {
        size_t unit = benches[which].kind == CALL_ALL_GATHER ? (size_t)c->ranks : 1;
        size_t count = (size_t)bytes / comm_width(b->type) / unit * unit;
        double raw_us = 0;
        double us = measure(b, which, count, c->compare ? &raw_us : NULL);
        if (c->ranks > 0 && comm_rank(b->comm) == 0)
            print_row(b, which, count, us, raw_us);
    }
}

static int run(void *arg, const World *world)
{
    const Config *c = arg;
    int gpus = device_count();
    char speaker[32];
    snprintf(speaker, sizeof speaker, "rank %d/%d ", world->rank, world->size);
    check_set_speaker(speaker);
    Device *device = device_open(gpus ? world->local_rank % gpus : 0, 1);
    Bench b = { .config = c, .device = device, .type = type_of(c->type) };
    b.comm = comm_new(world, device, "bench", NULL);
    b.judge = comm_new(world, device, "judge", NULL);
    b.from = device_alloc(device, (size_t)c->end);
    b.to = device_alloc(device, (size_t)c->end);
    CHECK(!c->compare || run_raw(&b, bench_of("all_reduce"), 1),
          "for the cpu backend", "%s has no calls without a stream to measure", comm_backend);
    if (world->rank == 0)
        print_head(c, device);
    bench_sizes(&b);
    if (world->rank == 0 && !c->compare)
        printf("# bytes given to the calls: %" PRIu64 "\n", comm_bytes(b.comm));
    comm_free(b.judge);
    comm_free(b.comm);
    device_free(device, b.from);
    device_free(device, b.to);
    device_close(device);
    return 0;
}

// Something else has started this rank, and those on other machines.
static int run_among(Config *c, const Args *args)
{
    World world;
    rendezvous(&c->rendezvous, args, &world);
    c->ranks = world.size;
    int status = run(c, &world);
    alive_done();
    rendezvous_end(&world);
    return status;
}

int main(int argc, char **argv)
{
    Config c = { .ranks = 2, .factor = 2, .repeats = 200, .warmup = 5, .begin = 8,
                 .end = 256 << 20, .op = "all_reduce", .type = "f32" };
    Args args = { .summary = "Measures a collective over sizes." };
    args_add(&args, ARGS_ROWS(
        { "ranks", 'n', ARG_INT, &c.ranks, "N", "processes to start; 0: srun or launch has", 0,
          RANKS_MAX },
        { "op", 0, ARG_CHOICE, &c.op, "all_reduce|broadcast|all_gather", "what to measure" },
        { "type", 0, ARG_CHOICE, &c.type, "f32|bf16|f16", "of the values" },
        { "begin", 'b', ARG_INT64, &c.begin, "BYTES", "the smallest size", 4, 0x1p34 },
        { "end", 'e', ARG_INT64, &c.end, "BYTES", "the largest size", 4, 0x1p34 },
        { "factor", 'f', ARG_INT, &c.factor, "N", "from one size to the next", 2, 1024 },
        { "repeats", 'r', ARG_INT, &c.repeats, "N", "calls of each size, at most", 1, 1e6 },
        { "compare", 0, ARG_FLAG, &c.compare, NULL, "Gloo: our calls and its own, in turn" }));
    rendezvous_options(&args, &c.rendezvous);
    args_parse(&args, argc, argv);
    if (c.begin > c.end)
        args_reject(&args, "begin", "is more than --end");
    return c.ranks ? ranks_run(c.ranks, run, &c) : run_among(&c, &args);
}
