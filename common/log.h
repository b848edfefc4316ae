// log.h - a run's output: lines for people, JSON lines for programs.
#pragma once
#include "args.h"
#include "stats.h"
#include <jansson.h>

typedef struct LogConfig {
    int print_freq;         // steps between two printed lines
    const char *metrics;    // file for JSON lines, or NULL
    const char *trace;      // file for the timeline, or NULL
} LogConfig;
// Sets the defaults and adds the options.
void log_options(Args *args, LogConfig *config);

typedef struct Log Log;
// Of several ranks (check_set_rank) only rank 0 prints. The rates are rank 0's own rates times the
// number of ranks. The other ranks write metrics only if the file's name contains "%r", which each
// rank replaces with its number. append: a resumed run continues the same file.
Log *log_new(const LogConfig *config, bool append);
void log_free(Log *log);
// Are numbers due after this step (from 1)? They are due every print_freq steps, and at the epoch's
// last step.
bool log_wants(const Log *log, int64_t step, int64_t steps);

// Sets the unit of printed rates and of a test's count, and how many of these units a sample has.
// By default a sample is one image.
void log_unit(Log *log, const char *unit, int per_sample);

// Prints a line, on rank 0 only.
void log_say(Log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));

// The training of one epoch, number `epoch` (from 1) of `epochs`. log_progress_begin starts the
// epoch's clock and its span in the timeline; log_progress_end stops both. Call log_progress after
// every step, with the number of samples in its batch; log_progress also calls progress_step.
void log_progress_begin(Log *log, int64_t epoch, int epochs);
void log_progress(Log *log, int64_t step, int batch);
void log_progress_end(Log *log);
// Prints the numbers of a step, and writes them as a "step" event:
//    == step: [ 50/196] [1/5] | loss: 1.959 | acc: 28.633% | rank 0
//    == step: [ 50/196] [1/5] | loss: 1.959 | acc: 28.633% | rank 0 | norm: 2.314 | scale: 65536
typedef struct LogStep {
    int epoch, epochs;          // the epoch's number, from 1; how many epochs the run has
    int64_t step, steps;        // the step's number in the epoch, from 1; how many the epoch has
    double lr, data_wait_ms;
    Stats stats;                // sums over the epoch so far, and over the last batch
    bool all_ranks;             // stats are sums over all ranks, not this rank's own
    double norm;                // norm of the gradients before clipping; 0: not printed
    double loss_scale;          // 0: loss_scale and skipped are not printed
    int64_t skipped;            // steps skipped since the run began; 0: not printed
} LogStep;
void log_step(Log *log, const LogStep *step);

// The end of an epoch: a line about its training (time, rate, rank 0's wait for data, and the last
// step's learning rate), and an "epoch" event with the results of training and test. There is no
// line if the epoch had no step left to train. On a rank that did not evaluate, the event has no
// test results.
//    == epoch: [1/5] | 62.3 s | 958 images/s | data wait 0.1 s | lr 0.01
void log_epoch(Log *log, int64_t epoch, const Stats *train, const Stats *test);
// Prints a test's result. If the run only evaluates (`only`), also writes it as an "eval" event.
void log_test(Log *log, const Stats *test, bool only);
// Ends a run: prints the hash of the weights, and writes an "end" event with hash, threads and
// memory. Fails if a line of the run could not be printed, except to a pipe whose reader had ended.
void log_end(Log *log, uint64_t weight_hash, int threads);

// Writes a JSON object on its own line: "event" first, then `members`, which this call frees:
// log_event(log, "eval", json_pack("{s:o}", "top1", log_number(65.0))). If writing fails (a full
// disk), prints a warning and writes no more events.
void log_event(Log *log, const char *event, json_t *members);
json_t *log_number(double value);       // JSON has no infinite numbers and no NaN: null for these
// The "config" event: program, git revision, machine, device, time, all options, and the members of
// `more`, which this call frees.
void log_config(Log *log, const Args *args, const char *device, json_t *more);
