// fork_store.h - the Store of world.h between a parent and the processes that it forked. Each child
// has a socket to the parent (a pair of AF_UNIX, SOCK_SEQPACKET); the parent answers between its
// other work.
#pragma once
#include "world.h"
#include <stdbool.h>

// The longest: of a name, with the zero at its end; of a value.
enum { STORE_KEY_BYTES = 64, STORE_VALUE_BYTES = 65536 };

// The side that asks. socket: where it is kept for as long as the store is used, by one thread at a
// time.
Store fork_store_over(int *socket);

// The side that answers.
typedef struct ForkStoreServer ForkStoreServer;
ForkStoreServer *fork_store_server_new(void);
void fork_store_server_free(ForkStoreServer *server);
// Takes one message from a socket on which poll has seen something. Returns false when the other
// side is gone. A message that means nothing harms nobody; who sent it is said.
bool fork_store_serve(ForkStoreServer *server, int socket, const char *who);

// What fork_store_serve does with a message, for tcp_store_server.c, which gets its messages in
// another way. fork_store_find returns NULL if the key was never put.
void fork_store_keep(ForkStoreServer *server, const char *key, const void *value, size_t bytes);
const void *fork_store_find(const ForkStoreServer *server, const char *key, size_t *bytes);
// Fails when the name or the value is too long.
void fork_store_check(const char *key, size_t bytes);
