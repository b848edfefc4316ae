// log.c - the progress bar, the articles' lines, and the JSON lines of --metrics.
#include "log.h"
#include "alive.h"
#include "check.h"
#include "clock.h"
#include "base/json.h"
#include "base/usage.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifndef DDP_GIT_REVISION
#define DDP_GIT_REVISION "unknown"
#endif

typedef struct Bar {
    int epoch, epochs;
    int64_t step, steps;
    int64_t first_step;     // the step at which the clock started, and
    double started;         // when (s)
    int64_t samples;        // since then
    char numbers[192];      // the latest: "loss: 1.959 | acc: 28.633%"
    double drawn;           // when it was last drawn (s)
    bool shown;             // is on the screen, with the cursor at its end
} Bar;

struct Log {
    LogConfig config;
    bool silent, terminal;
    char *path;             // of the metrics, or NULL
    Bar bar;
    double stepped;         // when log_step was last called (s)
    double told;            // when the last "step" event was written, or the epoch began (s)
    int64_t samples;        // images since then
    double wait_ms;         // spent waiting for data since then
    int metrics;            // file descriptor, or -1
    Usage *usage;           // samples into the metrics, or NULL
};

// --- setting up ----------------------------------------------------------------------------------

LogConfig log_defaults(void)
{
    return (LogConfig){ .print_freq = 50 };
}

void log_options(Args *args, LogConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "print-freq", 'p', ARG_INT, &config->print_freq, "N", "steps between two printed lines",
          .min = 1, .max = 1e9 },
        { "metrics", 0, ARG_STRING, &config->metrics, "FILE",
          "write events as JSON lines (%r in the name: the rank)", .own = true,
          .overwrites = true },
        { "trace", 0, ARG_STRING, &config->trace, "FILE",
          "write a timeline for https://ui.perfetto.dev", .own = true, .overwrites = true },
        { "usage", 0, ARG_INT, &config->usage_ms, "MS",
          "with --metrics: time between samples of CPU, memory, GPU (0: none)", .min = 0,
          .max = 1e6 }));
}

// The name of this rank's file, or NULL when it has none. The caller frees it.
static char *metrics_path(const LogConfig *config)
{
    const char *place = config->metrics ? strstr(config->metrics, "%r") : NULL;
    char *path = NULL;
    if (config->metrics == NULL || (place == NULL && config->rank != 0))
        return NULL;
    if (place == NULL)
        return xstrdup(config->metrics);
    CHECK(asprintf(&path, "%.*s%d%s", (int)(place - config->metrics), config->metrics, config->rank,
                   place + 2) >= 0, "", "asprintf: %s", strerror(errno));
    return path;
}

static int metrics_open(const char *path, bool append)
{
    if (path == NULL)
        return -1;
    signal(SIGXFSZ, SIG_IGN); // a limit on file sizes (ulimit -f) is then an error, not a kill
    int flags = O_WRONLY | (append ? 0 : O_TRUNC);
    int fd = open(path, flags | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0644);
    CHECK(fd >= 0, "give --metrics a file in a directory that exists and is writable",
          "%s: open: %s", path, strerror(errno));
    return fd;
}

void log_among(LogConfig *config, int rank, int ranks, const char *whose)
{
    config->rank = rank;
    config->ranks = ranks;
    config->whose = whose;
}

static void emit_usage(void *log, const char *members)
{
    log_event(log, "usage", "%s", members);
}

Log *log_new(const LogConfig *config, bool append)
{
    Log *log = xcalloc(1, sizeof *log);
    const char *term = getenv("TERM");
    log->config = *config;
    log->silent = config->rank != 0;
    log->terminal =
        !log->silent && isatty(STDOUT_FILENO) && term && term[0] && strcmp(term, "dumb") != 0;
    log->told = clock_now();
    log->path = metrics_path(config);
    log->metrics = metrics_open(log->path, append);
    if (config->usage_ms > 0 && log->metrics >= 0)
        log->usage = usage_start(config->usage_ms, emit_usage, log);
    return log;
}

void log_free(Log *log)
{
    if (log == NULL)
        return;
    log_progress_end(log);
    usage_stop(log->usage);
    if (log->metrics >= 0)
        close(log->metrics);
    free(log->path);
    free(log);
}

bool log_wants(const Log *log, int64_t step, int64_t steps)
{
    if (step % log->config.print_freq == 0 || step == steps)
        return true;
    return log->terminal && log->config.ranks <= 1 && clock_now() - log->stepped >= 1;
}

