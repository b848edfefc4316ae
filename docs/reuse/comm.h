// comm.h - the functions of common/comm.h and common/device.h that ddp.c, broadcast.c and sampler.c
// call; Array and CommType have only what these use. nccl_backend.c implements it with CUDA and
// NCCL. Work is enqueued on a stream and runs in order, while the host continues. All ranks make
// the same calls of a Comm in the same order.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Device Device;
typedef struct Stream Stream;
typedef struct Event Event;
typedef struct Comm Comm;
typedef enum { COMM_I64, COMM_F32 } CommType;

typedef struct Array {
    float *values;                                  // device memory
    size_t count;
} Array;

void *device_alloc(Device *device, size_t bytes);
void device_free(Device *device, void *memory);
Stream *device_stream(Device *device);              // on which the program computes
Stream *stream_new_beside(Device *device, const char *name);
void stream_free(Stream *stream);
void stream_sync(Stream *stream);                   // the host waits for it
void copy_to_device(Stream *stream, void *to, const void *from, size_t bytes);
void copy_to_host(Stream *stream, void *to, const void *from, size_t bytes);
// values *= factor. The program defines this function, as it computes everything else.
void values_scale(Stream *stream, float *values, size_t count, float factor);
Event *event_new(Device *device);
void event_free(Event *event);
void event_record(Event *event, Stream *stream);    // "everything so far on this stream"
void stream_wait(Stream *stream, Event *event);     // later work of the stream waits for the event

int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);
void comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type);
void comm_broadcast(Comm *comm, Stream *stream, void *values, size_t count, CommType type,
                    int root);
void comm_all_gather(Comm *comm, Stream *stream, const void *mine, void *all, size_t count,
                     CommType type);                // all: (size, count)

// Only for the program: these open and close a GPU and a communicator. nccl_id makes NCCL's id on
// rank 0, and the program passes it on to the other ranks.
enum { NCCL_ID = 128 };
Device *gpu_open(int gpu);
void gpu_close(Device *device);
void nccl_id(char id[NCCL_ID]);
Comm *nccl_open(const char id[NCCL_ID], int rank, int size);
void nccl_close(Comm *comm);
