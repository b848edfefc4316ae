// tcp_store_message.h - what the two sides of a meeting tell each other: tcp_store.c asks and sends
// its signs of life, tcp_store_server.c, a thread of rank 0, answers.
//
//   rank                                       server
//   JOIN who it is                  -->
//                                   <--        WELCOME; NO, with words; LATER: to be asked again
//                                   <--        GO, when all are there
//   PULSE, from time to time        -->
//                                   <--        WELL
//   PUT key value                   -->
//   GET key                         -->
//                                   <--        HERE value, once somebody has put it
//   LEAVE, when all is done         -->
//                                   <--        BYE, also when rank 0 itself leaves
//                                   <--        END, with words: at any time
//
// Numbers travel as they lie in memory: the machines of a run are of one kind.
#pragma once
#include "alive.h"
#include "tcp_store.h"
#include "fork_store.h"

enum { TCP_STORE_NAME = 64, TCP_STORE_SLICE = 250 };    // bytes; ms: the longest without a look

typedef enum TcpStoreWhat {
    TCP_STORE_JOIN = 1, TCP_STORE_PULSE, TCP_STORE_LEAVE, TCP_STORE_PUT, TCP_STORE_GET,
    TCP_STORE_WELCOME, TCP_STORE_NO, TCP_STORE_LATER, TCP_STORE_GO, TCP_STORE_WELL, TCP_STORE_HERE,
    TCP_STORE_END, TCP_STORE_BYE,
} TcpStoreWhat;

typedef struct TcpStorePerson {
    int32_t rank, size, first, pid;
    int64_t generation;
    char host[TCP_STORE_NAME];
    char name[TCP_STORE_NAME];            // of the run, as the user may have called it
} TcpStorePerson;

// An Alive as it was at one moment.
typedef struct TcpStoreSigns {
    uint64_t beats, begun, ended;
    int64_t epoch, step, count;
    int32_t waiting, outside, joined, done;
    char operation[ALIVE_NAME], communicator[ALIVE_NAME];
} TcpStoreSigns;

typedef struct TcpStoreMessage {
    uint32_t what, unused;
    union {
        TcpStorePerson person;           // JOIN, WELCOME: rank 0
        TcpStoreSigns signs;             // PULSE, LEAVE
        char run[TCP_STORE_NAME];         // GO
        Error words;                    // NO, LATER, END
        struct {
            char key[STORE_KEY_BYTES];
            char value[STORE_VALUE_BYTES];  // as many bytes of it as the message is long
        } store;                        // PUT, GET, HERE
    };
} TcpStoreMessage;

// How long a message of this kind is, at least: without its value.
size_t tcp_store_bytes(TcpStoreWhat what);
// Takes a message that came, if it is one; all its texts have an end then.
bool tcp_store_take(TcpStoreMessage *to, const void *message, size_t bytes);
// The time since *looked, if it is so long that this process must have been stopped; else 0. Sets
// it to now.
double tcp_store_absence(double *looked);

// Ends the process with status 1 without a word.
_Noreturn void tcp_store_leave_silently(void);

// The server's side. Takes over the listening socket; its thread runs until it is freed.
typedef struct TcpStoreServer TcpStoreServer;
TcpStoreServer *tcp_store_server_new(const TcpStoreConfig *config, int listening);
void tcp_store_server_free(TcpStoreServer *server);    // waits up to 2 s for the others to leave
