// tcp_store_message.h - what ranks and rank 0's store say to each other.
//
//   rank                                   store
//                                   <--    Greeting: random bytes
//   Hello: random bytes, who it is,
//     proof of the secret           -->
//                                   <--    WELCOME, with a proof; or NO, with words
//   PUT key value                   -->    DONE
//   GET key                         -->    VALUE, or NOT_YET: ask again
//   BEAT signs of life              -->    DONE
//   END, the same, when all is done -->    DONE
//   OVER: rank 0 has said why       -->
//                                   <--    OVER, at any time: the run has ended
//
// Each question has one answer, and a rank asks one question at a time. Both sides have proved that
// they know the secret before that; what follows travels in the clear, as gradients do. Numbers
// travel as they are in memory: the machines of a run are of one kind.
#pragma once
#include "tcp_store.h"
#include "alive.h"

#define STORE_MAGIC "ddp.c 2"
enum { STORE_KEY = 64, STORE_MOST = 16 << 20 };     // bytes of a key, with its zero; of a value

typedef enum StoreWhat {
    STORE_PUT = 1, STORE_GET, STORE_BEAT, STORE_END,
    STORE_WELCOME, STORE_NO, STORE_DONE, STORE_VALUE, STORE_NOT_YET, STORE_OVER,
} StoreWhat;

typedef struct StorePerson {
    int32_t rank, size, pid, supervised;
    int64_t generation;
    char host[STORE_NAME], run[STORE_NAME];
} StorePerson;

typedef struct Greeting {
    char magic[8];
    unsigned char secret, random[SECRET_BYTES];     // has it one? and what makes each proof another
} Greeting;

typedef struct Hello {
    Greeting server, client;            // the server's as it came
    StorePerson person;
    unsigned char proof[SECRET_BYTES];  // of all before it
} Hello;

typedef struct Welcome {
    StorePerson rank0;
    unsigned char proof[SECRET_BYTES];  // of the Hello
} Welcome;

typedef struct StoreHead {
    uint32_t what, bytes;               // of the value behind the head
    char key[STORE_KEY];
} StoreHead;

// Refused, or over.
typedef struct StoreWords {
    Error error;
    int32_t final;                      // NO: to ask again would not help
} StoreWords;

// The server's side: a thread that runs until it is freed. It takes over the listening sockets.
typedef struct TcpStoreServer TcpStoreServer;
TcpStoreServer *tcp_store_server_new(const TcpStoreConfig *config, const StorePerson *self);
void tcp_store_server_free(TcpStoreServer *server);     // waits up to 2 s for the others to leave
