// tcp.c - addresses, interfaces, and sockets between machines.
#include "tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef union Address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} Address;

// --- addresses -----------------------------------------------------------------------------------

static socklen_t address_bytes(const Address *address)
{
    return address->any.sa_family == AF_INET ? sizeof address->v4 : sizeof address->v6;
}

static bool address_parse(const char *text, int port, Address *address)
{
    *address = (Address){ .v4 = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) } };
    if (inet_pton(AF_INET, text, &address->v4.sin_addr) == 1)
        return true;
    *address = (Address){ .v6 = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) } };
    return inet_pton(AF_INET6, text, &address->v6.sin6_addr) == 1;
}

static void address_text(const struct sockaddr *address, TcpAddress text)
{
    const Address *a = (const Address *)address;
    snprintf(text, TCP_ADDRESS, "?");
    if (a->any.sa_family == AF_INET)
        inet_ntop(AF_INET, &a->v4.sin_addr, text, TCP_ADDRESS);
    else if (a->any.sa_family == AF_INET6)
        inet_ntop(AF_INET6, &a->v6.sin6_addr, text, TCP_ADDRESS);
}

static int address_port(const Address *address)
{
    return ntohs(address->any.sa_family == AF_INET ? address->v4.sin_port : address->v6.sin6_port);
}

static bool own(int socket, Address *address)
{
    *address = (Address){ 0 };
    return getsockname(socket, &address->any, &(socklen_t){ sizeof *address }) == 0;
}

static bool peer(int socket, Address *address)
{
    *address = (Address){ 0 };
    return getpeername(socket, &address->any, &(socklen_t){ sizeof *address }) == 0;
}

// The first of IPv4, else of IPv6. What is a number already needs no name service; and a machine
// that has no address but the loopback's knows names of its own.
bool tcp_resolve(const char *name, TcpAddress address, Error *err)
{
    static const int ways[] = { AI_NUMERICHOST, AI_ADDRCONFIG, 0 };
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found = NULL;
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
        if (a->ai_family == AF_INET)
            best = a;
    address_text(best->ai_addr, address);
    freeaddrinfo(found);
    return true;
}

bool tcp_is_loopback(const char *address)
{
    Address a;
    if (!address_parse(address, 0, &a))
        return false;
    return a.any.sa_family == AF_INET ? ntohl(a.v4.sin_addr.s_addr) >> 24 == 127
                                      : IN6_IS_ADDR_LOOPBACK(&a.v6.sin6_addr);
}

// --- interfaces ----------------------------------------------------------------------------------

// Other machines cannot use an address of the link without knowing the interface.
static bool is_usable(const struct ifaddrs *i, int family)
{
    if (i->ifa_addr == NULL || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP))
        return false;
    const Address *a = (const Address *)i->ifa_addr;
    return family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&a->v6.sin6_addr);
}

// "lo, eth0": an interface has an entry for each of its addresses, and mostly one for itself.
static void list_interfaces(const struct ifaddrs *all, char *text, size_t bytes)
{
    size_t length = 0;
    text[0] = '\0';
    for (const struct ifaddrs *i = all; i && length < bytes; i = i->ifa_next) {
        const struct ifaddrs *first = all;
        while (strcmp(first->ifa_name, i->ifa_name) != 0)
            first = first->ifa_next;
        if (first == i)
            length += (size_t)snprintf(text + length, bytes - length, "%s%s", length ? ", " : "",
                                       i->ifa_name);
    }
}

bool tcp_interface_address(const char *interface, TcpAddress address, Error *err)
{
    struct ifaddrs *all;
    char there[200];
    bool known = false, found = false;
    if (getifaddrs(&all) != 0)
        return error_set(err, "", "interfaces of this machine: %s", strerror(errno));
    for (int family = 0; family < 2 && !found; family++)
        for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
            bool same = strcmp(i->ifa_name, interface) == 0;
            known = known || same;
            found = same && is_usable(i, family == 0 ? AF_INET : AF_INET6);
            if (found)
                address_text(i->ifa_addr, address);
        }
    list_interfaces(all, there, sizeof there);
    freeifaddrs(all);
    if (found)
        return true;
    if (known)
        return error_set(err, "ip addr shows what it has",
                         "interface '%s' is down, or has no address", interface);
    return error_set(err, "", "this machine has no interface '%s'; it has %s", interface, there);
}

