// log.c - the lines of a run, and the JSON lines of --metrics.
#include "log.h"
#include "progress.h"
#include "check.h"
#include "clock.h"
#include "trace.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

struct Log {
    LogConfig config;
    int lost;               // errno, if a line could not be written to stdout
    const char *unit;       // what a label belongs to: "images" or "bytes"
    int per_sample;         // units in a sample
    char *path;             // the path of the metrics' file, or NULL
    FILE *metrics;          // the open file, or NULL
    double reported;        // time (s) when the latest "step" event was written, or the epoch began
    int64_t unreported;     // samples since `reported`
    struct {                // the current epoch; between two epochs, the last one
        int64_t number;
        int of;             // number of epochs in the run
        double started;     // time (s) when the epoch's clock started
        double seconds;     // from `started` until the clock stopped
        int64_t samples;    // samples trained since `started`
        double wait_ms;     // spent waiting for data since `started`
        double lr;          // the learning rate of the latest log_step
    } epoch;
};

void log_options(Args *args, LogConfig *config)
{
    *config = (LogConfig){ .print_freq = 50 };
    args_add(args, ARGS_ROWS(
        { "print-freq", 'p', ARG_INT, &config->print_freq, "N", "steps between two printed lines",
          .min = 1, .max = 1e9 },
        { "metrics", 0, ARG_STRING, &config->metrics, "FILE",
          "write losses and results as JSON lines (%r in FILE becomes the rank; without it only "
          "rank 0 writes)", .local = true },
        { "trace", 0, ARG_STRING, &config->trace, "FILE",
          "write a timeline for https://ui.perfetto.dev",
          .local = true, .first = true }));
}

// Returns NULL if this rank writes no metrics. The caller frees the path.
static char *metrics_path(const LogConfig *config)
{
    const char *place = config->metrics ? strstr(config->metrics, "%r") : NULL;
    char *path = NULL;
    if (config->metrics == NULL || (place == NULL && own_rank() != 0))
        return NULL;
    if (place == NULL)
        return xstrdup(config->metrics);
    CHECK(asprintf(&path, "%.*s%d%s", (int)(place - config->metrics), config->metrics, own_rank(),
                   place + 2) >= 0, "", "out of memory: no room for the path of --metrics");
    return path;
}

Log *log_new(const LogConfig *config, bool append)
{
    Log *log = xcalloc(1, sizeof *log);
    *log = (Log){ .config = *config, .unit = "images", .per_sample = 1,
                  .path = metrics_path(config), .reported = clock_now() };
    if (log->path) {
        PROGRESS_DOING("opening", log->path);
        log->metrics = fopen(log->path, append ? "ae" : "we");
        CHECK(log->metrics, "give --metrics a file in a directory that exists and is writable",
              "cannot open %s: %s", log->path, strerror(errno));
    }
    return log;
}

void log_free(Log *log)
{
    if (log->metrics)
        fclose(log->metrics);
    free(log->path);
    free(log);
}

void log_unit(Log *log, const char *unit, int per_sample)
{
    log->unit = unit;
    log->per_sample = per_sample;
}

bool log_wants(const Log *log, int64_t step, int64_t steps)
{
    return step % log->config.print_freq == 0 || step == steps;
}

static double mean_loss(const Stats *s)
{
    return s->not_finite > 0 ? NAN : s->loss_sum / (double)s->count;
}
static double percent(int64_t part, int64_t whole) { return whole ? 100.0 * part / whole : 0; }

// "loss: 1.959 | acc: 28.633% | rank 0 | norm: 2.314 | scale: 65536 | skipped: 2"
static void numbers_text(const LogStep *s, char *out, size_t size)
{
    char norm[32] = "", scale[40] = "", skipped[40] = "";
    double loss = mean_loss(&s->stats);
    if (s->norm != 0)           // fabs: printf may give a NaN a sign
        snprintf(norm, sizeof norm, " | norm: %.4g", fabs(s->norm));
    if (s->loss_scale != 0)
        snprintf(scale, sizeof scale, " | scale: %.10g", s->loss_scale);
    if (s->loss_scale != 0 && s->skipped > 0)
        snprintf(skipped, sizeof skipped, " | skipped: %lld", (long long)s->skipped);
    snprintf(out, size, fabs(loss) < 1e6 ? "loss: %.3f | acc: %6.3f%%%s%s%s%s"
                                         : "loss: %.3g | acc: %6.3f%%%s%s%s%s", loss,
             percent(s->stats.correct1, s->stats.count),
             rank_count() > 1 && !s->all_ranks ? " | rank 0" : "", norm, scale, skipped);
}

void log_progress_begin(Log *log, int64_t epoch, int epochs)
{
    trace_begin("epoch");
    log->reported = log->epoch.started = clock_now();
    log->epoch.number = epoch;
    log->epoch.of = epochs;
    log->epoch.samples = 0;
    log->epoch.wait_ms = 0;
}

void log_progress(Log *log, int64_t step, int batch)
{
    log->unreported += (int64_t)batch * rank_count();
    log->epoch.samples += (int64_t)batch * rank_count();
    progress_step(log->epoch.number, step);
}

void log_progress_end(Log *log)
{
    log->epoch.seconds = clock_now() - log->epoch.started;
    trace_end();
}

void log_say(Log *log, const char *format, ...)
{
    va_list args;
    if (own_rank() > 0)
        return;
    PROGRESS_WRITING("to stdout");     // the reader of a pipe may have paused
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    if (fflush(stdout) != 0 && errno != EPIPE)  // EPIPE: the reader (| head) has ended
        log->lost = errno;
}

