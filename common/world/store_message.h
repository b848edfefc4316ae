// store_message.h - what ranks and rank 0's store send to each other (diagram: store.h).
#pragma once
#include "progress.h"
#include "store.h"
#include <stdint.h>

enum { STORE_KEY = 64, STORE_REASON = 200 };    // bytes of a key, of a reason, each with its '\0'

typedef enum StoreWhat {
    STORE_HELLO = 0x64647011,           // "ddp" and the version of these messages
    STORE_NO, STORE_PUT, STORE_GET, STORE_BEAT, STORE_DONE, STORE_VALUE, STORE_END,
} StoreWhat;

typedef struct StoreHead {
    uint32_t what, bytes;               // bytes of the value that follows
    char key[STORE_KEY];
} StoreHead;

typedef struct StoreHello {
    int32_t rank, size, pid;
    char host[STORE_NAME], run[STORE_NAME], token[STORE_TOKEN];
} StoreHello;

// Both return NULL on success; otherwise the error, such as "no answer" after tcp_limit's time. The
// caller frees *value, even after an error.
const char *store_send(int socket, StoreHead head, const void *value);
const char *store_receive(int socket, StoreHead *head, void **value, size_t most);
