// test_args.c - parsing options and config files: accepted values, error messages, printed output.
#include "args.h"
#include "check.h"
#include "test.h"
#include <jansson.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct Values {
    bool evaluate, shuffle, tf32;
    int batch;
    int64_t seed;
    double lr;
    const char *save, *arch, *devices;
} Values;

static Values values;

static void make_table(Args *args)
{
    memset(args, 0, sizeof *args);
    values = (Values){ .shuffle = true, .batch = 256, .lr = .01, .arch = "resnet18" };
    args->summary = "Trains an image classifier.";
    args_add(args, ARGS_ROWS(
        { "batch-size", 'b', ARG_INT, &values.batch, "N", "images in a batch", .min = 1,
          .max = 65536 },
        { "seed", 0, ARG_INT64, &values.seed, "N", "of everything", .min = -0x1p53, .max = 0x1p53 },
        { "lr", 0, ARG_DOUBLE, &values.lr, "X", "learning rate", .min = -1, .max = 1e6 },
        { "evaluate", 'e', ARG_FLAG, &values.evaluate, NULL, "only evaluate" },
        { "shuffle", 0, ARG_FLAG, &values.shuffle, NULL, "a new order in each epoch" }));
    args_add(args, ARGS_ROWS(
        { "tf32", 0, ARG_BOOL, &values.tf32, "0|1", "on or off" },
        { "save", 0, ARG_STRING, &values.save, "FILE", "where to", .local = true },
        { "arch", 'a', ARG_CHOICE, &values.arch, "lenet|resnet18", "the network" },
        { "devices", 0, ARG_LIST, &values.devices, "N|LIST", "which", 1, 64 }));
}

static bool dependent;

static void add_dependent(Args *args)
{
    static double momentum;
    static bool nesterov;
    static int size;
    static const char *schedule, *data, *betas;
    momentum = 0.9;
    betas = "0.9,0.999";
    schedule = "constant";
    data = "mnist";
    args_preset(args, "arch", "lenet", "momentum = 0\nschedule = step\nstep-size = 4\nlr = 3");
    args_preset(args, "schedule", "step", "lr = 5\nbetas = 0.1,0.2");
    args_add(args, ARGS_ROWS(
        { "deep", 0, ARG_INT, &size, "N", "", 1, 9, .needs = "nesterov" },
        { "momentum", 0, ARG_DOUBLE, &momentum, "M", "", 0, 1 },
        { "nesterov", 0, ARG_FLAG, &nesterov, NULL, "", .needs = "momentum" },
        { "schedule", 0, ARG_CHOICE, &schedule, "constant|step|multistep|cosine", "" },
        { "step-size", 0, ARG_INT, &size, "N", "", 1, 9, .needs = "schedule step|multistep" },
        { "data", 0, ARG_STRING, &data, "SET", "" },
        { "block", 0, ARG_INT, &size, "N", "", 1, 9, .needs = "data words|text:" },
        { "size", 0, ARG_INT, &size, "N", "", 1, 9, .needs = "data not mnist|text:" },
        { "betas", 0, ARG_PAIR, &betas, "A,B", "", 0, 0.999, .needs = "nesterov" }));
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
    if (dependent)
        add_dependent(args);
    args_parse(args, line[0] ? argc : 1, argv);
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
    parse(&args, "--batch-size|64|--seed=-9007199254740991|--lr=-.5|-e|--no-shuffle|--tf32|1|"
                 "--save|-|--arch=lenet|--devices|30,60");
    EXPECT_EQ_INT(values.batch, 64);
    EXPECT_EQ_INT(values.seed, -9007199254740991);
    EXPECT(values.lr == -.5, "lr is %g", values.lr);
    EXPECT(values.evaluate && !values.shuffle && values.tf32, "flags");
    EXPECT_EQ_STR(values.save, "-");
    EXPECT_EQ_STR(values.arch, "lenet");
    EXPECT_EQ_STR(values.devices, "30,60");
    EXPECT(args_given(&args, "lr") && args_given(&args, "shuffle"), "given");
}

