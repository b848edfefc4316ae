// eval_result.h - the result of an evaluation: sums, each class's accuracy, and all predictions.
#pragma once
#include "args.h"
#include "data.h"
#include "log.h"
#include "ops.h"

typedef struct ResultConfig {
    bool per_class;
    const char *predictions;    // file, or NULL
} ResultConfig;
void result_options(Args *args, ResultConfig *config);
// With --predictions: claims its file, or fails (output_lock).
bool result_claim(const ResultConfig *config, Error *err);

typedef struct Result {
    const Data *data;
    Stats stats;
    int64_t *counts;        // (classes, 3): all, in the top 1, top 5; then one for result_count
    size_t counted;         // length of counts
    Verdict *verdicts;      // one per test label, in their order, or NULL
} Result;

// verdicts: allocates one per label; the caller fills them.
void result_init(Result *result, const Data *data, bool verdicts);
void result_free(Result *result);
void result_clear(Result *result);

// Adds a verdict, unless its label is negative. The loss is rounded to a multiple of 2^-32. The
// sum's whole part is in stats.loss_sum, its fraction in the last element of counts. Both are sums
// of integers, so they do not depend on the order.
void result_count(Result *result, const Verdict *verdict);
// Adds the losses' fractions to stats.loss_sum. Call it once, after the sum over all processes.
void result_sum(Result *result);

// Logs a line for each class and writes the file of predictions, if the options ask for them. The
// file appears complete or not at all. Fails if the file cannot be written.
void result_print(const Result *result, const ResultConfig *config, Log *log);
// At the end of a run: names the file if it was not written because no evaluation took place.
void result_end(const Result *result, const ResultConfig *config, Log *log);
