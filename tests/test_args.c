// test_args.c - options: every type and spelling, files of words, defaults that depend on others, wrong lines.
#include "args.h"
#include "check.h"
#include "test.h"
#include <jansson.h>

static struct {
    bool evaluate, shuffle;
    int batch;
    int64_t seed;
    double lr, momentum;
    const char *save, *arch, *schedule;
} v;

static Args args;

static void check_values(Args *a, void *config)
{
    if (args_is(a, "arch", "lenet|convnet")) {
        args_default(a, "lr", "3");
        args_default(a, "schedule", "step");
    }
    if (args_is(a, "schedule", "step"))
        args_default(a, "lr", "5");
    if (v.batch == 13)
        args_reject(a, "batch-size", "is unlucky");
}

// Words are separated by blanks.
static void parse(const char *line)
{
    static char words[8192];
    char *argv[32] = { "/some/where/train" };
    int argc = 1;
    args = (Args){ .summary = "Trains an image classifier." };
    memset(&v, 0, sizeof v);
    v.shuffle = true, v.batch = 256, v.lr = .01, v.momentum = .9, v.arch = "resnet18", v.schedule = "constant";
    args_add(&args, ARGS_ROWS(
        { "batch-size", 'b', ARG_INT, &v.batch, "N", "images in a batch", .min = 1, .max = 65536, .first = true },
        { "seed", 0, ARG_INT64, &v.seed, "N", "of everything", .min = -0x1p53, .max = 0x1p53 },
        { "lr", 0, ARG_DOUBLE, &v.lr, "X", "learning rate", .min = -1, .max = 1e6, .needs = "momentum" },
        { "evaluate", 'e', ARG_FLAG, &v.evaluate, NULL, "only evaluate" },
        { "shuffle", 0, ARG_FLAG, &v.shuffle, NULL, "a new order in each epoch", .needs = "lr" },
        { "save", 0, ARG_STRING, &v.save, "FILE", "where to", .local = true },
        { "arch", 'a', ARG_CHOICE, &v.arch, "lenet|convnet|resnet18", "the network" },
        { "momentum", 0, ARG_DOUBLE, &v.momentum, "M", "", .max = 1, .needs = "schedule=constant|step" },
        { "schedule", 0, ARG_CHOICE, &v.schedule, "constant|step|cosine", "" }));
    args_check(&args, check_values, NULL);
    snprintf(words, sizeof words, "%s", line);
    for (char *rest = words; (argv[argc] = strtok_r(rest, " ", &rest));)
        argc++;
    args_parse(&args, argc, argv);
}

static void parse_line(const void *line) { parse(line); }

TEST(every_type_and_spelling)
{
    parse("--batch-size 65536 --seed=-9007199254740991 --lr -.5 -e --no-shuffle --save - --arch=lenet");
    EXPECT_EQ_INT(v.batch, 65536);              // the largest
    EXPECT_EQ_INT(v.seed, -9007199254740991);
    EXPECT(v.lr == -.5 && v.evaluate && !v.shuffle, "lr is %g", v.lr);
    EXPECT_EQ_STR(v.save, "-");
    EXPECT_EQ_STR(v.arch, "lenet");
    EXPECT(args_given(&args, "shuffle") && !args_given(&args, "schedule"), "given");
    parse("--batch-size 8 -b7 --shuffle --no-evaluate --save=--strange --lr=+1e-3");
    EXPECT_EQ_INT(v.batch, 7);                  // the last value counts
    EXPECT(v.lr == 1e-3 && !v.evaluate && v.shuffle, "lr is %g", v.lr);
    EXPECT_EQ_STR(v.save, "--strange");
}

TEST(operands_follow_the_options)
{
    char *const lines[][7] = { { "launch", "-b", "7", "train", "--epochs", "-b", "8" },
                               { "launch", "-b7", "--", "@train" }, { "launch", "-b7" } };
    for (int i = 0; i < 3; i++) {
        char *argv[8] = { NULL };
        Args launch = { .operands = "PROGRAM" };
        memcpy(argv, lines[i], sizeof lines[i]);
        args_add(&launch, ARGS_ROWS({ "batch", 'b', ARG_INT, &v.batch, "N", "", 0, 9 }));
        args_parse(&launch, 7, argv);
        EXPECT_EQ_INT(v.batch, 7);
        EXPECT(launch.rest[0] == argv[i == 2 ? 2 : 3], "line %d", i);
    }
}

