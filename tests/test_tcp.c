// test_tcp.c - addresses, interfaces, listening, connecting, and whose the other side is.
// ctest: SANITIZERS asan
#include "tcp.h"
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static Error err;

static void expect_error(const char *text, const char *hint)
{
    EXPECT(strstr(err.text, text) && strstr(err.hint, hint), "'%s' '%s', wanted '%s' '%s'",
           err.text, err.hint, text, hint);
    err = (Error){ .text = "" };
}

// Runs a story in a process of its own; its failures count here.
static void expect_in_child(int (*story)(void))
{
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(story());
    EXPECT(waitpid(child, &status, 0) == child && status == 0, "status %x", status);
}

// --- addresses -----------------------------------------------------------------------------------

static void expect_resolved(const char *name, const char *wanted)
{
    TcpAddress address = "";
    EXPECT(tcp_resolve(name, address, &err), "%s: %s", name, err.text);
    EXPECT_EQ_STR(address, wanted);
}

TEST(names)
{
    TcpAddress address;
    expect_resolved("127.0.0.1", "127.0.0.1");
    expect_resolved("192.0.2.7", "192.0.2.7");
    expect_resolved("::1", "::1");
    expect_resolved("2001:DB8:0::7", "2001:db8::7");
    EXPECT(tcp_resolve("localhost", address, &err), "%s", err.text);
    EXPECT(tcp_is_loopback(address), "%s", address);
    EXPECT(!tcp_resolve("no..such", address, &err), "%s", address);
    expect_error("no address of 'no..such' is known: ", "getent hosts NAME");
    EXPECT(!tcp_resolve("", address, &err), "%s", address);
    expect_error("no address of '' is known", "");
}

TEST(loopback)
{
    EXPECT(tcp_is_loopback("127.0.0.1") && tcp_is_loopback("127.8.9.10") && tcp_is_loopback("::1"),
           "no loopback");
    EXPECT(!tcp_is_loopback("10.0.0.1") && !tcp_is_loopback("0.0.0.0") && !tcp_is_loopback("::") &&
           !tcp_is_loopback("fe80::1") && !tcp_is_loopback("localhost") && !tcp_is_loopback(""),
           "loopback");
}

TEST(interfaces)
{
    TcpAddress address = "";
    EXPECT(tcp_interface_address("lo", address, &err), "%s", err.text);
    EXPECT(tcp_is_loopback(address), "%s", address);
    EXPECT(!tcp_interface_address("eth99", address, &err), "%s", address);
    expect_error("this machine has no interface 'eth99'; it has lo", "");

    TcpNetwork networks[16];
    int count = tcp_networks(networks, 16);
    EXPECT(count >= 0 && count <= 16 && tcp_networks(networks, 0) == 0, "%d", count);
    for (int i = 0; i < count; i++) {
        struct in_addr number;
        EXPECT_EQ_INT(inet_pton(AF_INET, networks[i].address, &number), 1);
        EXPECT(!tcp_is_loopback(networks[i].address), "%s", networks[i].address);
        EXPECT((ntohl(number.s_addr) & networks[i].mask) == networks[i].network, "%s %x %x",
               networks[i].address, networks[i].network, networks[i].mask);
    }
}

// A machine whose only interface is down.
static int without_network(void)
{
    TcpAddress address;
    TcpNetwork network;
    if (unshare(CLONE_NEWNET) != 0)
        return 0;
    bool good = tcp_networks(&network, 1) == 0 && tcp_resolve("localhost", address, &err) &&
                tcp_resolve("127.0.0.1", address, &err) &&
                !tcp_interface_address("lo", address, &err) &&
                strstr(err.text, "interface 'lo' is down, or has no address") != NULL;
    return good ? 0 : 1;
}

// --- listening -----------------------------------------------------------------------------------

static int listen_or_say(const char *address, int port)
{
    int listener = tcp_listen(address, port, &err);
    EXPECT(listener >= 0, "%s", err.text);
    return listener;
}

TEST(listening)
{
    int listener = listen_or_say("127.0.0.1", 0), port = tcp_port(listener);
    TcpAddress address;
    EXPECT(port > 0 && port < 65536, "port %d", port);
    EXPECT(fcntl(listener, F_GETFD) & FD_CLOEXEC, "it is inherited");
    tcp_own_address(listener, address);
    EXPECT_EQ_STR(address, "127.0.0.1");

    EXPECT_EQ_INT(tcp_listen("127.0.0.1", port, &err), -1);
    expect_error("of 127.0.0.1: Address already in use", "choose another");
    close(listen_or_say("127.0.0.2", port));    // at this address and no other
    close(listener);
    close(listen_or_say("127.0.0.1", port));
}

