// args.c - parses options, prints --help, and gives all values as text and as JSON.
#include "args.h"
#include "check.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void value_text(const Option *option, char *out, size_t size)
{
    const char *text = is_text(option) ? *(const char **)option->value : NULL;
    if (is_text(option))
        snprintf(out, size, "%s", text ? text : "");
    else if (option->type == ARG_FLAG)
        snprintf(out, size, "%s", number_of(option) ? "yes" : "no");
    else
        snprintf(out, size, option->type == ARG_DOUBLE ? "%.9g" : "%.17g", number_of(option));
}

// JSON allows only UTF-8. Any other text becomes null, like a text that is not set.
json_t *args_json(const Args *args)
{
    json_t *all = json_object();
    for (const Option *o = args->rows; o < args->rows + args->count; o++) {
        char name[64];
        snprintf(name, sizeof name, "%s", o->name);
        for (char *c = name; *c; c++)
            *c = *c == '-' ? '_' : *c;
        json_t *value = is_text(o)              ? json_string(*(const char **)o->value)
                        : o->type == ARG_FLAG   ? json_boolean(number_of(o))
                        : o->type == ARG_DOUBLE ? json_real(number_of(o))
                                                : json_integer((json_int_t)number_of(o));
        json_object_set_new(all, name, value ? value : json_null());
    }
    return all;
}

char *args_shared(const Args *args)
{
    char *text = NULL, value[PATH_MAX];
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out, "", "out of memory: no room for a list of the options");
    for (const Option *o = args->rows; o < args->rows + args->count; o++)
        if (!o->local) {
            value_text(o, value, sizeof value);
            fprintf(out, "--%s %s\n", o->name, value);
        }
    fclose(out);
    return text;
}

// --- the table -----------------------------------------------------------------------------------

// Finds an option by its letter or by its name.
static Option *find(const Args *args, const char *typed, size_t length)
{
    for (const Option *o = args->rows; o < args->rows + args->count; o++)
        if ((strncmp(o->name, typed, length) == 0 && !o->name[length]) ||
            (length == 1 && o->letter == *typed))
            return (Option *)o;
    return NULL;
}

void args_add(Args *args, const char *file, const Option *rows, int count)
{
    CHECK(args->count + count <= ARGS_MAX, "raise ARGS_MAX in common/args.h",
          "there are more than %d options", ARGS_MAX);
    for (const Option *o = rows; o < rows + count; o++) {
        CHECK(!find(args, o->name, strlen(o->name)) && !(o->letter && find(args, &o->letter, 1)),
              "rename one of them", "--%s: another option has this name or letter", o->name);
        args->files[args->count] = basename(file);
        args->rows[args->count++] = *o;
    }
}

void args_check(Args *args, ArgsCheck *check, void *config)
{
    args->checks[args->check_count].check = check;
    args->checks[args->check_count++].config = config;
}

bool args_has(const Args *args, const char *name) { return find(args, name, strlen(name)); }

bool args_given(const Args *args, const char *name)
{
    const Option *option = find(args, name, strlen(name));
    return option && args->set_by[option - args->rows] == SET_BY_USER;
}

// Is the value one of "a|b|c"?
static bool is_listed(const char *values, const char *value)
{
    for (size_t n; *values; values += n + (values[n] == '|')) {
        n = strcspn(values, "|");
        if (strncmp(values, value, n) == 0 && !value[n])
            return true;
    }
    return false;
}

bool args_is(const Args *args, const char *name, const char *values)
{
    char value[PATH_MAX];
    const Option *option = find(args, name, strlen(name));
    if (!option)
        return false;
    value_text(option, value, sizeof value);
    return is_listed(values, value);
}

// --- setting values ------------------------------------------------------------------------------

// While an @FILE is read, the message begins with that file and its line, not with the program.
void args_reject(const Args *args, const char *option, const char *format, ...)
{
    char text[512];
    va_list list;
    int n = option ? snprintf(text, sizeof text, "--%s: ", option) : 0;
    va_start(list, format);
    vsnprintf(text + n, sizeof text - (size_t)n, format, list);
    va_end(list);
    blank_controls(text);
    if (args->file)
        fprintf(stderr, "%s:%d: %s\n", args->file, args->line, text);
    else
        fprintf(stderr, "%s: %s\n", basename(args->program), text);
    exit(EXIT_USAGE);
}

// Accepts only decimal numbers: strtod would also take "inf", "nan" and "0x1p3".
static double read_number(const Args *args, const Option *option, const char *text)
{
    bool real = option->type == ARG_DOUBLE;
    char *end;
    double value = strtod(text, &end);
    size_t allowed = strspn(text, real ? "+-.0123456789eE" : "+-0123456789");
    if (*end || text[allowed] || !(value >= option->min && value <= option->max))
        args_reject(args, option->name, "'%.100s' is not a %s from %.16g to %.16g", text,
                    real ? "number" : "whole number", option->min, option->max);
    return value;
}

