// slow.c - simulates a slow file server or disk. Preloaded into a program (LD_PRELOAD), it delays read or fsync:
//
//   SLOW_PATH=train/    of files whose path contains this text
//   SLOW_CALL=read      this call: read or fsync; not set: none
//   SLOW_RANK=1         only in the process with RANK=1; not set: in one without RANK
//   SLOW_AT=3           only the third such call (from 1); 0: each of them
//   SLOW_MS=3000        by so many milliseconds
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *setting(const char *name) { return getenv(name) ? getenv(name) : ""; }

static void delay(const char *call, const char *path)
{
    static atomic_int calls;
    int at = atoi(setting("SLOW_AT")), ms = atoi(setting("SLOW_MS"));
    if (!getenv("SLOW_PATH") || !strstr(path, getenv("SLOW_PATH")) || strcmp(setting("SLOW_CALL"), call) != 0
        || strcmp(setting("SLOW_RANK"), setting("RANK")) != 0)
        return;
    if (atomic_fetch_add(&calls, 1) + 1 == at || at == 0)
        usleep(1000 * (useconds_t)ms);
}

static void delay_file(const char *call, int fd)
{
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0)
        delay(call, path);
}

ssize_t read(int fd, void *to, size_t bytes)
{
    ssize_t (*real)(int, void *, size_t) = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    delay_file("read", fd);
    return real(fd, to, bytes);
}

int fsync(int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    delay_file("fsync", fd);
    return real(fd);
}
