// store_message.h - what ranks and rank 0's store send to each other (store.h draws it).
#pragma once
#include "store.h"
#include "progress.h"
#include <stdint.h>

enum { STORE_KEY = 64 };                // bytes of a key, with its zero

typedef enum StoreWhat {
    STORE_HELLO = 0x64647010,           // "ddp" and the version of these messages
    STORE_NO, STORE_PUT, STORE_GET, STORE_BEAT, STORE_DONE, STORE_VALUE, STORE_END,
} StoreWhat;

typedef struct StoreHead {
    uint32_t what, bytes;               // bytes of the value that follows
    char key[STORE_KEY];                // of END: not empty if the process shall end later
} StoreHead;

typedef struct StoreHello {
    int32_t rank, size, pid, supervised;
    char host[STORE_NAME], run[STORE_NAME], token[STORE_TOKEN];
} StoreHello;

// Sends or receives a message. Returns NULL, or what went wrong. `seconds` limits the time in which
// nothing moves, in slices of 0.1 s: so a pause in which this process was stopped does not count.
// early: a line to print after 10 s, or NULL. The caller frees *value, even after an
// error.
const char *store_send(int socket, StoreHead head, const void *value, double seconds,
                       const char *early);
const char *store_receive(int socket, StoreHead *head, void **value, size_t most, double seconds,
                          const char *early);
