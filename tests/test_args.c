// test_args.c - parsing options: accepted values, files of words, error messages, printed output.
#include "args.h"
#include "check.h"
#include "test.h"
#include <jansson.h>

typedef struct Values {
    bool evaluate, shuffle;
    int batch;
    int64_t seed;
    double lr, momentum;
    const char *save, *arch, *schedule;
} Values;

static Values values;

static void check_values(Args *args, void *config)
{
    Values *v = config;
    if (args_is(args, "arch", "lenet|convnet")) {
        args_default(args, "lr", "3");
        args_default(args, "schedule", "step");
    }
    if (args_is(args, "schedule", "step"))
        args_default(args, "lr", "5");
    if (v->batch == 13)
        args_reject(args, "batch-size", "is unlucky");
}

static void make_table(Args *args)
{
    memset(args, 0, sizeof *args);
    values = (Values){ .shuffle = true, .batch = 256, .lr = .01, .arch = "resnet18", .momentum = 0.9,
                       .schedule = "constant" };
    args->summary = "Trains an image classifier.";
    args_add(args, ARGS_ROWS(
        { "batch-size", 'b', ARG_INT, &values.batch, "N", "images in a batch", .min = 1, .max = 65536,
          .first = true },
        { "seed", 0, ARG_INT64, &values.seed, "N", "of everything", .min = -0x1p53, .max = 0x1p53 },
        { "lr", 0, ARG_DOUBLE, &values.lr, "X", "learning rate", .min = -1, .max = 1e6, .needs = "momentum" },
        { "evaluate", 'e', ARG_FLAG, &values.evaluate, NULL, "only evaluate" },
        { "shuffle", 0, ARG_FLAG, &values.shuffle, NULL, "a new order in each epoch", .needs = "lr" }));
    args_add(args, "other.c", (Option[]){
        { "save", 0, ARG_STRING, &values.save, "FILE", "where to", .local = true },
        { "arch", 'a', ARG_CHOICE, &values.arch, "lenet|convnet|resnet18", "the network" },
        { "momentum", 0, ARG_DOUBLE, &values.momentum, "M", "", .max = 1,
          .needs = "schedule=constant|step" },
        { "schedule", 0, ARG_CHOICE, &values.schedule, "constant|step|cosine", "" } }, 4);
    args_check(args, check_values, &values);
}

// line: "--lr|0.1|-b|7".
static void parse(Args *args, const char *line)
{
    static char words[512];
    char *argv[32] = { "/some/where/train" };
    int argc = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = words, *bar; word; word = bar) {
        bar = strchr(word, '|');
        if (bar)
            *bar++ = '\0';
        argv[argc++] = word;
    }
    make_table(args);
    argc = line[0] ? argc : 1;
    argv[argc] = NULL;
    args_parse(args, argc, argv);
}

static void parse_line(const void *line)
{
    static Args args;
    parse(&args, line);
}

// Returns the exit status; the output is in test_said.
static int status_of(const char *line) { return test_child(parse_line, line); }

TEST(every_type_is_read)
{
    Args args;
    parse(&args, "--batch-size|65536|--seed=-9007199254740991|--lr=-.5|-e|--no-shuffle|--save|-|--arch=lenet");
    EXPECT_EQ_INT(values.batch, 65536);         // the largest
    EXPECT_EQ_INT(values.seed, -9007199254740991);
    EXPECT(values.lr == -.5, "lr is %g", values.lr);
    EXPECT(values.evaluate && !values.shuffle, "flags");
    EXPECT_EQ_STR(values.save, "-");
    EXPECT_EQ_STR(values.arch, "lenet");
    EXPECT(args_given(&args, "lr") && args_given(&args, "shuffle"), "given");
}

TEST(spellings)
{
    Args args;
    parse(&args, "");
    EXPECT_EQ_INT(values.batch, 256);
    EXPECT(!args_given(&args, "batch-size") && !args_given(&args, "nonsense"), "given");
    parse(&args, "--batch-size|8|-b7|--shuffle|--no-evaluate|--save=--strange|--lr=+1e-3");
    EXPECT_EQ_INT(values.batch, 7); // the last value wins
    EXPECT(values.shuffle && !values.evaluate, "flags");
    EXPECT_EQ_STR(values.save, "--strange");
    EXPECT(values.lr == 1e-3, "lr is %g", values.lr);
    EXPECT(args_given(&args, "evaluate") && !args_given(&args, "seed"), "given");
}

