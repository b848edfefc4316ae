// If OWN_MEMORY is set, replicas_add sees devices with memory of their own, and so makes scratch memory.
// Prints each call of add_into, and each access that such devices could not make.
#include "device.h"
#include "ops.h"
#include "replicas.h"
#include "wrap.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    char *memory;
    size_t bytes;
    int device;
} blocks[4096];
static struct {
    const void *of;     // a Device or an Ops
    int device;
} owners[64];
static int block_count, owner_count, device_number;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool adding;

static int owner_of(const void *of)
{
    for (int i = 0; i < owner_count; i++)
        if (owners[i].of == of)
            return owners[i].device;
    return -1;
}

static void owner_add(const void *of, int device)
{
    pthread_mutex_lock(&lock);
    if (owner_count < 64)
        owners[owner_count++] = (typeof(owners[0])){ of, device };
    pthread_mutex_unlock(&lock);
}

// The number of the device in whose memory an address is; -1: unknown. left: bytes up to the block's end.
static int place_of(const void *address, size_t *left)
{
    int device = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < block_count && device < 0; i++) {
        size_t into = (size_t)((const char *)address - blocks[i].memory);
        if ((const char *)address < blocks[i].memory || into >= blocks[i].bytes)
            continue;
        device = blocks[i].device;
        *left = blocks[i].bytes - into;
    }
    pthread_mutex_unlock(&lock);
    return device;
}

WRAPPED(device_open);
Device *__wrap_device_open(int index, int threads)
{
    Device *device = __real_device_open(index, threads);
    owner_add(device, device_number++);
    return device;
}

WRAPPED(ops_new);
Ops *__wrap_ops_new(Device *device, const OpsConfig *config)
{
    Ops *ops = __real_ops_new(device, config);
    owner_add(ops, owner_of(device));
    return ops;
}

WRAPPED(device_alloc);
void *__wrap_device_alloc(Device *device, size_t bytes)
{
    char *memory = __real_device_alloc(device, bytes);
    pthread_mutex_lock(&lock);
    if (block_count < 4096)
        blocks[block_count++] = (typeof(blocks[0])){ memory, bytes, owner_of(device) };
    pthread_mutex_unlock(&lock);
    return memory;
}

WRAPPED(replicas_add);
void __wrap_replicas_add(Replicas *replicas, Model *model, const OpsConfig *ops)
{
    adding = true;
    __real_replicas_add(replicas, model, ops);
    adding = false;
}

WRAPPED(device_shares_memory);
bool __wrap_device_shares_memory(const Device *device)
{
    return adding && getenv("OWN_MEMORY") ? false : __real_device_shares_memory(device);
}

WRAPPED(add_into);
void __wrap_add_into(Ops *ops, size_t count, float *values, const float *more)
{
    size_t left = 0;
    int by = owner_of(ops), to = place_of(values, &left), from = place_of(more, &left);
    if (getenv("OWN_MEMORY")) {
        fprintf(stderr, "add:\n");
        if (by != 0 || to != 0 || from != 0)
            fprintf(stderr, "spy: device %d adds numbers in the memory of device %d to those of device %d\n",
                    by, from, to);
    }
    __real_add_into(ops, count, values, more);
}

// Only replicas.c copies from one device to another.
WRAPPED(copy_on_device);
void __wrap_copy_on_device(Stream *stream, void *to, const void *from, size_t bytes)
{
    size_t left_from = 0, left_to = 0;
    int sender = place_of(from, &left_from), receiver = place_of(to, &left_to);
    if (getenv("OWN_MEMORY") && sender != receiver && (bytes > left_from || bytes > left_to)) {
        fprintf(stderr, "spy: copies %zu bytes from or to a place that has fewer\n", bytes);
        return;
    }
    __real_copy_on_device(stream, to, from, bytes);
}
