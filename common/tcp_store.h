// tcp_store.h - how the ranks of a run find and watch each other: rank 0 keeps a store (world.h).
//
//   rank 0   listens | 1 2 3 join | answers puts and gets, checks beats ... | end
//   rank 1   connects, is accepted | put get get ... | beat beat beat ...   | end
//
// A thread in rank 0 serves the store, and a thread in each rank sends heartbeats (alive.h). Rank 0
// watches the ranks: one whose connection closes before it is done has died, and one that is silent
// for its timeout is lost. A supervisor of ours has 2 s to report this first. If rank 0 is gone
// or silent, a launcher has 2.5 s to end the run. After that, each remaining rank reports the loss
// and ends.
#pragma once
#include "tcp.h"
#include "world.h"

enum { STORE_NAME = 64, STORE_TOKEN = 80 };

typedef struct TcpStoreConfig {
    int rank, size;
    TcpPlace place;                     // where rank 0 listens
    int socket;                         // rank 0: a socket that is bound to `place`
    TcpAddress from;                    // our own address; "": the one that reaches rank 0
    char run[STORE_NAME];               // rank 0 refuses ranks of a run with another name
    char token[STORE_TOKEN];            // or with another token; "": no token
    bool supervised;                    // a supervisor on this machine reports how its ranks die
} TcpStoreConfig;

// A random token, hexadecimal.
void tcp_store_new_token(char token[STORE_TOKEN]);
// For a rank 0 that can pass its place on to the others. Binds at `host`; without `host`, at
// `from`; without both, at the loopback (one_host) or at this machine's first address. port <= 0:
// the system chooses a port. Makes a token if there is none.
void tcp_store_offer(TcpStoreConfig *config, const char *host, int port, bool one_host);

// Returns when all ranks are there, and fills in the world's address, run and store. Fails if a
// rank is missing after the patience, has died, joins twice, is refused, or has another world size.
// A signal ends the process here and in store_get (interrupt_leave).
void tcp_store_join(const TcpStoreConfig *config, World *world);
// Marks this rank as done (alive_done) and closes its connection. Rank 0 then waits up to 2 s for
// the others.
void tcp_store_end(World *world);