TEST(not_listening)
{
    EXPECT_EQ_INT(tcp_listen("192.0.2.1", 0, &err), -1);
    expect_error("192.0.2.1 is not an address of this machine", "rank 0 must be on the machine");
    EXPECT_EQ_INT(tcp_listen("0.0.0.0", 0, &err), -1);
    expect_error("0.0.0.0 means every interface", "the one address");
    EXPECT_EQ_INT(tcp_listen("::", 0, &err), -1);
    expect_error(":: means every interface", "the one address");
    EXPECT_EQ_INT(tcp_listen("localhost", 0, &err), -1);
    expect_error("'localhost' is not an address", "");
    EXPECT_EQ_INT(tcp_listen("127.0.0.1", 65536, &err), -1);
    expect_error("there is no port 65536", "");
    EXPECT_EQ_INT(tcp_listen("127.0.0.1", -1, &err), -1);
    expect_error("there is no port -1", "");
}

static int become_nobody(void) { return setgid(NOBODY) == 0 && setuid(NOBODY) == 0 ? 0 : 1; }

// A container may let everybody have them.
static int small_ports(void)
{
    if (become_nobody() != 0)
        return 1;
    return tcp_listen("127.0.0.1", 81, &err) >= 0 ||
           (strstr(err.text, "cannot listen at port 81 of 127.0.0.1: Permission denied") &&
            strstr(err.hint, "belong to root")) ? 0 : 1;
}

// --- connecting ----------------------------------------------------------------------------------

typedef struct Connection {
    int listener, server, client;
} Connection;

static Connection connect_from(const char *address, const char *from)
{
    Connection c = { .listener = listen_or_say(address, 0) };
    c.client = tcp_connect(address, tcp_port(c.listener), from, &err);
    EXPECT(c.client >= 0, "%s", err.text);
    c.server = accept4(c.listener, NULL, NULL, SOCK_CLOEXEC);
    poll(&(struct pollfd){ .fd = c.client, .events = POLLOUT }, 1, 10000);
    return c;
}

static void disconnect(Connection *c)
{
    close(c->server);
    close(c->client);
    close(c->listener);
}

TEST(connecting)
{
    Connection c = connect_from("127.0.0.1", NULL);
    TcpAddress address;
    char text[TCP_ADDRESS + 8], wanted[TCP_ADDRESS + 8];
    EXPECT((fcntl(c.client, F_GETFL) & O_NONBLOCK) && (fcntl(c.client, F_GETFD) & FD_CLOEXEC),
           "flags");
    tcp_own_address(c.client, address);
    EXPECT_EQ_STR(address, "127.0.0.1");
    tcp_peer(c.client, text);
    snprintf(wanted, sizeof wanted, "127.0.0.1:%d", tcp_port(c.server));
    EXPECT_EQ_STR(text, wanted);
    tcp_peer(c.listener, text);
    EXPECT_EQ_STR(text, "?");
    disconnect(&c);

    c = connect_from("127.0.0.1", "127.0.0.9");
    tcp_peer(c.server, text);
    snprintf(wanted, sizeof wanted, "127.0.0.9:%d", tcp_port(c.client));
    EXPECT_EQ_STR(text, wanted);
    tcp_own_address(c.client, address);
    EXPECT_EQ_STR(address, "127.0.0.9");
    disconnect(&c);
}

TEST(not_connecting)
{
    EXPECT_EQ_INT(tcp_connect("127.0.0.1", 1, "192.0.2.1", &err), -1);
    expect_error("192.0.2.1 is not an address of this machine", "ip addr");
    EXPECT_EQ_INT(tcp_connect("127.0.0.1", 1, "::1", &err), -1);
    expect_error("127.0.0.1 cannot be reached from ::1: one is IPv4, the other IPv6", "");
    EXPECT_EQ_INT(tcp_connect("node1", 1, NULL, &err), -1);
    expect_error("'node1' is not an address", "");
    EXPECT_EQ_INT(tcp_connect("127.0.0.1", 99999, NULL, &err), -1);
    expect_error("there is no port 99999", "");

    int listener = listen_or_say("127.0.0.1", 0), port = tcp_port(listener), error = 0;
    close(listener);
    int client = tcp_connect("127.0.0.1", port, NULL, &err);
    if (client >= 0) {
        poll(&(struct pollfd){ .fd = client, .events = POLLOUT }, 1, 10000);
        getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){ sizeof error });
        EXPECT_EQ_INT(error, ECONNREFUSED);
        close(client);
    } else
        expect_error("Connection refused", "");
}

// The listener closed first, so its end waits for a while: its port can be had again all the same.
TEST(the_same_port_again)
{
    Connection c = connect_from("127.0.0.1", NULL);
    int port = tcp_port(c.listener);
    close(c.listener);
    close(c.server);
    EXPECT_EQ_INT(read(c.client, &(char){ 0 }, 1), 0);
    close(c.client);
    close(listen_or_say("127.0.0.1", port));
}

