// log.c - the progress bar, the articles' lines, and the JSON lines of --metrics.
#include "log.h"
#include "alive.h"
#include "check.h"
#include "clock.h"
#include "base/json.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifndef DDP_GIT_REVISION
#define DDP_GIT_REVISION "unknown"
#endif

typedef struct Bar {
    int epoch, epochs;
    int64_t step, steps;
    int64_t first_step;     // where the clock was started, and
    double started;         // when (s)
    int64_t samples;        // since then
    double loss, acc;       // the last that are known; loss is NAN before the first
    double norm, loss_scale;    // with them; 0: there is none
    int64_t skipped;
    double drawn;           // when it was last drawn (s)
    bool shown;             // stands on the screen, with the cursor at its end
} Bar;

struct Log {
    LogConfig config;
    bool silent, terminal, colour, unicode;
    char *path;             // of the metrics, or NULL
    Bar bar;
    double stepped;         // when log_step was last called (s)
    double told;            // when the last "step" event was written, or the epoch began (s)
    int64_t samples;        // images since then
    double wait_ms;         // spent waiting for data since then
    int metrics;            // file descriptor, or -1
    bool warned;
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
          "write what happens as JSON lines (%r in the name: the rank)", .own = true,
          .overwrites = true },
        { "trace", 0, ARG_STRING, &config->trace, "FILE",
          "write a timeline for https://ui.perfetto.dev", .own = true, .overwrites = true }));
}

// What LC_ALL, LC_CTYPE and LANG say; when they say nothing, today's terminals read UTF-8.
static bool locale_is_utf8(void)
{
    static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value && value[0])
            return strcasestr(value, "utf-8") || strcasestr(value, "utf8");
    }
    return true;
}

// The end of the last line may be missing in a file that is continued (a machine that lost power):
// then the next line must not be glued to it.
static void end_torn_line(int fd)
{
    struct stat st;
    char last;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0
        && pread(fd, &last, 1, st.st_size - 1) == 1 && last != '\n' && write(fd, "\n", 1) != 1)
        WARN("", "metrics: write: %s", strerror(errno));
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
    signal(SIGXFSZ, SIG_IGN); // a limit on file sizes (ulimit -f) is an error, not a death
    int flags = append ? O_RDWR : O_WRONLY | O_TRUNC;
    int fd = open(path, flags | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0644);
    CHECK(fd >= 0, "give --metrics a file in a directory that is there and can be written",
          "%s: open: %s", path, strerror(errno));
    if (append)
        end_torn_line(fd);
    return fd;
}

void log_among(LogConfig *config, int rank, int ranks, const char *whose)
{
    config->rank = rank;
    config->ranks = ranks;
    config->whose = whose;
}

Log *log_new(const LogConfig *config, bool append)
{
    Log *log = xcalloc(1, sizeof *log);
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    log->config = *config;
    log->silent = config->rank != 0;
    log->terminal =
        !log->silent && isatty(STDOUT_FILENO) && term && term[0] && strcmp(term, "dumb") != 0;
    log->colour = !(no_color && no_color[0]);
    log->unicode = locale_is_utf8();
    log->bar.loss = NAN;
    log->told = clock_now();
    log->path = metrics_path(config);
    log->metrics = metrics_open(log->path, append);
    return log;
}