int tcp_networks(TcpNetwork *networks, int most)
{
    struct ifaddrs *all;
    int count = 0;
    if (getifaddrs(&all) != 0)
        return 0;
    for (const struct ifaddrs *i = all; i && count < most; i = i->ifa_next)
        if (is_usable(i, AF_INET) && i->ifa_netmask && !(i->ifa_flags & IFF_LOOPBACK)) {
            TcpNetwork *n = &networks[count++];
            address_text(i->ifa_addr, n->address);
            n->mask = ntohl(((const Address *)i->ifa_netmask)->v4.sin_addr.s_addr);
            n->network = ntohl(((const Address *)i->ifa_addr)->v4.sin_addr.s_addr) & n->mask;
        }
    freeifaddrs(all);
    return count;
}

// --- sockets -------------------------------------------------------------------------------------

static bool check_address(const char *text, int port, Address *address, Error *err)
{
    if (!address_parse(text, port, address))
        return error_set(err, "a name or a number: node1, 10.0.0.1", "'%s' is not an address",
                         text);
    return (port >= 0 && port <= 65535) ||
           error_set(err, "", "there is no port %d: they are 0 to 65535", port);
}

static bool is_any(const Address *address)
{
    return address->any.sa_family == AF_INET ? address->v4.sin_addr.s_addr == htonl(INADDR_ANY)
                                             : IN6_IS_ADDR_UNSPECIFIED(&address->v6.sin6_addr);
}

static bool cannot_listen(const char *address, int port, int error, Error *err)
{
    const char *hint = error == EADDRINUSE ? "another run may have it (ss -ltnp): "
                                            "choose another --master-port"
                     : error == EADDRNOTAVAIL ? "rank 0 must be on the machine with this address: "
                                                "ip addr shows those of this one"
                     : error == EACCES ? "ports below 1024 belong to root: choose one above" : "";
    return error == EADDRNOTAVAIL
               ? error_set(err, hint, "%s is not an address of this machine", address)
               : error_set(err, hint, "cannot listen at port %d of %s: %s", port, address,
                           strerror(error));
}

int tcp_bind(const char *address, int port, Error *err)
{
    Address a;
    if (!check_address(address, port, &a, err))
        return -1;
    if (is_any(&a)) {
        error_set(err, "give the one address at which the others reach this machine",
                  "%s means every interface of this machine", address);
        return -1;
    }
    int bound = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bound >= 0) {
        setsockopt(bound, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int));
        if (a.any.sa_family == AF_INET6)
            setsockopt(bound, IPPROTO_IPV6, IPV6_V6ONLY, &(int){ 1 }, sizeof(int));
    }
    if (bound < 0 || bind(bound, &a.any, address_bytes(&a)) != 0) {
        cannot_listen(address, port, errno, err);
        if (bound >= 0)
            close(bound);
        return -1;
    }
    return bound;
}

bool tcp_listen_on(int socket) { return listen(socket, 128) == 0; }

int tcp_listen(const char *address, int port, Error *err)
{
    int listener = tcp_bind(address, port, err);
    if (listener >= 0 && !tcp_listen_on(listener)) {
        cannot_listen(address, port, errno, err);
        close(listener);
        return -1;
    }
    return listener;
}

int tcp_port(int socket)
{
    Address a;
    return own(socket, &a) ? address_port(&a) : -1;
}

void tcp_own_address(int socket, TcpAddress address)
{
    Address a;
    own(socket, &a);
    address_text(&a.any, address);
}

void tcp_peer(int socket, char text[TCP_ADDRESS + 8])
{
    Address a;
    TcpAddress address;
    if (!peer(socket, &a))
        snprintf(text, TCP_ADDRESS + 8, "?");
    else {
        address_text(&a.any, address);
        snprintf(text, TCP_ADDRESS + 8, a.any.sa_family == AF_INET ? "%s:%d" : "[%s]:%d", address,
                 address_port(&a));
    }
}

