// tcp.c - addresses, interfaces, and sockets.
#include "tcp.h"
#include "interrupt.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef union Address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} Address;

// --- addresses -----------------------------------------------------------------------------------

static socklen_t bytes_of(const struct sockaddr *address)
{
    return address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static void to_text(const struct sockaddr *address, TcpPlace *place)
{
    char port[8] = "0";
    snprintf(place->address, sizeof place->address, "?");
    getnameinfo(address, bytes_of(address), place->address, sizeof place->address, port,
                sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    place->port = atoi(port);
}

static bool from_text(const TcpPlace *place, Address *address, Error *err)
{
    struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *found;
    if (getaddrinfo(place->address, NULL, &hints, &found) != 0)
        return error_set(err, "a name or a number: node1, 10.0.0.1", "'%s' is not an address",
                         place->address);
    memcpy(address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    address->v4.sin_port = htons((uint16_t)place->port);    // where IPv6 has it too
    return true;
}

// The first of IPv4, else of IPv6. A number needs no name service; and a machine that has only the
// loopback's address still knows its own names.
bool tcp_resolve(const char *name, TcpAddress address, Error *err)
{
    static const int ways[] = { AI_NUMERICHOST, AI_ADDRCONFIG, 0 };
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found = NULL;
    TcpPlace place;
    int status = EAI_NONAME;
    for (int i = 0; i < 3 && status != 0 && status != EAI_AGAIN; i++) {
        hints.ai_flags = ways[i];
        status = getaddrinfo(name, NULL, &hints, &found);
    }
    if (status != 0)
        return error_set(err, "the name must be known on this machine (getent hosts NAME): "
                              "/etc/hosts, the DNS, or give the address itself",
                         "no address of '%s' is known: %s", name,
                         status == EAI_SYSTEM ? strerror(errno) : gai_strerror(status));
    const struct addrinfo *best = found;
    for (const struct addrinfo *a = found; a && best->ai_family != AF_INET; a = a->ai_next)
        best = a->ai_family == AF_INET ? a : best;
    to_text(best->ai_addr, &place);
    freeaddrinfo(found);
    memcpy(address, place.address, TCP_ADDRESS);
    return true;
}

bool tcp_is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

// --- interfaces ----------------------------------------------------------------------------------

// Other machines cannot use an address of the link without knowing the interface.
static bool is_usable(const struct ifaddrs *i)
{
    int family = i->ifa_addr && i->ifa_flags & IFF_UP ? i->ifa_addr->sa_family : AF_UNSPEC;
    const Address *a = (const Address *)i->ifa_addr;
    return family == AF_INET || (family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&a->v6.sin6_addr));
}

bool tcp_interface_address(const char *interface, TcpAddress address, Error *err)
{
    struct ifaddrs *all;
    TcpPlace place = { .address = "" };
    if (getifaddrs(&all) != 0)
        return error_set(err, "", "interfaces of this machine: %s", strerror(errno));
    for (const struct ifaddrs *i = all; i; i = i->ifa_next)
        if (strcmp(i->ifa_name, interface) == 0 && is_usable(i) && !strchr(place.address, '.') &&
            (!place.address[0] || i->ifa_addr->sa_family == AF_INET))
            to_text(i->ifa_addr, &place);
    freeifaddrs(all);
    memcpy(address, place.address, TCP_ADDRESS);
    return address[0] || error_set(err, "ip -brief address shows those of this machine",
                                   "interface '%s' is not there, is down, or has no address",
                                   interface);
}

void tcp_prefer_interface(const char *interface)
{
    char exactly[80];       // to NCCL "eth1" alone would be "eth10" as well
    snprintf(exactly, sizeof exactly, "=%s", interface);
    setenv("NCCL_SOCKET_IFNAME", exactly, 0);
    setenv("GLOO_SOCKET_IFNAME", interface, 0);
    if (!getenv("OMPI_MCA_btl_tcp_if_exclude"))     // Open MPI takes one or the other
        setenv("OMPI_MCA_btl_tcp_if_include", interface, 0);
}

int tcp_own_addresses(TcpAddress *addresses, int most)
{
    struct ifaddrs *all;
    TcpPlace place;
    int count = 0;
    if (getifaddrs(&all) != 0)
        return 0;
    for (const struct ifaddrs *i = all; i && count < most; i = i->ifa_next)
        if (is_usable(i) && i->ifa_addr->sa_family == AF_INET && !(i->ifa_flags & IFF_LOOPBACK)) {
            to_text(i->ifa_addr, &place);
            memcpy(addresses[count++], place.address, TCP_ADDRESS);
        }
    freeifaddrs(all);
    return count;
}

// --- sockets -------------------------------------------------------------------------------------

static bool cannot_bind(const TcpPlace *place, Error *err)
{
    if (errno == EADDRNOTAVAIL)
        return error_set(err, "rank 0 must be on the machine with this address: ip addr shows those "
                         "of this one", "%s is not an address of this machine", place->address);
    return error_set(err, errno == EADDRINUSE ? "another run may have it (ss -ltnp): choose another "
                                                "--master-port"
                          : errno == EACCES ? "ports below 1024 belong to root: choose one above"
                          : "",
                     "cannot listen at port %d of %s: %s", place->port, place->address,
                     strerror(errno));
}

int tcp_bind(const TcpPlace *place, Error *err)
{
    Address a;
    if (!from_text(place, &a, err))
        return -1;
    if (strcmp(place->address, "0.0.0.0") == 0 || strcmp(place->address, "::") == 0) {
        error_set(err, "give the one address at which the others reach this machine",
                  "%s means every interface of this machine", place->address);
        return -1;
    }
    int bound = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(bound, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
    if (bind(bound, &a.any, bytes_of(&a.any)) == 0)
        return bound;
    cannot_bind(place, err);
    if (bound >= 0)
        close(bound);
    return -1;
}

TcpPlace tcp_place(int socket, bool peer)
{
    Address a = { .any.sa_family = AF_INET };
    TcpPlace place;
    socklen_t bytes = sizeof a;
    (peer ? getpeername : getsockname)(socket, &a.any, &bytes);
    to_text(&a.any, &place);
    return place;
}

// Where nobody listens, the system may choose that very port for this end: then the socket is its
// own other side.
static bool is_itself(int socket, const TcpPlace *place)
{
    TcpPlace own = tcp_place(socket, false);
    return own.port == place->port && strcmp(own.address, place->address) == 0;
}

// Returns 0, or the reason why not.
static int finish_connecting(int socket, double seconds)
{
    struct pollfd fd = { .fd = socket, .events = POLLOUT };
    int error = ETIMEDOUT;
    for (double left = seconds; left > 0; left -= 0.1) {
        interrupt_leave();
        if (poll(&fd, 1, 100) > 0)
            return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){ sizeof error }) == 0
                   ? error : errno;
    }
    return error;
}

int tcp_connect(const TcpPlace *place, const char *from, double seconds, Error *err)
{
    Address to, own;
    TcpPlace here = { .port = 0 };
    snprintf(here.address, sizeof here.address, "%s", from ? from : "");
    if (!from_text(place, &to, err) || (from && !from_text(&here, &own, err)))
        return -1;
    int connection = socket(to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    // The port is chosen when the other side is known: there are more of them.
    setsockopt(connection, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &(int){ 1 }, sizeof(int));
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
    bool begun = (!from || bind(connection, &own.any, bytes_of(&own.any)) == 0) &&
                 (connect(connection, &to.any, bytes_of(&to.any)) == 0 || errno == EINPROGRESS);
    int error = !begun ? errno : finish_connecting(connection, seconds);
    if (error == 0 && !is_itself(connection, place))
        return connection;
    error_set(err, "", "cannot connect to port %d of %s: %s", place->port, place->address,
              strerror(error ? error : ECONNREFUSED));
    if (connection >= 0)
        close(connection);
    return -1;
}

// --- who is it? ----------------------------------------------------------------------------------

// The kernel lists each end of a connection: its own address, the other's, and the owner. What is
// left of closed ones (inode 0) belongs to user 0.
bool tcp_same_user(int socket)
{
    Address here, there;
    char line[512];
    unsigned local[2], remote[2], state, uid;
    unsigned long inode;
    bool same = false;
    FILE *list = fopen("/proc/net/tcp", "re");
    if (getsockname(socket, &here.any, &(socklen_t){ sizeof here }) != 0 ||
        getpeername(socket, &there.any, &(socklen_t){ sizeof there }) != 0 || !list)
        here.any.sa_family = AF_UNSPEC;
    while (here.any.sa_family == AF_INET && !same && fgets(line, sizeof line, list))
        same = sscanf(line, " %*d: %x:%x %x:%x %x %*s %*s %*s %u %*s %lu", &local[0], &local[1],
                      &remote[0], &remote[1], &state, &uid, &inode) == 7 &&
               local[0] == there.v4.sin_addr.s_addr && local[1] == ntohs(there.v4.sin_port) &&
               remote[0] == here.v4.sin_addr.s_addr && remote[1] == ntohs(here.v4.sin_port) &&
               state == TCP_ESTABLISHED && inode != 0 && uid == geteuid();
    if (list)
        fclose(list);
    return same;
}
