// test_norm_shared.c - batch normalisation over the batches of several processes: together they do
// what one process does with all the rows.
//
// ctest: BACKENDS cpu cuda fake SANITIZERS asan tsan
//
// The processes are threads here, each with a device and operations of its own, and they gather by
// reading each other's memory between two barriers. In every layout the images of a batch stand one
// after the other, so a rank's part of a batch is a part of its memory.
#include "check.h"
#include "device.h"
#include "ops.h"
#include "rng.h"
#include "test.h"

#include <math.h>
#include <pthread.h>

enum { MAX_RANKS = 4, STEPS = 2 };
static const int rank_rows[MAX_RANKS] = { 3, 1, 4, 2 };

typedef struct Layout {
    int c, h, w, block;
} Layout;

// What a normalisation reads, for all rows, and what it gives; host memory.
typedef struct Batch {
    Shape shape;
    float *x, *residual, *dy1, *dy2;
} Batch;

typedef struct Result {
    float *y, *dx, *dresidual;
    float *vectors;             // (8, c): see vectors_of
} Result;

enum { GAMMA, BETA, RUNNING_MEAN, RUNNING_VAR, MEAN, INV_STD, DGAMMA, DBETA, VECTORS };
static const char *const vector_names[VECTORS] = { "gamma", "beta", "running mean", "running var",
                                                   "mean", "inv_std", "dgamma", "dbeta" };

typedef struct Team {
    int size;
    bool shared;                // or each for itself, as if there were no others
    NormSpec spec;              // of all rows
    const Batch *batch;
    pthread_barrier_t barrier;
    const double *mine[MAX_RANKS];
    int gathers[MAX_RANKS];
    Result result[MAX_RANKS];
} Team;

typedef struct Rank {
    Team *team;
    int rank;
    Device *device;
} Rank;

// --- numbers -------------------------------------------------------------------------------------

static float *numbers(size_t count, int key, float scale, float offset)
{
    float *out = xmalloc(count * sizeof *out);
    for (size_t i = 0; i < count; i++)
        out[i] = scale * (2 * uniform_of(philox(3, (uint64_t)key, i).v[0]) - 1) + offset;
    return out;
}

// Each image has a mean of its own, so that a rank's statistics are far from everybody's.
static Batch batch_new(Layout layout, int rows)
{
    Shape s = { rows, layout.c, layout.h, layout.w, layout.block };
    size_t count = shape_count(s);
    Batch batch = { s, numbers(count, 1, 1, 2), numbers(count, 2, 1, 0),
                    numbers(count, 3, 1, 0.25f), numbers(count, 4, 1, 0) };
    for (size_t i = 0; i < count; i++)
        batch.x[i] += (float)(i / (count / (size_t)rows)) * 0.75f;
    return batch;
}

static void batch_free(Batch *batch)
{
    free(batch->x);
    free(batch->residual);
    free(batch->dy1);
    free(batch->dy2);
}

static float *vectors_of(int channels)
{
    float *v = numbers((size_t)VECTORS * channels, 5, 0.5f, 0);
    for (int c = 0; c < channels; c++) {
        v[GAMMA * channels + c] += 1;
        v[RUNNING_VAR * channels + c] += 1;
    }
    return v;
}

// --- a rank --------------------------------------------------------------------------------------

static float *to_device(Device *device, const float *host, size_t count)
{
    float *memory = device_alloc(device, count * sizeof *host);
    copy_to_device(device_stream(device), memory, host, count * sizeof *host);
    stream_sync(device_stream(device));
    return memory;
}

// The values, in host memory; the device's go.
static float *from_device(Device *device, float *memory, size_t count)
{
    float *host = xmalloc(count * sizeof *host);
    copy_to_host(device_stream(device), host, memory, count * sizeof *host);
    stream_sync(device_stream(device));
    device_free(device, memory);
    return host;
}

static void gather(void *arg, const double *mine, double *all, size_t count)
{
    Rank *me = arg;
    Team *team = me->team;
    Stream *stream = device_stream(me->device);
    team->gathers[me->rank]++;
    team->mine[me->rank] = mine;
    stream_sync(stream);
    pthread_barrier_wait(&team->barrier);
    for (int r = 0; r < team->size; r++)
        copy_on_device(stream, all + (size_t)r * count, team->mine[r], count * sizeof *all);
    stream_sync(stream);
    pthread_barrier_wait(&team->barrier);
}

