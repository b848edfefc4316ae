// fuzz_text.c - libFuzzer target: the input's first byte chooses the length of a window, and whether the
// rest, a text, is a list of words. Unless the text is refused, each token must stand for its byte, or,
// in a list of words, for a letter or a newline. A gzipped text has other bytes, so it is left out.
#include "data/formats.h"
#include "fuzz.h"

#include <string.h>

// Each token must stand for its byte of `text` (NULL: for a letter or a newline). shift: the most by which an epoch
// moves its windows.
static void check_tokens(const Data *data, const Dataset *set, int shift, const uint8_t *text)
{
    unsigned byte;
    require(set->count > 0 && strlen(data->vocabulary) == 2 * (size_t)set->classes);
    for (int64_t i = 0; i <= (int64_t)set->count * set->per_row + shift; i++) {
        require(set->inputs[i] < set->classes);
        require(sscanf(data->vocabulary + 2 * set->inputs[i], "%2x", &byte) == 1);
        require(text ? byte == text[i] : byte == '\n' || ('a' <= byte && byte <= 'z'));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0 || (size > 2 && bytes[1] == 0x1f && bytes[2] == 0x8b))
        return 0;
    char path[64];
    bool words = *bytes & 1;
    int block = 1 + *bytes++ / 2, fd = file_make(bytes, --size, path);
    Data data = { 0 };
    Error err = { .text = "" };
    most_memory = 16 * size + (4 << 20);        // a file is read in pieces of 1 MiB
    const DataConfig config = { .block = block };
    bool good = (words ? words_read : text_read)(&data, path, &config, &err);
    most_memory = SIZE_MAX;
    require(good || err.text[0]);
    if (good) {
        check_tokens(&data, &data.train, block - 1, words ? NULL : bytes);
        check_tokens(&data, &data.test, 0, words ? NULL : bytes + size * 9 / 10);
    }
    data_close(&data);
    close(fd);
    return 0;
}
