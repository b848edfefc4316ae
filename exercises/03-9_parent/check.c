// Put into the learner's program: the file "calls" says who forks, with how many threads, and who
// opens a device.
#include "device.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void note(const char *what, int number)
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

pid_t __real_fork(void);
pid_t __wrap_fork(void);
pid_t __wrap_fork(void)
{
    note("fork", count_threads());
    return __real_fork();
}

Device *__real_device_open(int index, int threads);
Device *__wrap_device_open(int index, int threads);
Device *__wrap_device_open(int index, int threads)
{
    note("open", threads);
    return __real_device_open(index, threads);
}
