// tcp_store_message.h - what ranks and rank 0's store send to each other.
//
//   rank                                       store
//                                       <--    Greeting: random bytes
//   Hello: Greeting, random bytes, Person,
//     proof that it knows the secret    -->
//                                       <--    WELCOME with a proof, or NO with the reason
//   PUT key value                       -->    DONE
//   GET key                             -->    VALUE, or NOT_YET: ask again
//   BEAT signs of life                  -->    DONE
//   OVER: rank 0 has printed why        -->
//                                       <--    OVER, at any time: the run has ended
//
// A rank asks one question at a time, and each has one answer. A rank leaves by closing the
// connection after a BEAT that says "done". After WELCOME messages travel in the clear, as gradients
// do. Numbers travel as they are in memory: the machines of a run are of one kind.
#pragma once
#include "tcp_store.h"
#include "alive.h"

enum { STORE_KEY = 64, STORE_MOST = 16 << 20 };     // bytes of a key, with its zero; of a value

typedef enum StoreWhat {
    STORE_PUT = 1, STORE_GET, STORE_BEAT, STORE_WELCOME, STORE_NO, STORE_DONE, STORE_VALUE,
    STORE_NOT_YET, STORE_OVER,
} StoreWhat;

typedef struct Greeting {
    char magic[8];                      // differs for other programs and other versions
    unsigned char random[SECRET_BYTES]; // makes each proof a new one
} Greeting;
#define STORE_MAGIC "ddp.c 3"

typedef struct Person {
    int32_t rank, size, pid, supervised;
    char host[STORE_NAME], run[STORE_NAME];
} Person;

typedef struct Hello {
    Greeting server, client;            // the server's as it came
    Person person;
    unsigned char proof[SECRET_BYTES];  // of all before it
} Hello;

typedef struct Welcome {
    Person rank0;
    unsigned char proof[SECRET_BYTES];  // of the Hello
} Welcome;

typedef struct StoreHead {
    uint32_t what, bytes;               // bytes of the value that follows
    char key[STORE_KEY];
} StoreHead;

Greeting store_greeting(void);

// The server's side: a thread that runs until it is freed. It takes over the listening sockets.
typedef struct TcpStoreServer TcpStoreServer;
TcpStoreServer *tcp_store_server_new(const TcpStoreConfig *config, const Person *self);
void tcp_store_server_free(TcpStoreServer *server);     // waits up to 2 s for the others to leave
