// say.c - ./ddp say RUN.st: prints text from a checkpoint of a gpt.
//
// A language model gives each character a probability to be the next. The program draws one, appends
// it to the text, and runs the model again on the last characters that fit in its window.
#include "args.h"
#include "check.h"
#include "checkpoint.h"
#include "checkpoint/safetensors.h"
#include "data.h"
#include "rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINE = 100,             // at most so many characters for each line of --count
    TOKENS = 256,           // a token is a byte
    WIDEST = 8192, LONGEST = 4096, LAYERS = 48      // the largest that a run can have
};

typedef struct Config {
    const char *prompt;
    int count, threads;
    double temperature;
    int64_t seed;
} Config;

typedef struct Speaker {
    const Config *config;
    Device *device;
    Model *model;
    uint8_t bytes[TOKENS];  // of each token
    int32_t *row;           // a row of a batch: a key, which is not used, and a window of tokens
    float *logits;          // (per_row, classes)
    int length;             // tokens of the text in the window
} Speaker;

// --- the model -----------------------------------------------------------------------------------

static int size_of(const StFile *file, const char *path, const char *name, int of, int most)
{
    const StTensor *t = st_find(file, name);
    CHECK(t && t->ndim == 2, "", "%s is not a gpt: it has no matrix %s", path, name);
    CHECK(1 <= t->shape[of] && t->shape[of] <= most, "", "%s: tensor %s has a size of %lld, which "
          "is not between 1 and %d", path, name, (long long)t->shape[of], most);
    return (int)t->shape[of];
}

// The sizes, from the tensors, their names and the metadata. The file may come from anywhere, so the sizes are checked
// here, before the model is made.
static ModelConfig config_of(const StFile *file, const char *path)
{
    const char *arch = st_metadata(file, "ddp.arch"), *heads = st_metadata(file, "ddp.heads");
    const char *vocabulary = st_metadata(file, "ddp.vocabulary");
    CHECK(arch && strcmp(arch, "gpt") == 0 && heads && vocabulary,
          "train one: ./ddp run 03 -n 2 -- -a gpt --save words.st",
          "%s: not a checkpoint of a gpt%s%s", path, arch ? ", but of a " : "", arch ? arch : "");
    ModelConfig c = { .arch = "gpt", .channels = 1, .height = 1, .batch = 1,
                      .classes = size_of(file, path, "transformer.wte.weight", 0, TOKENS),
                      .vocabulary = xstrdup(vocabulary), .gpt = { .heads = atoi(heads) } };
    c.gpt.width = size_of(file, path, "transformer.wte.weight", 1, WIDEST);
    c.per_row = c.width = size_of(file, path, "transformer.wpe.weight", 0, LONGEST);
    for (char name[64];; c.gpt.layers++) {
        snprintf(name, sizeof name, "transformer.h.%d.ln_1.weight", c.gpt.layers);
        if (!st_find(file, name))
            break;
    }
    CHECK(strlen(vocabulary) == 2 * (size_t)c.classes && c.gpt.heads > 0 &&
              0 < c.gpt.layers && c.gpt.layers <= LAYERS && c.gpt.width % c.gpt.heads == 0, "",
          "%s: its sizes contradict each other or are out of range", path);
    return c;
}

static void speaker_open(Speaker *s, const Config *config, const char *path)
{
    StFile file;
    Error error;
    if (!st_open(&file, path, &error))
        FAIL_ERROR(&error);
    ModelConfig sizes = config_of(&file, path);
    st_close(&file);
    *s = (Speaker){ .config = config,
                    .device = device_open(0, device_share(1, config->threads, true)) };
    Ops *ops = ops_new(s->device, &(OpsConfig){ .deterministic = true });
    s->model = model_new(s->device, ops, &sizes);
    if (!checkpoint_load(path, s->model, NULL, NULL, &error))
        FAIL_ERROR(&error);
    for (int i = 0; i < sizes.classes; i++) {
        unsigned byte;
        CHECK(sscanf(sizes.vocabulary + 2 * i, "%2x", &byte) == 1, "", "%s: its vocabulary is not hexadecimal", path);
        s->bytes[i] = (uint8_t)byte;
    }
    s->row = xcalloc((size_t)(TEXT_KEY + sizes.per_row), sizeof *s->row);
    s->logits = xmalloc((size_t)sizes.per_row * (size_t)sizes.classes * sizeof *s->logits);
}

// --- the text ------------------------------------------------------------------------------------

static int token_of(const Speaker *s, char c)
{
    for (int i = 0; i < s->model->config.classes; i++)
        if (s->bytes[i] == (uint8_t)c)
            return i;
    return -1;
}