// Where the system has no other port to choose, a socket meets itself.
static int meets_itself(void)
{
    if (unshare(CLONE_NEWNET) != 0 || system("ip link set lo up 2>/dev/null") != 0 ||
        system("(echo 40000 40001 >/proc/sys/net/ipv4/ip_local_port_range) 2>/dev/null") != 0)
        return 0;
    for (int i = 0; i < 20; i++)
        for (int port = 40000; port <= 40001; port++) {
            char text[TCP_ADDRESS + 8] = "?";
            int socket = tcp_connect("127.0.0.1", port, NULL, &err);
            if (socket >= 0)
                tcp_peer(socket, text);
            if (strcmp(text, "?") != 0)
                return 1;
            close(socket);
        }
    return strstr(err.text, "Connection refused") ? 0 : 1;
}

static bool has_ipv6(void)
{
    int listener = tcp_listen("::1", 0, &err);
    if (listener >= 0)
        close(listener);
    return listener >= 0;
}

TEST(ipv6)
{
    if (!has_ipv6())
        return;
    Connection c = connect_from("::1", NULL);
    char text[TCP_ADDRESS + 8], wanted[TCP_ADDRESS + 8];
    tcp_peer(c.server, text);
    snprintf(wanted, sizeof wanted, "[::1]:%d", tcp_port(c.client));
    EXPECT_EQ_STR(text, wanted);
    EXPECT(tcp_same_user(c.server) && tcp_same_user(c.client), "another user");
    close(listen_or_say("127.0.0.1", tcp_port(c.listener)));    // not its own
    disconnect(&c);
}

// --- whose it is ---------------------------------------------------------------------------------

TEST(the_same_user)
{
    Connection c = connect_from("127.0.0.1", NULL);
    EXPECT(tcp_same_user(c.server) && tcp_same_user(c.client), "another user");
    EXPECT(!tcp_same_user(c.listener), "nobody is there");
    close(c.client);
    EXPECT(!tcp_same_user(c.server), "whose it was is not known any more");
    close(c.server);
    close(c.listener);
    EXPECT(!tcp_same_user(-1), "no socket");

    c = connect_from("127.0.0.1", NULL);
    close(c.server);                            // what stays of it belongs to user 0
    EXPECT(!tcp_same_user(c.client), "whose it was is not known any more");
    close(c.client);
    close(c.listener);

    c = connect_from("127.0.0.1", NULL);
    close(c.server);
    int waiting = tcp_connect("127.0.0.1", tcp_port(c.listener), NULL, &err);
    poll(&(struct pollfd){ .fd = waiting, .events = POLLOUT }, 1, 10000);
    EXPECT(!tcp_same_user(waiting), "nobody has accepted it yet");
    close(waiting);
    close(c.client);
    close(c.listener);
}

// An IPv4 connection of somebody who uses a socket of IPv6.
TEST(the_same_user_by_ipv6)
{
    if (!has_ipv6())
        return;
    int listener = listen_or_say("127.0.0.1", 0);
    struct sockaddr_in6 to = { .sin6_family = AF_INET6,
                               .sin6_port = htons((uint16_t)tcp_port(listener)) };
    int client = socket(AF_INET6, SOCK_STREAM, 0);
    inet_pton(AF_INET6, "::ffff:127.0.0.1", &to.sin6_addr);
    EXPECT_EQ_INT(connect(client, (struct sockaddr *)&to, sizeof to), 0);
    int server = accept(listener, NULL, NULL);
    EXPECT(tcp_same_user(server), "another user");
    close(server);
    close(client);
    close(listener);
}

static int port_of_root, held[2];

static int connect_as_nobody(void)
{
    if (become_nobody() != 0)
        return 1;
    int client = tcp_connect("127.0.0.1", port_of_root, NULL, &err);
    return client >= 0 && read(held[0], &(char){ 0 }, 1) == 0 ? 0 : 1;
}

TEST(another_user)
{
    int listener = listen_or_say("127.0.0.1", 0), status = -1;
    port_of_root = tcp_port(listener);
    EXPECT_EQ_INT(pipe(held), 0);
    pid_t child = fork();
    if (child == 0) {
        close(held[1]);
        _exit(connect_as_nobody());
    }
    int server = accept(listener, NULL, NULL);
    EXPECT(!tcp_same_user(server), "this is root, and the other side is not");
    close(held[1]);
    EXPECT(waitpid(child, &status, 0) == child && status == 0, "status %x", status);
    EXPECT(!tcp_same_user(server), "it is gone");
    close(held[0]);
    close(server);
    close(listener);
}

int main(void)
{
    names();
    loopback();
    interfaces();
    listening();
    not_listening();
    connecting();
    not_connecting();
    the_same_port_again();
    ipv6();
    the_same_user();
    the_same_user_by_ipv6();
    if (geteuid() == 0) {
        expect_in_child(without_network);
        expect_in_child(small_ports);
        expect_in_child(meets_itself);
        another_user();
    } else
        printf("not as root: other users and other networks are left out\n");
    return test_done();
}