TEST(operands_follow_the_options)
{
    static char *const lines[][7] = {
        { "x", "-b", "7", "program", "-b", "8", NULL }, { "x", "-b7", "--", "@program", "--help" },
        { "x", "program" }, { "x", "--" }, { "x" },
    };
    for (int i = 0; i < 5; i++) {
        int argc = 0;
        Args args = { .operands = "PROGRAM" };
        while (argc < 7 && lines[i][argc])
            argc++;
        values = (Values){ 0 };
        args_add(&args, ARGS_ROWS({ "batch", 'b', ARG_INT, &values.batch, "N", "", 0, 9 }));
        args_parse(&args, argc, (char **)lines[i]);
        EXPECT_EQ_INT(values.batch, i < 2 ? 7 : 0);
        EXPECT(i > 2 ? args.rest[0] == NULL : strstr(args.rest[0], "program") != NULL, "%d", i);
    }
}

static const char *const wrong[][2] = {
    { "--batch_size|3", "unknown option '--batch_size'" },
    { "--epochz|3", "unknown option '--epochz'; --help lists all options, and docs/pytorch.md has " },
    { "--batch-sizes=3", "unknown option '--batch-sizes=3'" }, { "--no-batch-size", "unknown option" },
    { "-lr|1", "unknown option '-lr'" },
    { "-ex", "--evaluate: takes no value, but got 'x'" },
    { "photos", "unexpected word 'photos'" }, { "--", "unexpected word '--'" },
    { "-b", "--batch-size: a value is missing" },
    { "--save|-b|3", "--save: a value is missing before '-b'" }, { "--save=", "--save: the value is empty" },
    { "-b|0", "'0' is not a whole number from 1 to 65536" }, { "-b|65537", "'65537' is not" },
    { "-b|1x", "'1x' is not a whole number" },
    { "--lr|nan", "'nan' is not a number from -1 to 1000000" },
    { "--arch|resnet", "'resnet' is not one of lenet|convnet|resnet18" },
    { "--sa\nve", "unknown option '--sa?ve'" },
    { "--lr|1\n2\033[2J", "'1?2?[2J'" },
    { "-b|13", "--batch-size: is unlucky" },
    { "--lr|1|--momentum|0", "--lr: has no effect without --momentum\n" },
    { "--momentum|0.5|--schedule|cosine", "--momentum: has no effect without --schedule=constant|step\n" },
    { "--lr|1|--schedule|cosine", "--lr: has no effect without --schedule=constant|step\n" },
    { "--shuffle|--lr|0", "--shuffle: has no effect without --lr\n" },
    { "@/no/such", "@/no/such: No such file or directory\n" },
    { "@/", "@/: Is a directory\n" },
};

TEST(wrong_lines_are_refused)
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int status = status_of(wrong[i][0]);
        EXPECT(status == EXIT_USAGE, "'%s' exits with %d", wrong[i][0], status);
        EXPECT(strncmp(test_said, "train: ", 7) == 0, "'%s' prints %s", wrong[i][0], test_said);
        EXPECT(strstr(test_said, wrong[i][1]) != NULL, "'%s' prints %s", wrong[i][0], test_said);
        EXPECT(strchr(test_said, '\n') == test_said + strlen(test_said) - 1, "more than a line: %s", test_said);
    }
}

// An option that is off may need anything. Nor is it an error if a default has no effect.
TEST(options_that_need_nothing)
{
    static const char *const lines[] = { "--no-shuffle|--lr|0", "--momentum|0|--schedule|cosine", "--schedule|step",
                                         "-a|lenet|--schedule|cosine" };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        EXPECT_EQ_INT(status_of(lines[i]), 0);
}

// The user's value wins over a default, and an earlier default over a later one.
TEST(defaults_that_depend_on_options)
{
    static const struct {
        const char *line;
        double lr;
        const char *schedule;
    } lines[] = { { "", 0.01, "constant" }, { "-a|lenet", 3, "step" }, { "--lr|2|-a|convnet", 2, "step" },
                  { "--schedule|step", 5, "step" }, { "-a|lenet|--schedule|constant", 3, "constant" } };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        Args args;
        parse(&args, lines[i].line);
        EXPECT(values.lr == lines[i].lr, "%s: lr is %g", lines[i].line, values.lr);
        EXPECT_EQ_STR(values.schedule, lines[i].schedule);
    }
}

static void expect_said(const char *const *wanted)
{
    for (; *wanted; wanted++)
        EXPECT(strstr(test_said, *wanted) != NULL, "there is no '%s' in:\n%s", *wanted, test_said);
}

TEST(help_is_complete)
{
    EXPECT_EQ_INT(status_of("-a|lenet|--help|--nonsense"), 0);
    expect_said((const char *[]){ "usage: train [OPTIONS] [@FILE]\nTrains an image classifier.\n\n",
        "  -b, --batch-size N        images in a batch [256]\n",
        "\n  test_args.c     --seed --lr --evaluate --shuffle\n",
        "\n  other.c         --save --arch --momentum --schedule\n", NULL });
    EXPECT(!strstr(test_said, "learning rate"), "%s", test_said);
    EXPECT_EQ_INT(status_of("-a|lenet|--help|all"), 0);
    expect_said((const char *[]){ "\ntest_args.c:\n", "\n      --lr X                learning rate [3]\n",
        "--[no-]shuffle        a new order in each epoch [yes]\n", "\nother.c:\n",
        "\n  -a, --arch lenet|convnet|resnet18\n                            the network [lenet]\n", NULL });
}

