// eval_result.c - counts an evaluation's verdicts; prints and writes what the options ask for.
#include "eval_result.h"
#include "output.h"
#include "progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void result_options(Args *args, ResultConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "per-class", 0, ARG_FLAG, &config->per_class, NULL, "also print each class's accuracy" },
        { "predictions", 0, ARG_STRING, &config->predictions, "FILE",
          "write the predictions of the last evaluation (CSV)" }));
}

// --- counting ------------------------------------------------------------------------------------

void result_init(Result *r, const Data *data, bool verdicts)
{
    *r = (Result){ .data = data, .counted = COUNTS * (size_t)data->test.classes + TOTALS };
    r->counts = xcalloc(r->counted, sizeof *r->counts);
    if (verdicts)
        r->verdicts = xcalloc((size_t)data->test.count * data->test.per_row, sizeof *r->verdicts);
}

void result_free(Result *r)
{
    free(r->verdicts);
    free(r->counts);
}

static int64_t *totals(const Result *r) { return r->counts + r->counted - TOTALS; }

void result_count(Result *r, const Verdict *verdicts, size_t count)
{
    memset(r->counts, 0, r->counted * sizeof *r->counts);
    for (const Verdict *v = verdicts; v < verdicts + count; v++) {
        if (v->label < 0)
            continue;
        int64_t *of_class = r->counts + COUNTS * v->label, *all = totals(r);
        double loss = isfinite(v->loss) ? fmin(v->loss, 0x1p30) : 0, whole = floor(loss);
        all[LOSS] += (int64_t)whole;
        all[FRACTION] += (int64_t)rint(ldexp(loss - whole, 32));
        all[NOT_FINITE] += !isfinite(v->loss);
        of_class[IMAGES]++;
        of_class[TOP1] += v->before < 1;
        of_class[TOP5] += v->before < 5;
    }
}

Stats result_stats(const Result *r)
{
    const int64_t *all = totals(r);
    Stats stats = { .loss_sum = (double)all[LOSS] + ldexp((double)all[FRACTION], -32),
                    .not_finite = all[NOT_FINITE] };
    for (const int64_t *of_class = r->counts; of_class < all; of_class += COUNTS) {
        stats.count += of_class[IMAGES];
        stats.correct1 += of_class[TOP1];
        stats.correct5 += of_class[TOP5];
    }
    return stats;
}

// --- printing and writing ------------------------------------------------------------------------

// The name of a class, "cat", or its number as text, "3", if the data have no names.
static const char *class_name(const Result *r, int label, char number[16])
{
    const char *name = data_class_name(r->data, label);
    snprintf(number, 16, "%d", label);
    return name ? name : number;
}

static void print_class(const Result *r, int label, Log *log)
{
    const int64_t *counts = r->counts + COUNTS * label;
    long long n = counts[IMAGES], top1 = counts[TOP1], top5 = counts[TOP5];
    char number[16];
    const char *name = class_name(r, label, number);
    if (n == 0)
        log_say(log, "   == %-11s no %s", name, r->data->unit);
    else
        log_say(log, "   == %-11s top1: %7.3f%% | top5: %7.3f%% | %lld %s", name,
                100.0 * (double)top1 / (double)n, 100.0 * (double)top5 / (double)n, n,
                r->data->unit);
    log_event(log, "class", json_pack("{s:i, s:I, s:I, s:I}", "class", label, "n", n,
                                      "correct1", top1, "correct5", top5));
}

//   index,label,prediction,class,predicted        (and ,file for a folder of pictures)
//   0,3,5,cat,dog
static void print_predictions(const Result *r, FILE *out)
{
    const Data *data = r->data;
    char file[1024] = "", own[16], other[16];
    fprintf(out, "index,label,prediction,class,predicted%s\n", data->test.pictures ? ",file" : "");
    for (int i = 0; i < data->test.count * data->test.per_row; i++) {
        const Verdict *v = &r->verdicts[i];
        if (data->test.pictures)
            picture_file(&data->test, i, file, sizeof file);
        fprintf(out, "%d,%d,%d,%s,%s%s%s\n", i, v->label, v->prediction,
                class_name(r, v->label, own), class_name(r, v->prediction, other),
                data->test.pictures ? "," : "", file);
    }
}

static void write_predictions(const Result *r, const char *path)
{
    Error error;
    PROGRESS_WRITING(path);
    FILE *out = replace_open(path, &error);
    if (!out)
        FAIL_ERROR(&error);
    print_predictions(r, out);
    if (!replace_commit(out, path, &error))
        FAIL_ERROR(&error);
}

void result_print(const Result *r, const ResultConfig *config, Log *log)
{
    for (int label = 0; config->per_class && label < r->data->test.classes; label++)
        print_class(r, label, log);
    if (config->predictions)
        write_predictions(r, config->predictions);
}
