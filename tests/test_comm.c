// test_comm.c - every collective, for all types and several counts, roots and numbers of ranks.
// ctest: PROCESSORS 2 SANITIZERS asan tsan
#include "progress.h"
#include "comm/backend.h"
#include "comm/gloo/gloo_reduce.h"
#include "ops/numbers.h"
#include "test.h"
#include "ranks.h"

#include <math.h>

static const CommType types[] = { COMM_U8, COMM_I64, COMM_F32, COMM_F64, COMM_BF16, COMM_F16 };
enum { TYPES = sizeof types / sizeof *types };

// 64-bit values use their low bits, so that a conversion to a narrower type shows.
static const double f64_unit = 1 + 0x1p-40;
static const int64_t i64_unit = (1LL << 40) + 1;

static void set(void *values, CommType type, size_t i, double value)
{
    switch (type) {
    case COMM_U8: ((uint8_t *)values)[i] = (uint8_t)value; break;
    case COMM_I64: ((int64_t *)values)[i] = (int64_t)value * i64_unit; break;
    case COMM_F32: ((float *)values)[i] = (float)value; break;
    case COMM_F64: ((double *)values)[i] = value * f64_unit; break;
    case COMM_BF16: ((uint16_t *)values)[i] = to_bf16((float)value); break;
    case COMM_F16: ((uint16_t *)values)[i] = to_f16((float)value); break;
    }
}

// Small whole numbers, so that every sum is exact in every type.
static double value_of(int rank, size_t i) { return (double)((i * 7 + (size_t)rank * 13) % 31); }

static double sum_of(int size, size_t i)
{
    double sum = 0;
    for (int rank = 0; rank < size; rank++)
        sum += value_of(rank, i);
    return sum;
}

typedef struct Rank {
    const World *world;
    Device *device;
    Stream *stream;
    Comm *comm;
    CommType type;
    size_t count;
    unsigned char *mine, *all;  // (count), (size, count)
} Rank;

static void fill(Rank *r, void *values)
{
    for (size_t i = 0; i < r->count; i++)
        set(values, r->type, i, value_of(r->world->rank, i));
}

static void expect_values(const Rank *r, const char *what, const void *values,
                          double (*wanted)(int, size_t), int who)
{
    unsigned char *exact = xcalloc(r->count + 1, sizeof(double));
    for (size_t i = 0; i < r->count; i++)
        set(exact, r->type, i, wanted(who, i));
    EXPECT(memcmp(values, exact, r->count * comm_width(r->type)) == 0, "%s: rank %d of %d, type %d, %zu values", what,
           r->world->rank, r->world->size, r->type, r->count);
    free(exact);
}

static void try_gather(Rank *r, bool in_place)
{
    size_t bytes = r->count * comm_width(r->type);
    unsigned char *place = r->all + (size_t)r->world->rank * bytes;
    memset(r->all, 0xEE, bytes * (size_t)r->world->size);
    fill(r, in_place ? place : r->mine);
    comm_all_gather(r->comm, r->stream, in_place ? place : r->mine, r->all, r->count, r->type);
    for (int i = 0; i < r->world->size; i++)
        expect_values(r, "all_gather", r->all + (size_t)i * bytes, value_of, i);
}

static void try_pairs(Rank *r)
{
    int rank = r->world->rank, size = r->world->size, next = (rank + 1) % size;
    int before = (rank + size - 1) % size;
    fill(r, r->all);
    if (rank == 0)
        comm_send(r->comm, r->stream, r->all, r->count, r->type, next);
    comm_receive(r->comm, r->stream, r->mine, r->count, r->type, before);
    expect_values(r, "receive", r->mine, value_of, before);
    if (rank != 0)
        comm_send(r->comm, r->stream, r->all, r->count, r->type, next);
}

static void try_collectives(Rank *r, int root)
{
    fill(r, r->mine);
    comm_all_reduce(r->comm, r->stream, r->mine, r->count, r->type);
    expect_values(r, "all_reduce", r->mine, sum_of, r->world->size);
    fill(r, r->mine);
    comm_broadcast(r->comm, r->stream, r->mine, r->count, r->type, root);
    expect_values(r, "broadcast", r->mine, value_of, root);
    try_gather(r, false);
    try_gather(r, true);
    if (r->world->size > 1)
        try_pairs(r);
}

// comm_bytes counts a call's bytes even on ranks that only receive, and 4 bytes for a barrier.
static void count_bytes(Rank *r)
{
    comm_all_reduce(r->comm, r->stream, r->mine, 101, COMM_F16);
    comm_broadcast(r->comm, r->stream, r->mine, 7, COMM_BF16, r->world->size - 1);
    comm_all_gather(r->comm, r->stream, r->mine, r->all, 3, COMM_F64);
    comm_barrier(r->comm);
    EXPECT_EQ_INT(comm_bytes(r->comm), 202 + 14 + 24 + 4);
}