static double mean_loss(const Stats *s) { return s->loss_sum / (double)s->count; }
static double percent(int64_t part, int64_t whole) { return whole ? 100.0 * part / whole : 0; }

// --- the screen ----------------------------------------------------------------------------------

// All output goes through here, in one write. printf's buffer goes first, to keep the order.
// Training continues if the write fails.
static void screen_write(const char *text, size_t length)
{
    alive_outside_begin();      // the reader may have paused
    fflush(stdout);
    while (length > 0) {
        ssize_t n = write(STDOUT_FILENO, text, length);
        if (n <= 0 && errno != EINTR)
            break;
        text += n > 0 ? n : 0;
        length -= n > 0 ? (size_t)n : 0;
    }
    alive_outside_end();
}

static int screen_width(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return 80;
}

// "04:07" or "1:02:03".
static const char *clock_text(double seconds, char out[32])
{
    long long s = llround(seconds);
    if (s >= 3600)
        snprintf(out, 32, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, 32, "%02lld:%02lld", s / 60, s % 60);
    return out;
}

// "loss: 1.959 | acc: 28.633% | rank 0 | norm: 2.314 | scale: 65536 | skipped: 2": the values
// that exist.
static void numbers_text(const Log *log, const LogStep *s, char *out, size_t size)
{
    const char *whose = log->config.whose;
    size_t n = (size_t)snprintf(out, size, "loss: %.3f | acc: %6.3f%%%s%s", mean_loss(&s->stats),
                                percent(s->stats.correct1, s->stats.count), whose ? " | " : "",
                                whose ? whose : "");
    if (s->norm != 0)           // fabs: printf may give a NaN a sign
        n += (size_t)snprintf(out + n, size - n, " | norm: %.4g", fabs(s->norm));
    if (s->loss_scale != 0)
        n += (size_t)snprintf(out + n, size - n, " | scale: %.10g", s->loss_scale);
    if (s->loss_scale != 0 && s->skipped > 0)
        snprintf(out + n, size - n, " | skipped: %lld", (long long)s->skipped);
}

// The whole line, at most width - 1 columns, so that it never wraps. The bar takes the columns that
// are left.
//   epoch 1/5 |######      | 121/196 [00:42<00:26, 733 img/s] loss: 1.959 | acc: 28.633%
static void bar_text(const Bar *bar, double now, int width, char *out, size_t size)
{
    enum { LEAST = 3, MOST = 40 };
    static const char full[] = "########################################";
    char head[64], tail[320], spent[32], left[32];
    double seconds = now - bar->started, timed = (double)(bar->step - bar->first_step);
    snprintf(head, sizeof head, "epoch %d/%d ", bar->epoch, bar->epochs);
    snprintf(tail, sizeof tail, "%lld/%lld [%s<%s, %.0f img/s] %s", (long long)bar->step,
             (long long)bar->steps, clock_text(seconds, spent),
             timed > 0 ? clock_text(seconds / timed * (double)(bar->steps - bar->step), left) : "?",
             seconds > 0 ? (double)bar->samples / seconds : 0.0, bar->numbers);
    int room = width - 1 - (int)strlen(head) - 3 - (int)strlen(tail);
    room = room < MOST ? room : MOST;
    int filled = bar->steps > 0 ? (int)(room * bar->step / bar->steps) : 0;
    if (room >= LEAST)
        snprintf(out, size, "%s|%-*.*s| %s", head, room, filled, full, tail);
    else
        snprintf(out, (size_t)width < size ? (size_t)width : size, "%s%s", head, tail);
}

static void bar_draw(Log *log, bool force)
{
    Bar *bar = &log->bar;
    double now = clock_now();
    if (!force && bar->shown && now - bar->drawn < 0.1)
        return;
    char text[512], line[520];
    bar_text(bar, now, screen_width(), text, sizeof text);
    int n = snprintf(line, sizeof line, "\r%s\033[K", text);
    screen_write(line, (size_t)n);
    bar->drawn = now;
    bar->shown = true;
}

void log_progress_end(Log *log)
{
    if (log->bar.shown)
        screen_write("\n", 1);
    log->bar.shown = false;
}

void log_progress(Log *log, int epoch, int epochs, int64_t step, int64_t steps, int batch)
{
    Bar *bar = &log->bar;
    batch *= log->config.ranks > 1 ? log->config.ranks : 1;
    log->samples += batch;
    if (batch == 0)
        log->told = log->stepped = clock_now();
    else
        alive_step(epoch, step);
    if (!log->terminal)
        return;
    if (epoch != bar->epoch || step <= bar->step) {
        log_progress_end(log);
        *bar = (Bar){ .epoch = epoch, .epochs = epochs, .first_step = step,
                      .started = clock_now() };
    } else {
        bar->samples += batch;
    }
    bar->step = step;
    bar->steps = steps;
    bar_draw(log, step == steps);
}

