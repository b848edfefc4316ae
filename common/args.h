// args.h - one table of options drives parsing, --help, config files and --print-config.
//
//   Args args = { 0 };
//   args_add(&args, ARGS_ROWS({ "epochs", 0, ARG_INT, &config->epochs, "N", "passes over the data",
//                               .min = 1, .max = 1e6 }));
//   args_parse(&args, argc, argv);      // --epochs 3, --epochs=3; -e 3 or -e3 if it has a letter
//
// --config FILE (in programs without operands) reads lines "key = value": an option's name and its
// value, yes or no for a flag. # begins a comment at the start of a line or after a space. The
// command line overrides files, a later file overrides an earlier one. --print-config prints such a
// file, with defaults as comments.
//
// args_parse ends the program at a wrong option, with one line on stderr and status 2. Defaults are
// what the variables hold when it is called.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum ArgType {
    ARG_FLAG,   // bool: --name sets it, --no-name clears it
    ARG_BOOL,   // bool: --name 0|1
    ARG_INT,    // int
    ARG_INT64,  // int64_t, up to 2^53
    ARG_DOUBLE, // double
    ARG_STRING, // const char *
    ARG_CHOICE, // const char *, one of choices ("a|b|c")
    ARG_LIST,   // const char *, "2": a count from min to max; or "0,2": rising integers below max
    ARG_PAIR,   // const char *, "0.9,0.99": two numbers within min and max
} ArgType;

typedef struct Option {
    const char *name;      // without the dashes
    char letter;           // 0: none
    ArgType type;
    void *value;
    const char *metavar;   // the value's name in --help; for ARG_CHOICE the choices
    const char *help;
    double min, max;       // of a number, inclusive
    bool local;            // may differ between the processes of a run
    bool output;           // ARG_STRING: a file to write, which no other output option may name
    const char *needs;     // another option that this one needs to have an effect, and its value.
                           // "momentum": any but 0, no or "". "schedule step|multistep": one of
                           // these. "data text:": a value with this beginning. "data not
                           // synthetic": any other value
} Option;

enum { ARGS_MAX = 96 };
typedef struct Args {
    Option rows[ARGS_MAX];
    enum ArgsSetter { SET_BY_NOBODY, SET_BY_USER, SET_BY_PRESET } set_by[ARGS_MAX];
    struct ArgsPreset { const char *option, *value, *lines; } presets[3];
    int preset_count;
    char groups[ARGS_MAX];          // which call of args_add added the row
    const char *files[ARGS_MAX];    // the file that added the row, for --help
    int count, group;
    const char *program, *summary;  // for --help; program is argv[0]
    const char *operands;           // what may follow the options, for --help; or NULL
    char **rest;                    // the words from the first that is not an option, or after
                                    // "--"; ends with NULL
} Args;

#define ARGS_ROWS(...) \
    __FILE__, (Option[]){ __VA_ARGS__ }, (int)(sizeof((Option[]){ __VA_ARGS__ }) / sizeof(Option))
void args_add(Args *args, const char *file, const Option *rows, int count);

// If the option has this value, these lines ("key = value\n...") replace the defaults of other
// options. An earlier preset wins over a later one, and may set the option that selects the later
// one.
void args_preset(Args *args, const char *option, const char *value, const char *lines);

// Fills the variables. --help and --print-config print and exit 0. A wrong option or value, an
// option without effect, and a file that two options would write end the program with status 2.
// First opens /dev/null for stdin, stdout and stderr where they are closed, so call it before
// opening any file.
void args_parse(Args *args, int argc, char **argv);

// The numbers of an ARG_LIST; a single number is a count: "2" means 0 and 1. Returns how many.
int args_count_or_list(const char *text, int *numbers);

// For rules that the table cannot express: prints "train: --lr: ..." and exits 2.
_Noreturn void args_reject(const Args *args, const char *option, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool args_given(const Args *args, const char *option);

// One line "--name value" for each option that must be the same in all processes that compute
// together. The caller frees it.
char *args_shared(const Args *args);

// All options but --config and --print-config as a JSON object: {"epochs":5,"batch_size":256}. The
// caller frees it with json_decref.
struct json_t *args_json(const Args *args);
