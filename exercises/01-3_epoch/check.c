// If SPY is set, prints each step that the learner's program reports, and each call of replay_run. Also
// prints a line if a key is used for batches of two sizes, or for full batches in two buffers. CTRL_C=N
// interrupts the program in step N.
#include "data.h"
#include "device.h"
#include "log.h"
#include "wrap.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

WRAPPED(log_step);
void __wrap_log_step(Log *log, const LogStep *step)
{
    if (getenv("SPY"))
        fprintf(stderr, "spy: epoch %d, step %d\n", step->epoch, (int)step->step);
    __real_log_step(log, step);
}

static const Batch *batch;

WRAPPED(loader_next);
const Batch *__wrap_loader_next(Loader *loader) { return batch = __real_loader_next(loader); }

WRAPPED(replay_run);
void __wrap_replay_run(Replay *replay, int key, void (*step)(void *), void *arg)
{
    static const void *inputs[LOADER_SLOTS + 1];
    static int rows[LOADER_SLOTS + 1];
    static int calls;
    const char *ctrl_c = getenv("CTRL_C");
    bool known = key >= 0 && key <= LOADER_SLOTS;
    if (getenv("SPY") && !known)
        fprintf(stderr, "key: %d is not from 0 to %d\n", key, LOADER_SLOTS);
    if (getenv("SPY") && known && inputs[key] &&
        (rows[key] != batch->rows || (batch->full && inputs[key] != batch->inputs)))
        fprintf(stderr, "key: a batch of %d images has the key of one of %d\n", batch->rows, rows[key]);
    if (known && batch) {
        inputs[key] = batch->inputs;
        rows[key] = batch->rows;
    }
    if (getenv("SPY"))
        fprintf(stderr, "replay:\n");
    if (++calls == (ctrl_c ? atoi(ctrl_c) : 0))
        raise(SIGINT);
    __real_replay_run(replay, key, step, arg);
}
