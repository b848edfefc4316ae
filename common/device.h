// device.h - memory, copies, streams and events of a device: one GPU, or a share of this machine's
// cores.
//
// Two implementations, chosen when linking: cuda/device_cuda.c and cpu/device_cpu.c. Work is
// enqueued on a stream and runs in order, while the host continues. On the CPU every call returns
// when its work is done, except on a stream made by stream_new_beside, which has its own thread.
#pragma once
#include <stdbool.h>
#include <stddef.h>

typedef struct Device Device;
typedef struct Stream Stream;
typedef struct Event Event;
typedef struct Replay Replay;

// "cpu" or "cuda"
extern const char *const device_backend;

// The number of devices that this process may use. CPU: 0, which means any number.
int device_count(void);
// Identifies this GPU in all processes, whatever its index there: "GPU-5c1d2e..."; CPU: "".
const char *device_uuid(int index);

// Opens device `index` and makes it the calling thread's current device. CPU: the device has
// `threads` threads (0: one for each core of the affinity mask), at most OMP_THREAD_LIMIT.
Device *device_open(int index, int threads);
// CPU: the number of threads for each of `devices` devices that share the cores of this process's
// affinity mask: `asked` unless it is 0, else OMP_NUM_THREADS if it is from 1 to 1024, else an
// equal share of the cores. warn: print a warning if there are more threads than cores.
int device_share(int devices, int asked, bool warn);
// Call it if other processes compute on this GPU as well: from now on no algorithm is chosen by its
// measured time.
void device_takes_turns(Device *device);
void device_close(Device *device);               // also frees all of its memory
void device_use(Device *device);                 // makes it the calling thread's current device
const char *device_name(const Device *device);   // "NVIDIA H200", "CPU, avx512_bf16, 2 threads"
int device_threads(const Device *device);        // number of threads in its loops; CUDA: 0
size_t device_bytes(const Device *device);       // bytes of device_alloc's memory in use
bool device_shares_memory(const Device *device); // is its memory the host's memory?

// Allocates device memory, zeroed. If there is too little, prints the size and ends the program.
void *device_alloc(Device *device, size_t bytes);
void device_free(Device *device, void *memory);
typedef struct Array {
    float *values;          // device memory
    size_t count;
    const char *name;       // in a checkpoint, the names of the array's tensors begin with `name`
} Array;
// Allocates host memory from which a device can copy directly (pinned under CUDA), not zeroed.
void *host_alloc(size_t bytes);
void host_free(void *memory);

// The device owns its compute stream; the caller owns the streams that it makes.
Stream *device_stream(Device *device);
Stream *stream_new(Device *device, const char *name);
// Makes a stream that works in parallel with the caller: on the CPU in its own thread, which has
// this name in the timeline; under CUDA like any other stream.
Stream *stream_new_beside(Device *device, const char *name);
// Finishes the stream's work, then frees the stream. Afterwards nothing may wait for an event
// recorded on the stream.
void stream_free(Stream *stream);
void stream_sync(Stream *stream);                // the host waits for all work of the stream
bool stream_idle(Stream *stream);

void copy_to_device(Stream *stream, void *to, const void *from, size_t bytes);
void copy_to_host(Stream *stream, void *to, const void *from, size_t bytes);
// to and from may belong to different devices of this process.
void copy_on_device(Stream *stream, void *to, const void *from, size_t bytes);
void fill_zero(Stream *stream, void *memory, size_t bytes);
// values *= factor
void values_scale(Stream *stream, float *values, size_t count, float factor);
// Returns at least `bytes` of device memory, which the stream's operations use in turn. The memory
// is zero at first. A recorded step may not ask for more than an earlier call did.
void *stream_scratch(Stream *stream, size_t bytes);
// Calls fn on the host, with arg or a copy of its `bytes` bytes, after the stream's earlier work.
// Not allowed in a recorded step (see replay_forbid). fn must not use the device: under CUDA it
// runs in a thread of the driver.
void stream_enqueue(Stream *stream, void (*fn)(void *arg), const void *arg, size_t bytes);

Event *event_new(Device *device);
void event_free(Event *event);
void event_record(Event *event, Stream *stream); // happens when the stream's work so far is done
void stream_wait(Stream *stream, Event *event);  // later work of the stream waits for the event
void event_sync(Event *event);                   // the host waits for the event

// A step that always does the same work can be recorded once and replayed with one call. On small
// images, launching a step's kernels can take longer than running them.
//
//   replay_run(replay, key, step, arg):  the first call with a key just calls step(arg), which may
//   allocate. The second call records step(arg), and from then on every call replays the recording.
//
// step must do the same work for the same key: values that change (learning rate, loss scale) have
// to be read from device memory. A recording contains addresses and sizes, so give each buffer that
// step reads its own key, and a short last batch a different one. On the CPU, and after
// replay_forbid, nothing is recorded: every call then calls step.
Replay *replay_new(Device *device, int keys);
void replay_free(Replay *replay);
// Turns recording off on this device, for steps that involve the host.
void replay_forbid(Device *device);
void replay_run(Replay *replay, int key, void (*step)(void *arg), void *arg);
