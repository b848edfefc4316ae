// args.c - uses the table of options: parsing, config files, --help, and all values as JSON.
#include "args.h"
#include "check.h"
#include "base/json.h"
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIGS_MAX = 16 };
static struct {
    const char *path;       // the last --config
    bool print;
    char *texts[CONFIGS_MAX];   // the files' contents: options point into them
    int count;
    bool reading;           // path, at this line
    int line;
} config;

// --config and --print-config are not part of the configuration themselves.
static bool is_value(const Option *option)
{
    return option->value != &config.path && option->value != &config.print;
}

// --- values as text ------------------------------------------------------------------------------

// The shortest decimal that reads back as the same number.
static void double_text(double value, char *out, size_t size)
{
    for (int digits = fabs(value) < 1e6 ? 6 : 1; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

static bool is_text(const Option *option) { return option->type >= ARG_STRING; }

// NULL is the empty text.
static void value_text(const Option *option, char *out, size_t size)
{
    const char *text = is_text(option) ? *(const char **)option->value : NULL;
    if (option->type == ARG_FLAG)
        snprintf(out, size, "%s", *(bool *)option->value ? "yes" : "no");
    else if (option->type == ARG_BOOL)
        snprintf(out, size, "%d", *(bool *)option->value);
    else if (option->type == ARG_INT)
        snprintf(out, size, "%d", *(int *)option->value);
    else if (option->type == ARG_INT64)
        snprintf(out, size, "%lld", (long long)*(int64_t *)option->value);
    else if (option->type == ARG_DOUBLE)
        double_text(*(double *)option->value, out, size);
    else
        snprintf(out, size, "%s", text ? text : "");
}

static void value_json(const Option *option, FILE *out)
{
    char text[64];
    if (is_text(option)) {
        json_text(out, *(const char **)option->value);
        return;
    }
    value_text(option, text, sizeof text);
    bool boolean = option->type == ARG_FLAG || option->type == ARG_BOOL;
    fputs(!boolean ? text : *(bool *)option->value ? "true" : "false", out);
}

void args_json(const Args *args, FILE *out)
{
    for (int i = 0; i < args->count; i++) {
        if (!is_value(&args->rows[i]))
            continue;
        fprintf(out, "%s\"", i ? "," : "");
        for (const char *c = args->rows[i].name; *c; c++)
            fputc(*c == '-' ? '_' : *c, out);
        fputs("\":", out);
        value_json(&args->rows[i], out);
    }
}

char *args_shared(const Args *args)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out, "", "open_memstream: %s", strerror(errno));
    for (int i = 0; i < args->count; i++)
        if (!args->rows[i].own) {
            fprintf(out, "--%s ", args->rows[i].name);
            value_json(&args->rows[i], out);
            fputc('\n', out);
        }
    fclose(out);
    return text;
}

// --- the table -----------------------------------------------------------------------------------

// As torchrun does, takes underscores for dashes.
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

// The tables come from many files: two options with the same name are an error.
void args_add(Args *args, const Option *rows, int count)
{
    CHECK(args->count + count <= ARGS_MAX, "raise ARGS_MAX", "more than %d options", ARGS_MAX);
    args->group++;
    for (int i = 0; i < count; i++) {
        CHECK(!by_name(args, rows[i].name, strlen(rows[i].name))
                  && !by_letter(args, rows[i].letter), "rename one of them",
              "--%s: another option has this name or letter", rows[i].name);
        args->groups[args->count] = (char)args->group;
        args->rows[args->count++] = rows[i];
    }
}

bool args_given(const Args *args, const char *name)
{
    const Option *option = by_name((Args *)args, name, strlen(name));
    return option && args->given[option - args->rows];
}

// --- refusing ------------------------------------------------------------------------------------

static const char *program_name(const Args *args)
{
    const char *program = args->program ? args->program : "train";
    const char *slash = strrchr(program, '/');
    return slash ? slash + 1 : program;
}

// Processes that a launcher has started with the same options find the same error. The first of a
// machine prints it; the others wait a moment, in which the launcher usually ends them. srun ends
// no task, so there only task 0 prints.
static bool is_other_task(void)
{
    const char *task = getenv("OMPI_COMM_WORLD_RANK") ? NULL : getenv("SLURM_PROCID");
    return task && atoi(task) > 0;
}

static bool is_other_here(void)
{
    const char *local = getenv("LOCAL_RANK");
    local = local ? local : getenv("OMPI_COMM_WORLD_LOCAL_RANK");
    return local && atoi(local) > 0;
}

