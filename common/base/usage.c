#include "base/usage.h"
#include "check.h"
#include "clock.h"
#include "threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct Usage {
    int ms;
    void (*emit)(void *arg, const char *members);
    void *arg;
    double started, last;       // s
    double cpu;                 // s of processor time of this process, at the last sample
    long long busy, all;        // ticks of the machine's cores, at the last sample
    void *gpu;                  // NVML's handle, or NULL
    bool tried;                 // to open it
    pthread_t thread;
    sem_t end;                  // posted: stop
};

static char gpu_uuid[64];
static atomic_bool gpu_known;   // gpu_uuid is written

void usage_of_gpu(const char *uuid)
{
    snprintf(gpu_uuid, sizeof gpu_uuid, "%s", uuid);
    atomic_store(&gpu_known, true);
}

// --- NVML, the driver's own library: loaded only if there is a GPU -------------------------------

typedef struct Utilization {
    unsigned gpu, memory;
} Utilization;

typedef struct GpuMemory {
    unsigned long long total, free, used;
} GpuMemory;

enum { NVML_SM_CLOCK = 1, NVML_CORE_TEMPERATURE = 0 };

static struct {
    int (*init)(void);
    int (*by_uuid)(const char *uuid, void **device);
    int (*utilization)(void *device, Utilization *out);
    int (*memory)(void *device, GpuMemory *out);
    int (*power)(void *device, unsigned *milliwatts);
    int (*clock)(void *device, int which, unsigned *mhz);
    int (*temperature)(void *device, int which, unsigned *celsius);
} nvml;

static void *gpu_open(void)
{
    static const char *const names[] = {
        "nvmlInit_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetTemperature"
    };
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *function = library ? dlsym(library, names[i]) : NULL;
        if (!function)
            return NULL;
        memcpy((char *)&nvml + i * sizeof function, &function, sizeof function);
    }
    return nvml.init() == 0 && nvml.by_uuid(gpu_uuid, &device) == 0 ? device : NULL;
}

static void add_gpu(void *device, FILE *out)
{
    Utilization used;
    GpuMemory memory;
    unsigned value;
    if (nvml.utilization(device, &used) == 0)
        fprintf(out, ",\"gpu\":%u", used.gpu);
    if (nvml.memory(device, &memory) == 0)
        fprintf(out, ",\"gpu_mb\":%.0f", (double)memory.used / 1e6);
    if (nvml.power(device, &value) == 0)
        fprintf(out, ",\"gpu_watt\":%.0f", value / 1e3);
    if (nvml.clock(device, NVML_SM_CLOCK, &value) == 0)
        fprintf(out, ",\"gpu_mhz\":%u", value);
    if (nvml.temperature(device, NVML_CORE_TEMPERATURE, &value) == 0)
        fprintf(out, ",\"gpu_celsius\":%u", value);
}

// --- /proc ---------------------------------------------------------------------------------------

// Scans the file's first line. Missing values leave v unchanged.
static void scan_line(const char *path, const char *format, long long v[7])
{
    char line[512] = "";
    FILE *in = fopen(path, "re");
    if (in && fgets(line, sizeof line, in))
        sscanf(line, format, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6]);
    if (in)
        fclose(in);
}

static double process_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static void machine_ticks(long long *busy, long long *all)
{
    long long v[7] = { 0 };     // user, nice, system, idle, iowait, irq, softirq
    scan_line("/proc/stat", "cpu %lld %lld %lld %lld %lld %lld %lld", v);
    *busy = v[0] + v[1] + v[2] + v[5] + v[6];
    *all = *busy + v[3] + v[4];
}

// --- the thread ----------------------------------------------------------------------------------

static void sample(Usage *u)
{
    long long busy, all, read[7] = { 0 }, pages[7] = { 0 };
    char *text = NULL;
    size_t size;
    double now = clock_now(), cpu = process_seconds();
    machine_ticks(&busy, &all);
    scan_line("/proc/self/io", "rchar: %lld", read);
    scan_line("/proc/self/statm", "%lld %lld", pages);
    FILE *out = open_memstream(&text, &size);
    CHECK(out, "", "open_memstream: %s", strerror(errno));
    fprintf(out, "\"t\":%.2f,\"cpu\":%.1f,\"machine_cpu\":%.1f,\"rss_mb\":%.1f,\"read_mb\":%.1f",
            now - u->started, 100 * (cpu - u->cpu) / (now - u->last),
            all > u->all ? 100.0 * (double)(busy - u->busy) / (double)(all - u->all) : 0.0,
            (double)pages[1] * (double)sysconf(_SC_PAGESIZE) / 1e6, (double)read[0] / 1e6);
    if (!u->tried && atomic_load(&gpu_known)) {
        u->gpu = gpu_open();
        u->tried = true;
    }
    if (u->gpu)
        add_gpu(u->gpu, out);
    fclose(out);
    u->emit(u->arg, text);
    free(text);
    u->last = now;
    u->cpu = cpu;
    u->busy = busy;
    u->all = all;
}

static void *usage_run(void *arg)
{
    Usage *u = arg;
    struct timespec next;
    bool ends = false;
    while (!ends) {
        clock_gettime(CLOCK_REALTIME, &next);
        next.tv_nsec += u->ms % 1000 * 1000000L;
        next.tv_sec += u->ms / 1000 + next.tv_nsec / 1000000000;
        next.tv_nsec %= 1000000000;
        ends = sem_timedwait(&u->end, &next) == 0;
        sample(u);
    }
    return NULL;
}

Usage *usage_start(int ms, void (*emit)(void *arg, const char *members), void *arg)
{
    Usage *u = xcalloc(1, sizeof *u);
    *u = (Usage){ .ms = ms, .emit = emit, .arg = arg, .started = clock_now() };
    u->last = u->started;
    u->cpu = process_seconds();
    machine_ticks(&u->busy, &u->all);
    sem_init(&u->end, 0, 0);
    u->thread = thread_start(usage_run, u, "the sampler of --usage");
    return u;
}

void usage_stop(Usage *u)
{
    if (!u)
        return;
    sem_post(&u->end);
    pthread_join(u->thread, NULL);
    sem_destroy(&u->end);
    free(u);
}
