// tcp.h - addresses of machines, and connections between them.
#pragma once
#include "check.h"

enum { TCP_ADDRESS = 46 };              // bytes of an address as text: "10.0.0.1", "fd00::1"
typedef char TcpAddress[TCP_ADDRESS];
typedef struct TcpPlace {
    TcpAddress address;                 // numeric
    int port;
} TcpPlace;
enum { TCP_PLACE_TEXT = TCP_ADDRESS + 8 };

// A name or an address, as a numeric address. Waits for the name service.
bool tcp_resolve(const char *name, TcpAddress address, Error *err);
bool tcp_is_loopback(const char *address);      // numeric
// The first address of an interface ("eth0") of this machine.
bool tcp_interface_address(const char *interface, TcpAddress address, Error *err);
// Libraries that ask the environment for an interface get this one, unless they have another.
void tcp_prefer_interface(const char *interface);
// This machine's IPv4 addresses except the loopback's, in the order of its interfaces; how many.
int tcp_own_addresses(TcpAddress *addresses, int most);

// Takes this place, and no other: 0.0.0.0 is refused. Port 0: the system chooses. Call listen on
// the socket, or hand it to a program that will; programs do not inherit it by themselves. -1: it
// cannot.
int tcp_bind(const TcpPlace *place, Error *err);
// The place on this side of a socket, or (peer) on the other side.
TcpPlace tcp_place(int socket, bool peer);

// Connects within so many seconds; from: our own address, or NULL. A signal ends the process
// (interrupt_leave). -1: it cannot.
int tcp_connect(const TcpPlace *place, const char *from, double seconds, Error *err);

// Is the other side of a connection over 127.0.0.1 a process of the same user? False also when it
// has closed, or has not accepted the connection yet.
bool tcp_same_user(int socket);