TEST(json_of_everything)
{
    Args args;
    parse(&args, "--lr|0.30000000000000004|--seed|9007199254740991|--save|a\"b\\c\n\xc3\xa9");
    json_t *json = args_json(&args);
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    EXPECT_EQ_STR(text, "{\"batch_size\":256,\"seed\":9007199254740991,\"lr\":0.30000000000000004,"
                        "\"evaluate\":false,\"shuffle\":true,"
                        "\"save\":\"a\\\"b\\\\c\\n\xc3\xa9\",\"arch\":\"resnet18\","
                        "\"momentum\":0.90000000000000002,\"schedule\":\"constant\"}");
    free(text);
}

// --save may differ between processes.
TEST(shared_options)
{
    Args args;
    parse(&args, "--lr|0.123456789|--save|mine|--seed|9007199254740991");
    char *text = args_shared(&args);
    EXPECT_EQ_STR(text, "--batch-size 256\n--seed 9007199254740991\n--lr 0.123456789\n--evaluate no\n--shuffle yes\n"
                        "--arch resnet18\n--momentum 0.9\n--schedule constant\n");
    free(text);
}

static const char *file_of(const char *name, const char *content)
{
    return test_file(name, content, strlen(content));
}

// The last value of an option counts, whether it is in a file or on the command line.
TEST(files_of_words)
{
    Args args;
    char line[8192], text[4200];
    const char *inner = file_of("inner", "--seed 8 -a lenet");
    snprintf(text, sizeof text, "# a comment\n\n \t--batch-size=32 \r\n--lr 0.5\t# fast\n-e --no-shuffle\n--save a#b\n"
             "--seed 7\n@%s # more\n--batch-size 33", inner);
    const char *outer = file_of("outer", text);
    snprintf(line, sizeof line, "--lr|3|@%s|@%s|--no-evaluate|--momentum|1", file_of("empty", ""), outer);
    parse(&args, line);
    EXPECT_EQ_INT(values.batch, 33);
    EXPECT(values.lr == 0.5 && values.seed == 8, "%g %lld", values.lr, (long long)values.seed);
    EXPECT(!values.evaluate && !values.shuffle && values.momentum == 1, "flags");
    EXPECT_EQ_STR(values.save, "a#b");
    EXPECT_EQ_STR(values.arch, "lenet");
    EXPECT(args_given(&args, "batch-size") && !args_given(&args, "schedule"), "given");
}

TEST(wrong_files_of_words)
{
    static const char *const wrong_files[][2] = {
        { "--lr 1\n--learning 3\n", ":2: unknown option '--learning'" },
        { "\n\nlr = 3", ":3: unexpected word 'lr'" }, { "--lr 3 -- 4", ":1: unexpected word '--'" },
        { "--lr fast # indeed", ":1: --lr: 'fast' is not a number from -1 to 1000000" },
        { "--lr\n3", ":1: --lr: a value is missing\n" }, { "--lr # 3", ":1: --lr: a value is missing\n" },
        { "-e\n@/no/such\n", ":2: @/no/such: No such file or directory\n" },
    };
    char line[4200], wanted[4200];
    for (size_t i = 0; i < sizeof wrong_files / sizeof *wrong_files; i++) {
        const char *path = file_of("wrong", wrong_files[i][0]);
        snprintf(line, sizeof line, "@%s|--lr|2", path);
        snprintf(wanted, sizeof wanted, "%s%s", path, wrong_files[i][1]);
        EXPECT_EQ_INT(status_of(line), EXIT_USAGE);
        EXPECT(strncmp(test_said, wanted, strlen(wanted)) == 0, "'%s': %s", wrong_files[i][0], test_said);
        EXPECT(strchr(test_said, '\n') == test_said + strlen(test_said) - 1, "more than a line: %s", test_said);
    }
    snprintf(line, sizeof line, "-e\n@%s", test_path("itself"));
    snprintf(wanted, sizeof wanted, "%s:2: @%s: more than 16 files; does one name itself?\n", test_path("itself"),
             test_path("itself"));
    const char *itself = file_of("itself", line);
    snprintf(line, sizeof line, "@%s", itself);
    EXPECT_EQ_INT(status_of(line), EXIT_USAGE);
    EXPECT_EQ_STR(test_said, wanted);
}

TEST_MAIN
