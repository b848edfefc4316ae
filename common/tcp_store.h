// tcp_store.h - how the ranks of a run find and hear each other: rank 0 keeps a store (world.h).
//
//   rank 0   listens | 1 2 3 are there | answers puts and gets, takes beats, judges ...  | end
//   rank 1   connects, says who it is | put get get ... | beat beat beat beat ...        | end
//
// Rank 0 has a thread that serves. Each rank has a thread that sends its signs of life (alive.h).
// Where no supervisor of ours started the ranks, rank 0 judges them: a closed connection is a
// death, and a rank that is not heard of for its timeout is lost. If rank 0 falls silent, each rank
// says so and ends.
#pragma once
#include "secret.h"
#include "tcp.h"
#include "world.h"
#include <stdint.h>

enum { STORE_PLACES = 16, STORE_NAME = 64 };

typedef struct TcpStoreConfig {
    int rank, size;
    TcpPlace places[STORE_PLACES];      // rank 0 listens at all of them, or (first_free) at one
    int count;
    bool first_free;
    int sockets[STORE_PLACES];          // rank 0: bound to these places, see below
    const char *from;                   // our own address, or NULL: the usual one
    char name[STORE_NAME];              // of the run: a rank of another one is not ours
    Secret secret;                      // none: on the loopback, processes of this user may join
    int64_t generation;                 // grows when a launcher starts its ranks again
    bool supervised;                    // somebody on this machine reports how its ranks die
    double timeout;                     // s until all ranks are there; 0: any
} TcpStoreConfig;

// One more place, by a name or an address. Fails if the name is not known.
void tcp_store_add(TcpStoreConfig *config, const char *host, int port);
// Rank 0: takes the places, and fills in the ports that the system chose. Fails if it cannot.
void tcp_store_bind(TcpStoreConfig *config);

// Returns when all ranks are there, and fills in the world's address, run and store. Else fails:
// rank 0 is not found in time, or a rank is missing, is there twice, or says another size. A signal
// ends the process here and in the store's calls (interrupt_leave).
void tcp_store_join(const TcpStoreConfig *config, World *world);
// This rank has nothing more to ask, and is done: to close the connection is no death now. Rank 0
// waits a moment for the others.
void tcp_store_end(World *world);
