// device_cpu.c - device.h where a device is a slice of this machine's cores.
//
// Nothing is asynchronous here: a stream's work is done when the call returns, so events and waits
// have nothing left to do.
#include "device.h"
#include "check.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

const char *const device_backend = "cpu";

struct Stream {
    Device *device;
};

struct Event {
    Device *device;
};

struct Device {
    int index, threads;
    char name[64];
    Stream compute;
    atomic_size_t bytes, peak_bytes; // allocated now, and at most
};

// In front of every block of device memory, so that free knows how much it gives back. One cache
// line, which keeps what follows aligned to 64 bytes.
typedef struct BlockHeader {
    size_t bytes;
    char pad[56];
} BlockHeader;

// --- devices ------------------------------------------------------------------------------------

int device_count(void) { return 0; }

bool device_shares_memory(const Device *device)
{
    (void)device;
    return true;
}

int device_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    return CPU_COUNT(&set);
}

static const char *isa_name(void)
{
    switch ((int)dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41: return "sse4.1";
    case dnnl_cpu_isa_avx: return "avx";
    case dnnl_cpu_isa_avx2: return "avx2";
    case dnnl_cpu_isa_avx512_core: return "avx512";
    case dnnl_cpu_isa_avx512_core_vnni: return "avx512_vnni";
    case dnnl_cpu_isa_avx512_core_bf16: return "avx512_bf16";
    case dnnl_cpu_isa_avx512_core_amx: return "amx";
#if DNNL_VERSION_MAJOR >= 3
    case dnnl_cpu_isa_avx2_vnni: return "avx2_vnni";
    case dnnl_cpu_isa_avx2_vnni_2: return "avx2_vnni_2";
    case dnnl_cpu_isa_avx512_core_fp16: return "avx512_fp16";
    case dnnl_cpu_isa_avx512_core_amx_fp16: return "amx_fp16";
#endif
    default: return "oneDNN";
    }
}

Device *device_open(int index, int threads)
{
    Device *device = xcalloc(1, sizeof *device);
    device->index = index;
    device->threads = threads > 0 ? threads : device_cores();
    if (device->threads > omp_get_thread_limit())   // OMP_THREAD_LIMIT
        device->threads = omp_get_thread_limit();
    device->compute.device = device;
    snprintf(device->name, sizeof device->name, "CPU, %s, %d thread%s", isa_name(), device->threads,
             device->threads == 1 ? "" : "s");
    device_use(device);
    return device;
}

void device_close(Device *device) { free(device); }
// So many threads and no fewer: each has its share of the work, and oneDNN's wait for one another.
void device_use(Device *device)
{
    omp_set_dynamic(0);
    omp_set_num_threads(device->threads);
}

const char *device_name(const Device *device) { return device->name; }
int device_threads(const Device *device) { return device->threads; }
size_t device_peak_bytes(const Device *device) { return atomic_load(&device->peak_bytes); }

// --- memory -------------------------------------------------------------------------------------

// Large blocks come straight from the kernel: they are zero, and cost nothing until they are
// touched. The largest are rounded up to whole huge pages, since Linux aligns only such: a fault for
// every 4 KB of them would take longer than a step.
enum { LARGE = 1 << 20, HUGE_PAGE = 2 << 20, VERY_LARGE = 8 * HUGE_PAGE };

static void *map_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static size_t block_size(size_t bytes)
{
    size_t whole = sizeof(BlockHeader) + bytes, unit = whole >= VERY_LARGE ? HUGE_PAGE : 64;
    return (whole + unit - 1) / unit * unit;
}

void *device_alloc(Device *device, size_t bytes)
{
    size_t whole = block_size(bytes);
    BlockHeader *block = whole >= LARGE ? map_memory(whole) : aligned_alloc(64, whole);
    CHECK(block, "a smaller batch (-b) or model needs less",
          "out of memory: %zu MB asked for, %zu MB "
          "in use by this device",
          bytes >> 20, atomic_load(&device->bytes) >> 20);
    if (whole < LARGE)
        memset(block, 0, whole);
    block->bytes = bytes;
    size_t now = atomic_fetch_add(&device->bytes, bytes) + bytes;
    size_t peak = atomic_load(&device->peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&device->peak_bytes, &peak, now)) {
    }
    return block + 1;
}

void device_free(Device *device, void *memory)
{
    if (!memory)
        return;
    BlockHeader *block = (BlockHeader *)memory - 1;
    size_t bytes = block->bytes;
    atomic_fetch_sub(&device->bytes, bytes);
    if (block_size(bytes) >= LARGE)
        munmap(block, block_size(bytes));
    else
        free(block);
}

void *host_alloc(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    CHECK(memory || bytes == 0, "", "out of memory: %zu MB asked for", bytes >> 20);
    return memory;
}

void host_free(void *memory) { free(memory); }

// --- streams, events, replay: everything has happened by the time a call returns -----------------

Stream *device_stream(Device *device) { return &device->compute; }

Stream *stream_new(Device *device, const char *name)
{
    (void)name;
    Stream *stream = xcalloc(1, sizeof *stream);
    stream->device = device;
    return stream;
}

void stream_free(Stream *stream) { free(stream); }
void stream_sync(Stream *stream) { (void)stream; }

void copy_to_device(Stream *stream, void *to, const void *from, size_t bytes)
{
    (void)stream;
    memcpy(to, from, bytes);
}

void copy_to_host(Stream *stream, void *to, const void *from, size_t bytes)
{
    (void)stream;
    memcpy(to, from, bytes);
}

void copy_on_device(Stream *stream, void *to, const void *from, size_t bytes)
{
    (void)stream;
    memcpy(to, from, bytes);
}

void fill_zero(Stream *stream, void *memory, size_t bytes)
{
    (void)stream;
    memset(memory, 0, bytes);
}

Event *event_new(Device *device)
{
    Event *event = xcalloc(1, sizeof *event);
    event->device = device;
    return event;
}

void event_free(Event *event) { free(event); }

void event_record(Event *event, Stream *stream)
{
    (void)event;
    (void)stream;
}

void stream_wait(Stream *stream, Event *event)
{
    (void)stream;
    (void)event;
}

void event_sync(Event *event) { (void)event; }

struct Replay {
    Device *device;
};

Replay *replay_new(Device *device, int keys)
{
    (void)keys;
    Replay *replay = xcalloc(1, sizeof *replay);
    replay->device = device;
    return replay;
}

void replay_free(Replay *replay) { free(replay); }

void replay_run(Replay *replay, int key, void (*step)(void *arg), void *arg)
{
    (void)replay;
    (void)key;
    step(arg);
}

void device_range_push(const char *name) { (void)name; }
void device_range_pop(void) { }
