// eval_result.h - the result of an evaluation: counts, a line for each class, and files.
#pragma once
#include "args.h"
#include "data.h"
#include "log.h"
#include "ops.h"

typedef struct ResultConfig {
    bool per_class;
    const char *confusion, *predictions;    // files, or NULL
} ResultConfig;
void result_options(Args *args, ResultConfig *config);
// Can the files be written?
bool result_probe(const ResultConfig *config, Error *err);

typedef struct Result {
    const Data *data;
    float tie;              // below this margin, rounding decides the prediction
    Stats stats;
    size_t counted;         // length of counts, which contains the next three; sums over images
    int64_t *counts;
    int64_t *ties;          // (1)
    int64_t *top5;          // (classes) images whose label is among the first five
    int64_t *confusion;     // (classes, classes) label, prediction
    Verdict *verdicts;      // (test images) in their order, or NULL
} Result;

// type: the type that the network computes in. verdicts: allocates one per image; the caller fills
// them.
void result_init(Result *result, const Data *data, Type type, bool verdicts);
void result_free(Result *result);
void result_clear(Result *result);

// Adds the verdict, if its row counts. The loss is first rounded to a multiple of 2^-32: sums of
// such numbers are exact in a double (up to 2 million), so they do not depend on the order.
void result_count(Result *result, const Verdict *verdict);

// Logs the lines and writes the files that the options ask for. A file appears complete or not at
// all. Fails if one cannot be written.
void result_tell(const Result *result, const ResultConfig *config, Log *log);
// At the end of a run: names the files that were not written because no evaluation took place.
void result_end(const Result *result, const ResultConfig *config, Log *log);