// Each ends with status 2 and one line, which contains this text.
static const char *const wrong[][2] = {
    { "--batch_size 3", "unknown option '--batch_size'" }, { "--no-batch-size", "unknown" }, { "photos", "'photos'" },
    { "--save -b 3", "--save: a value is missing" }, { "-b 65537", "from 1 to 65536" }, { "-b 1x", "whole number" },
    { "--lr nan", "from -1 to 1000000" }, { "--arch resnet", "lenet|convnet|resnet18" },
    { "-b 13", "--batch-size: is unlucky" }, { "--lr 1 --momentum 0", "--lr: has no effect without --momentum" },
    { "--lr 1 --schedule cosine", "--lr: has no effect without --schedule=constant|step" },
    { "@/no/such", "@/no/such: No such file" },
};

static void expect_refused(const char *line, const char *begin, const char *part)
{
    EXPECT_EQ_INT(test_child(parse_line, line), EXIT_USAGE);
    EXPECT(strncmp(test_said, begin, strlen(begin)) == 0 && strstr(test_said, part)
               && strchr(test_said, '\n') == test_said + strlen(test_said) - 1, "'%s' prints %s", line, test_said);
}

TEST(wrong_lines_are_refused)
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_refused(wrong[i][0], "train: ", wrong[i][1]);
}

// The user's value wins over a default, and an earlier default over a later one. A default that has no effect is not an
// error, nor is an option that is off.
TEST(defaults_that_depend_on_options)
{
    static const struct {
        const char *line;
        double lr;
        const char *schedule;
    } lines[] = { { "", 0.01, "constant" }, { "-a lenet", 3, "step" }, { "--lr 2 -a convnet", 2, "step" },
                  { "--schedule step", 5, "step" }, { "-a lenet --schedule cosine", 3, "cosine" },
                  { "--no-shuffle --lr 0", 0, "constant" }, { "--momentum 0 --schedule cosine", 0.01, "cosine" } };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        parse(lines[i].line);
        EXPECT(v.lr == lines[i].lr, "%s: lr is %g", lines[i].line, v.lr);
        EXPECT_EQ_STR(v.schedule, lines[i].schedule);
    }
}

// --save may differ between processes.
TEST(all_values_as_json_and_those_that_ranks_share)
{
    parse("--lr 0.30000000000000004 --save net --seed 9007199254740991");
    json_t *json = args_json(&args);
    char *text = json_dumps(json, JSON_COMPACT), *shared = args_shared(&args);
    EXPECT_HAS(text, "{\"batch_size\":256,\"seed\":9007199254740991,\"lr\":0.30000000000000004,"
                     "\"evaluate\":false,\"shuffle\":true,\"save\":\"net\",\"arch\":\"resnet18\",");
    EXPECT_EQ_STR(shared, "--batch-size 256\n--seed 9007199254740991\n--lr 0.3\n--evaluate no\n"
                          "--shuffle yes\n--arch resnet18\n--momentum 0.9\n--schedule constant\n");
    json_decref(json);
    free(text);
    free(shared);
}

static const char *file_of(const char *name, const char *content) { return test_file(name, content, strlen(content)); }

TEST(files_of_words)
{
    char line[4200], text[4200];
    snprintf(text, sizeof text, "# a comment\n\n \t--batch-size=32 \r\n--lr 0.5\t# fast\n-e --no-shuffle\n--save a#b\n"
             "--seed 7\n@%s # more\n--batch-size 33", file_of("inner", "--seed 8 -a lenet"));
    snprintf(line, sizeof line, "--lr 3 @%s --no-evaluate --momentum 1", file_of("outer", text));
    parse(line);
    EXPECT_EQ_INT(v.batch, 33);
    EXPECT(v.lr == 0.5 && v.seed == 8 && !v.evaluate && !v.shuffle && v.momentum == 1, "%g %d", v.lr, (int)v.seed);
    EXPECT_EQ_STR(v.save, "a#b");
    EXPECT_EQ_STR(v.arch, "lenet");
}

// The message names the file and the line.
TEST(wrong_files_of_words)
{
    char line[4200], begin[4200];
    static const char *const lines[][2] = { { "--lr 1\n--learning 3\n", ":2: unknown option '--learning'" },
        { "--lr\n3", ":1: --lr: a value is missing" }, { NULL, ":2: @" } };
    for (int i = 0; i < 3; i++) {
        snprintf(line, sizeof line, "-e\n@%s", test_path("wrong"));     // names itself
        const char *path = file_of("wrong", lines[i][0] ? lines[i][0] : line);
        snprintf(line, sizeof line, "@%s --lr 2", path);
        snprintf(begin, sizeof begin, "%s%s", path, lines[i][1]);
        expect_refused(line, begin, "");
    }
}

TEST_MAIN
