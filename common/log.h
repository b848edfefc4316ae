// log.h - what a run says: lines or a progress bar for people, JSON lines for programs.
#pragma once
#include "args.h"
#include "stats.h"

typedef struct LogConfig {
    int print_freq;         // steps between two lines
    const char *metrics;    // file for JSON lines, or NULL
    const char *trace;      // file for the timeline, or NULL
    int usage_ms;           // between two samples of what the process uses; 0: none
    // Of several processes that compute together rank 0 speaks. The others have no lines, no bar,
    // and metrics only where the file's name holds "%r": there each rank, 0 too, puts its number.
    int rank, ranks;
    const char *whose;      // whose numbers a step's are ("rank 0"), where that is a question
} LogConfig;
LogConfig log_defaults(void);
// For one of several processes. whose: the losses that are printed; rates are everybody's.
void log_among(LogConfig *config, int rank, int ranks, const char *whose);
void log_options(Args *args, LogConfig *config);

typedef struct Log Log;
// append: a resumed run goes on in the same file. Fails if the metrics file cannot be opened.
Log *log_new(const LogConfig *config, bool append);
void log_free(Log *log);
// Are numbers due after this step (from 1)? Every print_freq steps and at the last; on a terminal
// once a second too, so that the bar shows what is going on (but for one of several processes: they
// look at the device at the same steps).
bool log_wants(const Log *log, int64_t step, int64_t steps);

// Messages of the run, above the progress bar if there is one.
void log_say(Log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Progress of an epoch. On a terminal a bar that is redrawn in place, at most ten times a second,
// with rate and time left; else nothing. Call it after every step, it is cheap (and a sign of life,
// see alive.h); and, with a batch of 0, before the first, which starts the clock.
void log_progress(Log *log, int epoch, int epochs, int64_t step, int64_t steps, int batch);
// The bar stays on the screen as it is, and what follows stands below it. Happens by itself after
// the last step of an epoch; call it when an epoch is broken off.
void log_progress_end(Log *log);
// The numbers of a printed step: in the bar, or as the articles' line below; and, every print_freq
// steps and at the last, as a "step" event.
//    == step: [ 50/196] [1/5] | loss: 1.959 | acc: 28.633% | rank 0
//    == step: [ 50/196] [1/5] | loss: 1.959 | acc: 28.633% | rank 0 | norm: 2.314 | scale: 65536
typedef struct LogStep {
    int epoch, epochs;          // from 1
    int64_t step, steps;        // from 1, in this epoch
    bool final;                 // of the run: told in any case
    double lr, data_wait_ms;
    Stats stats;                // of the epoch so far, and of the last batch
    // Mixed precision's, of the last step; 0: not told.
    double norm;                // of the gradients, before they were clipped
    double loss_scale;          // with it, how many steps were left out since the run began:
    int64_t skipped;
} LogStep;
void log_step(Log *log, const LogStep *step);
// A loss or a gradient was not finite: says so, where it is this process's loss or nobody else says
// it, and exits.
_Noreturn void log_diverged(const Log *log, const Stats *stats, int64_t epoch, int64_t step);
// Gradients are not finite with a loss scale that is fixed, or stay so though it has become this
// small: rank 0 says so, and all exit.
_Noreturn void log_scale_failed(const Log *log, double scale, bool fixed, int64_t epoch,
                                int64_t step);

// The end of an epoch: what training gave and the test said, as an "epoch" event.
void log_epoch(Log *log, int64_t epoch, const Stats *train, const Stats *test, double seconds);
// A test's result, as a line; and, where it is all that the run does, as an "eval" event.
void log_test(Log *log, const Stats *test, bool only);
// The last words: the fingerprint of the weights, as a line; and, with what it took, the "end"
// event.
void log_end(Log *log, uint64_t weight_hash, int threads);

// One JSON object on its own line, with "event" first: log_event(log, "eval", "\"top1\":%.4f",
// 65.0). A number that is not finite must be written with log_number. Written at
// once. Where it cannot be (a full disk), that is said, the file ends there, and training goes on.
void log_event(Log *log, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// The number as JSON: null if it is not finite. Returns out.
enum { LOG_NUMBER = 32 };
const char *log_number(double value, char out[LOG_NUMBER]);
// The "config" event: program, git revision, machine, device, time, and every option, as members of
// "options". extra_json (or NULL): more members, "\"train\":50000,\"test\":10000".
void log_config(Log *log, const Args *args, const char *device, const char *extra_json);
