#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Name and boot id together identify a machine. A container has its machine's boot id, but usually
// a name of its own; clones of one virtual machine may share a name.
Machine machine_here(void)
{
    Machine here = { .boot = "" };
    gethostname(here.host, sizeof here.host - 1);
    FILE *in = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (in) {
        here.boot[fread(here.boot, 1, sizeof here.boot - 1, in)] = '\0';
        fclose(in);
    }
    if (sched_getaffinity(0, sizeof here.cores, &here.cores) != 0)
        memset(&here.cores, 0xFF, sizeof here.cores);   // more cores than a mask holds: assume all
    return here;
}

bool machine_is_same(const Machine *a, const Machine *b)
{
    return strcmp(a->host, b->host) == 0 && strcmp(a->boot, b->boot) == 0;
}

bool machine_shares_cores(const Machine *a, const Machine *b)
{
    cpu_set_t both;
    CPU_AND(&both, &a->cores, &b->cores);
    return machine_is_same(a, b) && CPU_COUNT(&both) > 0;
}

const char *machine_program(void)
{
#ifdef __x86_64__
#define PROCESSOR "x86-64"
#else
#define PROCESSOR "arm64"
#endif
    return "a build for " PROCESSOR "\nrevision " DDP_GIT_REVISION ", " DDP_BUILD;
}

int machine_gpus_listed(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    FILE *list = visible ? NULL : popen("nvidia-smi -L 2>/dev/null", "re");
    char line[512];
    int count = visible && visible[0] ? 1 : 0;
    for (; visible && *visible; visible++)
        count += *visible == ',';
    while (list && fgets(line, sizeof line, list))
        count += strncmp(line, "GPU ", 4) == 0;
    if (list)
        pclose(list);
    return count;
}
