// tcp_store_message.h - what ranks and rank 0's store send to each other.
//
//   rank                                       store
//   HELLO: rank, size, run, token     -->
//                                       <--    WELCOME, or NO with the reason
//   PUT key value                     -->      DONE
//   GET key                           -->      VALUE, or NOT_YET: ask again
//   BEAT heartbeat page (alive.h)     -->      DONE
//   OVER: rank 0 has printed why      -->
//                                       <--    OVER, at any time: the run has ended
//
// A rank makes one request at a time, and each but OVER has one answer. A rank leaves by closing
// the connection after a BEAT marked as done. Messages are not encrypted; gradients are not either.
// Numbers are sent as they are in memory: all machines of a run must store them in the same way.
#pragma once
#include "tcp_store.h"
#include "alive.h"

enum { STORE_KEY = 64, STORE_MOST = 16 << 20 };     // bytes of a key, with its zero; of a value
// When a rank has died, its launcher knows more than the other ranks. So the other ranks wait this
// long before they end: the launcher may report the death first. (mpirun returns the status of the
// first rank that it sees end: this must be the dead one.) Under our own launcher the other ranks
// wait only if rank 0 is lost.
enum { STORE_LAUNCHER_US = 2500000 };

typedef enum StoreWhat {
    STORE_HELLO = 0x64647006,           // "ddp" and the version of these messages
    STORE_WELCOME, STORE_NO, STORE_PUT, STORE_GET, STORE_BEAT, STORE_DONE, STORE_VALUE,
    STORE_NOT_YET, STORE_OVER,
} StoreWhat;

typedef struct StoreHead {
    uint32_t what, bytes;               // bytes of the value that follows
    char key[STORE_KEY];
} StoreHead;

typedef struct StoreMessage {
    StoreHead head;
    void *value;                        // (head.bytes)
    size_t moved;                       // bytes of head and value that have been sent or received
} StoreMessage;

// Sends or receives what it can without waiting. 1: all of the message, 0: not yet, -1: the
// connection has ended, or a received value has more than `most` bytes. The caller frees a received
// value.
int store_move(int socket, bool sends, StoreMessage *message, size_t most);
// Sends or receives a whole message. Returns NULL, or what went wrong. `seconds` limits the
// total time in which nothing moves. This time is counted in slices of 0.1 s: a pause in which this
// process was stopped counts as one slice.
const char *store_transfer(int socket, bool sends, StoreMessage *message, double seconds);

typedef struct Hello {
    int32_t rank, size, pid, supervised;
    char host[STORE_NAME], run[STORE_NAME], token[STORE_TOKEN];
} Hello;

typedef struct Welcome {                // about rank 0
    int32_t pid;
    char host[STORE_NAME];
} Welcome;

// The server, a thread that runs until it is freed. It takes over `own`, its end of the connection
// to rank 0 itself. If there are other ranks, it also takes over the listening socket.
typedef struct TcpStoreServer TcpStoreServer;
TcpStoreServer *tcp_store_server_new(const TcpStoreConfig *config, int own);
void tcp_store_server_free(TcpStoreServer *server);