static void set_value(Args *args, const Option *option, const char *text)
{
    args->set_by[option - args->rows] = SET_BY_USER;
    if (!*text)
        args_reject(args, option->name, "the value is empty");
    if (option->type == ARG_CHOICE && !is_listed(option->metavar, text))
        args_reject(args, option->name, "'%.100s' is not one of %s", text, option->metavar);
    switch (option->type) {
    case ARG_FLAG: *(bool *)option->value = strcmp(text, "yes") == 0; break;
    case ARG_INT: *(int *)option->value = (int)read_number(args, option, text); break;
    case ARG_INT64: *(int64_t *)option->value = (int64_t)read_number(args, option, text); break;
    case ARG_DOUBLE: *(double *)option->value = read_number(args, option, text); break;
    default: *(const char **)option->value = text;
    }
}

void args_default(Args *args, const char *name, const char *value)
{
    const Option *option = find(args, name, strlen(name));
    if (!option || args->set_by[option - args->rows] != SET_BY_NOBODY)
        return;
    set_value(args, option, value);
    args->set_by[option - args->rows] = SET_BY_DEFAULT;
}

// --- help ----------------------------------------------------------------------------------------

// Prints a word, on a new line if it would pass column 80. Returns the column after it.
static int put_word(int column, int indent, const char *word)
{
    if (column + 1 + (int)strlen(word) > 80)
        column = 0, printf("\n");
    return column + printf("%*s%s", column < indent ? indent - column : 1, "", word);
}

// Prints "  -b, --batch-size N        samples in a batch [256]".
static void print_row(const Option *option)
{
    enum { TEXT = 28 };
    char value[64], text[512], letter[8] = "";
    if (option->letter)
        snprintf(letter, sizeof letter, "-%c,", option->letter);
    value_text(option, value, sizeof value);
    bool number = option->type >= ARG_INT && option->type <= ARG_DOUBLE;
    if (number && number_of(option) < option->min)
        *value = '\0';              // users cannot type this default, so the help text names it
    snprintf(text, sizeof text, *value ? "%s [%s]" : "%s", option->help, value);
    int column = printf("  %3s --%s%s %s", letter, option->type == ARG_FLAG ? "[no-]" : "",
                        option->name, option->metavar ? option->metavar : "");
    if (column >= TEXT)
        column = 0, printf("\n");
    for (char *rest = text, *word; (word = strsep(&rest, " "));)
        column = put_word(column, TEXT, word);
    printf("\n");
}

static _Noreturn void print_help(const Args *args, bool all)
{
    const char *file = NULL;
    int first = 0, column = 0;
    printf("usage: %s [OPTIONS] [@FILE]%s%s\n", basename(args->program), args->operands ? " " : "",
           args->operands ? args->operands : "");
    if (args->summary)
        printf("%s\n", args->summary);
    for (const Option *o = args->rows; o < args->rows + args->count; o++)
        if (o->first) {
            printf(first++ ? "" : "\n");
            print_row(o);
        }
    all = all || !first;
    printf(all ? "" : "\nOther options, by file; --help all explains them:");
    for (int i = 0; i < args->count; i++) {
        const Option *o = &args->rows[i];
        char name[64];
        if (o->first)
            continue;
        if (!file || strcmp(file, args->files[i]) != 0)
            column = printf(all ? "\n%s:\n" : "\n  %s", args->files[i]) - 1;
        file = args->files[i];
        snprintf(name, sizeof name, "--%s", o->name);
        if (all)
            print_row(o);
        else
            column = put_word(column, 18, name);
    }
    printf("%s\n@FILE: read options from FILE. Options before --help change the values shown.\n",
           all ? "" : "\n");
    exit(fflush(stdout) == 0 ? 0 : EXIT_FAILED);
}

// --- parsing -------------------------------------------------------------------------------------

// Returns an option's value, the next word: "-1" is a value; "--seed" and "-b" are rejected.
static const char *next_value(const Args *args, const Option *option, const char *next)
{
    if (next == NULL)
        args_reject(args, option->name, "a value is missing");
    if (next[0] == '-' && next[1] != '\0' && !isdigit((unsigned char)next[1]) && next[1] != '.')
        args_reject(args, option->name, "a value is missing before '%.100s'", next);
    return next;
}

