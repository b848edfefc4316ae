// streams.h - the streams, events and graphs of fake.h, for runtime.c and steps.c.
#pragma once
#include "fake.h"

enum { MAX_AFTER = 64, MAX_HELD = 8, MAX_FORKS = 64 };

typedef struct Work {
    const char *name;
    void (*fn)(void *arg);
    void *arg;
    Range *ranges;
    int count;
} Work;

typedef struct After {
    int count, nodes[MAX_AFTER];
} After;

typedef struct Node {
    Work work;
    After after;
} Node;

typedef struct Graph {
    Node *nodes;
    int count, users;                           // users: the graph itself, and its executable graphs
    pthread_t owner;
    cudaStream_t origin, forks[MAX_FORKS];
    int fork_count;
    bool ended;
    int *held[MAX_HELD], held_count;
} Graph;

// In a stream's queue: work, a graph, or a wait until the stream `other` has done `until` ops.
typedef struct Op {
    struct Op *next;
    Work work;
    Graph *graph;
    cudaStream_t other;
    uint64_t until;
    int64_t asked;                              // when it was queued (ns)
} Op;

struct CUstream_st {
    cudaStream_t next;
    int device, number;
    bool blocking;                              // waits for the default stream, and that one for it
    Op *first, **end;
    uint64_t asked, done;                       // number of ops
    bool destroyed;
    Graph *graph;                               // under capture, or NULL
    After after;                                // in the capture: the stream's last nodes
};

struct CUevent_st {
    bool recorded;
    cudaStream_t stream;
    uint64_t until;                             // the event comes after so many ops of the stream
    Graph *graph;                               // or, in a capture, after these nodes
    After after;
};

extern _Thread_local bool fake_captures;        // this thread captures
extern _Thread_local cudaError_t fake_last_error;
void fake_touch(const char *name);              // the program calls CUDA
cudaError_t fake_failed(cudaError_t status);    // cudaGetLastError returns it
void fake_enqueue(cudaStream_t stream, Op op);
bool fake_event_done(cudaEvent_t event);
bool fake_pageable(const void *p);
