// args.c - the table of options at work: parsing, --help, and the configuration as JSON.
#include "args.h"
#include "check.h"
#include "base/json.h"
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

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

// Strings that are cut end in "...".
static void value_text(const Option *option, char *out, size_t size)
{
    const char *text;
    switch (option->type) {
    case ARG_FLAG:
        snprintf(out, size, "%s", *(bool *)option->value ? "yes" : "no");
        break;
    case ARG_BOOL:
        snprintf(out, size, "%d", *(bool *)option->value);
        break;
    case ARG_INT:
        snprintf(out, size, "%d", *(int *)option->value);
        break;
    case ARG_INT64:
        snprintf(out, size, "%lld", (long long)*(int64_t *)option->value);
        break;
    case ARG_DOUBLE:
        double_text(*(double *)option->value, out, size);
        break;
    case ARG_STRING:
    case ARG_CHOICE:
    case ARG_INTS:
    case ARG_COUNT_OR_LIST:
        text = *(const char **)option->value;
        if (snprintf(out, size, "%s", text ? text : "") >= (int)size)
            memcpy(out + size - 4, "...", 4);
        break;
    }
}

// Numbers as numbers, flags as true and false, strings quoted.
static void value_json(const Option *option, FILE *out)
{
    char text[64];
    switch (option->type) {
    case ARG_FLAG:
    case ARG_BOOL:
        fputs(*(bool *)option->value ? "true" : "false", out);
        break;
    case ARG_INT:
    case ARG_INT64:
    case ARG_DOUBLE:
        value_text(option, text, sizeof text);
        fputs(text, out);
        break;
    case ARG_STRING:
    case ARG_CHOICE:
    case ARG_INTS:
    case ARG_COUNT_OR_LIST:
        json_string(out, *(const char **)option->value);
        break;
    }
}

