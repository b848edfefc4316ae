// eval_result.h - the counts of an evaluation, each class's accuracy, and all predictions.
#pragma once
#include "args.h"
#include "data.h"
#include "log.h"
#include "ops.h"

typedef struct ResultConfig {
    bool per_class;
    const char *predictions;    // the file to write, or NULL
} ResultConfig;
void result_options(Args *args, ResultConfig *config);

// All counts are integers, so that their sum over ranks does not depend on the order. A loss counts
// as at most 2^30, rounded to a multiple of 2^-32; whole parts and fractions are summed separately.
enum { IMAGES, TOP1, TOP5, COUNTS };                    // counts of each class
enum { LOSS, FRACTION, NOT_FINITE, TOTALS };            // sums over all classes
typedef struct Result {
    const Data *data;
    int64_t *counts;        // (classes, COUNTS), then (TOTALS)
    size_t counted;         // length of counts
    Verdict *verdicts;      // one per test label, in the same order; or NULL
} Result;

// If `verdicts`, allocates one per label, for the caller to fill.
void result_init(Result *result, const Data *data, bool verdicts);
void result_free(Result *result);
// Sets the counts to those of these verdicts. Padding, with a negative label, does not count.
void result_count(Result *result, const Verdict *verdicts, size_t count);
// Returns the sums of the counts over all classes.
Stats result_stats(const Result *result);
// Logs a line for each class and writes the file of predictions, if the options ask for them. The
// file appears complete or not at all. Fails if it cannot be written.
void result_print(const Result *result, const ResultConfig *config, Log *log);
