// tcp_store.h - how the ranks of a run find and watch each other: rank 0 keeps a store (world.h).
//
//   rank 0   listens | 1 2 3 are there  | answers puts and gets, takes beats, judges ...  | end
//   rank 1   connects, proves its right | put get get ... | beat beat beat beat ...       | end
//
// Rank 0 has a thread that serves. Each rank has a thread that sends its signs of life (alive.h).
// Where no supervisor of ours started the ranks, rank 0 judges them: a closed connection is a death,
// and a rank that is silent for its timeout is lost. If rank 0 falls silent, each rank reports that
// and ends.
#pragma once
#include "secret.h"
#include "tcp.h"
#include "world.h"

enum { STORE_PLACES = 16, STORE_NAME = 64 };

typedef struct TcpStoreConfig {
    int rank, size;
    TcpPlace places[STORE_PLACES];      // rank 0 listens at all of them, or (first_free) at one
    int count;
    bool first_free;
    int sockets[STORE_PLACES];          // rank 0: bound to these places, see below
    TcpAddress from;                    // our own address, or "": the one that leads to rank 0
    char name[STORE_NAME];              // of the run: ranks of other runs are refused
    Secret secret;                      // none: on the loopback, processes of this user may join
    bool supervised;                    // a supervisor on this machine reports how its ranks die
    double timeout;                     // s until all ranks are there; 0: any
} TcpStoreConfig;

// Adds places: so many ports, from this one on, of a name or an address. Fails if the name is not
// known.
void tcp_store_add(TcpStoreConfig *config, const char *host, int port, int ports);
// Rank 0: binds sockets at the places, and fills in the ports that the system chose. Fails if it
// cannot bind any.
void tcp_store_bind(TcpStoreConfig *config);
// Rank 0, where it can tell the others its places: binds at `host`, else at its own address, else
// (one_host) on the loopback, else at all of this machine's addresses. port <= 0: the system chooses.
// Makes a secret if there is none.
void tcp_store_offer(TcpStoreConfig *config, const char *host, int port, bool one_host);

// Returns when all ranks are there, and fills in the world's address, run and store. Else fails:
// rank 0 is not found in time, or a rank is missing, is there twice, or has a wrong size. A signal
// ends the process here and in the store's calls (interrupt_leave).
void tcp_store_join(const TcpStoreConfig *config, World *world);
// This rank is done (alive_done), so it may close the connection. Rank 0 first waits a moment for
// the others.
void tcp_store_end(World *world);
