// comm_bench.c - measures an all-reduce for many sizes, and prints a table like that of nccl-tests.
//
//   build/cpu/comm_bench -n 2             starts two ranks on this machine
//   srun -N 2 build/cpu/comm_bench -n 0   is one of the ranks that srun, launch or mpirun starts
//
//   time    of one call on the slowest rank; median over the calls
//   algbw   bytes / time
//   busbw   the load of each connection between n ranks: algbw times 2 (n-1)/n. Compare it with the hardware's
//           bandwidth, or between different numbers of ranks
#include "../03_ddp_fork/spawn.h"
#include "../06_slurm/rendezvous.h"
#include "progress.h"
#include "args.h"
#include "check.h"
#include "clock.h"
#include "comm.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct Config {
    int ranks, factor, repeats;
    int64_t begin, end;     // bytes
    RendezvousConfig rendezvous;
} Config;

typedef struct Bench {
    const Config *config;
    Device *device;
    Comm *comm;             // what is measured
    Comm *judge;            // used between measurements
    float *values;
} Bench;

enum { WARMUP = 5 };        // calls of each size that are not measured

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

// The number of calls to measure: fewer for large sizes.
static int repeats_for(const Config *config, size_t bytes)
{
    int64_t most = (int64_t)(2e9 / (double)(bytes + 1));
    int64_t least = config->repeats < 5 ? config->repeats : 5;
    return (int)(config->repeats < most ? config->repeats : most > least ? most : least);
}

// Microseconds of a call on this rank.
static double time_once(Bench *b, size_t count)
{
    comm_barrier(b->judge);
    double begin = clock_now();
    comm_all_reduce(b->comm, device_stream(b->device), b->values, count, COMM_F32);
    stream_sync(device_stream(b->device));
    return 1e6 * (clock_now() - begin);
}

// Replaces each time by the largest of all ranks.
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

static double measure(Bench *b, size_t count)
{
    int repeats = repeats_for(b->config, count * sizeof *b->values);
    double *times = xcalloc((size_t)repeats, sizeof *times);
    for (int i = -WARMUP; i < repeats; i++) {
        double us = time_once(b, count);
        if (i >= 0)
            times[i] = us;
    }
    slowest_of_ranks(b, times, (size_t)repeats);
    double us = median(times, repeats);
    free(times);
    return us;
}

// --- a rank --------------------------------------------------------------------------------------

static void print_head(const Config *c, const Device *device)
{
    printf("# all_reduce, %d ranks, %s on %s; median of up to %d calls\n", c->ranks, comm_backend,
           device_name(device), c->repeats);
    printf("#%11s %11s %5s %5s %11s %8s %8s\n", "size", "count", "type", "op", "time", "algbw",
           "busbw");
    printf("#%11s %11s %5s %5s %11s %8s %8s\n", "(B)", "(values)", "", "", "(us)", "(GB/s)",
           "(GB/s)");
}

static void print_row(const Bench *b, size_t count, double us)
{
    int ranks = b->config->ranks;
    double bytes = (double)(count * sizeof *b->values), algbw = bytes / us / 1e3;
    printf("%12.0f %11zu %5s %5s %11.1f %8.2f %8.2f\n", bytes, count, "f32", "sum", us, algbw,
           algbw * 2 * (ranks - 1) / ranks);
    fflush(stdout);
}

static void bench_sizes(Bench *b)
{
    const Config *c = b->config;
    for (double bytes = (double)c->begin; bytes <= (double)c->end; bytes *= c->factor) {
        size_t count = (size_t)bytes / sizeof *b->values;
        double us = measure(b, count);
        if (comm_rank(b->comm) == 0)
            print_row(b, count, us);
    }
}

static void run(const Config *c, World *world)
{
    check_set_rank(world->rank, world->size);
    Device *device = device_count() > 0 ? comm_open_device(world, 1) : device_open(0, 1);
    Bench b = { .config = c, .device = device };
    b.comm = comm_new(world, device, "bench", NULL);
    b.judge = comm_new(world, device, "judge", NULL);
    b.values = device_alloc(device, (size_t)c->end);
    if (world->rank == 0)
        print_head(c, device);
    bench_sizes(&b);
    comm_free(b.judge);
    comm_free(b.comm);
    device_free(device, b.values);
    device_close(device);
}

int main(int argc, char **argv)
{
    Config c = { .ranks = 2, .factor = 2, .repeats = 200, .begin = 8, .end = 256 << 20 };
    Args args = { .summary = "Measures the time of an all-reduce for many sizes." };
    args_add(&args, ARGS_ROWS(
        { "ranks", 'n', ARG_INT, &c.ranks, "N",
          "ranks to start (0: none, if srun, launch or mpirun starts them)", 0, 16 },
        { "begin", 'b', ARG_INT64, &c.begin, "BYTES", "smallest size", 4, 0x1p34 },
        { "end", 'e', ARG_INT64, &c.end, "BYTES", "largest size", 4, 0x1p34 },
        { "factor", 'f', ARG_INT, &c.factor, "N", "ratio between one size and the next", 2, 1024 },
        { "repeats", 'r', ARG_INT, &c.repeats, "N", "maximum number of calls of each size", 1, 1e6 }));
    rendezvous_options(&args, &c.rendezvous);
    args_parse(&args, argc, argv);
    if (c.begin > c.end)
        args_reject(&args, "begin", "%" PRId64 " bytes are more than --end %" PRId64, c.begin, c.end);
    World world;
    bool launched = c.ranks == 0;
    if (launched)
        rendezvous(&c.rendezvous, &args, &world);
    else
        spawn(&(SpawnConfig){ .ranks = c.ranks, .timeout = c.rendezvous.timeout }, &world);
    c.ranks = world.size;
    run(&c, &world);
    store_leave(&world);
    return 0;
}