void log_say(Log *log, const char *format, ...)
{
    char *text = NULL;
    size_t size = 0;
    if (log->silent)
        return;
    FILE *out = open_memstream(&text, &size);
    CHECK(out, "", "open_memstream: %s", strerror(errno));
    bool above = log->bar.shown && log->bar.step < log->bar.steps;
    if (!above)
        log_progress_end(log);
    fputs(above ? "\r\033[K" : "", out);
    va_list args;
    va_start(args, format);
    vfprintf(out, format, args);
    va_end(args);
    fflush(out);
    if (size == 0 || text[size - 1] != '\n')
        fputc('\n', out);
    fclose(out);
    screen_write(text, size);
    free(text);
    if (above)
        bar_draw(log, true);
}

// Values that only some steps have, as members of the event.
static void extra_members(const LogStep *s, char *out, size_t size)
{
    char number[LOG_NUMBER];
    int n = 0;
    out[0] = '\0';
    if (s->norm != 0)
        n = snprintf(out, size, ",\"gradient_norm\":%s", log_number(s->norm, number));
    if (s->loss_scale != 0)
        snprintf(out + n, size - (size_t)n, ",\"loss_scale\":%s,\"skipped_steps\":%lld",
                 log_number(s->loss_scale, number), (long long)s->skipped);
}

static void step_event(Log *log, const LogStep *s, double rate)
{
    const Stats *stats = &s->stats;
    char loss[LOG_NUMBER], running[LOG_NUMBER], lr[LOG_NUMBER], per_s[LOG_NUMBER], rank[32] = "";
    char extra[160];
    extra_members(s, extra, sizeof extra);
    if (log->config.whose)
        snprintf(rank, sizeof rank, ",\"rank\":%d", log->config.rank);
    log_event(log, "step",
              "\"epoch\":%d,\"step\":%lld,\"steps\":%lld,\"loss\":%s,\"acc\":%.4f,"
              "\"running_loss\":%s,\"running_acc\":%.4f,\"lr\":%s,\"samples_per_s\":%s,"
              "\"data_wait_ms\":%.3f%s%s",
              s->epoch, (long long)s->step, (long long)s->steps,
              log_number(stats->batch_loss_sum / (double)stats->batch_count, loss),
              percent(stats->batch_correct1, stats->batch_count),
              log_number(mean_loss(stats), running), percent(stats->correct1, stats->count),
              log_number(s->lr, lr), log_number(rate, per_s), log->wait_ms, extra, rank);
    log->wait_ms = 0;
    log->samples = 0;
    log->told = clock_now();
}

// Only rank 0 prints an error that all ranks see.
static void leave_if_silent(const Log *log)
{
    if (!log->silent)
        return;
    check_clean_up();
    _exit(EXIT_DIVERGED);
}

void log_diverged(const Log *log, const Stats *stats, int64_t epoch, int64_t step)
{
    bool own = stats->not_finite > 0;
    if (!own)
        leave_if_silent(log);       // the rank with this loss prints it, and rank 0
    fail_at(__FILE__, __LINE__, EXIT_DIVERGED, "a smaller --lr or a --warmup may help",
            "%s is not finite in epoch %lld, by step %lld; nothing was saved since",
            own ? "the loss" : stats->bad_gradients > 0 ? "a gradient (of some rank)"
                                                        : "the loss (of some rank)",
            (long long)epoch, (long long)step);
}

void log_scale_failed(const Log *log, double scale, bool fixed, int64_t epoch, int64_t step)
{
    leave_if_silent(log);
    fail_at(__FILE__, __LINE__, EXIT_DIVERGED,
            fixed ? "a smaller --loss-scale, or none: in fp16 it then adapts"
                  : "a smaller --lr or a --warmup may help, or --amp bf16",
            "gradients (of some rank) %s %g, in epoch %lld, by step %lld%s",
            fixed ? "are not finite with a loss scale of"
                  : "stay infinite, though the loss scale has fallen to",
            scale, (long long)epoch, (long long)step, fixed ? "; nothing was saved since" : "");
}

