// store.h - the Store of comm.h between a process and those that it has started: each of them has a
// socket to it (a pair of AF_UNIX, SOCK_SEQPACKET), and it answers between whatever else it does.
#pragma once
#include "comm.h"

// The side that asks. socket: where it is kept for as long as the store is used, by one thread at a
// time. Values of up to 64 KiB, names of up to 63 letters.
Store store_over(int *socket);

// The side that answers.
typedef struct StoreServer StoreServer;
StoreServer *store_server_new(void);
void store_server_free(StoreServer *server);
// Takes one message from a socket on which poll has seen something. Returns false when the other
// side is gone. A message that means nothing harms nobody; who sent it is said.
bool store_serve(StoreServer *server, int socket, const char *who);
