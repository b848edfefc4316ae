// eval_result.c - counts predictions, prints the results of an evaluation and writes its files.
#include "eval_result.h"
#include "base/replace_file.h"
#include "data/pictures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void result_options(Args *args, ResultConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "per-class", 0, ARG_FLAG, &config->per_class, NULL, "print each class's accuracy, too" },
        { "confusion", 0, ARG_STRING, &config->confusion, "FILE",
          "write the last test's confusion matrix (CSV, for ./ddp plot)",
          .overwrites = true },
        { "predictions", 0, ARG_STRING, &config->predictions, "FILE",
          "write the last test's prediction for each image (CSV)", .overwrites = true }));
}

bool result_probe(const ResultConfig *config, Error *err)
{
    return (!config->confusion || replace_file_probe(config->confusion, err)) &&
           (!config->predictions || replace_file_probe(config->predictions, err));
}

// --- counting ------------------------------------------------------------------------------------

void result_init(Result *r, const Data *data, Type type, bool verdicts)
{
    size_t classes = (size_t)data->test.classes;
    *r = (Result){ .data = data, .tie = type == TYPE_F32 ? 1e-5f : 1e-2f };
    r->counted = 1 + classes + classes * classes;
    r->counts = r->ties = xcalloc(r->counted, sizeof *r->counts);
    r->top5 = r->ties + 1;
    r->confusion = r->top5 + classes;
    if (verdicts)
        r->verdicts = xcalloc((size_t)data->test.count, sizeof *r->verdicts);
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
    r->stats.loss_sum += isfinite(v->loss) ? ldexp(rint(ldexp(v->loss, 32)), -32) : 0;
    r->stats.not_finite += !isfinite(v->loss);
    r->stats.count++;
    r->stats.correct1 += v->before < 1;
    r->stats.correct5 += v->before < 5;
    *r->ties += v->margin < r->tie;
    r->top5[v->label] += v->before < 5;
    r->confusion[v->label * r->data->test.classes + v->prediction]++;
}

// --- printing and writing ------------------------------------------------------------------------

// "cat", or "3" where classes have no names.
static const char *class_name(const Result *r, int label, char number[16])
{
    const char *name = data_class_name(r->data, label);
    snprintf(number, 16, "%d", label);
    return name ? name : number;
}

static void tell_class(const Result *r, int label, Log *log)
{
    int classes = r->data->test.classes;
    int64_t top1 = r->confusion[label * classes + label], top5 = r->top5[label], n = 0;
    for (int i = 0; i < classes; i++)
        n += r->confusion[label * classes + i];
    double percent = 100.0 / (double)n;
    char number[16];
    const char *name = class_name(r, label, number);
    if (n == 0)
        log_say(log, "   == %-11s no image", name);
    else
        log_say(log, "   == %-11s top1: %7.3f%% | top5: %7.3f%% | %lld images", name,
                percent * (double)top1, percent * (double)top5, (long long)n);
    log_event(log, "class", "\"class\":%d,\"n\":%lld,\"correct1\":%lld,\"correct5\":%lld", label,
              (long long)n, (long long)top1, (long long)top5);
}

//   label,airplane,automobile,...
//   airplane,912,3,...                 predictions for the images of airplanes, by class
static void print_confusion(const Result *r, FILE *out)
{
    char number[16];
    int classes = r->data->test.classes;
    fprintf(out, "label");
    for (int i = 0; i < classes; i++)
        fprintf(out, ",%s", class_name(r, i, number));
    for (int label = 0; label < classes; label++) {
        fprintf(out, "\n%s", class_name(r, label, number));
        for (int i = 0; i < classes; i++)
            fprintf(out, ",%lld", (long long)r->confusion[label * classes + i]);
    }
    fprintf(out, "\n");
}

// For pictures, also the names of both classes, and the file.
static void print_predictions(const Result *r, FILE *out)
{
    const Data *data = r->data;
    fprintf(out, "index,label,prediction,margin%s\n", data->folder ? ",class,predicted,file" : "");
    for (int i = 0; i < data->test.count; i++) {
        const Verdict *v = &r->verdicts[i];
        fprintf(out, "%d,%d,%d,%.6g", i, v->label, v->prediction, (double)v->margin);
        if (data->folder) {
            char file[1024];
            picture_file(&data->test, i, file, sizeof file);
            fprintf(out, ",%s,%s,%s", data_class_name(data, v->label),
                    data_class_name(data, v->prediction), file);
        }
        fprintf(out, "\n");
    }
}

typedef struct Text {
    char *text;
    size_t bytes;
} Text;

static bool text_write(FileWriter *w, const void *arg)
{
    const Text *t = arg;
    return writer_add(w, t->text, t->bytes);
}

static void write_table(const Result *r, const char *path, void (*print)(const Result *, FILE *))
{
    Text t;
    Error error;
    FILE *out = open_memstream(&t.text, &t.bytes);
    CHECK(out, "", "out of memory");
    print(r, out);
    CHECK(fclose(out) == 0, "", "out of memory");
    if (!replace_file(path, text_write, &t, &error))
        FAIL_ERROR(&error);
    free(t.text);
}

void result_tell(const Result *r, const ResultConfig *config, Log *log)
{
    if (*r->ties > 0)
        log_say(log, "   == ties: %lld, where a different -b may round to a different prediction",
                (long long)*r->ties);
    for (int label = 0; config->per_class && label < r->data->test.classes; label++)
        tell_class(r, label, log);
    if (config->confusion)
        write_table(r, config->confusion, print_confusion);
    if (config->predictions)
        write_table(r, config->predictions, print_predictions);
}

void result_end(const Result *r, const ResultConfig *config, Log *log)
{
    const char *const files[] = { config->confusion, config->predictions };
    for (int i = 0; i < 2; i++)
        if (r->stats.count == 0 && files[i])
            log_say(log, "   == not written: %s, since the run ended before its first test",
                    files[i]);
}
