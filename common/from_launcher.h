// from_launcher.h - what a launcher hands to the ranks that it starts: a secret, a listening socket, and
// their end if the launcher is killed.
#pragma once
#include "signed_channel.h"

// The secret of `file`, else (NULL) that of DDP_TOKEN, which what we start will not inherit.
// 1: there is one; 0: there is none; -1: it is no secret, or not kept.
int from_launcher_token(const char *file, unsigned char token[CHANNEL_KEY], Error *err);

// launch takes a port before it starts its ranks, and leaves the socket to rank 0, which listens
// there from now on. -1: there is none.
int from_launcher_socket(const char *address, int port);

// Launchers that are killed leave behind what they have started. If one has started this process,
// it will be killed as well.
void from_launcher_end(void);
