// Linked into the learner's program. The file "calls" records which process forks, with how many
// threads, and which process opens a device or counts the devices.
#include "device.h"
#include "wrap.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void record(const char *what, int number)
{
    FILE *out = fopen("calls", "a");
    if (!out)
        return;
    fprintf(out, "%s %d %d\n", what, (int)getpid(), number);
    fclose(out);
}

static int count_threads(void)
{
    char line[256];
    int threads = 0;
    FILE *in = fopen("/proc/self/status", "r");
    while (in && fgets(line, sizeof line, in))
        if (sscanf(line, "Threads: %d", &threads) == 1)
            break;
    if (in)
        fclose(in);
    return threads;
}

WRAPPED(fork);
pid_t __wrap_fork(void)
{
    record("fork", count_threads());
    return __real_fork();
}

WRAPPED(device_open);
Device *__wrap_device_open(int index, int threads)
{
    record("open", threads);
    return __real_device_open(index, threads);
}

WRAPPED(device_count);
int __wrap_device_count(void)
{
    record("count", 0);
    return __real_device_count();
}
