// fuzz.h - shared by the fuzz targets: requirements, a limit for memory allocations, files in memory.
#pragma once
#include <sanitizer/allocator_interface.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t most_memory = SIZE_MAX; // that one call of malloc may ask for

static void memory_asked(const volatile void *memory, size_t bytes)
{
    if (bytes > most_memory) {
        fprintf(stderr, "malloc of %zu bytes, but the limit is %zu\n", bytes, most_memory);
        abort();
    }
}

static void memory_given_back(const volatile void *memory) { (void)memory; }

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    __sanitizer_install_malloc_and_free_hooks(memory_asked, memory_given_back);
    return 0;
}

static void require(bool good)
{
    if (!good)
        abort();
}

// A file in memory, and the path under which it can be opened.
static inline int file_make(const void *bytes, size_t size, char path[64])
{
    int fd = memfd_create("input", MFD_CLOEXEC);
    require(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}
