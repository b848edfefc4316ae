// log.c - the progress line, the lines of a log, and the JSON lines of --metrics.
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
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

typedef struct ProgressLine {
    int64_t epoch;
    int epochs;
    int64_t step, steps;
    int64_t first_step;     // the step at which the clock started
    double started;         // when it did (s)
    double seconds;         // from then until the clock stopped
    int64_t samples;        // since then
    double wait_ms;         // since then, spent waiting for data
    double lr;              // of the latest log_step
    char numbers[192];      // of the latest log_step: "loss: 1.959 | acc: 28.633%"
    double drawn;           // when it was last drawn (s)
    bool shown;             // is on the screen, with the cursor at its end
} ProgressLine;

struct Log {
    LogConfig config;
    int rank, ranks;
    bool terminal;
    int lost;               // errno, if a line could not be written to stdout
    char *path;             // of the metrics, or NULL
    const char *unit;       // "images"
    int per_sample;         // units in a sample
    ProgressLine line;
    double stepped;         // s: log_step's last call, or the epoch's beginning
    double reported;        // when the last "step" event was written, or the epoch began (s)
    int64_t samples;        // samples since then
    double wait_ms;         // spent waiting for data since then
    FILE *metrics;          // or NULL
};

LogConfig log_defaults(void) { return (LogConfig){ .print_freq = 50 }; }

void log_options(Args *args, LogConfig *config)
{
    *config = log_defaults();
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

// NULL: this rank writes no metrics. The caller frees the path.
static char *metrics_path(const LogConfig *config)
{
    const char *place = config->metrics ? strstr(config->metrics, "%r") : NULL;
    char *path = NULL;
    if (config->metrics == NULL || (place == NULL && own_rank() != 0))
        return NULL;
    if (place == NULL)
        return xstrdup(config->metrics);
    CHECK(asprintf(&path, "%.*s%d%s", (int)(place - config->metrics), config->metrics, own_rank(),
                   place + 2) >= 0, "", "asprintf: %s", strerror(errno));
    return path;
}

Log *log_new(const LogConfig *config, bool append)
{
    Log *log = xcalloc(1, sizeof *log);
    const char *term = getenv("TERM");
    *log = (Log){ .config = *config, .rank = own_rank(), .ranks = rank_count(), .unit = "images",
                  .per_sample = 1 };
    log->terminal =
        log->rank == 0 && isatty(STDOUT_FILENO) && term && term[0] && strcmp(term, "dumb") != 0;
    log->reported = clock_now();
    log->path = metrics_path(config);
    if (log->path) {
        PROGRESS_DOING("opening", log->path);
        log->metrics = fopen(log->path, append ? "ae" : "we");
        CHECK(log->metrics, "give --metrics a file in a directory that exists and is writable",
              "%s: open: %s", log->path, strerror(errno));
    }
    return log;
}

// The cursor leaves the progress line.
static void leave_line(Log *log)
{
    PROGRESS_WRITING("to stdout");
    if (log->line.shown)
        printf("\n");
    log->line.shown = false;
}

void log_free(Log *log)
{
    leave_line(log);
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
    if (step % log->config.print_freq == 0 || step == steps)
        return true;
    return log->terminal && log->ranks == 1 && clock_now() - log->stepped >= 1;
}

static double mean_loss(const Stats *s) { return s->loss_sum / (double)s->count; }
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

//   epoch 1/5  121/196 [00:42<00:26, 733 images/s] loss: 1.959 | acc: 28.633%
// Redrawn at most ten times a second unless `force`, and cut so that it does not wrap.
static void progress_draw(Log *log, bool force)
{
    ProgressLine *line = &log->line;
    struct winsize screen;
    char text[512];
    double now = clock_now(), spent = now - line->started;
    double timed = (double)(line->step - line->first_step);
    if (!force && line->shown && now - line->drawn < 0.1)
        return;
    int left = timed > 0 ? (int)(spent / timed * (double)(line->steps - line->step)) : 0;
    snprintf(text, sizeof text, "epoch %lld/%d  %lld/%lld [%02d:%02d<%02d:%02d, %.0f %s/s] %s",
             (long long)line->epoch, line->epochs, (long long)line->step, (long long)line->steps,
             (int)spent / 60, (int)spent % 60, left / 60, left % 60,
             timed > 0 ? (double)line->samples * log->per_sample / spent : 0, log->unit,
             line->numbers);
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &screen) == 0 && screen.ws_col > 0;
    PROGRESS_WRITING("to stdout");     // the terminal may be paused
    printf("\r%.*s\033[K", known ? screen.ws_col - 1 : 79, text);
    fflush(stdout);
    line->drawn = now;
    line->shown = true;
}

void log_progress_end(Log *log)
{
    log->line.seconds = clock_now() - log->line.started;
    leave_line(log);
    trace_end();
}