// Prints one line, whatever the user typed. An error in a config file names the file and the line.
void args_reject(const Args *args, const char *option, const char *format, ...)
{
    char text[512];
    va_list list;
    const char *dashes = config.reading ? "" : "--";
    int n = option ? snprintf(text, sizeof text, "%s%s: ", dashes, option) : 0;
    va_start(list, format);
    vsnprintf(text + n, sizeof text - (size_t)n, format, list);
    va_end(list);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            *c = '?';
    if (is_other_task())
        exit(EXIT_USAGE);
    if (is_other_here())
        sleep(1);
    if (config.reading)
        fprintf(stderr, "%s:%d: %s\n", config.path, config.line, text);
    else
        fprintf(stderr, "%s: %s\n", program_name(args), text);
    exit(EXIT_USAGE);
}

// Suggests the option that starts like the word: with at least three letters, or its whole name.
static _Noreturn void reject_unknown(const Args *args, const char *typed)
{
    const char *word = typed + strspn(typed, "-"), *nearest = NULL;
    const char *no = strncmp(word, "no-", 3) == 0 ? "no-" : "";
    int longest = 2, length = (int)strcspn(typed, "=");
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
    if (nearest)
        args_reject(args, NULL, "unknown option '%.*s'; did you mean --%s%s?", length, typed, no,
                    nearest);
    args_reject(args, NULL, "unknown option '%.*s'; --help lists all", length, typed);
}

// --- reading values ------------------------------------------------------------------------------

static void limits(const Option *option, double *least, double *most)
{
    bool any = option->min == 0 && option->max == 0;
    double end = option->type == ARG_INT ? INT_MAX : option->type == ARG_INT64 ? 0x1p63 : DBL_MAX;
    *least = any ? -end : option->min;
    *most = any ? end : option->max;
}

// Decimal only: strtod would take "inf", "nan" and "0x1p3" too.
static bool set_number(const Option *option, const char *text)
{
    bool real = option->type == ARG_DOUBLE;
    char *end;
    double least, most;
    limits(option, &least, &most);
    errno = 0;
    long long whole = real ? 0 : strtoll(text, &end, 10);
    bool overflow = !real && errno == ERANGE;
    double value = real ? strtod(text, &end) : (double)whole;
    const char *allowed = real ? "+-.0123456789eE" : "+-0123456789";
    if (*end || overflow || strspn(text, allowed) != strlen(text) ||
        !(value >= least && value <= most))
        return false;
    if (real)
        *(double *)option->value = value;
    else if (option->type == ARG_INT64)
        *(int64_t *)option->value = whole;
    else
        *(int *)option->value = (int)whole;
    return true;
}

static _Noreturn void reject_number(const Args *args, const Option *option, const char *text)
{
    double least, most;
    limits(option, &least, &most);
    args_reject(args, option->name, "'%.100s' is not a %s from %.16g to %.16g", text,
                option->type == ARG_DOUBLE ? "number" : "whole number", least, most);
}

static bool is_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (const char *word = choices; *word; word += *word == '|') {
        size_t n = strcspn(word, "|");
        if (n == length && memcmp(word, text, n) == 0)
            return true;
        word += n;
    }
    return false;
}

// "0,2" as numbers. Returns how many, or 0 if it is not a list or is longer than `most`.
static int list_of(const char *text, int *numbers, int most)
{
    for (int count = 0; count < most; text++) {
        size_t digits = strspn(text, "0123456789");
        if (digits < 1 || digits > 9)
            return 0;
        numbers[count++] = atoi(text);
        text += digits;
        if (*text == '\0')
            return count;
        if (*text != ',')
            return 0;
    }
    return 0;
}

// "30,60,90": each a positive number, each larger than the one before.
static bool is_rising(const char *text)
{
    int numbers[256], count = list_of(text, numbers, 256);
    for (int i = 0; i < count; i++)
        if (numbers[i] <= (i > 0 ? numbers[i - 1] : 0))
            return false;
    return count > 0;
}

static bool are_different(const char *text, int most)
{
    int numbers[256], count = list_of(text, numbers, most);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if (numbers[i] == numbers[j])
                return false;
    return count > 0;
}

int args_count_or_list(const char *text, int *numbers)
{
    if (strchr(text, ','))
        return list_of(text, numbers, INT_MAX);
    int count = atoi(text);
    for (int i = 0; i < count; i++)
        numbers[i] = i;
    return count;
}