TEST(spellings)
{
    Args args;
    parse(&args, "");
    EXPECT_EQ_INT(values.batch, 256);
    EXPECT(!args_given(&args, "batch-size") && !args_given(&args, "nonsense"), "given");
    parse(&args, "--batch_size|8|-b7|--shuffle|--no-evaluate|--save=--strange|--lr=+1e-3");
    EXPECT_EQ_INT(values.batch, 7); // the last value wins
    EXPECT(values.shuffle && !values.evaluate, "flags");
    EXPECT_EQ_STR(values.save, "--strange");
    EXPECT(values.lr == 1e-3, "lr is %g", values.lr);
    EXPECT(args_given(&args, "evaluate") && !args_given(&args, "seed"), "given");
}

TEST(operands_follow_the_options)
{
    static char *const lines[][7] = {
        { "x", "-b", "7", "program", "-b", "8", NULL }, { "x", "-b7", "--", "program", "--help" },
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
        EXPECT(i > 2 ? args.rest[0] == NULL : strcmp(args.rest[0], "program") == 0, "%d", i);
    }
}

static const char *const wrong[][2] = {
    { "--epochz|3", "unknown option '--epochz'; --help lists all" },
    { "--batch-sizes=3", "unknown option '--batch-sizes'; did you mean --batch-size?" },
    { "--no-shufle", "did you mean --no-shuffle?" },
    { "-lr|1", "did you mean --lr?" },
    { "--weight_decay=3", "unknown option '--weight_decay'; use --wd W" },
    { "--no-cuda", "unknown option '--no-cuda'; use ./ddp run STEP --backend cpu" },
    { "-ex", "--evaluate: takes no value, but got 'x'" },
    { "photos", "unexpected argument 'photos'" },
    { "-b", "--batch-size: a value is missing" },
    { "--save|-b|3", "--save: a value is missing before '-b'" },
    { "-b|0", "'0' is not a whole number from 1 to 65536" },
    { "-b|1x", "'1x' is not a whole number" },
    { "-b|0x10", "whole number" },
    { "--lr|nan", "'nan' is not a number from -1 to 1000000" },
    { "--lr|1e999", "number from" },
    { "--arch|resnet", "'resnet' is not one of lenet|resnet18" },
    { "--devices|65", "whole number from 1 to 64" },
    { "--devices|1,", "ascending list" },
    { "--devices|1,1", "ascending list" },
    { "--devices|0,99999999999999999999", "ascending list" },
    { "--sa\nve", "unknown option '--sa?ve'" },
    { "--lr|1\n2\033[2J", "'1?2?[2J'" },
};

TEST(counts_and_lists)
{
    int numbers[64];
    EXPECT_EQ_INT(args_count_or_list("64", numbers), 64);
    EXPECT(numbers[0] == 0 && numbers[63] == 63, "%d to %d", numbers[0], numbers[63]);
    EXPECT_EQ_INT(args_count_or_list("1,12", numbers), 2);
    EXPECT(numbers[0] == 1 && numbers[1] == 12, "%d and %d", numbers[0], numbers[1]);
}

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

TEST(options_without_effect)
{
    static const char *const lines[][2] = {
        { "--nesterov|--momentum|0", "--nesterov: has no effect without --momentum\n" },
        { "--betas|0.5,0.5", "--betas: has no effect without --nesterov\n" },
        { "--betas|0.5,0.5|--no-nesterov", "--betas: has no effect without --nesterov\n" },
        { "--deep|3|--nesterov|--momentum|0", "--deep: has no effect without --momentum\n" },
        { "--betas|.5,9e-1|--nesterov", "" },
        { "--betas|0.9", "--betas: '0.9' is not two numbers from 0 to 0.999, such as 0.9,0.95\n" },
        { "--betas|0.9,", "is not two numbers" }, { "--betas|,0.9", "is not two numbers" },
        { "--betas|0.9,1", "is not two numbers" }, { "--betas|nan,0.1", "is not two numbers" },
        { "--betas|0.1,nan", "is not two numbers" }, { "--betas|-.1,0.1", "is not two numbers" },
        { "--betas|0.1,0.2,0.3", "is not two numbers" },
        { "--betas|0.1,0x1p-2", "is not two numbers" },
        { "--step-size|3", "--step-size: has no effect without --schedule step|multistep\n" },
        { "--step-size|3|--schedule|cosine", "--step-size: has no effect without --schedule" },
        { "--nesterov", "" }, { "--no-nesterov|--momentum|0", "" },
        { "--schedule|multistep|--step-size|3", "" },
        { "--block|3", "--block: has no effect without --data words|text:\n" },
        { "--block|3|--data|text", "--block: has no effect" },
        { "--block|3|--data|word", "--block: has no effect" },
        { "--block|3|--data|wordsy", "--block: has no effect" },
        { "--block|3|--data|words", "" }, { "--block|3|--data|text:a", "" },
        { "--size|3", "--size: has no effect with --data mnist\n" },
        { "--size|3|--data|text:b", "--size: has no effect with --data text:b\n" },
        { "--size|3|--data|mnist2", "" },
    };
    dependent = true;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        EXPECT_EQ_INT(status_of(lines[i][0]), lines[i][1][0] ? EXIT_USAGE : 0);
        EXPECT(strstr(test_said, lines[i][1]) != NULL, "'%s' prints %s", lines[i][0], test_said);
    }
    dependent = false;
}

