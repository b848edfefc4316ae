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

void late_report(const Comm *comm, const float *ms)
{
    const int steps = comm->late.steps < LATE_STEPS ? comm->late.steps : LATE_STEPS;
    int *times = xcalloc((size_t)comm->size, sizeof *times), most = 0;  // that a rank was last,
    double *by = xcalloc((size_t)comm->size, sizeof *by);               // and ms in all
    for (int step = 0; step < steps; step++) {
        int last = 0, first = 0;
        for (int rank = 0; rank < comm->size; rank++) {
            float wait = ms[rank * LATE_STEPS + step];
            last = wait < ms[last * LATE_STEPS + step] ? rank : last;
            first = wait > ms[first * LATE_STEPS + step] ? rank : first;
        }
        times[last]++;
        by[last] += ms[first * LATE_STEPS + step] - ms[last * LATE_STEPS + step];
    }
    for (int rank = 0; rank < comm->size; rank++)
        most = times[rank] > times[most] ? rank : most;
    double share = (double)times[most] / steps, mean = by[most] / times[most];
    double step_ms = 1e3 * (clock_now() - comm->late.first) / (comm->late.steps + 1);
    if (share > least_share && mean > least_ms && mean > least_of_step * step_ms)
        WARN("./ddp why shows which part is slow, from the files of --trace and --metrics",
             "the other ranks waited for rank %d in %.0f %% of the steps, %.3g ms of %.3g ms", most,
             100 * share, mean, step_ms);
    free(by);
    free(times);
}
