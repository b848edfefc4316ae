// world.h - this process's rank, the world size, and a store through which the ranks meet.
#pragma once
#include <stdbool.h>
#include <stddef.h>

typedef struct Store Store;
enum { STORE_MOST = 16 << 20 };         // the maximum size of a value in the store, in bytes

typedef struct World {
    int rank, size;
    int local_rank, local_size; // index of this rank on this machine, and number of ranks there
    int sharers;                // ranks that may use one of this rank's cores, this rank included
    int gpu_place;              // index of this rank among the ranks that share its GPU, from 0
    bool gpus_shared;           // do any ranks share a GPU?
    const char *address;        // this machine's address for the other ranks; "": no other ranks
    Store *store;
} World;

// A key-value store for what ranks exchange before they have a communicator: NCCL's id, Gloo's
// addresses. Keys have up to 63 bytes, values up to STORE_MOST bytes.
void store_put(const World *world, const char *key, const void *value, size_t bytes);
// Waits until a rank has put the key. Copies at most `capacity` bytes; returns the value's length.
// Use it only in a call that all ranks make, announced by progress_call.
size_t store_get(const World *world, const char *key, void *value, size_t capacity);
// Collects `bytes` bytes from each rank, in rank order. what: a unique name, at most 40 characters.
void store_gather(const World *world, const char *what, const void *mine, size_t bytes, void *all);
// Ends all ranks. Rank 0 calls it after printing why; on other ranks the call waits for that end.
void store_end_run(const World *world) __attribute__((noreturn));
// Marks this rank as done: from now on the end of its process is not a death. Rank 0 waits up to
// 30 s for the others.
void store_leave(World *world);