// A preset's values are defaults. It is no error if one has no effect.
TEST(presets)
{
    static const char *const lines[][2] = {
        { "--print-config", "# momentum = 0.9\n# nesterov = no\n# schedule = constant\n" },
        { "-a|lenet|--print-config", "# momentum = 0\n# nesterov = no\n# schedule = step\n# step-size = 4\n" },
        { "-a|lenet|--print-config", "# lr = 3\n" },
        { "--lr|2|-a|lenet|--print-config", "\nlr = 2\n" },
        { "-a|lenet|--schedule|cosine|--print-config", "\nschedule = cosine\n# step-size = 4\n" },
        { "-a|lenet|--schedule|cosine", "" },
        // the first preset selects the second, which does not replace the first's lr
        { "-a|lenet|--print-config", "# betas = 0.1,0.2\n" },
        { "--schedule|step|--print-config", "# lr = 5\n" },
        { "-a|lenet|--schedule|cosine|--print-config", "# betas = 0.9,0.999\n" },
    };
    dependent = true;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        EXPECT_EQ_INT(status_of(lines[i][0]), 0);
        EXPECT(strstr(test_said, lines[i][1]) != NULL, "'%s' prints %s", lines[i][0], test_said);
    }
    dependent = false;
}

TEST(help_is_complete)
{
    EXPECT_EQ_INT(status_of("--lr|1|--help|--nonsense"), 0);
    static const char *const wanted[] = { "usage: train [OPTIONS]", "Trains an image classifier.",
        "\ntest_args.c:\n", "-b, --batch-size N", "images in a batch [256]\n", "--[no-]shuffle ",
        "a new order in each epoch [yes]\n", "-a, --arch lenet|resnet18", "--tf32 0|1", " [0.01]" };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        EXPECT(strstr(test_said, wanted[i]) != NULL, "help lacks '%s':\n%s", wanted[i], test_said);
}

TEST(json_of_everything)
{
    Args args;
    parse(&args, "--lr|0.30000000000000004|--seed|9007199254740991|--save|a\"b\\c\n\xc3\xa9");
    json_t *json = args_json(&args);
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    EXPECT_EQ_STR(text, "{\"batch_size\":256,\"seed\":9007199254740991,\"lr\":0.30000000000000004,"
                        "\"evaluate\":false,\"shuffle\":true,\"tf32\":0,"
                        "\"save\":\"a\\\"b\\\\c\\n\xc3\xa9\",\"arch\":\"resnet18\","
                        "\"devices\":null}");
    free(text);
    parse(&args, "--save|not UTF-8: \xff");
    json = args_json(&args);
    EXPECT(json_is_null(json_object_get(json, "save")), "JSON that is not UTF-8");
    json_decref(json);
}

// --save may differ between processes.
TEST(shared_options)
{
    Args args;
    parse(&args, "--lr|1e-4|--save|mine|--devices|3,4");
    char *text = args_shared(&args);
    EXPECT_EQ_STR(text, "--batch-size 256\n--seed 0\n--lr 0.0001\n--evaluate no\n--shuffle yes\n"
                        "--tf32 0\n--arch resnet18\n--devices 3,4\n");
    free(text);
}

static const char *file_of(const char *name, const char *content)
{
    return test_file(name, content, strlen(content));
}

