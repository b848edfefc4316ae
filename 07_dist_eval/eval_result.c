// eval_result.c - counts an evaluation's verdicts; prints and writes what the options ask for.
#include "eval_result.h"
#include "output.h"
#include "alive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void result_options(Args *args, ResultConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "per-class", 0, ARG_FLAG, &config->per_class, NULL, "also print each class's accuracy" },
        { "predictions", 0, ARG_STRING, &config->predictions, "FILE",
          "write the predictions of the last evaluation (CSV, for ./ddp plot)", .output = true }));
}

bool result_claim(const ResultConfig *config, Error *err)
{
    return !config->predictions || output_lock(config->predictions, OUTPUT_TABLE, err);
}

// --- counting ------------------------------------------------------------------------------------

enum { IMAGES, TOP1, TOP5, COUNTS };    // of each class

void result_init(Result *r, const Data *data, bool verdicts)
{
    *r = (Result){ .data = data, .counted = COUNTS * (size_t)data->test.classes + 1 };
    r->counts = xcalloc(r->counted, sizeof *r->counts);
    if (verdicts)
        r->verdicts = xcalloc((size_t)data->test.count * data->test.per_row, sizeof *r->verdicts);
}

void result_free(Result *r)
{
    free(r->verdicts);
    free(r->counts);
}

void result_clear(Result *r)
{
    r->stats = (Stats){ 0 };
    memset(r->counts, 0, r->counted * sizeof *r->counts);
}

void result_count(Result *r, const Verdict *v)
{
    if (v->label < 0)
        return;
    double loss = isfinite(v->loss) ? v->loss : 0, whole = floor(loss);
    int64_t *fraction = &r->counts[r->counted - 1];
    *fraction += (int64_t)rint(ldexp(loss - whole, 32));
    r->stats.loss_sum += whole + (double)(*fraction >> 32);
    *fraction &= 0xffffffff;
    r->stats.not_finite += !isfinite(v->loss);
    r->stats.count++;
    r->stats.correct1 += v->before < 1;
    r->stats.correct5 += v->before < 5;
    int64_t *counts = r->counts + COUNTS * v->label;
    counts[IMAGES]++;
    counts[TOP1] += v->before < 1;
    counts[TOP5] += v->before < 5;
}

void result_sum(Result *r) { r->stats.loss_sum += ldexp((double)r->counts[r->counted - 1], -32); }

// --- printing and writing ------------------------------------------------------------------------

// "cat", or "3" where classes have no names.
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

//   index,label,prediction,class,predicted
//   0,3,5,cat,dog                      then the file, if the data is a folder of pictures
static void print_predictions(const Result *r, FILE *out)
{
    const Data *data = r->data;
    char file[1024], own[16], other[16];
    fprintf(out, "index,label,prediction,class,predicted%s\n", data->test.pictures ? ",file" : "");
    for (int i = 0; i < data->test.count * data->test.per_row; i++) {
        const Verdict *v = &r->verdicts[i];
        if (v->label < 0)
            continue;       // a picture that was skipped
        fprintf(out, "%d,%d,%d,%s,%s", i, v->label, v->prediction, class_name(r, v->label, own),
                class_name(r, v->prediction, other));
        if (data->test.pictures) {
            picture_file(&data->test, i, file, sizeof file);
            fprintf(out, ",%s", file);
        }
        fprintf(out, "\n");
    }
}

static void write_predictions(const Result *r, const char *path)
{
    Error error;
    ALIVE_WRITING(path);
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

void result_end(const Result *r, const ResultConfig *config, Log *log)
{
    if (r->stats.count == 0 && config->predictions)
        log_say(log, "   == not written: %s, since the run ended before its first test",
                config->predictions);
}
