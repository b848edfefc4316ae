// tcp.h - IPv4 addresses of machines, and connections between them.
#pragma once
#include "check.h"

enum { TCP_ADDRESS = 16 };              // bytes of an address as text: "10.0.0.1"
typedef char TcpAddress[TCP_ADDRESS];
typedef struct TcpPlace {
    TcpAddress address;
    int port;
} TcpPlace;

// Looks up a host name, or takes an IPv4 address as it is. A look-up may wait for the name service.
// Fails if the host has no IPv4 address.
TcpPlace tcp_resolve(const char *name, int port);
bool tcp_is_loopback(const char *address);
// Finds this machine's address on this interface ("eth0"), or if interface is NULL, on the first
// interface that is up and not the loopback.
bool tcp_own_address(const char *interface, TcpAddress address, Error *err);
// Makes NCCL and Open MPI use this interface, by environment variables, unless these are already
// set. Gloo needs no variable: it listens on the world's address.
void tcp_set_library_interface(const char *interface);

// Opens a socket bound to this address only, non-blocking and close-on-exec. Call listen later.
// Port 0: the system chooses a port, which is filled in.
int tcp_bind(TcpPlace *place);
// Returns the address and port of this side of a socket.
TcpPlace tcp_place(int socket);
// From now on a send or receive fails with EAGAIN, and a connect with EINPROGRESS, if nothing moves
// for `seconds` (0: never). With a limit, all fail with EINTR after this process was stopped.
void tcp_limit(int socket, double seconds);
// Connects within `seconds`; later sends and receives have the same limit. Returns -1 if that fails
// or a signal comes.
int tcp_connect(const TcpPlace *place, double seconds, Error *err);
