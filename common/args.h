// args.h - one table of options drives parsing, --help, the configuration in the log, and the
// comparison of the ranks' options.
//
//   Args args = { 0 };
//   args_add(&args, ARGS_ROWS({ "epochs", 0, ARG_INT, &config->epochs, "N", "passes over the data",
//                               .min = 1, .max = 1e6 }));
//   args_parse(&args, argc, argv);      // --epochs 3, --epochs=3; with the letter 'e': -e 3, -e3
//
// The word @FILE is replaced by the words in FILE, for example a recipe. In FILE, an option
// and its value must be on the same line. A word that begins with # starts a comment. FILE may
// itself contain @FILE. If an option is given more than once, its last value counts.
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef enum ArgType {
    ARG_FLAG,   // bool: --name sets it, --no-name clears it
    ARG_INT,    // int
    ARG_INT64,  // int64_t, up to 2^53
    ARG_DOUBLE, // double
    ARG_STRING, // const char *
    ARG_CHOICE, // const char *, one of the values that metavar lists ("a|b|c")
} ArgType;

typedef struct Option {
    const char *name;      // without the dashes
    char letter;           // 0: none
    ArgType type;
    void *value;
    const char *metavar;   // the value's name in --help; for ARG_CHOICE the choices
    const char *help;
    double min, max;       // the smallest and the largest number allowed
    bool local;            // may differ between the processes of a run
    bool first;            // --help explains this option; --help all explains every option
    const char *needs;     // "amp=auto|fp16": has an effect only if --amp has one of these values;
                           // "momentum": only if --momentum is not 0, no or empty
} Option;

struct Args;
typedef void ArgsCheck(struct Args *args, void *config);

enum { ARGS_MAX = 80 };
typedef struct Args {
    Option rows[ARGS_MAX];
    enum ArgsSetter { SET_BY_NOBODY, SET_BY_USER, SET_BY_DEFAULT } set_by[ARGS_MAX];
    const char *files[ARGS_MAX];    // the source file that added each row, for --help
    int count;
    struct { ArgsCheck *check; void *config; } checks[8];
    int check_count;
    const char *program, *summary;  // for --help; program is argv[0]
    const char *operands;           // what may follow the options, as --help prints it; or NULL
    char **rest;                    // the words after the options, without "--"; ends with NULL
    const char *file;               // the @FILE that is being read, or NULL
    int line;                       // the line of `file` that is being read, from 1
} Args;

#define ARGS_ROWS(...) \
    __FILE__, (Option[]){ __VA_ARGS__ }, (int)(sizeof((Option[]){ __VA_ARGS__ }) / sizeof(Option))
void args_add(Args *args, const char *file, const Option *rows, int count);

// args_parse calls check(args, config) after it has read the options. A check sets defaults that
// depend on other options (args_default), and enforces rules that no row can express (args_reject).
void args_check(Args *args, ArgsCheck *check, void *config);

// Sets the options' variables, which hold the defaults before the call. --help prints the options,
// and ends the program with status 0. A wrong option or value, or an option without effect, ends it
// with one line on stderr and status 2. If stdin, stdout or stderr is closed, opens /dev/null in
// its place: so call args_parse before opening any file.
void args_parse(Args *args, int argc, char **argv);

// Sets an option that neither the user nor an earlier call has set.
void args_default(Args *args, const char *option, const char *value);
// Prints a message that begins with "train: --lr: ", and exits with status 2.
_Noreturn void args_reject(const Args *args, const char *option, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool args_has(const Args *args, const char *option);
bool args_given(const Args *args, const char *option);
// Does the option have one of these values ("a|b")?
bool args_is(const Args *args, const char *option, const char *values);

// Returns one line "--name value" for each option that must be the same in all processes of a run
// (not `local`). The caller frees the text.
char *args_shared(const Args *args);

// Returns all options as a JSON object, {"epochs":5,"batch_size":256}, which the caller frees with
// json_decref.
struct json_t *args_json(const Args *args);