// arg: values in the largest message.
static int every_collective(void *arg, const World *world)
{
    const size_t most = *(size_t *)arg, counts[] = { 0, 1, 2, 3, 17, 1000, most };
    Rank r = { .world = world, .device = device_open(0, 1) };
    r.stream = device_stream(r.device);
    r.comm = comm_new(world, r.device, "test", NULL);
    r.mine = device_alloc(r.device, most * sizeof(double));
    r.all = device_alloc(r.device, most * sizeof(double) * (size_t)world->size);
    EXPECT(comm_rank(r.comm) == world->rank && comm_size(r.comm) == world->size, "rank and size");
    count_bytes(&r);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int t = 0; t < TYPES; t++) {
            if (counts[i] > 100000 && types[t] != COMM_F32)
                continue;   // to save time, only one type is sent in large messages
            r.count = counts[i];
            r.type = types[t];
            try_collectives(&r, (int)((i + (size_t)t) % (size_t)world->size));
        }
    comm_free(r.comm);
    device_free(r.device, r.mine);
    device_free(r.device, r.all);
    device_close(r.device);
    return test_failed > 0 || test_passed == 0;
}

// Adds each 16-bit number to four numbers, one of which is itself.
TEST(every_short_number)
{
    enum { PAIRS = (1 << 18) + 3 };
    static uint16_t a[PAIRS], b[PAIRS], f16[PAIRS], bf16[PAIRS];
    size_t wrong = 0;
    for (size_t i = 0; i < PAIRS; i++) {
        a[i] = (uint16_t)i;
        b[i] = i >> 16 ? (uint16_t)((i * 2654435761u) >> 11) : (uint16_t)i;
    }
    gloo_sums[COMM_F16](f16, a, b, PAIRS);
    gloo_sums[COMM_BF16](bf16, a, b, PAIRS);
    for (size_t i = 0; i < PAIRS; i++) {
        float sum = from_f16(a[i]) + from_f16(b[i]), wide = from_bf16(a[i]) + from_bf16(b[i]);
        wrong += isnan(sum) ? !isnan(from_f16(f16[i])) : f16[i] != to_f16(sum);
        wrong += isnan(wide) ? !isnan(from_bf16(bf16[i])) : bf16[i] != to_bf16(wide);
    }
    EXPECT_EQ_INT(wrong, 0);
}

// Two communicators have one stream each, with many calls in flight. A third one alternates between these streams and
// the compute stream.
static int beside_each_other(void *arg, const World *world)
{
    enum { CALLS = 40, COUNT = 5000 };
    Device *device = device_open(0, 1);
    Comm *a = comm_new(world, device, "a", NULL), *b = comm_new(world, device, "b", NULL);
    Comm *c = comm_new(world, device, "c", NULL);
    Stream *one = stream_new_beside(device, "one"), *two = stream_new_beside(device, "two");
    Stream *streams[] = { one, two, device_stream(device) };
    float *x = device_alloc(device, sizeof(float[CALLS][COUNT]));
    double *y = device_alloc(device, sizeof(double[CALLS][COUNT])), z[CALLS];
    for (int i = 0; i < CALLS * COUNT; i++)
        x[i] = (float)(y[i] = value_of(world->rank, (size_t)i));
    for (int i = 0; i < CALLS; i++) {
        z[i] = world->rank + i;
        comm_all_reduce(a, one, x + i * COUNT, COUNT, COMM_F32);
        comm_broadcast(b, two, y + i * COUNT, COUNT, COMM_F64, i % world->size);
        comm_all_reduce(c, streams[i % 3], z + i, 1, COMM_F64);
    }
    stream_sync(one);
    stream_sync(two);
    size_t wrong = 0;
    for (size_t i = 0; i < CALLS * COUNT; i++)
        wrong += x[i] != (float)sum_of(world->size, i) || y[i] != value_of((int)(i / COUNT) % world->size, i);
    for (int i = 0; i < CALLS; i++)
        wrong += z[i] != world->size * (i + (world->size - 1) / 2.0);
    EXPECT(wrong == 0, "rank %d of %d: %zu wrong values", world->rank, world->size, wrong);
    comm_free(a);
    comm_free(b);
    comm_free(c);
    stream_free(one);
    stream_free(two);
    device_free(device, x);
    device_free(device, y);
    device_close(device);
    return test_failed > 0 || test_passed == 0;
}

TEST(every_number_of_ranks)
{
    for (int size = 1; size <= 4; size++) {
        EXPECT_EQ_INT(ranks_run(size, every_collective, &(size_t){ size == 2 ? 1000000 : 20001 }), 0);
        EXPECT_EQ_INT(ranks_run(size, beside_each_other, NULL), 0);
    }
}

TEST_MAIN