static NormTensors tensors_at(float *vectors, int channels)
{
    float *v[VECTORS];
    for (int i = 0; i < VECTORS; i++)
        v[i] = vectors + (size_t)i * channels;
    return (NormTensors){ v[GAMMA],  v[BETA],    v[RUNNING_MEAN], v[RUNNING_VAR],
                          v[MEAN],   v[INV_STD], v[DGAMMA],       v[DBETA] };
}

// A few training steps with the rows [first, first + shape.n) of the batch, on a device of its own.
static Result rank_steps(Rank *me, Ops *ops, const NormSpec *spec, int first)
{
    const Batch *batch = me->team->batch;
    Device *device = me->device;
    size_t count = shape_count(spec->x), at = count / (size_t)spec->x.n * (size_t)first;
    size_t channels = (size_t)spec->x.c;
    float *host_vectors = vectors_of(spec->x.c);
    float *x = to_device(device, batch->x + at, count);
    float *residual = spec->add ? to_device(device, batch->residual + at, count) : NULL;
    float *dy1 = to_device(device, batch->dy1 + at, count);
    float *dy2 = spec->relu ? to_device(device, batch->dy2 + at, count) : NULL;
    float *vectors = to_device(device, host_vectors, VECTORS * channels);
    float *y = device_alloc(device, count * sizeof *y);
    float *dx = device_alloc(device, count * sizeof *dx);
    float *dresidual = spec->add ? device_alloc(device, count * sizeof *dx) : NULL;

    NormTensors t = tensors_at(vectors, spec->x.c);
    Norm *norm = norm_new(ops, spec);
    for (int i = 0; i < STEPS; i++) {
        norm_forward(norm, &t, x, residual, y, true);
        norm_backward(norm, &t, x, y, dy1, dy2, dx, dresidual);
    }
    int gathers = me->team->gathers[me->rank];
    float *frozen = device_alloc(device, count * sizeof *frozen);
    norm_forward(norm, &t, x, residual, frozen, false);
    EXPECT_EQ_INT(me->team->gathers[me->rank], gathers);
    norm_free(norm);
    device_free(device, frozen);
    device_free(device, dy2);
    device_free(device, dy1);
    device_free(device, residual);
    device_free(device, x);
    free(host_vectors);
    return (Result){ from_device(device, y, count), from_device(device, dx, count),
                     dresidual ? from_device(device, dresidual, count) : NULL,
                     from_device(device, vectors, VECTORS * channels) };
}

static void *rank_run(void *arg)
{
    Rank *me = arg;
    Team *team = me->team;
    me->device = device_open(0, 1);
    Ops *ops = ops_new(me->device, &(OpsConfig){ .deterministic = true });
    if (team->shared)
        ops_share_norms(ops, team->size, gather, me);
    NormSpec spec = team->spec;
    int first = 0;
    for (int r = 0; r < me->rank; r++)
        first += rank_rows[r];
    if (team->size > 1)
        spec.x.n = rank_rows[me->rank];
    team->result[me->rank] = rank_steps(me, ops, &spec, first);
    ops_free(ops);
    device_close(me->device);
    return NULL;
}

static void team_run(Team *team)
{
    Rank rank[MAX_RANKS];
    pthread_t thread[MAX_RANKS];
    pthread_barrier_init(&team->barrier, NULL, (unsigned)team->size);
    for (int r = 0; r < team->size; r++) {
        rank[r] = (Rank){ .team = team, .rank = r };
        if (pthread_create(&thread[r], NULL, rank_run, &rank[r]) != 0)
            FAIL("", "no thread for rank %d", r);
    }
    for (int r = 0; r < team->size; r++)
        pthread_join(thread[r], NULL);
    pthread_barrier_destroy(&team->barrier);
}

static void team_free(Team *team)
{
    for (int r = 0; r < team->size; r++) {
        free(team->result[r].y);
        free(team->result[r].dx);
        free(team->result[r].dresidual);
        free(team->result[r].vectors);
    }
}

// --- comparing -----------------------------------------------------------------------------------

static void expect_close(const char *name, const char *what, const float *ours, const float *wanted,
                         size_t count, double largest)
{
    double off = 0;
    bool finite = true;
    for (size_t i = 0; i < count; i++) {
        finite = finite && isfinite(ours[i]);
        off = fmax(off, fabs((double)ours[i] - wanted[i]));
    }
    EXPECT(finite && off <= 5e-6 * largest, "%s: %s: off by %.3g of %.3g", name, what, off,
           largest);
}

static double largest_of(const float *v, size_t count)
{
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(v[i]));
    return largest;
}