void log_step(Log *log, const LogStep *s)
{
    bool due = s->step % log->config.print_freq == 0 || s->step == s->steps || s->final;
    log->stepped = clock_now();
    log->wait_ms += s->data_wait_ms;
    numbers_text(log, s, log->bar.numbers, sizeof log->bar.numbers);
    if (log->terminal && log->bar.shown)
        bar_draw(log, s->step == s->steps);
    else if (!log->terminal && due)
        log_say(log, "   == step: [%3lld/%lld] [%d/%d] | %s", (long long)s->step,
                (long long)s->steps, s->epoch, s->epochs, log->bar.numbers);
    if (due)
        step_event(log, s, (double)log->samples / (log->stepped - log->told));
}

void log_epoch(Log *log, int64_t epoch, const Stats *train, const Stats *test, double seconds)
{
    char train_loss[LOG_NUMBER], test_loss[LOG_NUMBER], tested[160] = "";
    if (test->count > 0)        // else a different rank evaluates
        snprintf(tested, sizeof tested,
                 "\"test_loss\":%s,\"top1\":%.4f,\"top5\":%.4f,\"n\":%lld,",
                 log_number(mean_loss(test), test_loss), percent(test->correct1, test->count),
                 percent(test->correct5, test->count), (long long)test->count);
    log_event(log, "epoch",
              "\"epoch\":%lld,\"train_loss\":%s,\"train_acc\":%.4f,%s\"seconds\":%.3f",
              (long long)epoch, log_number(mean_loss(train), train_loss),
              percent(train->correct1, train->count), tested, seconds);
}

void log_test(Log *log, const Stats *test, bool only)
{
    char loss[LOG_NUMBER];
    double top1 = percent(test->correct1, test->count), top5 = percent(test->correct5, test->count);
    log_say(log, "   == test: loss: %.3f | top1: %6.3f%% | top5: %6.3f%% | %lld images",
            mean_loss(test), top1, top5, (long long)test->count);
    if (only)
        log_event(log, "eval", "\"test_loss\":%s,\"top1\":%.4f,\"top5\":%.4f,\"n\":%lld",
                  log_number(mean_loss(test), loss), top1, top5, (long long)test->count);
}

void log_end(Log *log, uint64_t weight_hash, int threads)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    log_event(log, "end", "\"weight_hash\":\"%016llx\",\"threads\":%d,\"peak_rss_mb\":%.1f",
              (unsigned long long)weight_hash, threads, (double)usage.ru_maxrss / 1024);
    log_say(log, "weight hash: %016llx", (unsigned long long)weight_hash);
}

// --- metrics -------------------------------------------------------------------------------------

const char *log_number(double value, char out[LOG_NUMBER])
{
    if (isfinite(value))
        snprintf(out, LOG_NUMBER, "%.9g", value);
    else
        snprintf(out, LOG_NUMBER, "null");
    return out;
}

void log_event(Log *log, const char *event, const char *format, ...)
{
    if (log->metrics < 0)
        return;
    char *line = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&line, &size);
    CHECK(out, "", "open_memstream: %s", strerror(errno));
    fprintf(out, "{\"event\":\"%s\",", event);
    va_list args;
    va_start(args, format);
    bool alone = vfprintf(out, format, args) == 0;
    va_end(args);
    fseek(out, alone ? -1 : 0, SEEK_CUR); // removes the comma if nothing follows
    fputs("}\n", out);
    fclose(out);
    errno = ENOSPC;             // a short write does not set errno
    if (write(log->metrics, line, size) != (ssize_t)size) {
        WARN("training continues", "%s: write: %s: the metrics end here", log->path,
             strerror(errno));
        close(log->metrics);
        log->metrics = -1;
        log->bar.drawn = 0;
    }
    free(line);
}

void log_config(Log *log, const Args *args, const char *device, const char *extra_json)
{
    char date[32], *body = NULL;
    size_t size = 0;
    struct utsname machine = { 0 };
    time_t now = time(NULL);
    struct tm utc;
    FILE *out = open_memstream(&body, &size);
    CHECK(out, "", "open_memstream: %s", strerror(errno));
    uname(&machine);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));

    fprintf(out, "\"program\":");
    json_text(out, args->program);
    fprintf(out, ",\"revision\":");
    json_text(out, DDP_GIT_REVISION);
    fprintf(out, ",\"time\":\"%s\",\"host\":", date);
    json_text(out, machine.nodename);
    fprintf(out, ",\"cores\":%ld,\"device\":", sysconf(_SC_NPROCESSORS_ONLN));
    json_text(out, device);
    fprintf(out, ",\"options\":{");
    args_json(args, out);
    fprintf(out, "}%s%s", extra_json ? "," : "", extra_json ? extra_json : "");
    fclose(out);
    log_event(log, "config", "%s", body);
    free(body);
}
