// tcp.h - IPv4 addresses of machines, and connections between them.
#pragma once
#include "check.h"

enum { TCP_ADDRESS = 16 };              // bytes of an address as text: "10.0.0.1"
typedef char TcpAddress[TCP_ADDRESS];
typedef struct TcpPlace {
    TcpAddress address;
    int port;
} TcpPlace;

// Looks up a host name; an address stays as it is. May wait for the name service.
bool tcp_resolve(const char *name, TcpAddress address, Error *err);
bool tcp_is_loopback(const char *address);
// This machine's addresses: of one interface ("eth0"), or (NULL) of all except the loopback, in the
// system's order. Returns how many.
int tcp_own_addresses(const char *interface, TcpAddress *addresses, int most);
// Fills in the first address of this interface. NCCL and Open MPI use it, too, unless their own
// variables name another. (Gloo listens at the world's address.)
bool tcp_use_interface(const char *interface, TcpAddress address, Error *err);

// A socket bound to this address only; 0.0.0.0 is refused. Port 0: the system chooses one. Without
// `listens`, call listen later. The socket is non-blocking and close-on-exec. -1: failed.
int tcp_bind(const TcpPlace *place, bool listens, Error *err);
// The address and port of this side of a socket, or (peer) of the other side.
TcpPlace tcp_place(int socket, bool peer);
// Connects within `seconds`. -1: failed, or a signal came.
int tcp_connect(const TcpPlace *place, double seconds, Error *err);
// Is the other side of a loopback connection a process of the same user? False also when it has
// closed, or has not accepted the connection yet.
bool tcp_same_user(int socket);