// Parses "--name 3", "--name=3", "--flag", "--no-flag", "-b 256", "-b256" or "-e". Returns how many
// words the option takes: 1 or 2.
static int parse_option(Args *args, const char *word, const char *next)
{
    bool is_long = word[1] == '-';
    const char *name = is_long ? word + 2 : word + 1;
    size_t length = is_long ? strcspn(name, "=") : 1;
    const char *attached = !name[length] ? NULL : is_long ? name + length + 1 : name + length;
    const Option *option = find(args, name, length);
    bool negated = is_long && !option && strncmp(name, "no-", 3) == 0;
    if (negated)
        option = find(args, name + 3, length - 3);
    if (!option || (negated && option->type != ARG_FLAG))
        args_reject(args, NULL, "unknown option '%.100s'; --help lists all options, and "
                    "docs/pytorch.md has other programs' names for them", word);
    bool flag = option->type == ARG_FLAG;
    if (flag && attached)
        args_reject(args, option->name, "takes no value, but got '%.100s'", attached);
    set_value(args, option, flag       ? negated ? "no" : "yes"
                            : attached ? attached
                                       : next_value(args, option, next));
    return flag || attached ? 1 : 2;
}

static void run_checks(Args *args)
{
    for (int i = 0; i < args->check_count; i++)
        args->checks[i].check(args, args->checks[i].config);
}

enum { FILES_MAX = 16, WORDS_MAX = 64 };
static char *texts[FILES_MAX];          // the files' contents: options point into them
static int text_count;

static int parse_words(Args *args, char **words);

// An option and its value must be in one line: "--data mnist --epochs 3  # comment".
static void parse_lines(Args *args, char *text)
{
    for (char *line; (line = strsep(&text, "\n")); args->line++) {
        char *words[WORDS_MAX + 1] = { NULL };
        int count = 0;
        for (char *word; (word = strsep(&line, " \t\r")) && *word != '#';)
            if (*word && count < WORDS_MAX)
                words[count++] = word;
            else if (*word)
                args_reject(args, NULL, "more than %d words in a line", WORDS_MAX);
        parse_words(args, words);
    }
}

static void parse_file(Args *args, const char *path)
{
    const char *outer = args->file;
    int outer_line = args->line;
    size_t size = 0;
    if (text_count == FILES_MAX)
        args_reject(args, NULL, "@%.200s: more than %d files; does one include itself?", path,
                    FILES_MAX);
    char **text = &texts[text_count++];
    FILE *in = fopen(path, "re");
    ssize_t length = in ? getdelim(text, &size, '\0', in) : -1;
    if (!in || ferror(in))
        args_reject(args, NULL, "@%.200s: %s", path, strerror(errno));
    fclose(in);
    args->file = path;
    args->line = 1;
    parse_lines(args, length > 0 ? *text : NULL);
    args->file = outer;
    args->line = outer_line;
}

// Returns the number of words before the first operand: options, their values, and @FILEs.
static int parse_words(Args *args, char **words)
{
    int i = 0;
    while (words[i]) {
        char *word = words[i], *next = words[i + 1];
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            run_checks(args);
            print_help(args, next && strcmp(next, "all") == 0);
        }
        if (word[0] == '@') {
            parse_file(args, word + 1);
            i++;
        } else if (word[0] == '-' && word[1] && strcmp(word, "--") != 0) {
            i += parse_option(args, word, next);
        } else if (args->operands && !args->file) {
            break;
        } else {
            args_reject(args, NULL, "unexpected word '%.100s'; --help lists all options", word);
        }
    }
    return i;
}

static bool is_off(const char *value) { return is_listed("|no|0", value); }

// Rejects an option that the user has given, but that has no effect: an option that it needs, or
// that such an option needs in turn, is off or has a different value.
static void check_needs(const Args *args)
{
    for (const Option *o = args->rows; o < args->rows + args->count; o++) {
        char value[PATH_MAX];
        value_text(o, value, sizeof value);
        bool matters = args_given(args, o->name) && !is_off(value);
        for (const Option *via = o, *other; matters && via->needs; via = other) {
            size_t length = strcspn(via->needs, "=");
            other = find(args, via->needs, length);
            value_text(other, value, sizeof value);
            if (via->needs[length] ? !is_listed(via->needs + length + 1, value) : is_off(value))
                args_reject(args, o->name, "has no effect without --%s", via->needs);
        }
    }
}

void args_parse(Args *args, int argc, char **argv)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)     // so that no file gets descriptor 0, 1 or 2
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", O_RDWR);
    args->program = argv[0];
    char **words = argv + 1;
    words += parse_words(args, words);
    args->rest = words + (*words && strcmp(*words, "--") == 0);
    run_checks(args);
    check_needs(args);
}
