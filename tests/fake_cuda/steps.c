// steps.c - the rest of the mock's CUDA runtime and NCCL, for the steps: facts about devices, graphs, and what else
// only NVIDIA's headers declare.
#include "communicators.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const bool fake_step = true;
char fake_name[] = "fake";
void fake_beat(void) { }
void fake_thread(const char *name) { }
void fake_begin(const char *name) { }
void fake_end(void) { }
void fake_wait(const char *call) { }
void fake_offer(void *id, size_t bytes) { }

// --- devices, memory, events ---------------------------------------------------------------------

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *about, int device)
{
    memset(about, 0, sizeof *about);
    snprintf(about->name, sizeof about->name, "Fake GPU");
    about->uuid.bytes[0] = (char)(fake_setting("CUDA_VISIBLE_DEVICES", 0) + device);
    about->major = fake_setting("FAKE_MAJOR", 9);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *left, size_t *all) { *left = *all = (size_t)1 << 37; return cudaSuccess; }
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) { return cudaMallocHost(p, bytes); }
const char *cudaGetErrorName(cudaError_t status) { return cudaGetErrorString(status); }

cudaError_t cudaGetLastError(void)
{
    cudaError_t status = fake_last_error;
    fake_last_error = cudaSuccess;
    return status;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *about, const void *p)
{
    about->type = fake_pageable(p) ? cudaMemoryTypeUnregistered : cudaMemoryTypeHost;
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    fake_not_in_capture("cudaEventQuery");
    return fake_event_done(event) ? cudaSuccess : fake_failed(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) { *ms = 1; return cudaSuccess; }

// --- graphs --------------------------------------------------------------------------------------

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    *status = stream->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    stream = fake_enter(stream, "cudaStreamBeginCapture");
    fake_not_in_capture("cudaStreamBeginCapture");
    if (stream->graph)
        fake_die("cudaStreamBeginCapture: the stream is already captured");
    Graph *graph = calloc(1, sizeof *graph);
    *graph = (Graph){ .users = 1, .owner = pthread_self(), .origin = stream };
    stream->graph = graph;
    stream->after = (After){ 0 };
    fake_captures = true;
    return cudaSuccess;
}

// The end of the origin stream must depend on all work that was captured on any stream.
static void check_joined(const Graph *graph)
{
    bool *before = calloc((size_t)graph->count + 1, sizeof *before);
    const After *end = &graph->origin->after;
    for (int i = 0; i < end->count; i++)
        before[end->nodes[i]] = true;
    for (int i = graph->count - 1; i >= 0; i--)
        for (int k = 0; before[i] && k < graph->nodes[i].after.count; k++)
            before[graph->nodes[i].after.nodes[k]] = true;
    for (int i = 0; i < graph->count; i++)
        if (!before[i])
            fake_die("a capture ends, but nothing waits for its %s", graph->nodes[i].work.name);
    free(before);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *made)
{
    Graph *graph = stream->graph;
    if (!graph || graph->origin != stream || !fake_captures)
        fake_die("cudaStreamEndCapture: this thread has not begun the capture");
    check_joined(graph);
    for (int i = 0; i < graph->fork_count; i++)
        graph->forks[i]->graph = NULL;
    stream->graph = NULL;
    graph->ended = true;
    fake_captures = false;
    *made = (cudaGraph_t)graph;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph,
                                          unsigned long long flags)
{
    ((Graph *)graph)->users++;
    *made = (cudaGraphExec_t)graph;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t destroyed)
{
    Graph *graph = (Graph *)destroyed;
    if (--graph->users == 0)
        for (int i = 0; i < graph->held_count; i++)
            --*graph->held[i];
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaGraphDestroy((cudaGraph_t)graph); }

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    stream = fake_enter(stream, "cudaGraphLaunch");
    fake_not_in_capture("cudaGraphLaunch");
    if (((Graph *)graph)->users == 0)
        fake_die("cudaGraphLaunch: the graph is destroyed");
    fake_enqueue(stream, (Op){ .graph = (Graph *)graph });
    return cudaSuccess;
}

// --- NCCL ----------------------------------------------------------------------------------------

ncclResult_t ncclGetVersion(int *version) { *version = fake_nccl_version(); return ncclSuccess; }
const char *ncclGetLastError(ncclComm_t comm) { return ""; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t *made, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    static int communicators;
    const char *order = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    if (communicators++ > 0 && (!order || strcmp(order, "1") != 0))
        fake_die("two communicators on a device: NCCL may launch their kernels in different orders on the ranks");
    return fake_comm_new(made, size, &id, rank);
}
