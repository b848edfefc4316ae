// tcp_store.h - where ranks that were started apart find each other: rank 0 keeps a store (world.h)
// over TCP, and hears from everybody from then on.
//
//   rank 0   listens | 1 2 3 are there | answers puts and gets, takes pulses, judges ...    | end
//   rank 1   connects, is somebody | put get get ... | pulse pulse pulse pulse ...           | end
//
// Rank 0 has a thread that serves, and each rank one that sends its signs of life (alive.h). So a
// rank that hangs, is stopped or cut off is named by rank 0 within the timeout, whoever started it;
// and when rank 0 is not heard of any more, the others end. Processes that are started together (by
// a launcher) end each other faster; nobody needs to, here.
//
// A machine's ranks that were started again have a larger generation than before: they take the
// places of the old ones, as long as not everybody is there; then they end the run that they were
// missing in, so that whoever looks after the others starts them again too.
#pragma once
#include "world.h"
#include <stdbool.h>
#include <stdint.h>
#include "signed_channel.h"

typedef struct TcpStoreConfig {
    int rank, size;
    int first;                  // the first rank of this machine, -1: not known
    int64_t generation;
    const char *address;        // where rank 0 listens: numeric
    int port, ports;            // and its port; or the first free one of so many, from `port` on
    int listening;              // rank 0: a socket that listens there already, else -1
    const char *from;           // our own address for the connection, or NULL: the usual one
    const char *name;           // of the run, the same on all ranks: a rank of another is not ours
    const unsigned char *token; // CHANNEL_KEY bytes, or NULL: on the loopback the same user may come
    double timeout;             // s until all are there, and without a sign of life later; 0: any
} TcpStoreConfig;

typedef struct TcpStore TcpStore;
// Returns when all ranks are there. Else fails: rank 0 is not found within the timeout; or, within
// the timeout from rank 0's start on, a rank is missing, is there twice, says another size, ... :
// rank 0 says who and what, and the first rank of each machine what it was told. A signal ends the
// process here and in the store's calls (interrupt_leave).
TcpStore *tcp_store_join(const TcpStoreConfig *config);
Store tcp_store_store(TcpStore *meeting);              // for one thread at a time
const char *tcp_store_run(const TcpStore *meeting);    // a name for World.run
const char *tcp_store_address(const TcpStore *meeting);    // of this machine, as rank 0 sees it
// This rank has nothing more to ask or to answer, and is done: who ends without having said so has
// died. Rank 0 waits a moment for the others; who takes longer goes on without it, but can ask
// nothing more.
void tcp_store_end(TcpStore *meeting);

// A meeting of one: nobody listens.
TcpStore *tcp_store_alone(void);