// The command line overrides files, wherever --config is on it.
TEST(config_files)
{
    Args args;
    char line[8192];
    const char *one = file_of("one.conf", "\xEF\xBB\xBF# a comment\n\n  batch-size=32 \r\nlr = 0.5\t# fast\n"
                                          "evaluate = yes\nshuffle = no\nsave = a b#c.st\n"
                                          "seed = 7\nbatch_size = 33");
    const char *two = file_of("two.conf", "lr = 0.125\nseed = 8\n");
    snprintf(line, sizeof line, "--seed|9|--config|%s|--arch|lenet|--config=%s|--no-evaluate|--config|%s",
             one, two, file_of("empty.conf", ""));
    parse(&args, line);
    EXPECT_EQ_INT(values.batch, 33);
    EXPECT(values.lr == 0.125 && values.seed == 9, "%g %lld", values.lr, (long long)values.seed);
    EXPECT(!values.evaluate && !values.shuffle, "flags");
    EXPECT_EQ_STR(values.save, "a b#c.st");
    EXPECT_EQ_STR(values.arch, "lenet");
    EXPECT(args_given(&args, "batch-size") && !args_given(&args, "devices"), "given");
}

TEST(wrong_config_files)
{
    static const char *const wrong_files[][2] = {
        { "lr = 1\nlearning = 3\n", ":2: unknown option 'learning'; --help lists all" },
        { "\n\nlr 3", ":3: 'lr 3' is not \"key = value\"" },
        { "lr = fast # indeed", ":1: lr: 'fast' is not a number from -1 to 1000000" },
        { "lr =", ":1: lr: the value is empty" },
        { "shuffle = true", ":1: shuffle: 'true' is not yes or no" },
        { "no-shuffle = yes", ":1: unknown option 'no-shuffle'; did you mean \"shuffle = no\"?" },
        { "config = other.conf", ":1: config: can only be given on the command line" },
        { "--lr = 3", ":1: unknown option '--lr'; did you mean \"lr = ...\"?" },
    };
    char line[4200], wanted[4200];
    for (size_t i = 0; i < sizeof wrong_files / sizeof *wrong_files; i++) {
        const char *path = file_of("wrong.conf", wrong_files[i][0]);
        snprintf(line, sizeof line, "--config|%s|--lr|2", path);
        snprintf(wanted, sizeof wanted, "%s%s", path, wrong_files[i][1]);
        EXPECT_EQ_INT(status_of(line), EXIT_USAGE);
        EXPECT(strncmp(test_said, wanted, strlen(wanted)) == 0, "'%s': %s", wrong_files[i][0], test_said);
        EXPECT(strchr(test_said, '\n') == test_said + strlen(test_said) - 1, "more than a line: %s", test_said);
    }
    snprintf(line, sizeof line, "--config|%s", test_file("zero.conf", "lr = 1\n\0lr = 2\n", 15));
    EXPECT_EQ_INT(status_of(line), EXIT_USAGE);
    EXPECT(strstr(test_said, "zero.conf is not a text file: byte 8 is zero\n") != NULL, "%s", test_said);
    EXPECT_EQ_INT(status_of("--config|/no/such.conf"), EXIT_USAGE);
    EXPECT_EQ_STR(test_said, "train: --config: /no/such.conf: No such file or directory\n");
    EXPECT_EQ_INT(status_of("--config|/"), EXIT_USAGE);
    EXPECT_EQ_STR(test_said, "train: --config: /: Is a directory\n");
}

TEST(print_config)
{
    EXPECT_EQ_INT(status_of("--print-config|--lr|0.30000000000000004|--no-shuffle"), 0);
    EXPECT_EQ_STR(test_said, "# batch-size = 256\n# seed = 0\nlr = 0.30000000000000004\n# evaluate = no\n"
                        "shuffle = no\n# tf32 = 0\n# save = \n# arch = resnet18\n# devices = \n");
    for (const char *const *odd = (const char *[]){ "my run #1", "# 1", " a", "a ", "a\nb", NULL }; *odd; odd++) {
        char line[64], wanted[64];
        snprintf(line, sizeof line, "--print-config|--save|%s", *odd);
        snprintf(wanted, sizeof wanted, "train: --save: a file of options cannot hold '%.1s", *odd);
        EXPECT_EQ_INT(status_of(line), EXIT_USAGE);
        EXPECT(strstr(test_said, wanted) != NULL, "%s", test_said);
    }
}

TEST_MAIN
