// Linked into the learner's program: makes it see a machine named $NODE with two devices and eight
// cores. Records in device.RANK which device the rank opens, with how many cores, and whether it
// would warn of too few cores.
#include "comm.h"
#include "machine.h"
#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>

WRAPPED(machine_here);
Machine __wrap_machine_here(void)
{
    Machine here = __real_machine_here();
    snprintf(here.host, sizeof here.host, "%s", getenv("NODE"));
    return here;
}

WRAPPED(device_count);
int __wrap_device_count(void) { return 2; }

static bool warns;

WRAPPED(device_share);
int __wrap_device_share(int devices, int asked, bool warn)
{
    warns = warn;
    return 8 / devices;
}

WRAPPED(device_open);
Device *__wrap_device_open(int index, int threads)
{
    char name[64];
    snprintf(name, sizeof name, "device.%s", getenv("RANK"));
    FILE *out = fopen(name, "w");
    if (out) {
        fprintf(out, "device %d, %d cores%s\n", index, threads, warns ? ", warns" : "");
        fclose(out);
    }
    return __real_device_open(index, 1);
}
