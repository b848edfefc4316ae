// store.h - how the ranks of a run find and watch each other: rank 0 keeps a store (world.h).
//
//   rank                                   rank 0: a thread for each connection
//   HELLO rank, size, run, token    -->
//                                     <--  DONE, or NO with the reason
//   PUT key value                   -->    DONE
//   GET key                         -->    VALUE, or DONE: not yet, ask again
//   BEAT record (progress.h)        -->    DONE; once a second
//                                     <--  END instead of any answer: the run is over
//
// Rank 0 looks at all records, including its own, and ends the run in two cases:
//
// - A connection that closes after its rank's first beat, but before the rank is done, is a death.
// - The run is stuck when no rank has beaten for `timeout` seconds. Rank 0 names the rank whose
//   record is older than 5 s (that rank is stopped, or cut off); else the one that has begun the
//   fewest calls; else the one with the fewest steps. If all are equal, it prints every rank's last
//   call: perhaps two calls differ. After 10 s without a beat, or twice the longest pause so far,
//   it already prints one such line. Until all ranks are there, rank 0 names the missing ranks.
//
// Rank 0 is watched as well: a rank that gets no answer for `timeout` seconds, or whose connection
// to rank 0 closes, names rank 0 and ends.
//
// After a death the other ranks stay for 2.5 s, so that a supervisor (launch, torchrun) can report
// how the rank died, and mpirun sees that rank end first and returns its status.
#pragma once
#include "tcp.h"
#include "world.h"

enum { STORE_NAME = 64, STORE_TOKEN = 80 };

typedef struct StoreConfig {
    int rank, size;
    TcpPlace place;                     // where rank 0 listens
    int socket;                         // rank 0: a socket that is bound to `place`
    TcpAddress from;                    // this rank's address; "": as in its connection to rank 0
    double timeout;                     // seconds without progress until the run ends; 0: never
    char run[STORE_NAME];               // rank 0 refuses ranks of a run with a different name
    char token[STORE_TOKEN];            // rank 0 refuses ranks with a different token; "": no token
    bool supervised;                    // a supervisor names a rank that dies; rank 0 does so only
                                        // if rank 0 is still running 2.5 s later
    // If not NULL: called before each attempt to join rank 0, to fill in place and token. False:
    // place and token are not known yet, for the reason in err.
    bool (*locate)(struct StoreConfig *config, Error *err);
} StoreConfig;

// Makes a random token, in hexadecimal.
void store_new_token(char token[STORE_TOKEN]);
// For a rank 0 that can pass its place on to the others. Binds at `host`; without `host`, at
// `from`; without either, at the loopback if one_host, else at this machine's first address. port
// <= 0: the system chooses a port. Makes a token if there is none.
void store_offer(StoreConfig *config, const char *host, int port, bool one_host);

// Returns when all ranks are there, and fills in world->address and world->store. Ends the process
// if a rank has died, or if after the timeout a rank is missing or rank 0 still refuses this rank.
// A signal ends the process here and in store_get (interrupt_leave).
void store_join(const StoreConfig *config, World *world);
