// test_tcp.c - addresses, listening, connecting, whose the other side is; and secrets.
// ctest: SANITIZERS asan
#include "secret.h"
#include "tcp.h"
#include "test.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

static Error err;

static void expect_error(const char *text, const char *hint)
{
    EXPECT(strstr(err.text, text) && strstr(err.hint, hint), "'%s' '%s', wanted '%s' '%s'",
           err.text, err.hint, text, hint);
    err = (Error){ .text = "" };
}

// A process of its own, whose failures count here.
static void expect_in_child(bool (*story)(void))
{
    int status = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(!story());
    EXPECT(waitpid(child, &status, 0) == child && status == 0, "status %x", status);
}

// --- addresses -----------------------------------------------------------------------------------

TEST(addresses)
{
    static const char *const names[][2] = { { "127.0.0.1", "127.0.0.1" }, { "192.0.2.7", "192.0.2.7" },
                                            { "::1", "::1" }, { "2001:DB8:0::7", "2001:db8::7" } };
    static const char *const wrong[] = { "no..such", "" };
    TcpAddress address = "", all[16];
    for (int i = 0; i < 4; i++) {
        EXPECT(tcp_resolve(names[i][0], address, &err), "%s", err.text);
        EXPECT_EQ_STR(address, names[i][1]);
    }
    EXPECT(tcp_resolve("localhost", address, &err) && tcp_is_loopback(address), "%s %s", address, err.text);
    for (int i = 0; i < 2; i++) {
        EXPECT(!tcp_resolve(wrong[i], address, &err), "%s", address);
        expect_error(i ? "no address of '' is known: " : "no address of 'no..such' is known: ", "getent hosts");
    }
    EXPECT(tcp_is_loopback("127.8.9.10") && tcp_is_loopback("::1") && !tcp_is_loopback("10.0.0.1") &&
           !tcp_is_loopback("0.0.0.0") && !tcp_is_loopback("fe80::1") && !tcp_is_loopback(""), "loopback");
    EXPECT(tcp_interface_address("lo", address, &err) && tcp_is_loopback(address), "%s", err.text);
    EXPECT(!tcp_interface_address("eth99", address, &err), "%s", address);
    expect_error("interface 'eth99' is not there, is down, or has no address", "ip -brief address");
    int count = tcp_own_addresses(all, 16);
    EXPECT(count >= 0 && count <= 16 && tcp_own_addresses(all, 0) == 0, "%d", count);
    for (int i = 0; i < count; i++) {
        EXPECT(!tcp_is_loopback(all[i]) && strchr(all[i], '.'), "%s", all[i]);
        TcpPlace place = { .port = 0 };
        memcpy(place.address, all[i], sizeof place.address);
        int bound = tcp_bind(&place, &err);
        EXPECT(bound >= 0, "%s", err.text);         // it is ours
        close(bound);
    }
}

// A machine whose only interface is down.
static bool without_network(void)
{
    TcpAddress address;
    return unshare(CLONE_NEWNET) != 0 ||
           (tcp_own_addresses(&address, 1) == 0 && tcp_resolve("localhost", address, &err) &&
            tcp_resolve("127.0.0.1", address, &err) && !tcp_interface_address("lo", address, &err));
}

// --- sockets -------------------------------------------------------------------------------------

static int bind_here(const char *address, int port)
{
    TcpPlace place = { .port = port };
    snprintf(place.address, sizeof place.address, "%s", address);
    int bound = tcp_bind(&place, &err);
    return bound >= 0 && listen(bound, 8) == 0 ? bound : -1;
}

TEST(binding)
{
    int listener = bind_here("127.0.0.1", 0);
    TcpPlace place = tcp_place(listener, false);
    EXPECT_EQ_STR(place.address, "127.0.0.1");
    EXPECT(place.port > 0, "port %d", place.port);
    EXPECT(fcntl(listener, F_GETFD) & FD_CLOEXEC, "programs inherit it");
    EXPECT_EQ_INT(bind_here("127.0.0.1", place.port), -1);
    expect_error("of 127.0.0.1: Address already in use", "choose another --master-port");
    close(bind_here("127.0.0.2", place.port));      // at this address and no other
    close(listener);
    listener = bind_here("127.0.0.1", place.port);
    EXPECT(listener >= 0, "%s", err.text);
    close(listener);
    EXPECT_EQ_INT(bind_here("192.0.2.1", 0), -1);
    expect_error("192.0.2.1 is not an address of this machine", "rank 0 must be on the machine");
    EXPECT_EQ_INT(bind_here("0.0.0.0", 0), -1);
    expect_error("0.0.0.0 means every interface", "the one address");
    EXPECT_EQ_INT(bind_here("::", 0), -1);
    expect_error(":: means every interface", "the one address");
    EXPECT_EQ_INT(bind_here("localhost", 0), -1);
    expect_error("'localhost' is not an address", "");
}

typedef struct Connection {
    int listener, server, client;
} Connection;

static Connection connect_from(const char *from)
{
    Connection c = { .listener = bind_here("127.0.0.1", 0) };
    TcpPlace place = tcp_place(c.listener, false);
    c.client = tcp_connect(&place, from, 10, &err);
    EXPECT(c.client >= 0, "%s", err.text);
    c.server = accept4(c.listener, NULL, NULL, SOCK_CLOEXEC);
    return c;
}

static void disconnect(Connection *c)
{
    close(c->server);
    close(c->client);
    close(c->listener);
}

static void expect_no_connection(const char *address, int port, const char *from, const char *text)
{
    TcpPlace place = { .port = port };
    snprintf(place.address, sizeof place.address, "%s", address);
    EXPECT_EQ_INT(tcp_connect(&place, from, 0.3, &err), -1);
    expect_error(text, "");
}

