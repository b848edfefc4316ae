// device.h - a place that computes: one GPU, or a slice of this machine's cores.
//
// Two implementations, chosen when linking: cuda/device_cuda.c and cpu/device_cpu.c. Work goes to
// streams and happens in the order of its stream; the host goes on. On the CPU a stream's work
// happens in the thread that asks for it, so everything below returns with its work done; only a
// stream made by stream_new_beside has a thread of its own.
#pragma once
#include <stdbool.h>
#include <stddef.h>

typedef struct Device Device;
typedef struct Stream Stream;
typedef struct Event Event;
typedef struct Replay Replay;

// "cpu" or "cuda": which backend this program was linked with.
extern const char *const device_backend;

// How many devices this process may use. On the CPU as many as asked for: it returns 0.
int device_count(void);
// "GPU-5c1d2e...": this GPU's own name, whoever sees it, and as whatever number; CPU: "".
const char *device_uuid(int index);

// Opens device `index` with `threads` cores (CPU; 0: all of the affinity mask) and makes it the
// current device of the calling thread. Fails with a clear line when there is no such device.
Device *device_open(int index, int threads);
// CPU: the threads of each of the `devices` devices that divide the cores of this process's affinity
// mask: what was asked for, or (0) OMP_NUM_THREADS, or an equal share, at least one. warn: says so
// where that is more than there are.
int device_share(int devices, int asked, bool warn);
void device_close(Device *device);
void device_use(Device *device);                 // the calling thread's current device
const char *device_name(const Device *device);   // "NVIDIA H200", "CPU, avx512_bf16, 2 threads"
int device_threads(const Device *device);        // CPU: cores in use; CUDA: 0
size_t device_peak_bytes(const Device *device);  // most memory ever allocated through device_alloc
int device_cores(void);                          // cores in this process's affinity mask
bool device_shares_memory(const Device *device); // true: host memory is device memory, copy nothing

// Device memory, filled with zeros. Fails with the size asked for when there is not enough.
void *device_alloc(Device *device, size_t bytes);
void device_free(Device *device, void *memory);
// Host memory that a device can copy from without a detour (pinned under CUDA). Not zeroed.
void *host_alloc(size_t bytes);
void host_free(void *memory);

// The device's compute stream belongs to the device; streams made here to the caller.
Stream *device_stream(Device *device);
Stream *stream_new(Device *device, const char *name);
// A stream whose work goes on beside the caller's: on the CPU in a thread of its own, which has
// this name in the timeline; under CUDA like any other.
Stream *stream_new_beside(Device *device, const char *name);
void stream_free(Stream *stream);
void stream_sync(Stream *stream);                // the host waits for all work of the stream

void copy_to_device(Stream *stream, void *to, const void *from, size_t bytes);
void copy_to_host(Stream *stream, void *to, const void *from, size_t bytes);
// to and from may belong to different devices of this process.
void copy_on_device(Stream *stream, void *to, const void *from, size_t bytes);
void fill_zero(Stream *stream, void *memory, size_t bytes);
// Calls fn(copy of arg) on the host when the stream gets there: never in a step that is recorded
// (replay_forbid). fn must not call the device: under CUDA it runs in a thread of the driver's.
void stream_call(Stream *stream, void (*fn)(void *arg), const void *arg, size_t bytes);

Event *event_new(Device *device);
void event_free(Event *event);
void event_record(Event *event, Stream *stream); // "everything so far on this stream"
void stream_wait(Stream *stream, Event *event);  // later work of the stream waits for it
void event_sync(Event *event);                   // the host waits for it

// A step that always asks for the same work can be recorded once and replayed with one call: at
// 32x32 pixels, launching 100 kernels costs more than running them.
//
//   replay_run(replay, key, step, arg):  the first call with a key just calls step(arg) (which may
//   allocate); the second records it; all later ones replay the recording.
//
// step must give the same work for the same key: what changes from call to call (learning rate,
// loss scale) has to be read from device memory. On the CPU it calls step each time, and where there
// are no keys at all.
Replay *replay_new(Device *device, int keys);
void replay_free(Replay *replay);
// From now on nothing is recorded on this device: a step of its has a part that the host must do.
void replay_forbid(Device *device);
void replay_run(Replay *replay, int key, void (*step)(void *arg), void *arg);