void log_progress_begin(Log *log, int64_t epoch, int epochs, int64_t step, int64_t steps)
{
    trace_begin("epoch");
    log->reported = log->stepped = clock_now();
    log->line = (ProgressLine){ .epoch = epoch, .epochs = epochs, .step = step, .steps = steps,
                                .first_step = step, .started = log->reported };
    log_progress(log, step, 0);
}

void log_progress(Log *log, int64_t step, int batch)
{
    ProgressLine *line = &log->line;
    log->samples += (int64_t)batch * log->ranks;
    line->samples += (int64_t)batch * log->ranks;
    line->step = step;
    if (batch > 0)
        progress_step(line->epoch, step);
    if (log->terminal)
        progress_draw(log, step == line->steps);
}

void log_say(Log *log, const char *format, ...)
{
    va_list args;
    if (log->rank > 0)
        return;
    PROGRESS_WRITING("to stdout");     // the reader of a pipe may have paused
    if (log->line.shown)
        printf("\r\033[K");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    if (fflush(stdout) != 0 && errno != EPIPE)  // a pipe's reader may have seen enough
        log->lost = errno;
    if (log->line.shown)
        progress_draw(log, true);
}

json_t *log_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

void log_event(Log *log, const char *event, json_t *members)
{
    enum { FLAGS = JSON_COMPACT | JSON_REAL_PRECISION(9) };
    json_t *line = json_pack("{s:s}", "event", event);
    CHECK(members && json_object_update_missing(line, members) == 0,
          "jansson (for JSON) is out of memory, or got a text that is not UTF-8",
          "cannot make the line \"%s\" of the metrics", event);
    json_decref(members);
    if (log->metrics && !ferror(log->metrics)) {    // an error was reported when it happened
        json_dumpf(line, log->metrics, FLAGS);
        fputc('\n', log->metrics);
        PROGRESS_WRITING(log->path);
        if (fflush(log->metrics) != 0)
            WARN("training continues", "%s: write: %s: no more metrics are written", log->path,
                 strerror(errno));
    }
    json_decref(line);
}

static void step_event(Log *log, const LogStep *s)
{
    const Stats *stats = &s->stats;
    bool scaled = s->loss_scale != 0;
    log_event(log, "step", json_pack(
        "{s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o*, s:o*, s:o*, s:o*}",
        "epoch", (json_int_t)s->epoch, "step", s->step, "steps", s->steps,
        "loss", log_number(stats->batch_loss_sum / (double)stats->batch_count),
        "acc", log_number(percent(stats->batch_correct1, stats->batch_count)),
        "running_loss", log_number(mean_loss(stats)),
        "running_acc", log_number(percent(stats->correct1, stats->count)),
        "lr", log_number(s->lr),
        "samples_per_s", log_number((double)log->samples / (log->stepped - log->reported)),
        "data_wait_ms", log_number(log->wait_ms),
        "gradient_norm", s->norm != 0 ? log_number(s->norm) : NULL,
        "loss_scale", scaled ? log_number(s->loss_scale) : NULL,
        "skipped_steps", scaled ? json_integer(s->skipped) : NULL,
        "rank", log->ranks > 1 && !s->all_ranks ? json_integer(log->rank) : NULL));
    log->wait_ms = 0;
    log->samples = 0;
    log->reported = clock_now();
}

void log_step(Log *log, const LogStep *s)
{
    bool due = s->step % log->config.print_freq == 0 || s->step == s->steps || s->final;
    log->stepped = clock_now();
    log->wait_ms += s->data_wait_ms;
    log->line.wait_ms += s->data_wait_ms;
    log->line.lr = s->lr;
    numbers_text(s, log->line.numbers, sizeof log->line.numbers);
    if (log->line.shown)
        progress_draw(log, s->step == s->steps);
    else if (due)
        log_say(log, "   == step: [%3lld/%lld] [%d/%d] | %s", (long long)s->step,
                (long long)s->steps, s->epoch, s->epochs, log->line.numbers);
    if (due)
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
    const ProgressLine *line = &log->line;
    if (line->samples > 0)              // else a resumed run had only the evaluation left
        log_say(log, "   == epoch: [%lld/%d] | %.1f s | %.0f %s/s | data wait %.1f s | lr %.4g",
                (long long)epoch, line->epochs, line->seconds,
                (double)line->samples * log->per_sample / line->seconds, log->unit,
                line->wait_ms / 1000, line->lr);
    json_t *members = json_pack("{s:I, s:o, s:o}", "epoch", epoch,
                                "train_loss", log_number(mean_loss(train)),
                                "train_acc", log_number(percent(train->correct1, train->count)));
    json_t *tested = test_members(test);
    if (test->count > 0)                // else a different rank evaluates
        json_object_update(members, tested);
    json_decref(tested);
    json_object_set_new(members, "seconds", log_number(line->seconds));
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
    CHECK(!log->lost, "", "stdout: %s: some lines of the output are missing", strerror(log->lost));
}