json_t *log_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

void log_event(Log *log, const char *event, json_t *members)
{
    enum { FLAGS = JSON_COMPACT | JSON_REAL_PRECISION(9) };
    json_t *line = json_pack("{s:s}", "event", event);
    CHECK(members && json_object_update_missing(line, members) == 0,
          "use only UTF-8 in names, for example in the host's name",
          "cannot write the event \"%s\" as JSON: out of memory, or a name is not UTF-8", event);
    json_decref(members);
    if (log->metrics && !ferror(log->metrics)) {    // an error was reported when it happened
        json_dumpf(line, log->metrics, FLAGS);
        fputc('\n', log->metrics);
        PROGRESS_WRITING(log->path);
        if (fflush(log->metrics) != 0)
            WARN("", "cannot write %s: %s; training continues without more metrics", log->path,
                 strerror(errno));
    }
    json_decref(line);
}

static void step_event(Log *log, const LogStep *s)
{
    const Stats *stats = &s->stats;
    bool scaled = s->loss_scale != 0;
    double now = clock_now();
    log_event(log, "step", json_pack(
        "{s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o*, s:o*, s:o*, s:o*}",
        "epoch", (json_int_t)s->epoch, "step", s->step, "steps", s->steps,
        "loss", log_number(stats->batch_loss_sum / (double)stats->batch_count),
        "acc", log_number(percent(stats->batch_correct1, stats->batch_count)),
        "running_loss", log_number(mean_loss(stats)),
        "running_acc", log_number(percent(stats->correct1, stats->count)),
        "lr", log_number(s->lr),
        "samples_per_s", log_number((double)log->unreported / (now - log->reported)),
        "data_wait_ms", log_number(s->data_wait_ms),
        "gradient_norm", s->norm != 0 ? log_number(s->norm) : NULL,
        "loss_scale", scaled ? log_number(s->loss_scale) : NULL,
        "skipped_steps", scaled ? json_integer(s->skipped) : NULL,
        "rank", rank_count() > 1 && !s->all_ranks ? json_integer(own_rank()) : NULL));
    log->unreported = 0;
    log->reported = now;
}

void log_step(Log *log, const LogStep *s)
{
    char numbers[192];
    numbers_text(s, numbers, sizeof numbers);
    log->epoch.wait_ms += s->data_wait_ms;
    log->epoch.lr = s->lr;
    log_say(log, "   == step: [%3lld/%lld] [%d/%d] | %s", (long long)s->step, (long long)s->steps,
            s->epoch, s->epochs, numbers);
    step_event(log, s);
}

static json_t *test_members(const Stats *test)
{
    return json_pack("{s:o, s:o, s:o, s:I}", "test_loss", log_number(mean_loss(test)),
                     "top1", log_number(percent(test->correct1, test->count)),
                     "top5", log_number(percent(test->correct5, test->count)), "n", test->count);
}

void log_epoch(Log *log, int64_t epoch, const Stats *train, const Stats *test)
{
    double seconds = log->epoch.seconds;
    if (log->epoch.samples > 0)         // else a resumed run had only the evaluation left
        log_say(log, "   == epoch: [%lld/%d] | %.1f s | %.0f %s/s | data wait %.1f s | lr %.4g",
                (long long)epoch, log->epoch.of, seconds,
                (double)log->epoch.samples * log->per_sample / seconds, log->unit,
                log->epoch.wait_ms / 1000, log->epoch.lr);
    json_t *members = json_pack("{s:I, s:o, s:o}", "epoch", epoch,
                                "train_loss", log_number(mean_loss(train)),
                                "train_acc", log_number(percent(train->correct1, train->count)));
    json_t *tested = test_members(test);
    if (test->count > 0)                // otherwise, this rank did not evaluate
        json_object_update(members, tested);
    json_decref(tested);
    json_object_set_new(members, "seconds", log_number(seconds));
    log_event(log, "epoch", members);
}

void log_test(Log *log, const Stats *test, bool only)
{
    log_say(log, "   == test: loss: %.3f | top1: %6.3f%% | top5: %6.3f%% | %lld %s",
            mean_loss(test), percent(test->correct1, test->count),
            percent(test->correct5, test->count), (long long)test->count, log->unit);
    if (only)
        log_event(log, "eval", test_members(test));
}

void log_config(Log *log, const Args *args, const char *device, json_t *more)
{
    char date[32];
    struct utsname machine = { 0 };
    time_t now = time(NULL);
    struct tm utc;
    uname(&machine);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *members = json_pack("{s:o?, s:s, s:s, s:s, s:I, s:s, s:o}",
                                "program", json_string(args->program), // null if it is not UTF-8
                                "revision", DDP_GIT_REVISION, "time", date,
                                "host", machine.nodename, "cores", sysconf(_SC_NPROCESSORS_ONLN),
                                "device", device, "options", args_json(args));
    json_object_update(members, more);
    json_decref(more);
    log_event(log, "config", members);
}

void log_end(Log *log, uint64_t weight_hash, int threads)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)weight_hash);
    log_event(log, "end", json_pack("{s:s, s:i, s:f}", "weight_hash", hash, "threads", threads,
                                    "peak_rss_mb", (double)usage.ru_maxrss / 1024));
    log_say(log, "weight hash: %s", hash);
    CHECK(!log->lost, "", "cannot write to stdout: %s; some lines of the output are missing",
          strerror(log->lost));
}
