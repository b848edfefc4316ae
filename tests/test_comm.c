// test_comm.c - every collective, for all types and several counts, roots and numbers of ranks.
// ctest: PROCESSORS 2 SANITIZERS asan tsan
#include "progress.h"
#include "comm/backend.h"
#include "comm/gloo/gloo_reduce.h"
#include "ops/numbers.h"
#include "test.h"
#include "../tools/ranks.h"

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

static double get(const void *values, CommType type, size_t i)
{
    switch (type) {
    case COMM_U8: return ((const uint8_t *)values)[i];
    case COMM_I64: return (double)((const int64_t *)values)[i] / (double)i64_unit;
    case COMM_F32: return ((const float *)values)[i];
    case COMM_F64: return ((const double *)values)[i] / f64_unit;
    case COMM_BF16: return from_bf16(((const uint16_t *)values)[i]);
    case COMM_F16: return from_f16(((const uint16_t *)values)[i]);
    }
    return -1;
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

static void rank_open(Rank *r, const World *world, size_t most)
{
    *r = (Rank){ .world = world, .device = device_open(0, 1) };
    r->stream = device_stream(r->device);
    r->comm = comm_new(world, r->device, "test", NULL);
    r->mine = device_alloc(r->device, most * sizeof(double));
    r->all = device_alloc(r->device, most * sizeof(double) * (size_t)world->size);
}

static int rank_close(Rank *r)
{
    comm_free(r->comm);
    device_free(r->device, r->mine);
    device_free(r->device, r->all);
    device_close(r->device);
    return test_failed > 0 || test_passed == 0;
}

static void fill(Rank *r, void *values)
{
    for (size_t i = 0; i < r->count; i++)
        set(values, r->type, i, value_of(r->world->rank, i));
}

static void expect_values(const Rank *r, const char *what, const void *values,
                          double (*wanted)(int, size_t), int who)
{
    size_t wrong = 0;
    for (size_t i = 0; i < r->count; i++)
        wrong += get(values, r->type, i) != wanted(who, i);
    EXPECT(wrong == 0, "%s: rank %d of %d, type %d: %zu of %zu values", what, r->world->rank,
           r->world->size, r->type, wrong, r->count);
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

// comm_bytes counts the bytes of a call also on ranks that only receive, and the number of a barrier.
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
    Rank r;
    rank_open(&r, world, most);
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
    return rank_close(&r);
}

// Adds each 16-bit number to some others, and f16's special numbers to each other.
enum { PAIRS = (1 << 18) + 3, SPECIAL = 16 };

static bool same_number(float a, float b) { return a == b || (isnan(a) && isnan(b)); }

TEST(every_short_number)
{
    static const uint16_t special[] = { 0, 1, 0x3ff, 0x400, 0x7bff, 0x7c00, 0x7c01, 0x7b53 };
    static uint16_t a[PAIRS], b[PAIRS], f16[PAIRS], bf16[PAIRS];
    size_t wrong = 0;
    for (size_t i = 0; i < PAIRS; i++) {
        size_t j = i / SPECIAL;
        bool few = i < SPECIAL * SPECIAL;
        a[i] = few ? special[i % 8] | (uint16_t)(i % SPECIAL / 8 << 15) : (uint16_t)i;
        b[i] = few ? special[j % 8] | (uint16_t)(j / 8 << 15) : (uint16_t)((i * 2654435761u) >> 11);
    }
    gloo_sums[COMM_F16](f16, a, b, PAIRS);
    gloo_sums[COMM_BF16](bf16, a, b, PAIRS);
    for (size_t i = 0; i < PAIRS; i++) {
        float sum = from_f16(to_f16(from_f16(a[i]) + from_f16(b[i])));
        float sum_bf16 = from_bf16(to_bf16(from_bf16(a[i]) + from_bf16(b[i])));
        wrong += !same_number(from_f16(f16[i]), sum) || !same_number(from_bf16(bf16[i]), sum_bf16);
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
    double *y = device_alloc(device, sizeof(double[CALLS][COUNT])), *z = xcalloc(CALLS, sizeof *z);
    for (int i = 0; i < CALLS * COUNT; i++) {
        x[i] = (float)value_of(world->rank, (size_t)i);
        y[i] = value_of(world->rank, (size_t)i);
    }
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
        wrong += x[i] != (float)sum_of(world->size, i)
                 || y[i] != value_of((int)(i / COUNT) % world->size, i);
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
    free(z);
    device_close(device);
    return test_failed > 0 || test_passed == 0;
}

static int barrier_holds(void *arg, const World *world)
{
    atomic_int *late = arg;
    Device *device = device_open(0, 1);
    Comm *comm = comm_new(world, device, "barrier", NULL);
    for (int i = 1; i <= 5; i++) {
        if (world->rank == world->size - 1) {
            usleep(20000);
            atomic_store(late, i);
        }
        comm_barrier(comm);
        EXPECT(atomic_load(late) >= i, "rank %d passed before the last rank came", world->rank);
        comm_barrier(comm);
    }
    comm_free(comm);
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

TEST(barrier_waits_for_all)
{
    Store *shared = ranks_store_new();
    EXPECT_EQ_INT(ranks_run(3, barrier_holds, &shared->count), 0);
    ranks_store_free(shared);
}

TEST_MAIN
