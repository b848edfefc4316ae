// store.h - the Store of comm.h between a process and those that it has started: each of them has a
// socket to it (a pair of AF_UNIX, SOCK_SEQPACKET), and it answers between whatever else it does.
#pragma once
#include "comm.h"

// The longest: of a name, with the zero at its end; of a value.
enum { STORE_KEY_BYTES = 64, STORE_VALUE_BYTES = 65536 };

// The side that asks. socket: where it is kept for as long as the store is used, by one thread at a
// time.
Store store_over(int *socket);

// The side that answers.
typedef struct StoreServer StoreServer;
StoreServer *store_server_new(void);
void store_server_free(StoreServer *server);
// Takes one message from a socket on which poll has seen something. Returns false when the other
// side is gone. A message that means nothing harms nobody; who sent it is said.
bool store_serve(StoreServer *server, int socket, const char *who);

// What store_serve does with a message, for whoever is asked in another way. store_find returns
// NULL when nobody has put it.
void store_keep(StoreServer *server, const char *key, const void *value, size_t bytes);
const void *store_find(const StoreServer *server, const char *key, size_t *bytes);
// Fails when the name or the value is too long.
void store_check(const char *key, size_t bytes);
