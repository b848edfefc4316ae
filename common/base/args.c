// args.c - what the option table drives: parsing, config files, --help, and all values as JSON.
#include "args.h"
#include "check.h"
#include "output.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONFIGS_MAX = 16 };
static struct {
    const char *path;           // of --config: the last file
    bool print;
    char *texts[CONFIGS_MAX + 3]; // the files' contents, and the presets': options point into them
    int count;
    const char *reading;        // the file being read, or NULL; and the current line
    int line;
} config;

// The configuration does not include --config and --print-config themselves.
static bool is_value(const Option *option)
{
    return option->value != &config.path && option->value != &config.print;
}

// --- values as text ------------------------------------------------------------------------------

static bool is_text(const Option *option) { return option->type >= ARG_STRING; }

static double number_of(const Option *option)
{
    switch (option->type) {
    case ARG_INT: return *(int *)option->value;
    case ARG_INT64: return (double)*(int64_t *)option->value;
    case ARG_DOUBLE: return *(double *)option->value;
    default: return *(bool *)option->value;
    }
}

// A short decimal that converts back to the same number.
static void double_text(double value, char *out, size_t size)
{
    for (int digits = fabs(value) < 1e6 ? 6 : 1; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

static void value_text(const Option *option, char *out, size_t size)
{
    const char *text = is_text(option) ? *(const char **)option->value : NULL;
    if (is_text(option))
        snprintf(out, size, "%s", text ? text : "");
    else if (option->type == ARG_FLAG)
        snprintf(out, size, "%s", number_of(option) ? "yes" : "no");
    else if (option->type == ARG_DOUBLE)
        double_text(number_of(option), out, size);
    else
        snprintf(out, size, "%.17g", number_of(option));
}

static json_t *value_json(const Option *option)
{
    json_t *text = is_text(option) ? json_string(*(const char **)option->value) : NULL;
    if (is_text(option))
        return text ? text : json_null();       // there is no text, or it is not UTF-8
    if (option->type == ARG_FLAG)
        return json_boolean(number_of(option));
    return option->type == ARG_DOUBLE ? json_real(number_of(option))
                                      : json_integer((json_int_t)number_of(option));
}

json_t *args_json(const Args *args)
{
    json_t *all = json_object();
    for (int i = 0; i < args->count; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s", args->rows[i].name);
        for (char *c = name; *c; c++)
            *c = *c == '-' ? '_' : *c;
        if (is_value(&args->rows[i]))
            json_object_set_new(all, name, value_json(&args->rows[i]));
    }
    return all;
}

char *args_shared(const Args *args)
{
    char *text = NULL, value[PATH_MAX];
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out, "", "open_memstream: %s", strerror(errno));
    for (int i = 0; i < args->count; i++)
        if (!args->rows[i].local) {
            value_text(&args->rows[i], value, sizeof value);
            fprintf(out, "--%s %s\n", args->rows[i].name, value);
        }
    fclose(out);
    return text;
}

// --- the table -----------------------------------------------------------------------------------

// Accepts underscores for dashes, as torchrun does.
static bool is_named(const char *name, const char *typed, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (name[i] != typed[i] && !(name[i] == '-' && typed[i] == '_'))
            return false;
    return name[length] == '\0';
}

static Option *by_name(Args *args, const char *name, size_t length)
{
    for (int i = 0; i < args->count; i++)
        if (is_named(args->rows[i].name, name, length))
            return &args->rows[i];
    return NULL;
}

static Option *by_letter(Args *args, char letter)
{
    for (int i = 0; i < args->count; i++)
        if (letter && args->rows[i].letter == letter)
            return &args->rows[i];
    return NULL;
}

void args_add(Args *args, const char *file, const Option *rows, int count)
{
    CHECK(args->count + count <= ARGS_MAX, "raise ARGS_MAX", "more than %d options", ARGS_MAX);
    args->group++;
    for (int i = 0; i < count; i++) {
        CHECK(!by_name(args, rows[i].name, strlen(rows[i].name))
                  && !by_letter(args, rows[i].letter), "rename one of them",
              "--%s: another option has this name or letter", rows[i].name);
        args->groups[args->count] = (char)args->group;
        args->files[args->count] = basename(file);
        args->rows[args->count++] = rows[i];
    }
}

void args_preset(Args *args, const char *option, const char *value, const char *lines)
{
    args->presets[args->preset_count++] = (struct ArgsPreset){ option, value, lines };
}

static bool is_given(const Args *args, const Option *option)
{
    return args->set_by[option - args->rows] == SET_BY_USER;
}

bool args_given(const Args *args, const char *name)
{
    const Option *option = by_name((Args *)args, name, strlen(name));
    return option && is_given(args, option);
}

// --- refusing ------------------------------------------------------------------------------------

static const char *program_name(const Args *args)
{
    return basename(args->program ? args->program : "train");
}

// While a config file is read, an error names the file and the line.
void args_reject(const Args *args, const char *option, const char *format, ...)
{
    char text[512];
    va_list list;
    const char *dashes = config.reading ? "" : "--";
    int n = option ? snprintf(text, sizeof text, "%s%s: ", dashes, option) : 0;
    va_start(list, format);
    vsnprintf(text + n, sizeof text - (size_t)n, format, list);
    va_end(list);
    blank_controls(text);
    if (config.reading)
        fprintf(stderr, "%s:%d: %s\n", config.reading, config.line, text);
    else
        fprintf(stderr, "%s: %s\n", program_name(args), text);
    exit(EXIT_USAGE);
}

// Option names that other programs use.
static const struct { const char *theirs, *ours; } foreign[] = {
    { "base-lr", "--lr RATE" },
    { "batches-per-allreduce", "--accumulate K, where -b counts all K parts (steps 05 to 07)" },
    { "cfg", "--config FILE" },
    { "dist-backend", "./ddp run STEP --backend cpu|cuda|cuda-gloo" },
    { "dist-file", "--rendezvous file:PATH (steps 06 and 07)" },
    { "dist-url", "--master-addr HOST --master-port PORT (steps 04 to 07)" },
    { "dummy", "--data synthetic" },
    { "fp16", "--amp fp16 (steps 05 to 07)" },
    { "fp16-allreduce", "--compress fp16 (steps 05 to 07)" },
    { "gpu", "CUDA_VISIBLE_DEVICES=N in the environment" },
    { "gpus", "./ddp run STEP -n N, and CUDA_VISIBLE_DEVICES to choose among GPUs" },
    { "grad-accu-steps", "--accumulate K, where -b counts all K parts (steps 05 to 07)" },
    { "ip", "--master-addr HOST (steps 04 to 07)" },
    { "learning-rate", "--lr RATE" },
    { "log-interval", "--print-freq N" },
    { "multiprocessing-distributed", "./ddp run 03 -n N" },
    { "ngpus-per-node", "./ddp run STEP -n N" },
    { "no-accel", "./ddp run STEP --backend cpu" },
    { "no-cuda", "./ddp run STEP --backend cpu" },
    { "nodes", "launch --nnodes N (steps 04 to 07)" },
    { "port", "--master-port PORT (steps 04 to 07)" },
    { "pretrained", "--init FILE, torchvision's weights as safetensors" },
    { "rdzv-endpoint", "--master-addr HOST --master-port PORT (steps 04 to 07)" },
    { "start-epoch", "--resume FILE, which continues at the checkpoint's epoch" },
    { "test-batch-size", "--batch-size N, also for evaluation" },
    { "total-epochs", "--epochs N" },
    { "train-dir", "--data DIR, with train/ and val/ in it" },
    { "use-amp", "--amp fp16 (steps 05 to 07)" },
    { "warmup-epochs", "--warmup EPOCHS" },
    { "weight-decay", "--wd W" },
};

// For a name in `foreign`, gives ours. Else suggests an option if the typed name begins with the
// option's first three letters, or with the option's whole name.
static _Noreturn void reject_unknown(const Args *args, const char *typed)
{
    const char *word = typed + strspn(typed, "-"), *nearest = NULL;
    const char *no = strncmp(word, "no-", 3) == 0 ? "no-" : "";
    int longest = 2, length = (int)strcspn(typed, "=");
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (is_named(foreign[i].theirs, word, strcspn(word, "=")))
            args_reject(args, NULL, "unknown option '%.*s'; use %s", length, typed,
                        foreign[i].ours);
    word += strlen(no);
    for (int i = 0; i < args->count; i++) {
        const char *name = args->rows[i].name;
        int alike = 0;
        while (name[alike] && name[alike] == word[alike])
            alike++;
        if ((alike > longest || !name[alike]) && (!*no || args->rows[i].type == ARG_FLAG)) {
            longest = alike;
            nearest = name;
        }
    }
    if (nearest && config.reading)
        args_reject(args, NULL, "unknown option '%.*s'; did you mean \"%s = %s\"?", length, typed,
                    nearest, *no ? "no" : "...");
    if (nearest)
        args_reject(args, NULL, "unknown option '%.*s'; did you mean --%s%s?", length, typed, no,
                    nearest);
    args_reject(args, NULL, "unknown option '%.*s'; --help lists all options", length, typed);
}

// --- reading values ------------------------------------------------------------------------------

// Decimal only: strtod would also take "inf", "nan" and "0x1p3".
static double read_number(const Args *args, const Option *option, const char *text)
{
    bool real = option->type == ARG_DOUBLE;
    char *end;
    double value = strtod(text, &end), most = option->type == ARG_BOOL ? 1 : option->max;
    size_t allowed = strspn(text, real ? "+-.0123456789eE" : "+-0123456789");
    if (*end || text[allowed] || !(value >= option->min && value <= most))
        args_reject(args, option->name, "'%.100s' is not a %s from %.16g to %.16g", text,
                    real ? "number" : "whole number", option->min, most);
    return value;
}

static void set_number(const Option *option, double value)
{
    switch (option->type) {
    case ARG_INT: *(int *)option->value = (int)value; break;
    case ARG_INT64: *(int64_t *)option->value = (int64_t)value; break;
    case ARG_DOUBLE: *(double *)option->value = value; break;
    default: *(bool *)option->value = value != 0;
    }
}

static bool is_off(const char *value)
{
    return !*value || strcmp(value, "no") == 0 || strcmp(value, "0") == 0;
}

// "a|b:": is the value a, or does it begin with b:?
static bool is_listed(const char *values, const char *value)
{
    for (size_t n; *values; values += n + (values[n] == '|')) {
        n = strcspn(values, "|");
        if (strncmp(values, value, n) == 0 && (values[n - 1] == ':' || !value[n]))
            return true;
    }
    return false;
}

// "30,60,90": whole numbers below `most`, each larger than the one before.
static bool is_rising(const char *text, double most)
{
    long last = -1;
    for (char *end; isdigit((unsigned char)*text); text = end + 1) {
        long number = strtol(text, &end, 10);
        if (number <= last || (double)number >= most)
            return false;
        if (*end != ',')
            return *end == '\0';
        last = number;
    }
    return false;
}

int args_count_or_list(const char *text, int *numbers)
{
    int count = 0;
    if (!strchr(text, ',')) {
        for (; count < atoi(text); count++)
            numbers[count] = count;
        return count;
    }
    for (char *end; *text; text = *end ? end + 1 : end)
        numbers[count++] = (int)strtol(text, &end, 10);
    return count;
}

// "0.9,0.99"
static bool is_pair(const Option *option, const char *text)
{
    double a, b;
    int used = 0;
    return !text[strspn(text, "+-.0123456789eE,")]
           && sscanf(text, "%lf,%lf%n", &a, &b, &used) == 2 && !text[used]
           && fmin(a, b) >= option->min && fmax(a, b) <= option->max;
}

static void set_value(Args *args, const Option *option, const char *text)
{
    bool list = option->type == ARG_LIST && strchr(text, ',');
    args->set_by[option - args->rows] = SET_BY_USER;
    if (!*text)
        args_reject(args, option->name, "the value is empty");
    if (option->type == ARG_FLAG && strcmp(text, "yes") != 0 && strcmp(text, "no") != 0)
        args_reject(args, option->name, "'%.100s' is not yes or no", text);
    if (option->type == ARG_CHOICE && !is_listed(option->metavar, text))
        args_reject(args, option->name, "'%.100s' is not one of %s", text, option->metavar);
    if (list && !is_rising(text, option->max))
        args_reject(args, option->name, "'%.100s' is not an ascending list of whole numbers below "
                    "%.0f, such as 0,2", text, option->max);
    if (option->type == ARG_PAIR && !is_pair(option, text))
        args_reject(args, option->name, "'%.100s' is not two numbers from %.16g to %.16g, such as "
                    "0.9,0.95", text, option->min, option->max);
    if (option->type == ARG_LIST && !list)
        read_number(args, option, text);
    if (is_text(option))
        *(const char **)option->value = text;
    else if (option->type == ARG_FLAG)
        set_number(option, strcmp(text, "yes") == 0);
    else
        set_number(option, read_number(args, option, text));
}

// --- help ----------------------------------------------------------------------------------------

// "  -b, --batch-size N        batch size of one process [256]", in at most 80 columns.
static void print_row(const Option *option)
{
    enum { TEXT = 28, WIDTH = 80 };
    char value[64], text[512], letter[8] = "";
    if (option->letter)
        snprintf(letter, sizeof letter, "-%c,", option->letter);
    value_text(option, value, sizeof value);
    bool number = option->type >= ARG_INT && option->type <= ARG_DOUBLE;
    if (number && number_of(option) < option->min)
        *value = '\0';              // the help text names this default, which cannot be typed
    snprintf(text, sizeof text, *value ? "%s [%s]" : "%s", option->help, value);
    int column = printf("  %3s --%s%s %s", letter, option->type == ARG_FLAG ? "[no-]" : "",
                        option->name, option->metavar ? option->metavar : "");
    for (char *rest = text, *word; (word = strsep(&rest, " "));) {
        bool first = word == text;
        if (first ? column >= TEXT : column + 1 + (int)strlen(word) > WIDTH)
            column = 0, printf("\n");
        column += printf("%*s%s", first || column == 0 ? TEXT - column : 1, "", word);
    }
    printf("\n");
}

static _Noreturn void print_help(const Args *args)
{
    printf("usage: %s [OPTIONS]%s%s\n", program_name(args), args->operands ? " " : "",
           args->operands ? args->operands : "");
    if (args->summary)
        printf("%s\n", args->summary);
    for (int i = 0; i < args->count; i++) {
        if (i == 0 || args->groups[i] != args->groups[i - 1])
            printf("\n%s:\n", args->files[i]);
        print_row(&args->rows[i]);
    }
    printf("\n  -h, --help                print this text and exit\n");
    exit(fflush(stdout) == 0 ? 0 : EXIT_FAILED);
}

// --- config files --------------------------------------------------------------------------------

static char *trimmed(char *text)
{
    text += strspn(text, " \t\r\n");
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        length--;
    text[length] = '\0';
    return text;
}

// "key = value  # comment". A # within a word is part of it.
static void read_line(Args *args, char *line)
{
    for (char *c = line; *c; c++)
        if (*c == '#' && (c == line || isspace((unsigned char)c[-1])))
            *c = '\0';
    line = trimmed(line);
    char *equals = strchr(line, '=');
    if (!*line)
        return;
    if (!equals)
        args_reject(args, NULL, "'%.100s' is not \"key = value\"", line);
    *equals = '\0';
    const char *key = trimmed(line), *value = trimmed(equals + 1);
    Option *option = by_name(args, key, strlen(key));
    if (!option)
        reject_unknown(args, key);
    if (!is_value(option))
        args_reject(args, key, "can only be given on the command line");
    set_value(args, option, value);
}

static void read_config(Args *args, const char *path)
{
    size_t size = 0;
    if (config.count == CONFIGS_MAX)
        args_reject(args, "config", "at most %d files of options can be read", CONFIGS_MAX);
    char **text = &config.texts[config.count++];
    FILE *in = fopen(path, "re");
    ssize_t length = in ? getdelim(text, &size, '\0', in) : -1;
    if (!in || ferror(in))
        args_reject(args, "config", "%.200s: %s", path, strerror(errno));
    fclose(in);
    if (length > 0 && (*text)[length - 1] == '\0')
        args_reject(args, "config", "%.200s is not a text file: byte %zd is zero", path, length);
    config.reading = path;
    config.line = 0;
    // Some editors begin a file with a byte order mark.
    size_t mark = length > 0 && strncmp(*text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    for (char *rest = length > 0 ? *text + mark : NULL, *line; (line = strsep(&rest, "\n"));) {
        config.line++;
        read_line(args, line);
    }
    config.reading = NULL;
}

// Sets the options of the preset that neither the user nor an earlier preset has set.
static void apply_preset(Args *args, const struct ArgsPreset *preset)
{
    char value[PATH_MAX];
    value_text(by_name(args, preset->option, strlen(preset->option)), value, sizeof value);
    if (strcmp(value, preset->value) != 0)
        return;
    char *text = config.texts[config.count++] = xstrdup(preset->lines);
    for (char *line; (line = strsep(&text, "\n"));) {
        const Option *option = by_name(args, line, strcspn(line, " "));
        if (!option || args->set_by[option - args->rows] != SET_BY_NOBODY)
            continue;
        read_line(args, line);
        args->set_by[option - args->rows] = SET_BY_PRESET;
    }
}

static bool fits_line(const char *value)
{
    size_t length = strlen(value);
    for (size_t i = 0; i < length; i++)
        if (value[i] == '\n' ||
            (value[i] == '#' && (i == 0 || isspace((unsigned char)value[i - 1]))))
            return false;
    return length == 0 || (!isspace((unsigned char)*value) &&
                           !isspace((unsigned char)value[length - 1]));
}

static _Noreturn void print_config(const Args *args)
{
    for (int i = 0; i < args->count; i++) {
        const Option *option = &args->rows[i];
        char value[PATH_MAX];
        value_text(option, value, sizeof value);
        if (!fits_line(value))
            args_reject(args, option->name, "a file of options cannot hold '%.100s', because "
                        "of a line break, a '#', or a space or tab at an end", value);
        if (is_value(option))
            printf("%s%s = %s\n", is_given(args, option) ? "" : "# ", option->name, value);
    }
    exit(fflush(stdout) == 0 ? 0 : EXIT_FAILED);
}

// --- parsing -------------------------------------------------------------------------------------

// The value after an option. "-1" is a value; "--seed" and "-b" are the next option.
static const char *next_value(const Args *args, const Option *option, const char *next)
{
    if (next == NULL)
        args_reject(args, option->name, "a value is missing");
    if (next[0] == '-' && next[1] != '\0' && !isdigit((unsigned char)next[1]) && next[1] != '.')
        args_reject(args, option->name, "a value is missing before '%.100s'", next);
    return next;
}

// "--name 3", "--name=3", "--flag", "--no-flag", "-b 256", "-b256", "-e". Returns how many words it
// used: 1 or 2.
static int parse_option(Args *args, const char *word, const char *next)
{
    bool is_long = word[1] == '-';
    const char *name = is_long ? word + 2 : word + 1;
    size_t length = is_long ? strcspn(name, "=") : 1;
    const char *attached = !name[length] ? NULL : is_long ? name + length + 1 : name + length;
    Option *option = is_long ? by_name(args, name, length) : by_letter(args, *name);
    bool negated = is_long && !option && strncmp(name, "no-", 3) == 0;
    if (negated)
        option = by_name(args, name + 3, length - 3);
    if (!option || (negated && option->type != ARG_FLAG))
        reject_unknown(args, word);
    bool flag = option->type == ARG_FLAG;
    if (flag && attached)
        args_reject(args, option->name, "takes no value, but got '%.100s'", attached);
    set_value(args, option, flag       ? negated ? "no" : "yes"
                            : attached ? attached
                                       : next_value(args, option, next));
    return flag || attached ? 1 : 2;
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

// Rejects `option` if the option that `via` needs is off or has a wrong value. Returns the
// option that `via` needs.
static const Option *needed(const Args *args, const Option *option, const Option *via)
{
    static const char not[] = " not ";
    char value[PATH_MAX];
    int length = (int)strcspn(via->needs, " ");
    const char *values = via->needs + length;
    bool negative = strncmp(values, not, strlen(not)) == 0;
    const Option *other = by_name((Args *)args, via->needs, (size_t)length);
    value_text(other, value, sizeof value);
    if (negative && is_listed(values + strlen(not), value))
        args_reject(args, option->name, "has no effect with --%.*s %s", length, via->needs, value);
    if (!negative && !(*values ? is_listed(values + 1, value) : !is_off(value)))
        args_reject(args, option->name, "has no effect without --%s", via->needs);
    return other;
}

static void check_needs(const Args *args)
{
    for (int i = 0; i < args->count; i++) {
        char own[PATH_MAX];
        const Option *option = &args->rows[i], *via = option;
        value_text(option, own, sizeof own);
        while (is_given(args, option) && !is_off(own) && via->needs)
            via = needed(args, option, via);
    }
}

static void check_outputs(const Args *args)
{
    for (const Option *b = args->rows; b < args->rows + args->count; b++)
        for (const Option *a = args->rows; b->output && a < b; a++) {
            const char *first = a->output ? *(char **)a->value : NULL, *second = *(char **)b->value;
            if (first && second && output_same(first, second))
                args_reject(args, b->name, "'%.100s' is also a file of --%s",
                            second, a->name);
        }
}

static int parse_words(Args *args, int argc, char **argv)
{
    int i = 1;
    while (i < argc && (!args->operands || (argv[i][0] == '-' && strcmp(argv[i], "--") != 0))) {
        const char *word = argv[i];
        if (is_help(word))
            print_help(args);
        if (word[0] != '-' || !word[1] || strcmp(word, "--") == 0)
            args_reject(args, NULL, "unexpected argument '%.100s'; --help lists all options",
                        word);
        i += parse_option(args, word, i + 1 < argc ? argv[i + 1] : NULL);
    }
    return i;
}

// Reads the files first, wherever --config is, so that the command line overrides them.
static void read_configs(Args *args, int argc, char **argv)
{
    static const char equals[] = "--config=";
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], equals, sizeof equals - 1) == 0)
            read_config(args, argv[i] + sizeof equals - 1);
        else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            read_config(args, argv[++i]);
}

void args_parse(Args *args, int argc, char **argv)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)     // else a later file gets this number
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", O_RDWR);
    args->program = argc > 0 ? argv[0] : NULL;
    if (!args->operands)
        args_add(args, ARGS_ROWS(
            { "config", 0, ARG_STRING, &config.path, "FILE",
              "read options from this file, whose lines are key = value; may be repeated",
              .local = true },
            { "print-config", 0, ARG_FLAG, &config.print, NULL,
              "print all options as a file for --config, and exit", .local = true }));
    for (int j = 1; j < argc && !args->operands; j++)   // first, so that --help prints defaults
        if (is_help(argv[j]))
            print_help(args);
    if (!args->operands)
        read_configs(args, argc, argv);
    int i = parse_words(args, argc, argv);
    args->rest = argv + i + (i < argc && strcmp(argv[i], "--") == 0);
    for (int k = 0; k < args->preset_count; k++)
        apply_preset(args, &args->presets[k]);
    if (config.print)
        print_config(args);
    check_needs(args);
    check_outputs(args);
}
