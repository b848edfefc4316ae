// ranks.h - forks a few ranks for tests and measurements. They share a store in memory, which takes the
// place of store.c.
#pragma once
#include "check.h"
#include "comm.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 16, RANKS_ENTRIES = 256, RANKS_VALUE = 4096 };

typedef struct RanksEntry {
    atomic_bool there;
    char key[64];
    size_t bytes;
    char value[RANKS_VALUE];
} RanksEntry;

// Entries are only ever added.
typedef struct Store {
    atomic_int count;
    RanksEntry entries[RANKS_ENTRIES];
} Store;

void store_put(const World *world, const char *key, const void *value, size_t bytes)
{
    Store *store = world->store;
    int i = atomic_fetch_add(&store->count, 1);
    CHECK(i < RANKS_ENTRIES && bytes <= RANKS_VALUE, "", "the store is full");
    RanksEntry *entry = &store->entries[i];
    snprintf(entry->key, sizeof entry->key, "%s", key);
    memcpy(entry->value, value, bytes);
    entry->bytes = bytes;
    atomic_store(&entry->there, true);
}

static inline RanksEntry *ranks_find(Store *store, const char *key)
{
    for (int i = 0; i < RANKS_ENTRIES && i < atomic_load(&store->count); i++)
        if (atomic_load(&store->entries[i].there) && strcmp(store->entries[i].key, key) == 0)
            return &store->entries[i];
    return NULL;
}

size_t store_get(const World *world, const char *key, void *value, size_t capacity)
{
    RanksEntry *entry;
    while (!(entry = ranks_find(world->store, key)))
        usleep(500);
    memcpy(value, entry->value, entry->bytes < capacity ? entry->bytes : capacity);
    return entry->bytes;
}

void store_gather(const World *world, const char *what, const void *mine, size_t bytes, void *all)
{
    char key[64];
    snprintf(key, sizeof key, "%.40s %d", what, world->rank);
    store_put(world, key, mine, bytes);
    for (int i = 0; i < world->size; i++) {
        snprintf(key, sizeof key, "%.40s %d", what, i);
        store_get(world, key, (char *)all + (size_t)i * bytes, bytes);
    }
}

void store_end_run(const World *world) { _exit(EXIT_REPORTED); }

static inline Store *ranks_store_new(void)
{
    Store *store = mmap(NULL, sizeof *store, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(store != MAP_FAILED, "", "mmap: no memory for the store");
    return store;
}

static inline void ranks_store_free(Store *store) { munmap(store, sizeof *store); }

// Forks `size` processes that call run(arg, world) and exit with its result. They die with their parent.
// Call it before starting threads.
static inline void ranks_start(int size, Store *store,
                               int (*run)(void *arg, const World *world), void *arg, pid_t pids[])
{
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        pids[rank] = fork();
        CHECK(pids[rank] >= 0, "", "fork failed");
        if (pids[rank] > 0)
            continue;
        World world = { .rank = rank, .size = size, .local_rank = rank, .local_size = size, .sharers = size,
                        .address = "127.0.0.1", .store = store };
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int status = run(arg, &world);
        fflush(NULL);
        _exit(status);
    }
}

// Waits for a rank. Returns its exit status, or 128 + the signal that ended it.
static inline int ranks_join(pid_t pid)
{
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid, "", "waitpid failed");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Starts all ranks and waits for them. Returns 0, or the status of the lowest rank whose status is not 0.
static inline int ranks_run(int size, int (*run)(void *arg, const World *world), void *arg)
{
    pid_t pids[RANKS_MAX];
    int first = 0;
    Store *store = ranks_store_new();
    ranks_start(size, store, run, arg, pids);
    for (int rank = 0; rank < size; rank++) {
        int status = ranks_join(pids[rank]);
        first = first ? first : status;
    }
    ranks_store_free(store);
    return first;
}