TEST(connecting)
{
    static const char *const from[] = { NULL, "127.0.0.9" };
    for (int i = 0; i < 2; i++) {
        Connection c = connect_from(from[i]);
        TcpPlace there = tcp_place(c.server, true), here = tcp_place(c.client, false);
        EXPECT_EQ_STR(there.address, from[i] ? from[i] : "127.0.0.1");
        EXPECT_EQ_STR(here.address, there.address);
        EXPECT_EQ_INT(here.port, there.port);
        EXPECT((fcntl(c.client, F_GETFL) & O_NONBLOCK) && (fcntl(c.client, F_GETFD) & FD_CLOEXEC), "flags");
        disconnect(&c);
    }
    int listener = bind_here("127.0.0.1", 0), port = tcp_place(listener, false).port;
    close(listener);
    expect_no_connection("127.0.0.1", port, NULL, "of 127.0.0.1: Connection refused");
    expect_no_connection("127.0.0.1", port, "192.0.2.1", "Cannot assign requested address");
    expect_no_connection("127.0.0.1", port, "::1", "cannot connect to port ");
    expect_no_connection("node1", port, NULL, "'node1' is not an address");
    listener = bind_here("127.0.0.1", 0);
    EXPECT_EQ_INT(listen(listener, 0), 0);          // it takes one, and accepts none
    TcpPlace place = tcp_place(listener, false);
    int first = tcp_connect(&place, NULL, 1, &err);
    for (int i = 0; i < 2; i++)
        expect_no_connection("127.0.0.1", place.port, NULL, "Connection timed out");
    close(first);
    close(listener);
}

// Where the system has no other port to choose, a socket connects to itself.
static bool no_connection_to_itself(void)
{
    if (unshare(CLONE_NEWNET) != 0 || system("ip link set lo up 2>/dev/null") != 0 ||
        system("(echo 40000 40001 >/proc/sys/net/ipv4/ip_local_port_range) 2>/dev/null") != 0)
        return true;
    for (int i = 0; i < 40; i++)
        expect_no_connection("127.0.0.1", 40000 + i % 2, NULL, "");
    return test_failed == 0;
}

// --- whose it is ---------------------------------------------------------------------------------

TEST(the_same_user)
{
    Connection c = connect_from(NULL);
    EXPECT(tcp_same_user(c.server) && tcp_same_user(c.client), "another user");
    EXPECT(!tcp_same_user(c.listener) && !tcp_same_user(-1), "there is no other side");
    TcpPlace place = tcp_place(c.listener, false);
    int waiting = tcp_connect(&place, NULL, 1, &err);
    EXPECT(!tcp_same_user(waiting), "it is not accepted yet");
    close(waiting);
    close(c.client);
    EXPECT(!tcp_same_user(c.server), "what is left of it belongs to user 0");
    disconnect(&c);
}

static bool another_user(void)
{
    Connection c = connect_from(NULL);
    return setuid(65534) == 0 && !tcp_same_user(c.server) && !tcp_same_user(c.client);
}

// --- secrets -------------------------------------------------------------------------------------

static void expect_file(const char *content, int mode, const char *wrong)
{
    Secret secret;
    const char *path = test_path("token");
    FILE *out = fopen(path, "w");
    fputs(content, out);
    fclose(out);
    chmod(path, (mode_t)mode);
    EXPECT(secret_from_file(path, &secret, &err) == !wrong, "'%s', mode %o: %s", content, mode, err.text);
    expect_error(wrong ? wrong : "", "");
}

TEST(secrets)
{
    Secret one = secret_random(), other = secret_random(), none = { .known = false }, read;
    unsigned char proof[SECRET_BYTES];
    char text[SECRET_TEXT + 1];
    EXPECT(one.known && memcmp(one.bytes, other.bytes, SECRET_BYTES) != 0, "not random");
    secret_to_text(&one, text);
    EXPECT(strlen(text) == 64 && secret_from_text(text, &read) && !memcmp(&read, &one, sizeof one), "%s", text);
    expect_file(text, 0600, NULL);
    expect_file(text, 0640, "others may read it");
    strcat(text, "\n");
    EXPECT(secret_from_text(text, &read), "a newline");
    expect_file(text, 0400, NULL);
    text[63] = '\n';
    EXPECT(!secret_from_text(text, &read) && !read.known, "too short");
    expect_file(text, 0600, "a token has 64 hexadecimal digits");
    text[63] = 'g';
    EXPECT(!secret_from_text(text, &read) && !secret_from_text("", &read), "no digits");
    expect_file("", 0600, "a token has 64 hexadecimal digits");
    EXPECT(!secret_from_file(test_path("missing"), &read, &err), "there is none");
    expect_error("No such file", "openssl rand -hex 32");
    EXPECT(!secret_from_file(test_path("."), &read, &err), "a folder");
    expect_error("not this user's own file", "chmod 600");

    secret_prove(&one, "rank", "hello", 5, proof);
    EXPECT(secret_proves(&one, "rank", "hello", 5, proof), "no proof");
    EXPECT(!secret_proves(&one, "rank 0", "hello", 5, proof) && !secret_proves(&one, "rank", "hallo", 5, proof) &&
           !secret_proves(&one, "rank", "hello", 4, proof) && !secret_proves(&other, "rank", "hello", 5, proof) &&
           !secret_proves(&none, "rank", "hello", 5, proof), "a proof of something else");
}

int main(void)
{
    addresses();
    binding();
    connecting();
    the_same_user();
    secrets();
    if (geteuid() == 0) {
        expect_in_child(without_network);
        expect_in_child(no_connection_to_itself);
        expect_in_child(another_user);
    } else
        printf("not as root: other users and other networks are left out\n");
    return test_done();
}
