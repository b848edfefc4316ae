// world.h - who this process is among those that train together, and what they find each other by.
#pragma once
#include <stddef.h>

// A few words that ranks tell each other before they can communicate: NCCL's id, Gloo's addresses.
typedef struct Store {
    void (*put)(void *arg, const char *key, const void *value, size_t bytes);
    // Waits until somebody has put it; returns how long it is (at most `capacity` bytes are
    // copied). Keys have up to 40 letters; values up to 200 bytes for each rank.
    size_t (*get)(void *arg, const char *key, void *value, size_t capacity);
    void (*end)(void *arg);     // ends the run of all ranks, and says nothing; NULL: it cannot
    void *arg;
} Store;

// Who this process is among those that train together.
typedef struct World {
    int rank, size;
    int local_rank, local_size; // among those on this machine
    int sharers;                // of those, how many share this process's cores with it (itself too)
    const char *address;        // of this machine, as the others reach it
    const char *run;            // a name that all ranks of this run share, and no other run has
    Store store;
} World;
