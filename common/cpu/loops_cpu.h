// loops_cpu.h - the loops of ops/loops.h in OpenMP. A part is a function that runs an operation
// over a range. A macro makes an operation's part, or one part for each type of number. loops_cpu.c
// divides the work into ranges and shares them among the threads.
#pragma once
#include "check.h"
#include "cpu/device_cpu.h"
#include "cpu/ops_cpu.h"
#include "ops/packs.h"

enum { JOB_BYTES = 256 };

// In a build for AVX2 each part is compiled twice, the second time with AVX-512, so that one build
// serves all x86 machines from AVX2 on. Both give the same bits, because a pack always has LANES
// numbers.
#if defined __AVX2__ && !defined __AVX512F__
#define WIDE(name) name##_wide
#define WIDE_PART(name, parameters, arguments)                                                  \
    __attribute__((target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl")))                      \
    static void name##_wide parameters { name##_code arguments; }
#else
#define WIDE(name) name
#define WIDE_PART(name, parameters, arguments)
#endif
#define PART(name, parameters, arguments)                                                       \
    INLINE void name##_code parameters;                                                         \
    static void name parameters { name##_code arguments; }                                      \
    WIDE_PART(name, parameters, arguments)                                                      \
    INLINE void name##_code parameters

#define OF_TYPES(PART, fn, Job) PART(fn, Job, F32) PART(fn, Job, BF16) PART(fn, Job, F16)
#define TABLE(fn, Part)                                                                         \
    static Part *const fn##_parts[2][3] = { { fn##_F32, fn##_BF16, fn##_F16 },                  \
                                            { WIDE(fn##_F32), WIDE(fn##_BF16), WIDE(fn##_F16) } };
#define TABLE_F32(fn, Part) \
    static Part *const fn##_parts[2][1] = { { fn##_F32 }, { WIDE(fn##_F32) } };
#define TABLE_ONE(fn, Part) static Part *const fn##_parts[2] = { fn##_part, WIDE(fn##_part) };
// Gives a part its own copy of the job, so that compilers know that stores do not change it.
#define COPY(Job, j, job)                                           \
    _Static_assert(sizeof(Job) <= JOB_BYTES, "the job is too large"); \
    const Job j = *(const Job *)(job);

static inline size_t packs_of(size_t columns) { return (columns + LANES - 1) / LANES; }

INLINE At at_of(size_t row, size_t column, size_t i, size_t count)
{
    At at = { row, column, i, (int)count };
    return at;
}

// --- cells ---------------------------------------------------------------------------------------

// Runs the operation on packs `first` to `last` - 1 of a matrix, counted in the order of their
// addresses.
typedef void CellsPart(const void *job, const Matrix *m, size_t first, size_t last);
void cells_run(Stream *stream, CellsPart *part, Matrix m, const void *job, size_t bytes);

// Row after row: the last pack of a row may be shorter.
#define CELLS_PART(fn, Job, TYPE)                                                               \
    PART(fn##_##TYPE, (const void *job, const Matrix *m, size_t first, size_t last),            \
         (job, m, first, last))                                                                 \
    {                                                                                           \
        COPY(Job, j, job)                                                                       \
        const size_t columns = m->columns, packs = packs_of(columns);                           \
        size_t row = first / packs, c = first % packs * LANES, left = last - first;             \
        for (size_t i = row * columns; left > 0; row++, i += columns, c = 0) {                  \
            for (; left > 0 && c + LANES <= columns; left--, c += LANES)                        \
                fn(&j, TYPE_##TYPE, at_of(row, c, i + c, LANES));                               \
            if (left > 0 && c < columns) {                                                      \
                fn(&j, TYPE_##TYPE, at_of(row, c, i + c, columns - c));                         \
                left--;                                                                         \
            }                                                                                   \
        }                                                                                       \
    }
#define CELLS(fn, Job) OF_TYPES(CELLS_PART, fn, Job) TABLE(fn, CellsPart)
#define CELLS_F32(fn, Job) CELLS_PART(fn, Job, F32) TABLE_F32(fn, CellsPart)
#define RUN_CELLS(fn, stream, matrix, job) \
    cells_run(stream, fn##_parts[loops_wide()][(matrix).type], matrix, job, sizeof *(job))

// --- columns -------------------------------------------------------------------------------------

enum { SHORT = 64 };        // rows summed in f32 before the sum is added to a double

// Adds two sums for each column, over the matrix's rows `first` to `last` - 1, to totals (2,
// columns). Works on SHORT rows at a time and, in these rows, on four packs side by side, whose
// additions need not wait for each other.
typedef void ColumnsPart(const void *job, const Matrix *m, size_t first, size_t last,
                         double *totals);
// Called once, with the sums of all columns.
typedef void ColumnsEnd(const void *job, size_t columns, const double *totals);
void columns_run(Stream *stream, ColumnsPart *part, ColumnsEnd *end, Matrix m, const void *job,
                 size_t bytes);

INLINE void totals_add(const Pack *sums, size_t count, double *totals, size_t columns)
{
    FOR_FEW(k, (int)count) {
        totals[k] += sums[0].v[k];
        totals[columns + k] += sums[1].v[k];
    }
}

// Adds up the rows `row` to `end` - 1 of neighbouring packs. The index of each pack is a constant,
// so that the sums stay in registers.
#define COLUMNS_PACK(fn, TYPE, p, count) \
    fn(&j, TYPE_##TYPE, at_of(r, c + p * LANES, i + p * LANES, count), sums + 2 * p);
#define COLUMNS_SUM(packs, count, PACKS)                                                        \
    {                                                                                           \
        Pack sums[2 * packs] = { { { 0 } } };                                                   \
        size_t i = row * m->columns + c;                                                        \
        for (size_t r = row; r < end; r++, i += m->columns) {                                   \
            PACKS                                                                               \
        }                                                                                       \
        for (size_t p = 0; p < packs; p++)                                                      \
            totals_add(sums + 2 * p, count, totals + c + p * LANES, m->columns);                \
    }
#define COLUMNS_PART(fn, Job, TYPE)                                                             \
    PART(fn##_##TYPE, (const void *job, const Matrix *m, size_t first, size_t last,             \
                       double *totals), (job, m, first, last, totals))                          \
    {                                                                                           \
        COPY(Job, j, job)                                                                       \
        for (size_t row = first, end; row < last; row = end) {                                  \
            size_t c = 0;                                                                       \
            end = last - row < SHORT ? last : row + SHORT;                                      \
            for (; c + 4 * LANES <= m->columns; c += 4 * LANES)                                 \
                COLUMNS_SUM(4, LANES,                                                           \
                            COLUMNS_PACK(fn, TYPE, 0, LANES) COLUMNS_PACK(fn, TYPE, 1, LANES)   \
                            COLUMNS_PACK(fn, TYPE, 2, LANES) COLUMNS_PACK(fn, TYPE, 3, LANES))  \
            for (; c + LANES <= m->columns; c += LANES)                                         \
                COLUMNS_SUM(1, LANES, COLUMNS_PACK(fn, TYPE, 0, LANES))                         \
            if (c < m->columns)                                                                 \
                COLUMNS_SUM(1, m->columns - c, COLUMNS_PACK(fn, TYPE, 0, m->columns - c))       \
        }                                                                                       \
    }
#define COLUMNS(fn, end, Job)                                                                   \
    OF_TYPES(COLUMNS_PART, fn, Job)                                                             \
    TABLE(fn, ColumnsPart)                                                                      \
    static void fn##_finish(const void *job, size_t columns, const double *totals)              \
    {                                                                                           \
        for (size_t c = 0; c < columns; c++)                                                    \
            end((const Job *)job, c, (const double[]){ totals[c], totals[columns + c] });       \
    }
#define RUN_COLUMNS(fn, stream, matrix, job) \
    columns_run(stream, fn##_parts[loops_wide()][(matrix).type], fn##_finish, matrix, job,      \
                sizeof *(job))

// --- rows: a team is one thread, with TEAM lanes -------------------------------------------------
//
//   float sum[TEAM] = { 0 };
//   FOR_ROW(i, k, count)           // i from 0 to count - 1, in lane k
//       sum[k] += value of i;
//   float total = team_sum(sum);
//
// A store outside of FOR_ROW needs `if (FIRST_OF_TEAM)`: on a GPU a team is a warp.

enum { TEAM = LANES };
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
#define FOR_ROW(i, k, count)                                                                    \
    for (int i##_ = 0; i##_ < (count); i##_ += TEAM)                                            \
        INDEPENDENT                                                                             \
        for (int k = 0, i = i##_; k < ((count) - i##_ < TEAM ? (count) - i##_ : TEAM); k++, i++)
// FOR_ROW in whole packs, for vector code. Lane k has number `first` + k, which may be beyond the
// row's end: the memory must have room for a whole pack, and the body must handle such numbers.
#define FOR_PACKS(first, k, count)                                                              \
    for (int first = 0; first < (count); first += TEAM)                                         \
        FOR_LANES(k)
#define FIRST_OF_TEAM true

// Combines the lanes in pairs, in the same order with all compilers.
#define TEAM_JOIN(name, number, together)                                                       \
    INLINE number name(number *lane)                                                            \
    {                                                                                           \
        for (int half = TEAM / 2; half > 0; half /= 2)                                          \
            for (int k = 0; k < half; k++)                                                      \
                lane[k] = together;                                                             \
        return lane[0];                                                                         \
    }
TEAM_JOIN(team_sum_float, float, lane[k] + lane[k + half])
TEAM_JOIN(team_sum_double, double, lane[k] + lane[k + half])
TEAM_JOIN(team_sum_int, int, lane[k] + lane[k + half])
TEAM_JOIN(team_max, float, lane[k + half] > lane[k] ? lane[k + half] : lane[k])
#define team_sum(lanes) \
    _Generic(*(lanes), float: team_sum_float, double: team_sum_double, int: team_sum_int)(lanes)

typedef void ItemsPart(const void *job, size_t first, size_t last);
void rows_run(Stream *stream, ItemsPart *part, Matrix m, const void *job, size_t bytes);

#define ROWS_PART(fn, Job, TYPE)                                                                \
    PART(fn##_##TYPE, (const void *job, size_t first, size_t last), (job, first, last))         \
    {                                                                                           \
        COPY(Job, j, job)                                                                       \
        for (size_t row = first; row < last; row++)                                             \
            fn(&j, TYPE_##TYPE, row);                                                           \
    }
#define ROWS(fn, Job) OF_TYPES(ROWS_PART, fn, Job) TABLE(fn, ItemsPart)
#define ROWS_F32(fn, Job) ROWS_PART(fn, Job, F32) TABLE_F32(fn, ItemsPart)
#define RUN_ROWS(fn, stream, matrix, job) \
    rows_run(stream, fn##_parts[loops_wide()][(matrix).type], matrix, job, sizeof *(job))

// --- items ---------------------------------------------------------------------------------------

void items_run(Stream *stream, ItemsPart *part, size_t count, const void *job, size_t bytes);

#define ITEMS(fn, Job)                                                                          \
    PART(fn##_part, (const void *job, size_t first, size_t last), (job, first, last))           \
    {                                                                                           \
        COPY(Job, j, job)                                                                       \
        for (size_t i = first; i < last; i++)                                                   \
            fn(&j, i);                                                                          \
    }                                                                                           \
    TABLE_ONE(fn, ItemsPart)
#define RUN_ITEMS(fn, stream, count, job) \
    items_run(stream, fn##_parts[loops_wide()], count, job, sizeof *(job))

// --- totals --------------------------------------------------------------------------------------

enum { MOST_TOTALS = 8 };

typedef void TotalsPart(const void *job, size_t first, size_t last, double *totals);
typedef void TotalsEnd(const void *job, const double *totals);
// Runs the part on ranges of m's rows. RUN_TOTALS gives m a row for each i.
void totals_run(Stream *stream, TotalsPart *part, TotalsEnd *end, Matrix m, const void *job,
                size_t bytes);

// Each lane has its own sums, so that the additions become vector code.
#define TOTALS(fn, end, Job, n)                                                                 \
    PART(fn##_part, (const void *job, size_t first, size_t last, double *totals),               \
         (job, first, last, totals))                                                            \
    {                                                                                           \
        COPY(Job, j, job)                                                                       \
        double lanes[n][LANES] = { { 0 } }, one[n];                                             \
        size_t i = first;                                                                       \
        for (; i + LANES <= last; i += LANES)                                                   \
            _Pragma("omp simd private(one)")                                                    \
            for (int k = 0; k < LANES; k++) {                                                   \
                fn(&j, i + k, one);                                                             \
                for (int s = 0; s < n; s++)                                                     \
                    lanes[s][k] += one[s];                                                      \
            }                                                                                   \
        for (int k = 0; i + k < last; k++) {                                                    \
            fn(&j, i + k, one);                                                                 \
            for (int s = 0; s < n; s++)                                                         \
                lanes[s][k] += one[s];                                                          \
        }                                                                                       \
        for (int s = 0; s < n; s++)                                                             \
            totals[s] += team_sum(lanes[s]);                                                    \
    }                                                                                           \
    TABLE_ONE(fn, TotalsPart)                                                                   \
    static void fn##_finish(const void *job, const double *totals)                              \
    {                                                                                           \
        end((const Job *)job, totals);                                                          \
    }
#define ROW_TOTALS(fn, end, Job, n)                                                             \
    PART(fn##_part, (const void *job, size_t first, size_t last, double *totals),               \
         (job, first, last, totals))                                                            \
    {                                                                                           \
        COPY(Job, j, job)                                                                       \
        double one[n];                                                                          \
        for (size_t row = first; row < last; row++) {                                           \
            fn(&j, row, one);                                                                   \
            for (int s = 0; s < n; s++)                                                         \
                totals[s] += one[s];                                                            \
        }                                                                                       \
    }                                                                                           \
    TABLE_ONE(fn, TotalsPart)                                                                   \
    static void fn##_finish(const void *job, const double *totals)                              \
    {                                                                                           \
        end((const Job *)job, totals);                                                          \
    }
#define RUN_TOTALS(fn, stream, count, job) \
    RUN_ROW_TOTALS(fn, stream, matrix_of(TYPE_F32, count, 1), job)
#define RUN_ROW_TOTALS(fn, stream, matrix, job) \
    totals_run(stream, fn##_parts[loops_wide()], fn##_finish, matrix, job, sizeof *(job))
