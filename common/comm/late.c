// late.c - the rank for which the others wait.
//
// An all-reduce ends on all ranks at about the same time. On the last rank to begin it is the
// shortest, and on the others it includes their wait. So this needs no common clock. With NCCL the
// host does not see how long a call takes, and nothing is reported.
#include "comm/backend.h"
#include "check.h"
#include "clock.h"

#include <stdlib.h>

// Below these, a verdict would be chance, or not worth a line.
static const double least_share = 2.0 / 3, least_ms = 2, least_of_step = 0.05;

// ms: (size, LATE_STEPS). Returns the rank that was last most often; times: in how many steps.
static int find_last(const float *ms, int size, int steps, int *times, double *by)
{
    int *count = xcalloc((size_t)size, sizeof *count), most = 0;
    double *sum = xcalloc((size_t)size, sizeof *sum);
    for (int step = 0; step < steps; step++) {
        int last = 0, first = 0;
        for (int rank = 0; rank < size; rank++) {
            float wait = ms[rank * LATE_STEPS + step];
            last = wait < ms[last * LATE_STEPS + step] ? rank : last;
            first = wait > ms[first * LATE_STEPS + step] ? rank : first;
        }
        count[last]++;
        sum[last] += ms[first * LATE_STEPS + step] - ms[last * LATE_STEPS + step];
    }
    for (int rank = 0; rank < size; rank++)
        most = count[rank] > count[most] ? rank : most;
    *times = count[most];
    *by = sum[most] / count[most];
    free(count);
    free(sum);
    return most;
}

void late_report(const Comm *comm, const float *ms)
{
    int steps = comm->late.steps < LATE_STEPS ? comm->late.steps : LATE_STEPS, times;
    double by, step_ms = 1e3 * (clock_now() - comm->late.first) / (comm->late.steps + 1);
    int last = find_last(ms, comm->size, steps, &times, &by);
    if (times > least_share * steps && by > least_ms && by > least_of_step * step_ms)
        WARN("./ddp why shows which part is slow, from the files of --trace and --metrics",
             "the other ranks waited for rank %d in %.0f %% of the steps, %.3g ms of %.3g ms", last,
             100.0 * times / steps, by, step_ms);
}
