// inherited.h - what whoever started this process has left for it: a secret, a socket, and an end.
#pragma once
#include "wire.h"

// The secret of `file`, else (NULL) that of DDP_TOKEN, which what we start will not inherit.
// 1: there is one; 0: there is none; -1: it is no secret, or not kept.
int inherited_token(const char *file, unsigned char token[WIRE_KEY], Error *err);

// launch takes a port before it starts its ranks, and leaves the socket to rank 0, which listens
// there from now on. -1: there is none.
int inherited_socket(const char *address, int port);

// Launchers that are killed leave behind what they have started. If one has started this process,
// it will be killed as well.
void inherited_end(void);