static void set_flag(const Args *args, const Option *option, const char *text, const char *yes,
                     const char *no)
{
    *(bool *)option->value = strcmp(text, yes) == 0;
    if (strcmp(text, yes) != 0 && strcmp(text, no) != 0)
        args_reject(args, option->name, "'%.100s' is not %s or %s", text, no, yes);
}

// "2" for the first two, or "0,2".
static void check_count_or_list(const Args *args, const Option *option, const char *text)
{
    int count;
    Option counted = *option;
    counted.type = ARG_INT;
    counted.value = &count;
    if (strchr(text, ',') && !are_different(text, (int)option->max))
        args_reject(args, option->name, "'%.100s' is not a list of different numbers such as 0,2",
                    text);
    if (!strchr(text, ',') && !set_number(&counted, text))
        reject_number(args, &counted, text);
}

static void set_value(Args *args, const Option *option, const char *text)
{
    args->given[option - args->rows] = 1;
    if (!*text)
        args_reject(args, option->name, "the value is empty");
    if (option->type == ARG_FLAG)
        set_flag(args, option, text, "yes", "no");
    else if (option->type == ARG_BOOL)
        set_flag(args, option, text, "1", "0");
    else if (option->type == ARG_CHOICE && !is_choice(option->metavar, text))
        args_reject(args, option->name, "'%.100s' is none of %s", text, option->metavar);
    else if (option->type == ARG_INTS && !is_rising(text))
        args_reject(args, option->name,
                    "'%.100s' is not a rising list of positive numbers such as 30,60,90", text);
    else if (option->type == ARG_COUNT_OR_LIST)
        check_count_or_list(args, option, text);
    else if (!is_text(option) && !set_number(option, text))
        reject_number(args, option, text);
    if (is_text(option))
        *(const char **)option->value = text;
}

// --- help ----------------------------------------------------------------------------------------

static void print_row(const Option *option)
{
    char name[128], value[64], letter[8] = "";
    bool flag = option->type == ARG_FLAG;
    if (option->letter)
        snprintf(letter, sizeof letter, "-%c,", option->letter);
    snprintf(name, sizeof name, "%s%s %s", flag ? "[no-]" : "", option->name,
             option->metavar ? option->metavar : "");
    value_text(option, value, sizeof value);
    printf("  %3s --%-20s  %-10s  %s\n", letter, name, value, option->help);
}

static _Noreturn void print_help(const Args *args)
{
    printf("usage: %s [OPTIONS]%s%s\n", program_name(args), args->operands ? " " : "",
           args->operands ? args->operands : "");
    if (args->summary)
        printf("%s\n", args->summary);
    printf("\n  option                      default\n");
    for (int i = 0; i < args->count; i++) {
        if (i > 0 && args->groups[i] != args->groups[i - 1])
            printf("\n");
        print_row(&args->rows[i]);
    }
    printf("\n  -h, --help                              this text\n");
    exit(fflush(stdout) == 0 ? 0 : EXIT_FAILED);
}

// --- config files --------------------------------------------------------------------------------

// Removes the spaces at both ends, in place.
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
    if (!option || !is_value(option))
        reject_unknown(args, key);
    set_value(args, option, value);
}

static void read_config(Args *args)
{
    size_t size;
    if (config.count == CONFIGS_MAX)
        args_reject(args, "config", "at most %d files", CONFIGS_MAX);
    char **text = &config.texts[config.count++];
    FILE *out = open_memstream(text, &size), *in = fopen(config.path, "re");
    CHECK(out, "", "open_memstream: %s", strerror(errno));
    for (int c; in && (c = fgetc(in)) != EOF;)
        fputc(c ? c : '?', out);
    int error = !in || ferror(in) ? errno : 0;
    fclose(out);
    if (in)
        fclose(in);
    if (error)
        args_reject(args, "config", "%.200s: %s", config.path, strerror(error));
    config.reading = true;
    config.line = 0;
    for (char *line = *text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        config.line++;
        read_line(args, line);
    }
    config.reading = false;
}

