// fuzz_data.c - the readers of data files, for libFuzzer. The first byte says which reader gets the
// rest as a file. It must refuse it, or give labels below the number of classes; and it must not
// ask for more memory than a file of that size can justify.
#include "data/formats.h"

#include <sanitizer/allocator_interface.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t most_memory;

static void memory_asked(const volatile void *memory, size_t bytes)
{
    (void)memory;
    if (bytes > most_memory) {
        fprintf(stderr, "%zu bytes asked for, %zu are justified\n", bytes, most_memory);
        abort();
    }
}

static void memory_given_back(const volatile void *memory) { (void)memory; }

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    most_memory = SIZE_MAX;
    __sanitizer_install_malloc_and_free_hooks(memory_asked, memory_given_back);
    return 0;
}

static void require(bool good)
{
    if (!good)
        abort();
}

static void idx_try(const char *path, int ndim)
{
    IdxFile idx = {
        .path = path, .hint = "", .ndim = ndim, .height = 28, .width = 28, .classes = 10
    };
    Error err = { .text = "" };
    if (!idx_file_read(&idx, &err)) {
        require(err.text[0] && !idx.bytes);
        return;
    }
    size_t bytes = (size_t)idx.count * (ndim == 3 ? 28 * 28 : 1), ones = 0;
    require(idx.count > 0);
    for (size_t i = 0; i < bytes; i++) { // each of them can be read
        require(ndim == 3 || idx.bytes[i] < 10);
        ones += idx.bytes[i] == 1;
    }
    require(ones <= bytes);
    free(idx.bytes);
}

static void cifar_try(const char *path, int label_bytes, int classes)
{
    uint8_t images[2 * 3072];
    int32_t labels[2] = { -1, -1 };
    CifarPart part = { .path = path, .hint = "", .records = 3, .first = 1, .count = 2,
                       .label_bytes = label_bytes, .classes = classes, .images = images,
                       .labels = labels };
    Error err = { .text = "" };
    if (!cifar_part_open(&part, &err)) {
        require(err.text[0]);
        return;
    }
    if (cifar_part_read(&part, &err))
        for (int i = 0; i < 2; i++)
            require(labels[i] >= 0 && labels[i] < classes);
    else
        require(err.text[0]);
    data_file_close(&part.file);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0)
        return 0;
    int fd = memfd_create("input", MFD_CLOEXEC);
    require(fd >= 0 && write(fd, bytes + 1, size - 1) == (ssize_t)(size - 1));
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);

    most_memory = size * 1032 + (1 << 20); // and a buffer or two
    switch (bytes[0] % 4) {
    case 0: idx_try(path, 1); break;
    case 1: idx_try(path, 3); break;
    case 2: cifar_try(path, 1, 10); break;
    case 3: cifar_try(path, 2, 100); break;
    }
    most_memory = SIZE_MAX;
    close(fd);
    return 0;
}