void args_json(const Args *args, FILE *out)
{
    for (int i = 0; i < args->count; i++) {
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

// Many write underscores where we have dashes.
static bool is_named(const char *name, const char *typed, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (name[i] != typed[i] && !(name[i] == '-' && typed[i] == '_'))
            return false;
    return name[length] == '\0';
}

static int row_by_name(const Args *args, const char *name, size_t length)
{
    for (int i = 0; i < args->count; i++)
        if (is_named(args->rows[i].name, name, length))
            return i;
    return -1;
}

static int row_by_letter(const Args *args, char letter)
{
    for (int i = 0; i < args->count; i++)
        if (letter && args->rows[i].letter == letter)
            return i;
    return -1;
}

// The tables come from many files: that two of them want the same name must not pass unseen.
void args_add(Args *args, const Option *rows, int count)
{
    CHECK(args->count + count <= ARGS_MAX, "raise ARGS_MAX", "more than %d options", ARGS_MAX);
    args->group++;
    for (int i = 0; i < count; i++) {
        CHECK(row_by_name(args, rows[i].name, strlen(rows[i].name)) < 0
                  && row_by_letter(args, rows[i].letter) < 0,
              "rename one of them", "--%s: another option has this name or letter", rows[i].name);
        int row = args->count++;
        args->rows[row] = rows[i];
        args->groups[row] = (char)args->group;
        value_text(&rows[i], args->fallback[row], sizeof args->fallback[row]);
    }
}

bool args_given(const Args *args, const char *option)
{
    int row = row_by_name(args, option, strlen(option));
    return row >= 0 && args->given[row];
}

// --- refusing ------------------------------------------------------------------------------------

static const char *program_name(const Args *args)
{
    const char *program = args->program ? args->program : "train";
    const char *slash = strrchr(program, '/');
    return slash ? slash + 1 : program;
}

// One line, and perhaps a hint, whatever the user has typed.
static _Noreturn void reject(const Args *args, const char *hint, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void print_line(const char *prefix, char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            *c = '?';
    fprintf(stderr, "%s: %s\n", prefix, text);
}

// Processes that a launcher has started with the same options make the same mistake. The first of a
// machine says so; the others wait a moment, and are mostly ended then. srun ends nobody and shows
// what all print: there, only the first task of all speaks.
static bool is_first_here(void)
{
    static const char *const names[] = { "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK" };
    for (int i = 0; i < 2; i++)
        if (getenv(names[i]))
            return atoi(getenv(names[i])) == 0;
    return true;
}

static void reject(const Args *args, const char *hint, const char *format, ...)
{
    char text[512], hint_line[256];
    const char *task = getenv("OMPI_COMM_WORLD_RANK") ? NULL : getenv("SLURM_PROCID");
    if (task && atoi(task) > 0)
        exit(EXIT_USAGE);
    if (!is_first_here())
        sleep(1);
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    snprintf(hint_line, sizeof hint_line, "%s", hint);
    print_line(program_name(args), text);
    if (hint_line[0])
        print_line("hint", hint_line);
    exit(EXIT_USAGE);
}

void args_reject(const Args *args, const char *option, const char *format, ...)
{
    char text[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    reject(args, "", "--%s: %s", option, text);
}

static int min3(int a, int b, int c)
{
    int ab = a < b ? a : b;
    return ab < c ? ab : c;
}

// How many letters have to be put in, left out, changed or swapped with their neighbour to get from
// a to b (the optimal string alignment distance), for names of up to 40 letters.
//   cost[i][j]: from the first i letters of a to the first j of b
static int typing_distance(const char *a, const char *b)
{
    enum { MOST = 40 };
    static unsigned char cost[MOST + 1][MOST + 1];
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > MOST || m > MOST)
        return MOST;
    for (int i = 0; i <= n; i++) {
        for (int j = 0; j <= m; j++) {
            int best = i == 0 ? j : i;
            if (i > 0 && j > 0)
                best = min3(cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                            cost[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = min3(best, best, cost[i - 2][j - 2] + 1);
            cost[i][j] = (unsigned char)best;
        }
    }
    return cost[n][m];
}

// The option that was probably meant: one whose beginning was typed, else the one with the fewest
// slips. Writes it to out (or nothing, when all are too far off).
static void nearest_name(const Args *args, const char *typed, char *out, size_t size)
{
    int length = (int)strlen(typed), best = length / 3 + 2;
    out[0] = '\0';
    for (int i = 0; i < args->count; i++) {
        const char *name = args->rows[i].name;
        for (int negated = 0; negated <= (args->rows[i].type == ARG_FLAG); negated++) {
            char full[64];
            snprintf(full, sizeof full, "%s%s", negated ? "no-" : "", name);
            int distance = typing_distance(typed, full);
            if (length >= 3 && strncmp(full, typed, (size_t)length) == 0)
                distance = 0;
            if (distance < best) {
                best = distance;
                snprintf(out, size, "%s", full);
            }
        }
    }
}

static _Noreturn void reject_unknown(const Args *args, const char *typed)
{
    char name[64], hint[128] = "--help lists all options";
    size_t length = strcspn(typed, "=");
    snprintf(name, sizeof name, "%.*s", length < 63 ? (int)length : 63, typed);
    char nearest[64] = "";
    if (typed[1] == '-' || length > 2) // a single letter resembles everything
        nearest_name(args, name + strspn(name, "-"), nearest, sizeof nearest);
    if (nearest[0])
        snprintf(hint, sizeof hint, "did you mean --%s?", nearest);
    reject(args, hint, "unknown option '%s'", name);
}

// --- reading values ------------------------------------------------------------------------------

static _Noreturn void reject_value(const Args *args, const Option *option, const char *text,
                                   const char *wanted)
{
    args_reject(args, option->name, "'%.100s' is not %s", text, wanted);
}

static void check_range(const Args *args, const Option *option, const char *text, double value)
{
    char low[400], high[400];
    if ((option->min == 0 && option->max == 0) || (value >= option->min && value <= option->max))
        return;
    if (option->type == ARG_DOUBLE) {
        double_text(option->min, low, sizeof low);
        double_text(option->max, high, sizeof high);
    } else {
        snprintf(low, sizeof low, "%.0f", option->min);
        snprintf(high, sizeof high, "%.0f", option->max);
    }
    if (isinf(option->max))
        args_reject(args, option->name, "'%.100s' is too small: at least %s", text, low);
    args_reject(args, option->name, "'%.100s' is out of range: %s to %s", text, low, high);
}

static int64_t read_integer(const Args *args, const Option *option, const char *text,
                            int64_t least, int64_t most)
{
    char *end;
    const char *digits = text + (*text == '-' || *text == '+');
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (!isdigit((unsigned char)*digits) || *end)
        reject_value(args, option, text, "a whole number");
    bool overflow = errno == ERANGE || value < least || value > most;
    if (overflow && option->min == 0 && option->max == 0)
        args_reject(args, option->name, "'%.100s' is out of range: %lld to %lld", text,
                    (long long)least, (long long)most);
    check_range(args, option, text, overflow ? (*text == '-' ? -HUGE_VAL : HUGE_VAL)
                                             : (double)value);
    if (overflow)
        reject_value(args, option, text, "small enough");
    return value;
}

// Decimal only: strtod would take "inf", "nan" and "0x1p3" too.
static double read_double(const Args *args, const Option *option, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (!*text || *end || strspn(text, "+-.0123456789eE") != strlen(text))
        reject_value(args, option, text, "a finite number");
    if (!isfinite(value))
        args_reject(args, option->name, "'%.100s' is out of range: it is too large for a double",
                    text);
    check_range(args, option, text, value);
    return value;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (const char *c = choices; ; c++) {
        size_t word = strcspn(c, "|");
        if (word == length && memcmp(c, text, word) == 0)
            return true;
        c += word;
        if (!*c)
            return false;
    }
}

// "30,60,90": each a positive integer, each larger than the one before.
static bool is_rising(const char *text)
{
    for (long before = 0;; text++) {
        char *end;
        errno = 0;
        long value = isdigit((unsigned char)*text) ? strtol(text, &end, 10) : 0;
        if (value <= before || errno || value > INT_MAX || (*end != ',' && *end != '\0'))
            return false;
        if (*end == '\0')
            return true;
        before = value;
        text = end;
    }
}

// "0,2": no number twice, and no more of them than the largest count.
static bool is_list(const char *text, int most)
{
    bool seen[1000] = { false };
    for (; most > 0; most--, text++) {
        size_t digits = strspn(text, "0123456789");
        int number = digits >= 1 && digits <= 3 ? atoi(text) : -1;
        if (number < 0 || seen[number])
            return false;
        seen[number] = true;
        text += digits;
        if (*text != ',')
            return *text == '\0';
    }
    return false;
}

int args_count_or_list(const char *text, int *numbers)
{
    int count = 0;
    if (!strchr(text, ','))
        for (int all = atoi(text); count < all; count++)
            numbers[count] = count;
    else
        for (; text; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL)
            numbers[count++] = atoi(text);
    return count;
}

static void set_value(const Args *args, const Option *option, const char *text)
{
    if (!*text)
        args_reject(args, option->name, "the value is empty");
    switch (option->type) {
    case ARG_FLAG:
        break;
    case ARG_BOOL:
        if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
            reject_value(args, option, text, "0 or 1");
        *(bool *)option->value = *text == '1';
        break;
    case ARG_INT:
        *(int *)option->value = (int)read_integer(args, option, text, INT_MIN, INT_MAX);
        break;
    case ARG_INT64:
        *(int64_t *)option->value = read_integer(args, option, text, INT64_MIN, INT64_MAX);
        break;
    case ARG_DOUBLE:
        *(double *)option->value = read_double(args, option, text);
        break;
    case ARG_CHOICE:
        if (!is_choice(option->metavar, text))
            args_reject(args, option->name, "'%.100s' is none of %s", text, option->metavar);
        *(const char **)option->value = text;
        break;
    case ARG_INTS:
        if (!is_rising(text))
            reject_value(args, option, text, "a rising list of positive numbers such as 30,60,90");
        *(const char **)option->value = text;
        break;
    case ARG_COUNT_OR_LIST:
        if (!strchr(text, ','))
            read_integer(args, option, text, INT_MIN, INT_MAX);
        else if (!is_list(text, (int)option->max))
            reject_value(args, option, text, "a list of different numbers such as 0,2");
        *(const char **)option->value = text;
        break;
    case ARG_STRING:
        *(const char **)option->value = text;
        break;
    }
}

// --- help ----------------------------------------------------------------------------------------

enum { NAME_WIDTH = 28, DEFAULT_WIDTH = 10, INDENT = NAME_WIDTH + DEFAULT_WIDTH + 2 };

static int help_width(void)
{
    struct winsize size;
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0
        && size.ws_col >= INDENT + 20)
        return size.ws_col < 110 ? size.ws_col : 110;
    return 100;
}

// Prints text in the column that begins at INDENT, where the cursor is, broken between words.
static void print_wrapped(const char *text, int width)
{
    int column = INDENT;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (column > INDENT && column + 1 + word > width) {
            printf("\n%*s", INDENT, "");
            column = INDENT;
        }
        column += printf("%s%.*s", column > INDENT ? " " : "", word, text);
        text += word;
        text += strspn(text, " ");
    }
    printf("\n");
}

static void print_row(const Option *option, const char *fallback, int width)
{
    char name[160], letter[8] = "";
    if (option->letter)
        snprintf(letter, sizeof letter, "-%c,", option->letter);
    bool flag = option->type == ARG_FLAG;
    snprintf(name, sizeof name, "  %3s --%s%s %s", letter, flag ? "[no-]" : "", option->name,
             flag                         ? ""
             : option->metavar            ? option->metavar
             : option->type == ARG_BOOL   ? "0|1"
                                          : "VALUE");
    int column = printf("%-*s", NAME_WIDTH, name);
    if (column > NAME_WIDTH)
        printf("\n%*s", NAME_WIDTH, "");
    column = printf(" %-*s ", DEFAULT_WIDTH, fallback) + NAME_WIDTH;
    if (column > INDENT)
        printf("\n%*s", INDENT, "");
    print_wrapped(option->help ? option->help : "", width);
}

static _Noreturn void print_help(const Args *args)
{
    if (!is_first_here())
        exit(0);
    int width = help_width();
    printf("usage: %s [OPTIONS]%s%s\n", program_name(args), args->operands ? " " : "",
           args->operands ? args->operands : "");
    if (args->summary)
        printf("%s\n", args->summary);
    printf("\n%-*s default\n", NAME_WIDTH, "  option");
    for (int i = 0; i < args->count; i++) {
        if (i > 0 && args->groups[i] != args->groups[i - 1])
            printf("\n");
        print_row(&args->rows[i], args->fallback[i], width);
    }
    printf("\n%-*s this text\n", INDENT - 1, "  -h, --help");
    exit(fflush(stdout) == 0 ? 0 : EXIT_FAILED);
}

// --- parsing -------------------------------------------------------------------------------------

// What follows an option that wants a value. "-1" is one; "--seed" and "-b" are the next option.
static const char *next_value(const Args *args, const Option *option, const char *next)
{
    if (next == NULL)
        reject(args, "", "--%s: a value is missing", option->name);
    bool dashed = next[0] == '-' && next[1] != '\0' && !isdigit((unsigned char)next[1])
                  && next[1] != '.';
    if (dashed) {
        char hint[200];
        snprintf(hint, sizeof hint, "--%s=%.100s if that is the value", option->name, next);
        reject(args, hint, "--%s: a value is missing before '%.100s'", option->name, next);
    }
    return next;
}

// "--name", "--name=value", "--no-name". Returns how many arguments were used up: 1 or 2.
static int parse_long(Args *args, const char *word, const char *next)
{
    const char *name = word + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    int row = row_by_name(args, name, length);
    bool negated = false;
    if (row < 0 && strncmp(name, "no-", 3) == 0) {
        row = row_by_name(args, name + 3, length - 3);
        negated = row >= 0 && args->rows[row].type == ARG_FLAG;
        row = negated ? row : -1;
    }
    if (row < 0)
        reject_unknown(args, word);
    const Option *option = &args->rows[row];
    args->given[row] = 1;
    if (option->type == ARG_FLAG) {
        if (equals)
            args_reject(args, option->name, "takes no value, but got '%.100s'", equals + 1);
        *(bool *)option->value = !negated;
        return 1;
    }
    set_value(args, option, equals ? equals + 1 : next_value(args, option, next));
    return equals ? 1 : 2;
}

// "-b256", "-b 256", "-e". Returns how many arguments were used up: 1 or 2.
static int parse_short(Args *args, const char *word, const char *next)
{
    int row = row_by_letter(args, word[1]);
    if (row < 0)
        reject_unknown(args, word);
    const Option *option = &args->rows[row];
    args->given[row] = 1;
    if (option->type == ARG_FLAG) {
        if (word[2])
            reject_unknown(args, word);
        *(bool *)option->value = true;
        return 1;
    }
    set_value(args, option, word[2] ? word + 2 : next_value(args, option, next));
    return word[2] ? 1 : 2;
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

// The file at path, as far as it can be told: one that is not there yet by its directory and name.
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

// A file that one option writes would destroy what another one reads or writes there.
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

void args_parse(Args *args, int argc, char **argv)
{
    int i = 1;
    args->program = argc > 0 ? argv[0] : NULL;
    for (int j = 1; j < argc && !args->operands; j++)
        if (is_help(argv[j]))
            print_help(args);
    while (i < argc && (!args->operands || (argv[i][0] == '-' && strcmp(argv[i], "--") != 0))) {
        const char *word = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (is_help(word))
            print_help(args);
        if (word[0] == '-' && word[1] == '-' && word[2])
            i += parse_long(args, word, next);
        else if (word[0] == '-' && word[1] && word[1] != '-')
            i += parse_short(args, word, next);
        else
            reject(args, "every option begins with a dash; --help lists them",
                   "unexpected argument '%.100s'", word);
    }
    args->rest = argv + i + (i < argc && strcmp(argv[i], "--") == 0);
    refuse_same_files(args);
}
