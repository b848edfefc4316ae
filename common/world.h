// world.h - this process's rank, the world size, and a store through which the ranks meet.
#pragma once
#include <stdbool.h>
#include <stddef.h>

typedef struct Store Store;
enum { STORE_MOST = 16 << 20 };         // bytes of a value

typedef struct World {
    int rank, size;
    int local_rank, local_size; // among the ranks on this machine
    int sharers;                // ranks that may use a core of this rank's, itself included
    int gpu_place;              // among the ranks that share its GPU; 0: the first, or the only one
    bool gpus_shared;           // do any ranks share a GPU?
    const char *address;        // of this machine, as the other ranks reach it; "": no others
    Store *store;
} World;

// A key-value store for what ranks exchange before they have a communicator: NCCL's id, Gloo's
// addresses. Keys have up to 63 bytes; values up to STORE_MOST.
void store_put(const World *world, const char *key, const void *value, size_t bytes);
// Waits until a rank has put the key. Copies at most `capacity` bytes; returns the value's length.
// Use it only in a call that all ranks make (progress_call).
size_t store_get(const World *world, const char *key, void *value, size_t capacity);
// All ranks' `bytes` bytes, in rank order. what: a name of at most 40 letters, new for each call.
void store_gather(const World *world, const char *what, const void *mine, size_t bytes, void *all);
// Ends all ranks, after rank 0 has printed why. On another rank, waits for that.
void store_end_run(const World *world) __attribute__((noreturn));
// This rank is done: from now on the end of its process is not a death. Rank 0 waits up to 2 s for
// the others.
void store_leave(World *world);
