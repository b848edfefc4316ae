// text.c - a text, as the tokens that a language model reads.
//
// A token is the index of a byte among the distinct bytes of the text, in ascending order. A
// sample is a window of T tokens, and each token's label is the next token of the text:
//
//   text            t h e   c a t   s a t
//   sample 0, T=4   t h e _               labels  h e _ c
//   sample 1                c a t _       labels  a t _ s
//
// Windows do not overlap. In each epoch the loader shifts the training windows by a random offset
// (not with --no-augment), so the last window must leave room for the shift. The first 90 % of the
// text is for training, the rest for testing: test windows between training windows would overlap
// shifted ones.
#include "data/formats.h"
#include "rng.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

// Keeps the words that have only letters a to z, in one fixed random order: the first part of a
// sorted list would not look like its last part. Returns the number of bytes.
static int64_t words_shuffle(uint8_t *bytes, int64_t size)
{
    typedef struct { const char *at; size_t length; } Line;
    int64_t kept = 0, to = 0;
    char *list = xmalloc(size);
    Line *lines = xmalloc((size / 2 + 1) * sizeof *lines);
    memcpy(list, bytes, size);
    for (char *at = list, *end; (end = memchr(at, '\n', list + size - at)); at = end + 1)
        if (end > at && at + strspn(at, "abcdefghijklmnopqrstuvwxyz") == end)
            lines[kept++] = (Line){ at, end + 1 - at };
    int32_t *order = xmalloc(kept * sizeof *order);
    torch_randperm(1, (int)kept, order);
    for (int64_t i = 0; i < kept; i++) {
        memcpy(bytes + to, lines[order[i]].at, lines[order[i]].length);
        to += lines[order[i]].length;
    }
    free(order);
    free(lines);
    free(list);
    return to;
}

// Fills in the vocabulary, and replaces each byte with its token. Returns the number of distinct
// tokens.
static int tokens_make(Data *data, uint8_t *bytes, int64_t size)
{
    uint8_t token_of[256] = { 0 };
    bool occurs[256] = { false };
    int count = 0;
    for (int64_t i = 0; i < size; i++)
        occurs[bytes[i]] = true;
    for (int byte = 0; byte < 256; byte++)
        if (occurs[byte]) {
            snprintf(data->vocabulary + 2 * count, 3, "%02x", byte);
            token_of[byte] = (uint8_t)count++;
        }
    for (int64_t i = 0; i < size; i++)
        bytes[i] = token_of[bytes[i]];
    return count;
}

// Divides a part of the text into windows of `block` tokens. At least room + 1 tokens follow the
// last window: an epoch may shift all windows by up to `room`, and the last label is the token
// after the window.
static void windows_make(Dataset *set, const uint8_t *tokens, int64_t count, int block, int room,
                         int classes)
{
    *set = (Dataset){ .count = (int)((count - 1 - room) / block), .channels = 1, .height = 1,
                      .width = block, .classes = classes, .per_row = block };
    set->inputs = xmalloc(count);
    memcpy(set->inputs, tokens, count);
}

static bool tokens_read(Data *data, const char *path, int block, bool words, Error *err)
{
    static const char hint[] = "choose a longer text or a smaller --block";
    FileBytes file = { 0 };
    bool good = data_file_load(path, INT_MAX - 1, &file, err);
    const uint32_t crc = good ? crc32_z(0, file.bytes, file.size) : 0;
    const int64_t size = good && words ? words_shuffle(file.bytes, file.size) : (int64_t)file.size;
    const int64_t part = size * 9 / 10;
    if (good && (part < 2 * block || size - part <= block))
        good = error_set(err, hint, "%s: its %lld bytes are too few to train and test with windows "
                         "of %d bytes", path, (long long)size, block);
    if (good) {
        int classes = tokens_make(data, file.bytes, size);
        windows_make(&data->train, file.bytes, part, block, block - 1, classes);
        windows_make(&data->test, file.bytes + part, size - part, block, 0, classes);
        snprintf(data->samples, sizeof data->samples, "windows of %d bytes", block);
        data->unit = "bytes";
        data_checksum(data, &crc, sizeof crc);
        data_checksum(data, &block, sizeof block);
    }
    free(file.bytes);
    return good;
}

bool text_read(Data *data, const char *path, const DataConfig *config, Error *err)
{
    return tokens_read(data, path, config->block, false, err);
}

bool words_read(Data *data, const char *path, const DataConfig *config, Error *err)
{
    return tokens_read(data, path, config->block, true, err);
}
