// text.c - a text, as the tokens that a language model reads.
//
// A token is the number of a byte among the distinct bytes of the text, in ascending order. A
// sample is a window of T tokens, and its labels are the tokens that follow each of them:
//
//   text            t h e   c a t   s a t
//   sample 0, T=4   t h e _               labels  h e _ c
//   sample 1                c a t _       labels  a t _ s
//
// Windows do not overlap. In each epoch the loader shifts those of training by a random offset
// (--no-augment: by none), so the last one must leave room for that. The first 90 % are for
// training, the rest for testing: test windows between training windows would overlap shifted ones.
#include "data/formats.h"
#include "rng.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// Keeps the words of letters a to z, in a random order that is always the same: the first part of a
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

// "a", or "0x0a" for what is not visible ASCII, and for commas and double quotes.
static const char *byte_name(int byte)
{
    static char names[256][8];
    bool plain = byte < 128 && isgraph(byte) && byte != ',' && byte != '"';
    snprintf(names[byte], sizeof names[byte], plain ? "%c" : "0x%02x", byte);
    return names[byte];
}

// Fills in the vocabulary and the names of the tokens, and replaces each byte with its token.
// Returns the number of different tokens.
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
            data->characters[count] = byte_name(byte);
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

static bool bytes_read(const char *path, uint8_t **bytes, int64_t *size, uint32_t *crc, Error *err)
{
    DataFile file;
    if (!data_file_open(&file, path, "--data text:FILE needs a regular file that can be read", err))
        return false;
    *size = file.size;
    *bytes = file.size <= INT32_MAX ? malloc(file.size + 1) : NULL;
    bool good = *bytes ? gzdirect(file.gz) || error_set(err, "gunzip it first",
                                                        "%s: a text must not be compressed", path)
                       : error_set(err, "a text must fit in memory and be shorter than 2 GiB",
                                   "%s is too large: %lld MiB", path, (long long)file.size >> 20);
    good = good && data_file_read(&file, *bytes, file.size, err) && data_file_end(&file, err);
    *crc = file.crc;
    data_file_close(&file);
    return good;
}

bool text_read(Data *data, const char *path, int block, bool words, Error *err)
{
    uint8_t *bytes = NULL;
    int64_t size;
    uint32_t crc;
    bool good = bytes_read(path, &bytes, &size, &crc, err);
    if (good && words)
        size = words_shuffle(bytes, size);
    int64_t part = good ? size * 9 / 10 : 0;
    if (good && (part < 2 * block || size - part <= block))
        good = error_set(err, "choose a longer text or a smaller --block", "%s: its %lld bytes are "
                         "too few to train and test with windows of %d bytes", path,
                         (long long)size, block);
    if (good) {
        int classes = tokens_make(data, bytes, size);
        windows_make(&data->train, bytes, part, block, block - 1, classes);
        windows_make(&data->test, bytes + part, size - part, block, 0, classes);
        snprintf(data->samples, sizeof data->samples, "windows of %d bytes", block);
        data->unit = "bytes";
        data->class_names = data->characters;
        data_checksum(data, &crc, sizeof crc);
        data_checksum(data, &block, sizeof block);
    }
    free(bytes);
    return good;
}