// What is as long as the activation: each rank's is its part of the whole.
static void compare_parts(const char *name, const char *what, const Team *team, size_t offset,
                          const float *whole, size_t image)
{
    size_t at = 0;
    for (int r = 0; r < team->size; r++) {
        float *const *part = (float *const *)((const char *)&team->result[r] + offset);
        size_t count = image * (size_t)rank_rows[r];
        expect_close(name, what, *part, whole + at, count,
                     largest_of(whole, shape_count(team->spec.x)));
        at += count;
    }
}

// Statistics are everybody's, bit by bit; the ranks' gradients add up to those of all.
static void compare_vectors(const char *name, const Team *team, const float *whole, int channels)
{
    size_t c = (size_t)channels;
    for (int i = 0; i < VECTORS; i++) {
        float sum[channels];
        memcpy(sum, team->result[0].vectors + i * c, sizeof sum);
        for (int r = 1; r < team->size; r++) {
            const float *theirs = team->result[r].vectors + i * c;
            if (i < DGAMMA)
                EXPECT(memcmp(theirs, team->result[0].vectors + i * c, sizeof sum) == 0,
                       "%s: %s of rank %d has other bits than rank 0's", name, vector_names[i], r);
            for (int k = 0; i >= DGAMMA && k < channels; k++)
                sum[k] += theirs[k];
        }
        expect_close(name, vector_names[i], sum, whole + i * c, c, largest_of(whole + i * c, c));
    }
}

static void check_shared(int ranks, Layout layout, bool add, bool relu)
{
    char name[100];
    snprintf(name, sizeof name, "%d ranks, %d channels of %dx%d by %d%s%s", ranks, layout.c,
             layout.h, layout.w, layout.block, add ? ", add" : "", relu ? ", relu" : "");
    int rows = 0;
    for (int r = 0; r < ranks; r++)
        rows += rank_rows[r];
    Batch batch = batch_new(layout, rows);
    Team one = { .size = 1, .spec = { batch.shape, add, relu }, .batch = &batch };
    Team team = one;
    team.size = ranks;
    team.shared = true;
    team_run(&one);
    team_run(&team);
    const Result *whole = &one.result[0];
    size_t image = shape_count(batch.shape) / (size_t)rows;
    compare_parts(name, "y", &team, offsetof(Result, y), whole->y, image);
    compare_parts(name, "dx", &team, offsetof(Result, dx), whole->dx, image);
    if (add)
        compare_parts(name, "dresidual", &team, offsetof(Result, dresidual), whole->dresidual,
                      image);
    compare_vectors(name, &team, whole->vectors, layout.c);
    for (int r = 0; r < ranks; r++)
        EXPECT_EQ_INT(team.gathers[r], 2 * STEPS);
    team_free(&team);
    team_free(&one);
    batch_free(&batch);
}

TEST(processes_share_a_batch)
{
    static const Layout layouts[] = {
        { 32, 5, 3, 16 }, { 24, 4, 4, 8 }, { 20, 3, 5, 20 }, { 5, 6, 6, 1 }, { 48, 1, 1, 16 },
        { 7, 3, 3, 7 },
    };
    bool cuda = strcmp(device_backend, "cuda") == 0;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        for (int ranks = 2; ranks <= MAX_RANKS; ranks++)
            for (int variant = 0; variant < 4; variant++) {
                Layout layout = layouts[i];
                layout.block = cuda ? layout.c : layout.block;
                check_shared(ranks, layout, variant & 1, variant & 2);
            }
}

// Of one process there is nothing to gather, and the bits are those of a process that never heard
// of others.
TEST(alone_is_as_ever)
{
    Batch batch = batch_new((Layout){ 32, 5, 3, 32 }, 6);
    Team never = { .size = 1, .spec = { batch.shape, true, true }, .batch = &batch };
    Team alone = never;
    alone.shared = true;
    team_run(&never);
    team_run(&alone);
    const Result *a = &never.result[0], *b = &alone.result[0];
    size_t bytes = shape_count(batch.shape) * sizeof(float);
    EXPECT_EQ_INT(alone.gathers[0], 0);
    EXPECT(memcmp(a->y, b->y, bytes) == 0, "other bits");
    EXPECT(memcmp(a->dx, b->dx, bytes) == 0, "other bits");
    EXPECT(memcmp(a->vectors, b->vectors, VECTORS * 32 * sizeof(float)) == 0, "other bits");
    team_free(&alone);
    team_free(&never);
    batch_free(&batch);
}

int main(void)
{
    if (strcmp(device_backend, "cuda") == 0 && device_count() == 0)
        TEST_SKIP("no GPU here");
    processes_share_a_batch();
    alone_is_as_ever();
    return test_done();
}