// Prints the given options, and defaults as comments: args_given tells the two apart.
static _Noreturn void print_config(const Args *args)
{
    if (is_other_task() || is_other_here())
        exit(0);
    for (int i = 0; i < args->count; i++) {
        const Option *option = &args->rows[i];
        char value[PATH_MAX];
        value_text(option, value, sizeof value);
        if (is_value(option))
            printf("%s%s = %s\n", args->given[i] ? "" : "# ", option->name, value);
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

// "--name", "--name=value", "--no-name". Returns how many arguments were used up: 1 or 2.
static int parse_long(Args *args, const char *word, const char *next)
{
    const char *name = word + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    Option *option = by_name(args, name, length);
    bool negated = !option && strncmp(name, "no-", 3) == 0;
    if (negated)
        option = by_name(args, name + 3, length - 3);
    if (!option || (negated && option->type != ARG_FLAG))
        reject_unknown(args, word);
    bool flag = option->type == ARG_FLAG;
    if (flag && equals)
        args_reject(args, option->name, "takes no value, but got '%.100s'", equals + 1);
    set_value(args, option, flag     ? negated ? "no" : "yes"
                            : equals ? equals + 1
                                     : next_value(args, option, next));
    return flag || equals ? 1 : 2;
}

// "-b256", "-b 256", "-e". Returns how many arguments were used up: 1 or 2.
static int parse_short(Args *args, const char *word, const char *next)
{
    Option *option = by_letter(args, word[1]);
    bool flag = option && option->type == ARG_FLAG;
    if (!option || (flag && word[2]))
        reject_unknown(args, word);
    set_value(args, option, flag      ? "yes"
                            : word[2] ? word + 2
                                      : next_value(args, option, next));
    return flag || word[2] ? 1 : 2;
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

// The directory and the name of the file at path, which need not exist yet.
static bool identify(const char *path, struct stat *directory, const char **name)
{
    const char *slash = strrchr(path, '/');
    char above[PATH_MAX] = ".";
    *name = slash ? slash + 1 : path;
    if (slash)
        snprintf(above, sizeof above, "%.*s", (int)(slash - path + 1), path);
    return stat(above, directory) == 0;
}

static bool same_file(const char *a, const char *b)
{
    struct stat one, other;
    const char *name, *other_name;
    if (stat(a, &one) == 0 && stat(b, &other) == 0)
        return S_ISREG(one.st_mode) && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
    return identify(a, &one, &name) && identify(b, &other, &other_name) &&
           one.st_dev == other.st_dev && one.st_ino == other.st_ino &&
           strcmp(name, other_name) == 0;
}

static const char *file_of(const Option *o)
{
    bool is_file = o->type == ARG_STRING && o->metavar && strcmp(o->metavar, "FILE") == 0;
    return is_file ? *(const char **)o->value : NULL;
}

// Refuses a file that one option writes and a different option reads or writes.
static void refuse_same_files(const Args *args)
{
    for (int i = 0; i < args->count; i++)
        for (int j = 0; j < i; j++) {
            const Option *a = &args->rows[i], *b = &args->rows[j];
            const char *file = file_of(a), *other = file_of(b);
            if (file && other && (a->overwrites || b->overwrites) && same_file(file, other))
                args_reject(args, a->name, "that is the file of --%s", b->name);
        }
}

// Returns the number of words that are options and their values.
static int parse_words(Args *args, int argc, char **argv, bool with_files)
{
    int i = 1;
    const char *last = NULL;
    while (i < argc && (!args->operands || (argv[i][0] == '-' && strcmp(argv[i], "--") != 0))) {
        const char *word = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (is_help(word))
            print_help(args);
        if (word[0] == '-' && word[1] == '-' && word[2])
            i += parse_long(args, word, next);
        else if (word[0] == '-' && word[1] && word[1] != '-')
            i += parse_short(args, word, next);
        else
            args_reject(args, NULL, "unexpected argument '%.100s'; every option begins with a dash",
                        word);
        if (with_files && config.path != last)
            read_config(args);
        last = config.path;
    }
    return i;
}

void args_parse(Args *args, int argc, char **argv)
{
    args->program = argc > 0 ? argv[0] : NULL;
    config.path = NULL;
    config.print = false;
    if (!args->operands)
        args_add(args, ARGS_ROWS(
            { "config", 0, ARG_STRING, &config.path, "FILE",
              "read options from it, as key = value; may be repeated", .own = true },
            { "print-config", 0, ARG_FLAG, &config.print, NULL,
              "print all options as such a file (defaults as comments), and exit", .own = true }));
    for (int j = 1; j < argc && !args->operands; j++)
        if (is_help(argv[j]))
            print_help(args);
    // The command line overrides the files, wherever it names them: so it is read again.
    parse_words(args, argc, argv, true);
    int i = parse_words(args, argc, argv, false);
    args->rest = argv + i + (i < argc && strcmp(argv[i], "--") == 0);
    refuse_same_files(args);
    if (config.print)
        print_config(args);
}