// Where nobody listens, the system may choose that very port for this end: then the socket is its
// own other side.
static bool is_itself(int socket, const Address *to)
{
    Address from;
    return own(socket, &from) && address_port(&from) == address_port(to) &&
           (to->any.sa_family == AF_INET
                ? from.v4.sin_addr.s_addr == to->v4.sin_addr.s_addr
                : IN6_ARE_ADDR_EQUAL(&from.v6.sin6_addr, &to->v6.sin6_addr));
}

static int connect_once(const Address *to, const Address *from)
{
    int connection = socket(to->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connection < 0)
        return -1;
    // The port is chosen when the other side is known: there are more of them.
    setsockopt(connection, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &(int){ 1 }, sizeof(int));
    bool begun = (from == NULL || bind(connection, &from->any, address_bytes(from)) == 0) &&
                 (connect(connection, &to->any, address_bytes(to)) == 0 || errno == EINPROGRESS);
    if (begun && !is_itself(connection, to))
        return connection;
    int error = begun ? ECONNREFUSED : errno;
    close(connection);
    errno = error;
    return -1;
}

int tcp_connect(const char *address, int port, const char *from, Error *err)
{
    Address to, own_end;
    if (!check_address(address, port, &to, err) ||
        (from && !check_address(from, 0, &own_end, err)))
        return -1;
    if (from && own_end.any.sa_family != to.any.sa_family) {
        error_set(err, "--iface and --master-addr of one kind",
                  "%s cannot be reached from %s: one is IPv4, the other IPv6", address, from);
        return -1;
    }
    int connection = connect_once(&to, from ? &own_end : NULL);
    if (connection < 0 && from && errno == EADDRNOTAVAIL)
        error_set(err, "ip addr shows its addresses", "%s is not an address of this machine", from);
    else if (connection < 0)
        error_set(err, "", "cannot connect to port %d of %s: %s", port, address, strerror(errno));
    return connection;
}

// --- who is it? ----------------------------------------------------------------------------------

// As the kernel lists it: the bytes of the address as numbers of 32 bits, and the port. ipv6: in
// the list of IPv6, where an IPv4 connection stands too whose owner has an IPv6 socket.
static void address_in_list(const Address *address, bool ipv6, char text[64])
{
    uint32_t words[4] = { 0, 0, htonl(0xFFFF), address->v4.sin_addr.s_addr };
    if (address->any.sa_family == AF_INET6)
        memcpy(words, &address->v6.sin6_addr, sizeof words);
    int length = 0;
    for (int i = ipv6 ? 0 : 3; i < 4; i++)
        length += snprintf(text + length, 64 - (size_t)length, "%08" PRIX32, words[i]);
    snprintf(text + length, 64 - (size_t)length, ":%04X", address_port(address));
}

// Of an established connection that a process holds: what is left of closed ones belongs to user 0.
static bool find_owner(const char *list, bool ipv6, const Address *from, const Address *to,
                       uid_t *uid)
{
    char wanted_from[64], wanted_to[64], line[512], local[64], remote[64];
    address_in_list(from, ipv6, wanted_from);
    address_in_list(to, ipv6, wanted_to);
    FILE *in = fopen(list, "re");
    bool found = false;
    while (in && !found && fgets(line, sizeof line, in)) {
        unsigned state;
        unsigned long inode;
        found = sscanf(line, " %*[^:]: %63s %63s %x %*s %*s %*s %u %*s %lu", local, remote, &state,
                       uid, &inode) == 5 &&
                state == 1 && inode != 0 && strcmp(local, wanted_from) == 0 &&
                strcmp(remote, wanted_to) == 0;
    }
    if (in)
        fclose(in);
    return found;
}

bool tcp_same_user(int socket)
{
    Address here, there;
    uid_t uid;
    if (!own(socket, &here) || !peer(socket, &there))
        return false;
    bool found = here.any.sa_family == AF_INET &&
                 find_owner("/proc/net/tcp", false, &there, &here, &uid);
    found = found || find_owner("/proc/net/tcp6", true, &there, &here, &uid);
    return found && uid == geteuid();
}
