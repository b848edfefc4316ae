// loops_cpu.c - divides the loops of loops_cpu.h into ranges, and runs these in several threads.
#include "cpu/loops_cpu.h"

#include <omp.h>

// A loop over fewer elements runs in one thread: starting other threads would take longer.
enum { FEW = 4096 };

typedef struct Loop {
    union {
        CellsPart *cells;
        ColumnsPart *columns;
        ItemsPart *items;
        TotalsPart *totals;
    } part;
    union {
        ColumnsEnd *columns;
        TotalsEnd *totals;
    } end;
    Matrix m;               // a loop over rows or items has m.rows of them
    Stream *stream;
    bool team;
    _Alignas(16) char job[JOB_BYTES];
} Loop;

static void enqueue(Loop loop, void (*task)(void *arg), const void *job, size_t bytes)
{
    loop.team = loop.m.rows * loop.m.columns >= FEW && stream_has_team(loop.stream);
    memcpy(loop.job, job, bytes);
    stream_enqueue(loop.stream, task, &loop, sizeof loop);
}

// A thread's share of `count` is from share(count, thread) to share(count, thread + 1) - 1.
static size_t share(size_t count, int thread) { return count * thread / omp_get_num_threads(); }

static void cells_task(void *arg)
{
    const Loop *loop = arg;
    const Matrix *m = &loop->m;
    size_t packs = m->rows * packs_of(m->columns);
#pragma omp parallel if (loop->team)
    {
        int me = omp_get_thread_num();
        loop->part.cells(loop->job, m, share(packs, me), share(packs, me + 1));
    }
}

void cells_run(Stream *stream, CellsPart *part, Matrix m, const void *job, size_t bytes)
{
    enqueue((Loop){ .part.cells = part, .m = m, .stream = stream }, cells_task, job, bytes);
}

static void items_task(void *arg)
{
    const Loop *loop = arg;
#pragma omp parallel if (loop->team)
    {
        int me = omp_get_thread_num();
        loop->part.items(loop->job, share(loop->m.rows, me), share(loop->m.rows, me + 1));
    }
}

void rows_run(Stream *stream, ItemsPart *part, Matrix m, const void *job, size_t bytes)
{
    enqueue((Loop){ .part.items = part, .m = m, .stream = stream }, items_task, job, bytes);
}

void items_run(Stream *stream, ItemsPart *part, size_t count, const void *job, size_t bytes)
{
    rows_run(stream, part, matrix_of(TYPE_F32, count, 1), job, bytes);
}

// --- sums: the same bits with any number of threads ----------------------------------------------

enum { MOST_PIECES = 64 };

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void columns_task(void *arg)
{
    const Loop *loop = arg;
    const Matrix *m = &loop->m;
    size_t pieces = least((m->rows + SHORT - 1) / SHORT, MOST_PIECES), width = 2 * m->columns;
    double *totals = stream_scratch(loop->stream, pieces * width * sizeof *totals);
    memset(totals, 0, pieces * width * sizeof *totals);
#pragma omp parallel for schedule(static) if (loop->team)
    for (size_t p = 0; p < pieces; p++)
        loop->part.columns(loop->job, m, m->rows * p / pieces, m->rows * (p + 1) / pieces,
                           totals + p * width);
    for (size_t p = 1; p < pieces; p++)
        for (size_t i = 0; i < width; i++)
            totals[i] += totals[p * width + i];
    loop->end.columns(loop->job, m->columns, totals);
}

void columns_run(Stream *stream, ColumnsPart *part, ColumnsEnd *end, Matrix m, const void *job,
                 size_t bytes)
{
    enqueue((Loop){ .part.columns = part, .end.columns = end, .m = m, .stream = stream },
            columns_task, job, bytes);
}

static void totals_task(void *arg)
{
    const Loop *loop = arg;
    size_t count = loop->m.rows, pieces = least(count, MOST_PIECES);
    double parts[MOST_PIECES][MOST_TOTALS] = { { 0 } }, totals[MOST_TOTALS] = { 0 };
#pragma omp parallel for schedule(static) if (loop->team)
    for (size_t p = 0; p < pieces; p++)
        loop->part.totals(loop->job, count * p / pieces, count * (p + 1) / pieces, parts[p]);
    for (size_t p = 0; p < pieces; p++)
        for (int s = 0; s < MOST_TOTALS; s++)
            totals[s] += parts[p][s];
    loop->end.totals(loop->job, totals);
}

void totals_run(Stream *stream, TotalsPart *part, TotalsEnd *end, Matrix m, const void *job,
                size_t bytes)
{
    enqueue((Loop){ .part.totals = part, .end.totals = end, .m = m, .stream = stream },
            totals_task, job, bytes);
}