// A full window loses its first token.
static void append(Speaker *s, int token)
{
    int32_t *tokens = s->row + TEXT_KEY;
    int block = s->model->per_row;
    if (s->length == block)
        memmove(tokens, tokens + 1, (size_t)--s->length * sizeof *tokens);
    tokens[s->length++] = token;
}

// The logits of the character after the text. Attention is causal, so what is in the row after
// the text has no effect.
static const float *think(Speaker *s)
{
    Stream *stream = device_stream(s->device);
    size_t classes = (size_t)s->model->config.classes, block = (size_t)s->model->per_row;
    void *row = device_alloc(s->device, (TEXT_KEY + block) * sizeof *s->row);
    copy_to_device(stream, row, s->row, (TEXT_KEY + block) * sizeof *s->row);
    model_forward(s->model, row, 1, false);
    copy_to_host(stream, s->logits, s->model->logits, block * classes * sizeof *s->logits);
    stream_sync(stream);
    device_free(s->device, row);
    return s->logits + (size_t)(s->length - 1) * classes;
}

// Draws from softmax(logits / temperature); at temperature 0, takes the largest.
static int draw(const Speaker *s, const float *logits, int64_t number)
{
    int classes = s->model->config.classes, best = 0;
    double sum = 0, weights[TOKENS], temperature = s->config->temperature;
    for (int i = 1; i < classes; i++)
        best = logits[i] > logits[best] ? i : best;
    if (temperature == 0)
        return best;
    for (int i = 0; i < classes; i++)
        sum += weights[i] = exp((logits[i] - logits[best]) / temperature);
    double left = sum * uniform_of(philox((uint64_t)s->config->seed, 0, (uint64_t)number).v[0]);
    for (int i = 0; i < classes; i++)
        if ((left -= weights[i]) < 0)
            return i;
    return best;
}

// Without a prompt, the text begins after a line break or, if the vocabulary has none, token 0. Neither is printed.
static void speak(Speaker *s)
{
    int lines = 0, line = token_of(s, '\n');
    const char *prompt = s->config->prompt;
    if (!*prompt)
        append(s, line < 0 ? 0 : line);
    for (const char *c = prompt; *c; c++)
        append(s, token_of(s, *c));
    printf("%s", prompt);
    const int64_t most = (int64_t)LINE * s->config->count;
    for (int64_t i = 0; lines < s->config->count; i++) {
        int token = draw(s, think(s), i);
        if (i >= most + 3 || (i >= most && (s->bytes[token] & 0xC0) != 0x80))
            break;                      // not the rest of a UTF-8 character, at most 3 bytes
        append(s, token);
        putchar(s->bytes[token]);
        if (token == line && ++lines > 0)
            fflush(stdout);
    }
    if (lines < s->config->count)
        putchar('\n');
    CHECK(fflush(stdout) == 0 && !ferror(stdout), "", "stdout: the text could not be written");
}

int main(int argc, char **argv)
{
    Speaker speaker;
    Config c = { .prompt = "", .count = 20, .temperature = 0.8 };
    Args args = { .summary = "Prints text from a checkpoint of a gpt.", .operands = "RUN.st" };
    args_add(&args, ARGS_ROWS(
        { "prompt", 0, ARG_STRING, &c.prompt, "TEXT", "beginning of the text" },
        { "count", 0, ARG_INT, &c.count, "N", "lines to print", .min = 1, .max = 1e6 },
        { "temperature", 0, ARG_DOUBLE, &c.temperature, "T",
          "randomness: 1 as trained, smaller: more likely text, 0: no randomness", .min = 0, .max = 100 },
        { "seed", 0, ARG_INT64, &c.seed, "N", "random seed: the same seed prints the same text", .min = 0,
          .max = 1e15 },
        { "threads", 0, ARG_INT, &c.threads, "N", "CPU threads (0: OMP_NUM_THREADS, else all cores)", .min = 0,
          .max = 1024 }));
    args_parse(&args, argc, argv);
    if (!args.rest[0] || args.rest[1])
        args_reject(&args, NULL, "name one checkpoint");
    speaker_open(&speaker, &c, args.rest[0]);
    for (const char *p = c.prompt; *p; p++)
        if (token_of(&speaker, *p) < 0)
            args_reject(&args, "prompt", "'%.100s': byte 0x%02x does not occur in the text that %s was "
                        "trained on", c.prompt, (unsigned char)*p, args.rest[0]);
    speak(&speaker);
    return 0;
}
