// fuzz_checkpoint.c - libFuzzer target: whatever the bytes are, the checkpoint reader must give a reason to
// refuse them, or return tensors with different names that fill the file after its header without gaps.
#include "checkpoint/safetensors.h"
#include "fuzz.h"

#include <string.h>

static void check_tensors(const StFile *file)
{
    uint64_t header;
    memcpy(&header, file->bytes, 8);
    const unsigned char *at = file->bytes + 8 + header;
    for (int i = 0; i < file->count; i++) {
        const StTensor *t = &file->tensors[i];
        require(t->ndim >= 0 && t->ndim <= ST_MAX_DIMS && t->dtype);
        require(t->data == at && st_find(file, t->name) == t);
        at += t->bytes;
    }
    require(at == file->bytes + file->size);
    st_metadata(file, "format");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    StFile file;
    Error err = { "", "" };
    unsigned char *bytes = malloc(size); // exact size: the sanitizer sees any overrun
    if (size > 0)
        memcpy(bytes, data, size);
    if (st_parse(&file, bytes, size, &err)) {
        check_tensors(&file);
        st_close(&file);
    } else {
        require(err.text[0] && !file.bytes && !file.tensors && !file.header);
    }
    return 0;
}
