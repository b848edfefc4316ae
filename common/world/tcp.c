// tcp.c - addresses, interfaces, and sockets.
#include "tcp.h"
#include "progress.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

typedef struct sockaddr_in Address;

static TcpPlace to_place(const Address *address)
{
    TcpPlace place = { .port = ntohs(address->sin_port) };
    inet_ntop(AF_INET, &address->sin_addr, place.address, sizeof place.address);
    return place;
}

static Address from_place(const TcpPlace *place)
{
    Address address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)place->port) };
    inet_pton(AF_INET, place->address, &address.sin_addr);
    return address;
}

TcpPlace tcp_resolve(const char *name, int port)
{
    struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *found;
    PROGRESS_DOING("looking up", name);
    int status = getaddrinfo(name, NULL, &hints, &found);
    CHECK(status == 0, "add the name to /etc/hosts or the DNS (getent ahostsv4 NAME checks it), or "
          "give the IPv4 address", "host '%s' has no known IPv4 address: %s",
          name, gai_strerror(status));
    TcpPlace place = to_place((const Address *)found->ai_addr);
    place.port = port;
    freeaddrinfo(found);
    return place;
}

bool tcp_is_loopback(const char *address) { return strncmp(address, "127.", 4) == 0; }

bool tcp_own_address(const char *interface, TcpAddress address, Error *err)
{
    struct ifaddrs *all = NULL;
    bool found = false;
    getifaddrs(&all);
    for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
        bool up = i->ifa_addr && i->ifa_addr->sa_family == AF_INET && i->ifa_flags & IFF_UP;
        found = up && (interface ? strcmp(i->ifa_name, interface) == 0
                                 : !(i->ifa_flags & IFF_LOOPBACK));
        if (found)
            memcpy(address, to_place((const Address *)i->ifa_addr).address, TCP_ADDRESS);
    }
    freeifaddrs(all);
    return found || error_set(err, "ip -brief address lists this machine's interfaces", "no "
                              "interface%s%s is up and has an IPv4 address",
                              interface ? " " : " but ", interface ? interface : "the loopback");
}

void tcp_set_library_interface(const char *interface)
{
    char exactly[80];       // for NCCL, "eth1" alone also matches "eth10"
    snprintf(exactly, sizeof exactly, "=%s", interface);
    setenv("NCCL_SOCKET_IFNAME", exactly, 0);
    if (!getenv("OMPI_MCA_btl_tcp_if_exclude"))     // Open MPI accepts only one of these variables
        setenv("OMPI_MCA_btl_tcp_if_include", interface, 0);
}

int tcp_bind(TcpPlace *place)
{
    Address a = from_place(place);
    int bound = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    setsockopt(bound, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
    bool good = bind(bound, (struct sockaddr *)&a, sizeof a) == 0;
    CHECK(good || errno != EADDRNOTAVAIL, "start rank 0 on the machine with this address (ip "
          "-brief address lists a machine's addresses)", "%s is not an address of this machine",
          place->address);
    CHECK(good, "another program may be using it (ss -ltnp shows which): choose a different "
          "--master-port", "cannot listen on port %d of %s: %s", place->port, place->address,
          strerror(errno));
    *place = tcp_place(bound);
    return bound;
}

TcpPlace tcp_place(int socket)
{
    Address a = { .sin_family = AF_INET };
    getsockname(socket, (struct sockaddr *)&a, &(socklen_t){ sizeof a });
    return to_place(&a);
}

void tcp_limit(int socket, double seconds)
{
    struct timeval most = { .tv_sec = (time_t)seconds };
    most.tv_usec = (suseconds_t)(1e6 * (seconds - (double)most.tv_sec));
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
}

int tcp_connect(const TcpPlace *place, double seconds, Error *err)
{
    Address to = from_place(place);
    int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    tcp_limit(connection, seconds);
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
    if (connect(connection, (struct sockaddr *)&to, sizeof to) == 0)
        return connection;
    error_set(err, "", "cannot connect to port %d of %s: %s", place->port, place->address,
              strerror(errno == EINPROGRESS ? ETIMEDOUT : errno));
    if (connection >= 0)
        close(connection);
    return -1;
}
