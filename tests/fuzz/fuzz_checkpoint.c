// fuzz_checkpoint.c - libFuzzer: whatever the bytes, the reader of checkpoints either refuses them
// with a reason, or returns tensors that lie in the file, side by side, under names that differ.
#include "check.h"
#include "checkpoint/safetensors.h"
#include <stdlib.h>
#include <string.h>

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_tensors(const StFile *file)
{
    size_t total = 0;
    uint64_t header;
    memcpy(&header, file->bytes, 8);
    const unsigned char *data = file->bytes + 8 + header, *end = file->bytes + file->size;
    for (int i = 0; i < file->count; i++) {
        const StTensor *t = &file->tensors[i];
        const unsigned char *begin = t->data;
        require(t->ndim >= 0 && t->ndim <= ST_MAX_DIMS && t->dtype[0]);
        require(begin >= data && t->bytes <= (size_t)(end - begin));
        require(st_find(file, t->name) == t);
        require(i == 0 || strcmp(file->tensors[i - 1].name, t->name) < 0);
        total += t->bytes;
    }
    require(total == (size_t)(end - data));
    for (int i = 0; i < file->metadata_count; i++)
        require(strlen(file->metadata[i][0]) < 256 && strlen(file->metadata[i][1]) < 256 &&
                st_metadata(file, file->metadata[i][0]) != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    StFile file;
    Error err = { "", "" };
    unsigned char *bytes = malloc(size); // of just this size: a step beyond it is seen
    if (size > 0)
        memcpy(bytes, data, size);
    if (st_parse(&file, bytes, size, &err)) {
        check_tensors(&file);
        st_close(&file);
    } else {
        require(err.text[0] && !file.bytes && !file.tensors && !file.names && !file.metadata);
    }
    return 0;
}