void log_free(Log *log)
{
    if (log == NULL)
        return;
    log_progress_end(log);
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

// --- the screen ----------------------------------------------------------------------------------

// No screen to write to is no reason to stop training. That a disk is full behind it is said once.
static void screen_lost(int error)
{
    static bool told;
    if (error != ENOSPC || told)
        return;
    told = true;
    WARN("training goes on", "standard output: %s: lines are missing from here on",
         strerror(error));
}

// Everything goes out through here, in one piece. printf's buffer goes first, to keep the order.
static void screen_write(const char *text, size_t length)
{
    alive_outside_begin();      // whoever reads it may have paused
    fflush(stdout);
    while (length > 0) {
        ssize_t n = write(STDOUT_FILENO, text, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            screen_lost(n < 0 ? errno : ENOSPC);
            break;
        }
        text += n;
        length -= (size_t)n;
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

// "04:07", "1:02:03", or "--:--" when nobody knows.
static const char *clock_text(double seconds, char out[16])
{
    if (!(seconds >= 0 && seconds < 3600e3)) {
        snprintf(out, 16, "--:--");
        return out;
    }
    int s = (int)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, 16, "%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, 16, "%02d:%02d", s / 60, s % 60);
    return out;
}

// ", norm 2.314, scale 65536, skipped 2", or with other words before and behind each name; what there
// is of it.
typedef char MixedText[120];

static void mixed_text(double norm, double scale, int64_t skipped, const char *before,
                       const char *behind, MixedText out)
{
    bool whole = scale < 1e15 && scale == floor(scale);
    size_t n = 0;
    out[0] = '\0';
    if (isnan(norm))            // which printf may give a sign
        n = (size_t)snprintf(out, sizeof(MixedText), "%snorm%snan", before, behind);
    else if (norm != 0)
        n = (size_t)snprintf(out, sizeof(MixedText), "%snorm%s%.4g", before, behind, norm);
    if (scale != 0)
        n += (size_t)snprintf(out + n, sizeof(MixedText) - n, whole ? "%sscale%s%.0f" : "%sscale%s%g",
                              before, behind, scale);
    if (scale != 0 && skipped > 0)
        snprintf(out + n, sizeof(MixedText) - n, "%sskipped%s%lld", before, behind,
                 (long long)skipped);
}

// What stands right of the bar. detail 4: all of it; less: the dispensable goes first.
//    121/196 [00:42<00:26, 733 img/s, loss 1.959, acc 28.6%, norm 2.314, scale 65536, skipped 2]
static int tail_text(const Log *log, double now, int detail, char *out, size_t size)
{
    const Bar *bar = &log->bar;
    const char *whose = log->config.whose;
    double seconds = now - bar->started;
    int64_t timed = bar->step - bar->first_step;
    double left = timed > 0 ? seconds / (double)timed * (double)(bar->steps - bar->step) : NAN;
    char spent[16], togo[16], rate[32] = "", loss[64] = "";
    MixedText mixed = "";
    int digits = snprintf(NULL, 0, "%lld", (long long)bar->steps);
    if (timed > 0 && seconds > 0 && detail >= 3)
        snprintf(rate, sizeof rate, ", %.0f img/s", (double)bar->samples / seconds);
    if (!isnan(bar->loss))
        snprintf(loss, sizeof loss, "%sloss %.3f, acc %.1f%%%s%s", detail >= 1 ? ", " : " ",
                 bar->loss, bar->acc, whose ? ", " : "", whose ? whose : "");
    if (detail >= 4)
        mixed_text(bar->norm, bar->loss_scale, bar->skipped, ", ", " ", mixed);
    clock_text(seconds, spent);
    clock_text(left, togo);
    if (detail >= 2)
        return snprintf(out, size, " %*lld/%lld [%s<%s%s%s%s]", digits, (long long)bar->step,
                        (long long)bar->steps, spent, togo, rate, loss, mixed);
    if (detail == 1)
        return snprintf(out, size, " [<%s%s]", togo, loss);
    return snprintf(out, size, "%s", loss);
}

// Blocks for a fraction of `columns` columns: whole ones, one of some eighths, spaces.
static void blocks_text(const Log *log, double fraction, int columns, char *out, size_t size)
{
    static const char *const eighths[] = { "", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█" };
    int filled = (int)(fraction * columns * 8); // in eighths of a column
    size_t n = (size_t)snprintf(out, size, "%s", log->colour ? "\033[32m" : "");
    for (int i = 0; i < columns; i++) {
        int part = filled - 8 * i < 0 ? 0 : filled - 8 * i > 8 ? 8 : filled - 8 * i;
        const char *block = log->unicode ? eighths[part] : part == 8 ? "#" : "";
        n += (size_t)snprintf(out + n, size - n, "%s", block[0] ? block : " ");
    }
    snprintf(out + n, size - n, "%s", log->colour ? "\033[0m" : "");
}

// The whole line, at most width - 1 columns, so that it never wraps:
//   epoch 1/5:  62%|██████▏   | 121/196 [00:42<00:26, 733 img/s, loss 1.959, acc 28.6%]
static void bar_text(const Log *log, double now, int width, char *out, size_t size)
{
    enum { LEAST = 6, MOST = 40 };
    const Bar *bar = &log->bar;
    char head[64], tail[256], blocks[512] = "";
    double fraction = bar->steps > 0 ? (double)bar->step / (double)bar->steps : 0;
    int columns = 0;
    int used = snprintf(head, sizeof head, "epoch %d/%d: %3d%%", bar->epoch, bar->epochs,
                        (int)(100 * fraction));
    for (int detail = 4; detail >= 0 && columns < LEAST; detail--)
        columns = width - 1 - used - 2 - tail_text(log, now, detail, tail, sizeof tail);
    if (columns >= LEAST) {
        blocks_text(log, fraction, columns < MOST ? columns : MOST, blocks, sizeof blocks);
        snprintf(out, size, "%s|%s|%s", head, blocks, tail);
    } else if (snprintf(out, size, "%s%s", head, tail) >= width) {
        out[width > 1 ? width - 1 : 0] = '\0'; // no bar, so bytes are columns
    }
}

static void bar_draw(Log *log, bool force)
{
    Bar *bar = &log->bar;
    double now = clock_now();
    if (!force && bar->shown && now - bar->drawn < 0.1)
        return;
    char text[1024], line[1040];
    bar_text(log, now, screen_width(), text, sizeof text);
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
        *bar = (Bar){ .epoch = epoch, .epochs = epochs, .first_step = step, .started = clock_now(),
                      .loss = NAN };
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

static double mean_loss(const Stats *s) { return s->loss_sum / (double)s->count; }
static double percent(int64_t part, int64_t whole) { return whole ? 100.0 * part / whole : 0; }

// What only some steps have, as members of the event.
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

// Of what all ranks see alike, rank 0 speaks.
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
        leave_if_silent(log);       // the rank whose loss it is says so, and rank 0
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

// " | rank 0 | norm: 2.314 | scale: 65536 | skipped: 2": what there is of it.
static void extra_text(const Log *log, const LogStep *s, char *out, size_t size)
{
    const char *whose = log->config.whose;
    MixedText mixed;
    mixed_text(s->norm, s->loss_scale, s->skipped, " | ", ": ", mixed);
    snprintf(out, size, "%s%s%s", whose ? " | " : "", whose ? whose : "", mixed);
}

void log_step(Log *log, const LogStep *s)
{
    char extra[256];
    bool due = s->step % log->config.print_freq == 0 || s->step == s->steps || s->final;
    log->stepped = clock_now();
    log->wait_ms += s->data_wait_ms;
    log->bar.loss = mean_loss(&s->stats);
    log->bar.acc = percent(s->stats.correct1, s->stats.count);
    log->bar.norm = s->norm;
    log->bar.loss_scale = s->loss_scale;
    log->bar.skipped = s->skipped;
    extra_text(log, s, extra, sizeof extra);
    if (log->terminal && log->bar.shown)
        bar_draw(log, s->step == s->steps);
    else if (!log->terminal && due)
        log_say(log, "   == step: [%3lld/%lld] [%d/%d] | loss: %.3f | acc: %6.3f%%%s",
                (long long)s->step, (long long)s->steps, s->epoch, s->epochs, log->bar.loss,
                log->bar.acc, extra);
    if (due)
        step_event(log, s, (double)log->samples / (log->stepped - log->told));
}

void log_epoch(Log *log, int64_t epoch, const Stats *train, const Stats *test, double seconds)
{
    char train_loss[LOG_NUMBER], test_loss[LOG_NUMBER], tested[160] = "";
    if (test->count > 0)        // else another rank has done it
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

// Whole or not at all: what a full disk has left of a line is taken back.
static bool metrics_write(int fd, const char *line, size_t length)
{
    struct stat before;
    bool file = fstat(fd, &before) == 0 && S_ISREG(before.st_mode);
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, line + done, length - done); // as a rule, all of it
        if (n > 0) {
            done += (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            int error = n == 0 ? ENOSPC : errno;
            if (done > 0 && file && ftruncate(fd, before.st_size) != 0)
                error = errno;
            errno = error;
            return false;
        }
    }
    return true;
}

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
    fseek(out, alone ? -1 : 0, SEEK_CUR); // no comma where nothing follows
    fputs("}\n", out);
    fclose(out);
    if (!metrics_write(log->metrics, line, size) && !log->warned) {
        log->warned = true;
        WARN("training goes on; make room, and later lines will be written again",
             "%s: write: %s: lines are missing from here on", log->path, strerror(errno));
        log->bar.drawn = 0;
    }
    free(line);
}

// "Intel(R) Xeon(R) ...", as /proc/cpuinfo names the first core.
static void cpu_name(char *out, size_t size)
{
    char line[256];
    FILE *in = fopen("/proc/cpuinfo", "re");
    snprintf(out, size, "unknown");
    while (in && fgets(line, sizeof line, in)) {
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':')) {
            snprintf(out, size, "%.*s", (int)strcspn(strchr(line, ':') + 2, "\n"),
                     strchr(line, ':') + 2);
            break;
        }
    }
    if (in)
        fclose(in);
}

void log_config(Log *log, const Args *args, const char *device, const char *extra_json)
{
    char cpu[200], date[32], *body = NULL;
    size_t size = 0;
    struct utsname machine = { 0 };
    time_t now = time(NULL);
    struct tm utc;
    FILE *out = open_memstream(&body, &size);
    CHECK(out, "", "open_memstream: %s", strerror(errno));
    uname(&machine);
    cpu_name(cpu, sizeof cpu);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));

    fprintf(out, "\"program\":");
    json_text(out, args->program);
    fprintf(out, ",\"revision\":");
    json_text(out, DDP_GIT_REVISION);
    fprintf(out, ",\"time\":\"%s\",\"host\":", date);
    json_text(out, machine.nodename);
    fprintf(out, ",\"cpu\":");
    json_text(out, cpu);
    fprintf(out, ",\"cores\":%ld,\"device\":", sysconf(_SC_NPROCESSORS_ONLN));
    json_text(out, device);
    fprintf(out, ",\"options\":{");
    args_json(args, out);
    fprintf(out, "}%s%s", extra_json ? "," : "", extra_json ? extra_json : "");
    fclose(out);
    log_event(log, "config", "%s", body);
    free(body);
}
