// tcp.h - connections between machines: who is where, and who is on the other side.
#pragma once
#include "check.h"
#include <stdint.h>

enum { TCP_ADDRESS = 46 };              // bytes of an address as text: "10.0.0.1", "fe80::1"
typedef char TcpAddress[TCP_ADDRESS];

// A name or an address, as a numeric address of this machine's or another's. Waits for the name
// service; false: it is not known.
bool tcp_resolve(const char *name, TcpAddress address, Error *err);
bool tcp_is_loopback(const char *address);      // numeric

// The first address of an interface ("eth0") of this machine.
bool tcp_interface_address(const char *interface, TcpAddress address, Error *err);

// A network that this machine is in, by an interface that is up and not the loopback.
typedef struct TcpNetwork {
    TcpAddress address;                 // this machine's, IPv4
    uint32_t network, mask;             // host byte order
} TcpNetwork;
int tcp_networks(TcpNetwork *networks, int most);       // in the order of the interfaces; how many

// A socket that listens at this numeric address and no other (0.0.0.0 is refused). port 0: the
// system chooses. It is not inherited by programs that are started.
int tcp_listen(const char *address, int port, Error *err);      // -1: it cannot
// The same, but does not listen yet: the port is taken, and a program that is started later may
// listen there, with this socket (tcp_listen_on) or, as most do (SO_REUSEADDR), with its own.
int tcp_bind(const char *address, int port, Error *err);
bool tcp_listen_on(int socket);
int tcp_port(int socket);                               // of a socket: its own
void tcp_own_address(int socket, TcpAddress address);   // of a connection: on this side
void tcp_peer(int socket, char text[TCP_ADDRESS + 8]);  // "10.0.0.2:4711": the other side

// Begins a connection, from the address `from` if it is not NULL; does not wait for it: the socket
// can be written to when it is there, and has an error (SO_ERROR) when it cannot be. -1: that is
// known at once.
int tcp_connect(const char *address, int port, const char *from, Error *err);

// Does the other side of a loopback connection belong to the same user as this process? false also
// when it has closed, or has not accepted the connection yet.
bool tcp_same_user(int socket);
