// test_signed_channel.c - what a wire carries, and what it notices: the wrong token, a changed bit, a
// recorded session, messages that are mirrored, left out or cut off, strangers, and silence.
// ctest: SANITIZERS asan
#include "signed_channel.h"
#include "tcp.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HELLO = 40, MAC = 32, FRAME = 36 };

static const unsigned char key_one[CHANNEL_KEY] = "one token of thirty-two bytes...";
static const unsigned char key_two[CHANNEL_KEY] = "one token of thirty-two bytes..,";
static unsigned char big[CHANNEL_MOST];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// --- two ends in memory --------------------------------------------------------------------------

// One direction of the connection, with somebody in it who can turn a bit and keeps a record.
typedef struct Way {
    Channel *from, *to;
    size_t piece;           // bytes at once
    long flip;              // this bit of all that passes; -1: none
    size_t passed;
    unsigned char *record;  // or NULL
} Way;

static void carry(Way *way)
{
    static unsigned char bytes[4 * CHANNEL_MOST];
    size_t n;
    while ((n = channel_give(way->from, bytes, way->piece ? way->piece : sizeof bytes)) > 0) {
        size_t byte = (size_t)way->flip / 8;
        if (way->flip >= 0 && byte >= way->passed && byte < way->passed + n)
            bytes[byte - way->passed] ^= (unsigned char)(1 << way->flip % 8);
        if (way->record)
            memcpy(way->record + way->passed, bytes, n);
        way->passed += n;
        channel_take(way->to, bytes, n);
    }
}

typedef struct Pair {
    Channel *server, *client;
    Way up, down;           // to the server, to the client
} Pair;

static Pair pair_new(const unsigned char *server_key, const unsigned char *client_key)
{
    Channel *server = channel_new(-1, true, server_key), *client = channel_new(-1, false, client_key);
    return (Pair){ server, client, { .from = client, .to = server, .flip = -1 },
                   { .from = server, .to = client, .flip = -1 } };
}

static void pair_free(Pair *pair)
{
    channel_free(pair->server);
    channel_free(pair->client);
}

static ChannelState state(Channel *wire) { return channel_take(wire, "", 0); }

// As long as somebody has something to say.
static void pair_talk(Pair *pair)
{
    for (size_t before = SIZE_MAX; before != pair->up.passed + pair->down.passed;) {
        before = pair->up.passed + pair->down.passed;
        carry(&pair->down);
        carry(&pair->up);
    }
}

static Pair pair_open(const unsigned char *key)
{
    Pair pair = pair_new(key, key);
    pair_talk(&pair);
    EXPECT(state(pair.server) == CHANNEL_OPEN && state(pair.client) == CHANNEL_OPEN, "%s / %s",
           channel_why(pair.server), channel_why(pair.client));
    return pair;
}

static void expect_message(Channel *wire, const void *wanted, size_t bytes)
{
    size_t n = 0;
    const void *message = channel_next(wire, &n);
    EXPECT(message && n == bytes && memcmp(message, wanted, n) == 0, "%s, %zu bytes, wanted %zu",
           message ? "a message" : "none", n, bytes);
}

static void expect_none(Channel *wire)
{
    size_t n;
    EXPECT(channel_next(wire, &n) == NULL, "a message");
}

static void expect_closed(Channel *wire, ChannelFault fault, const char *why)
{
    EXPECT(state(wire) == CHANNEL_CLOSED && channel_fault(wire) == fault && strstr(channel_why(wire), why),
           "state %d, fault %d: '%s', wanted %d: '%s'", state(wire), channel_fault(wire),
           channel_why(wire), fault, why);
    EXPECT_EQ_INT(channel_events(wire), 0);
}

// --- what it carries -----------------------------------------------------------------------------

static void expect_talk(const unsigned char *key, size_t piece)
{
    Pair pair = pair_new(key, key);
    pair.up.piece = pair.down.piece = piece;
    pair_talk(&pair);
    EXPECT(state(pair.server) == CHANNEL_OPEN && state(pair.client) == CHANNEL_OPEN, "%s / %s",
           channel_why(pair.server), channel_why(pair.client));
    channel_send(pair.client, "question", 8);
    channel_send(pair.client, "", 0);
    channel_send(pair.server, "answer", 6);
    channel_send(pair.client, big, sizeof big);
    pair_talk(&pair);
    expect_message(pair.server, "question", 8);
    expect_message(pair.server, "", 0);
    expect_message(pair.server, big, sizeof big);
    expect_none(pair.server);
    expect_message(pair.client, "answer", 6);
    expect_none(pair.client);
    pair_free(&pair);
}

TEST(messages_arrive)
{
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (unsigned char)(i * 7 + i / 256);
    for (size_t piece = 0; piece < 4; piece++) {
        expect_talk(NULL, piece);
        expect_talk(key_one, piece);
    }
}

TEST(many_small_ones)
{
    Pair pair = pair_open(key_one);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 200; i++)
            channel_send(pair.client, &i, (size_t)(i % 5));
        pair_talk(&pair);
        for (int i = 0; i < 200; i++)
            expect_message(pair.server, &i, (size_t)(i % 5));
        expect_none(pair.server);
    }
    pair_free(&pair);
}

// --- tokens --------------------------------------------------------------------------------------

TEST(another_token)
{
    Pair pair = pair_new(key_one, key_two);
    pair_talk(&pair);
    expect_closed(pair.server, CHANNEL_TOKEN, "it does not know our token");
    expect_closed(pair.client, CHANNEL_TOKEN, "it does not know our token");
    EXPECT_EQ_INT(pair.down.passed, HELLO + MAC);
    pair_free(&pair);

    unsigned char hello[HELLO + MAC], proof[MAC + 1], zeros[MAC] = { 0 };
    pair = pair_new(key_one, key_two);          // a server proves nothing to a stranger
    carry(&pair.down);
    EXPECT_EQ_INT(channel_give(pair.client, hello, sizeof hello), sizeof hello);
    EXPECT_EQ_INT(channel_take(pair.server, hello, sizeof hello), CHANNEL_CLOSED);
    EXPECT_EQ_INT(channel_give(pair.server, proof, sizeof proof), MAC);
    EXPECT(memcmp(proof, zeros, MAC) == 0, "a proof");
    pair_free(&pair);
}

TEST(a_token_on_one_side)
{
    Pair pair = pair_new(key_one, NULL);
    pair_talk(&pair);
    expect_closed(pair.client, CHANNEL_TOKEN,
                  "it wants a token, but this rank has none: --token-file");
    expect_closed(pair.server, CHANNEL_TOKEN, "it has no token, but this rank has one");
    pair_free(&pair);

    pair = pair_new(NULL, key_one);
    pair_talk(&pair);
    expect_closed(pair.client, CHANNEL_TOKEN, "it has no token, but this rank has one");
    expect_closed(pair.server, CHANNEL_TOKEN, "it wants a token, but this rank has none");
    pair_free(&pair);
}

// Without the token, a server that says anything is no server.
TEST(a_server_without_proof)
{
    Pair pair = pair_new(key_one, key_one);
    unsigned char zeros[MAC] = { 0 };
    carry(&pair.down);
    channel_take(pair.client, zeros, MAC - 1);
    EXPECT_EQ_INT(state(pair.client), CHANNEL_OPENING);
    channel_take(pair.client, zeros, 1);
    expect_closed(pair.client, CHANNEL_TOKEN, "it does not know our token");
    pair_free(&pair);
}

// --- the bytes themselves ------------------------------------------------------------------------

// Random numbers 0 1 2 ..., for the vectors below.
static unsigned char next_random;

static const char *counted_name(void) { return "counted"; }
static uint32_t counted_number(void) { return 0; }

static void counted(void *const bytes, const size_t count)
{
    for (size_t i = 0; i < count; i++)
        ((unsigned char *)bytes)[i] = next_random++;
}

static struct randombytes_implementation counting = {
    .implementation_name = counted_name, .random = counted_number, .buf = counted
};

// Computed apart from this program, by Python 3:
//   import hmac
//   def mac(key, *parts): return hmac.digest(key, b''.join(parts), 'sha256')
//   key = b'one token of thirty-two bytes...'
//   S = b'ddp.c\n\1\1' + bytes(range(32)); C = b'ddp.c\n\1\1' + bytes(range(32, 64))
//   up, down = mac(key, b'to server', S, C), mac(key, b'to client', S, C)
//   def message(k, n, m): l = len(m).to_bytes(4, 'little')
//                         return l + mac(k, n.to_bytes(8, 'little'), l, m) + m
//   print((C + mac(key, b'client', S, C) + message(up, 0, b'hello') + message(up, 1, b'')).hex())
//   print((S + mac(key, b'server', S, C) + message(down, 0, b'world')).hex())
static const char wanted_up[] =
    "6464702e630a0101202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
    "98bfe0e5efd13f66b27c6d6e5b663f8c6ca80342a99b857b8f989afb435a7f4605000000aef448a5"
    "2f27d3222f46217da1ae5f88cd6bc911240870ca3ad53d41e985700268656c6c6f000000002d6730"
    "3619a87a31d800adb3e971a6e3ba8113d735aefc84fd773188d9e09c62";
static const char wanted_down[] =
    "6464702e630a0101000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
    "7a7869f1612aa08c19457a5c76e2993d5a8a9b92597b9fcc32e47a54ffc1cf7a0500000028f0ea7e"
    "4d10816a54b98daa231805fe653c856a65a13c27538e36a862e26d95776f726c64";

TEST(the_bytes_are_these)
{
    unsigned char up[400], down[400];
    char text[801];
    randombytes_set_implementation(&counting);
    Pair pair = pair_new(key_one, key_one);
    randombytes_set_implementation(&randombytes_sysrandom_implementation);
    pair.up.record = up;
    pair.down.record = down;
    pair_talk(&pair);
    channel_send(pair.client, "hello", 5);
    channel_send(pair.client, "", 0);
    channel_send(pair.server, "world", 5);
    pair_talk(&pair);
    EXPECT_EQ_STR(sodium_bin2hex(text, sizeof text, up, pair.up.passed), wanted_up);
    EXPECT_EQ_STR(sodium_bin2hex(text, sizeof text, down, pair.down.passed), wanted_down);
    pair_free(&pair);
}

// --- attacks -------------------------------------------------------------------------------------

// A whole session with one bit turned. More messages follow, so that a longer length finds bytes.
static void expect_flip_noticed(const unsigned char *key, bool upwards, long bit, size_t piece)
{
    Pair pair = pair_new(key, key);
    Way *way = upwards ? &pair.up : &pair.down;
    Channel *to = way->to;
    size_t n;
    const void *message;
    bool changed = false;
    way->flip = bit;
    pair.up.piece = pair.down.piece = piece;
    pair_talk(&pair);
    if (state(way->from) == CHANNEL_OPEN) {
        channel_send(way->from, "message", 7);
        for (int i = 0; i < (piece ? 0 : 3); i++)
            channel_send(way->from, big, sizeof big);
        pair_talk(&pair);
    }
    while ((message = channel_next(to, &n)))
        changed = changed || !(n == 7 && memcmp(message, "message", 7) == 0);
    bool noticed = state(pair.server) == CHANNEL_CLOSED || state(pair.client) == CHANNEL_CLOSED;
    EXPECT((noticed || piece) && !changed, "bit %ld %s: server %d '%s', client %d '%s'", bit,
           upwards ? "up" : "down", state(pair.server), channel_why(pair.server), state(pair.client),
           channel_why(pair.client));
    EXPECT(bit / 8 >= HELLO + MAC || state(pair.server) == CHANNEL_CLOSED ||
           state(pair.client) == CHANNEL_CLOSED, "bit %ld: both open", bit);
    pair_free(&pair);
}

TEST(every_bit_counts)
{
    for (long bit = 0; bit < (HELLO + MAC + FRAME + 7) * 8; bit++)
        for (int way = 0; way < 4; way++) {
            expect_flip_noticed(way & 1 ? key_one : NULL, way & 2, bit, 0);
            if (bit % 8 == 3)
                expect_flip_noticed(way & 1 ? key_one : NULL, way & 2, bit, 1);
        }
}

TEST(a_recorded_session)
{
    static unsigned char up[1000], down[1000];
    Pair pair = pair_new(key_one, key_one);
    pair.up.record = up;
    pair.down.record = down;
    pair_talk(&pair);
    channel_send(pair.client, "question", 8);
    channel_send(pair.server, "answer", 6);
    pair_talk(&pair);
    EXPECT_EQ_INT(pair.up.passed, HELLO + MAC + FRAME + 8);
    EXPECT_EQ_INT(pair.down.passed, HELLO + MAC + FRAME + 6);

    Channel *server = channel_new(-1, true, key_one), *client = channel_new(-1, false, key_one);
    channel_take(server, up, pair.up.passed);
    expect_closed(server, CHANNEL_TOKEN, "it does not know our token");
    expect_none(server);
    channel_take(client, down, pair.down.passed);
    expect_closed(client, CHANNEL_TOKEN, "it does not know our token");
    expect_none(client);
    channel_free(server);
    channel_free(client);
    pair_free(&pair);
}

// What one side says comes back to itself, or goes to a second of its kind.
TEST(mirrors)
{
    unsigned char bytes[400], greeting[HELLO];
    Pair pair = pair_new(key_one, key_one);
    channel_give(pair.server, greeting, HELLO);
    channel_take(pair.client, greeting, HELLO);
    EXPECT_EQ_INT(channel_give(pair.client, bytes, sizeof bytes), HELLO + MAC);
    channel_take(pair.client, bytes + HELLO, MAC);         // its own proof
    expect_closed(pair.client, CHANNEL_TOKEN, "it does not know our token");
    memcpy(bytes, greeting, HELLO);
    channel_take(pair.server, bytes, HELLO + MAC);         // its own greeting, another's proof
    expect_closed(pair.server, CHANNEL_TOKEN, "it does not know our token");
    pair_free(&pair);

    pair = pair_open(key_one);
    channel_send(pair.client, "mine", 4);
    channel_take(pair.client, bytes, channel_give(pair.client, bytes, sizeof bytes));
    expect_closed(pair.client, CHANNEL_NOT_OURS, "a message was changed on its way");
    expect_none(pair.client);
    pair_free(&pair);

    Channel *one = channel_new(-1, true, key_one), *two = channel_new(-1, true, key_one);
    channel_take(two, bytes, channel_give(one, bytes, sizeof bytes));
    channel_take(one, bytes, channel_give(two, bytes, sizeof bytes));
    EXPECT(state(one) == CHANNEL_OPENING && state(two) == CHANNEL_OPENING, "%s", channel_why(one));
    EXPECT_EQ_INT(channel_give(one, bytes, sizeof bytes) + channel_give(two, bytes, sizeof bytes), 0);
    channel_free(one);
    channel_free(two);
}

// The proof for one connection is of no use in another, not even in the same moment.
TEST(proofs_of_another_connection)
{
    unsigned char bytes[400];
    Pair one = pair_new(key_one, key_one), two = pair_new(key_one, key_one);
    carry(&one.down);
    carry(&two.down);
    one.up.to = two.server;
    carry(&one.up);
    expect_closed(two.server, CHANNEL_TOKEN, "it does not know our token");
    pair_free(&one);
    pair_free(&two);

    one = pair_open(key_one), two = pair_open(key_one);
    channel_send(one.client, "message", 7);
    channel_take(two.server, bytes, channel_give(one.client, bytes, sizeof bytes));
    expect_closed(two.server, CHANNEL_NOT_OURS, "a message was changed");
    expect_none(two.server);
    pair_free(&one);
    pair_free(&two);
}

// Messages 0, 1 and 2 come in this order.
static void expect_order_noticed(const int *order, int count, int good)
{
    unsigned char bytes[3][FRAME + 1];
    Pair pair = pair_open(key_one);
    for (int i = 0; i < 3; i++) {
        channel_send(pair.client, &"012"[i], 1);
        EXPECT_EQ_INT(channel_give(pair.client, bytes[i], FRAME + 1), FRAME + 1);
    }
    for (int i = 0; i < count; i++)
        channel_take(pair.server, bytes[order[i]], FRAME + 1);
    for (int i = 0; i < good; i++)      // those before still count
        expect_message(pair.server, &"012"[i], 1);
    expect_none(pair.server);
    expect_closed(pair.server, CHANNEL_NOT_OURS,
                  "a message was changed on its way, or one is missing");
    pair_free(&pair);
}

TEST(messages_twice_exchanged_or_missing)
{
    expect_order_noticed((const int[]){ 0, 0 }, 2, 1);
    expect_order_noticed((const int[]){ 1, 0 }, 2, 0);
    expect_order_noticed((const int[]){ 0, 2 }, 2, 1);
    expect_order_noticed((const int[]){ 0, 1, 0 }, 3, 2);
}

TEST(a_length_that_is_too_much)
{
    Pair pair = pair_open(key_one);
    channel_take(pair.server, "\0\0\0\x40", 4);
    expect_closed(pair.server, CHANNEL_NOT_OURS, "a message of 1073741824 bytes: the most are 67584");
    channel_take(pair.server, big, sizeof big);            // to no effect
    expect_none(pair.server);
    pair_free(&pair);

    pair = pair_open(key_one);
    uint32_t length = CHANNEL_MOST + 1;
    channel_take(pair.client, &length, 4);
    expect_closed(pair.client, CHANNEL_NOT_OURS, "67585 bytes");
    pair_free(&pair);
}

static void expect_refused(bool server, const char *sent, size_t bytes, const char *why)
{
    for (int whole = 0; whole < 2; whole++) {
        Channel *wire = channel_new(-1, server, key_one);
        for (size_t i = 0; i < bytes && !whole; i++)
            channel_take(wire, sent + i, 1);
        if (whole)
            channel_take(wire, sent, bytes);
        expect_closed(wire, CHANNEL_NOT_OURS, whole ? why : "");
        channel_free(wire);
    }
}

TEST(other_programs)
{
    static const char get[] = "GET / HTTP/1.1\r\nHost: node1\r\n";
    static const char ssh[] = "SSH-2.0-OpenSSH_9.2\r\n";
    for (int server = 0; server < 2; server++) {
        expect_refused(server, get, sizeof get,
                       "another program: it sent 'GET / HTTP/1.1..Host: node1..");
        expect_refused(server, ssh, sizeof ssh, "another program: it sent 'SSH-2.0-OpenSSH_9.2..");
        expect_refused(server, "\x16\x03\x01", 3, "another program: it sent '...'");
        expect_refused(server, "ddp.c\n\x02", 7, "another version of this program: 2, this is 1");
        expect_refused(server, "ddp.c\n\x01\x02", 8, "another program");
    }
}

// --- over sockets --------------------------------------------------------------------------------

static void socket_pair(int ends[2])
{
    Error err = { .text = "" };
    int listener = tcp_listen("127.0.0.1", 0, &err);
    ends[1] = tcp_connect("127.0.0.1", tcp_port(listener), NULL, &err);
    ends[0] = accept(listener, NULL, NULL);
    EXPECT(ends[0] >= 0 && ends[1] >= 0, "%s", err.text);
    close(listener);
}

static void turn_both(Channel *server, Channel *client)
{
    for (int i = 0; i < 10000; i++) {
        ChannelState one = channel_turn(server), other = channel_turn(client);
        if (one != CHANNEL_OPENING && other != CHANNEL_OPENING)
            return;
        usleep(1000);
    }
}

static void open_pair(Channel **server, Channel **client, const unsigned char *key)
{
    int ends[2];
    socket_pair(ends);
    *server = channel_new(ends[0], true, key);
    *client = channel_new(ends[1], false, key);
    turn_both(*server, *client);
    EXPECT(channel_turn(*server) == CHANNEL_OPEN && channel_turn(*client) == CHANNEL_OPEN, "%s / %s",
           channel_why(*server), channel_why(*client));
}

// Turns until it is closed, or a second has passed.
static void turn_till_closed(Channel *wire)
{
    for (int i = 0; i < 1000 && channel_turn(wire) != CHANNEL_CLOSED; i++)
        usleep(1000);
}

// Answers each message with itself, twice for "twice"; ends with the connection.
static pid_t echo_begin(int *port, const unsigned char *key)
{
    Error err = { .text = "" };
    int listener = tcp_listen("127.0.0.1", 0, &err);
    *port = tcp_port(listener);
    pid_t child = fork();
    if (child != 0) {
        close(listener);
        return child;
    }
    Channel *wire = channel_new(accept(listener, NULL, NULL), true, key);
    close(listener);
    while (channel_turn(wire) != CHANNEL_CLOSED) {
        size_t n;
        for (const void *message; (message = channel_next(wire, &n));)
            channel_send(wire, message, n);
        poll(&(struct pollfd){ .fd = channel_socket(wire), .events = channel_events(wire) }, 1, 1000);
    }
    channel_free(wire);
    _exit(0);
}

static bool open_by(Channel *wire, double deadline)
{
    while (channel_turn(wire) == CHANNEL_OPENING && now() < deadline)
        poll(&(struct pollfd){ .fd = channel_socket(wire), .events = channel_events(wire) }, 1, 100);
    return channel_turn(wire) == CHANNEL_OPEN;
}

// Sends a question and waits for the answer; returns how long it is.
static long ask(Channel *wire, const void *question, size_t bytes, void *answer, size_t capacity)
{
    const void *message;
    size_t length;
    double deadline = now() + 30;
    channel_send(wire, question, bytes);
    while ((message = channel_next(wire, &length)) == NULL) {
        if (channel_turn(wire) == CHANNEL_CLOSED || now() > deadline)
            return -1;
        poll(&(struct pollfd){ .fd = channel_socket(wire), .events = channel_events(wire) }, 1, 10);
    }
    if (capacity > 0)
        memcpy(answer, message, length < capacity ? length : capacity);
    return (long)length;
}

TEST(questions_and_answers)
{
    static char answer[CHANNEL_MOST];
    int port, status;
    pid_t child = echo_begin(&port, key_one);
    Error err;
    Channel *wire = channel_new(tcp_connect("127.0.0.1", port, NULL, &err), false, key_one);
    EXPECT(open_by(wire, now() + 30), "%s", channel_why(wire));
    EXPECT_EQ_INT(ask(wire, "who?", 4, answer, sizeof answer), 4);
    EXPECT(memcmp(answer, "who?", 4) == 0, "%.4s", answer);
    for (int i = 0; i < 50; i++)
        EXPECT_EQ_INT(ask(wire, big, sizeof big, answer, sizeof answer), CHANNEL_MOST);
    EXPECT(memcmp(answer, big, sizeof big) == 0, "another answer");
    EXPECT_EQ_INT(ask(wire, "cut here", 8, answer, 3), 8);
    EXPECT(memcmp(answer, "cut", 3) == 0 && answer[3] == (char)big[3], "%.8s", answer);
    EXPECT_EQ_INT(ask(wire, "", 0, NULL, 0), 0);
    channel_free(wire);
    EXPECT(waitpid(child, &status, 0) == child && status == 0, "status %x", status);
}

TEST(nobody_listens)
{
    Error err = { .text = "" };
    int listener = tcp_listen("127.0.0.1", 0, &err), port = tcp_port(listener);
    close(listener);
    int connection = tcp_connect("127.0.0.1", port, NULL, &err);
    if (connection >= 0) {              // else it is known at once
        Channel *wire = channel_new(connection, false, key_one);
        EXPECT(!open_by(wire, now() + 30), "open");
        expect_closed(wire, CHANNEL_LOST, "Connection refused");
        channel_free(wire);
    } else
        EXPECT(strstr(err.text, "Connection refused") != NULL, "%s", err.text);
}

TEST(a_wrong_token_over_sockets)
{
    const unsigned char *keys[] = { key_one, key_two, NULL };
    for (int i = 0; i < 9; i++) {
        int ends[2];
        socket_pair(ends);
        Channel *server = channel_new(ends[0], true, keys[i / 3]);
        Channel *client = channel_new(ends[1], false, keys[i % 3]);
        bool same = i / 3 == i % 3;
        turn_both(server, client);
        if (!same) {
            expect_closed(server, CHANNEL_TOKEN, "token");
            turn_till_closed(client);
            expect_closed(client, CHANNEL_TOKEN, "token");
        } else
            EXPECT(channel_turn(server) == CHANNEL_OPEN && channel_turn(client) == CHANNEL_OPEN, "closed");
        channel_free(server);
        channel_free(client);
    }
}

// Both the message before the end and the end arrive, although the client has sent in between.
TEST(last_words)
{
    Channel *server, *client;
    open_pair(&server, &client, key_one);
    channel_send(server, "that is the end", 15);
    channel_send(client, "pulse", 5);
    usleep(10000);
    channel_free(server);                  // with a message unread: a reset
    usleep(10000);
    for (int i = 0; i < 3; i++)
        channel_send(client, "pulse", 5);
    channel_turn(client);
    expect_message(client, "that is the end", 15);
    turn_till_closed(client);
    expect_closed(client, CHANNEL_LOST, "it has closed the connection");
    channel_send(client, "into the void", 13);
    expect_none(client);
    channel_free(client);
}

// The server behind a socket, the client in memory: its bytes go through the test's hands.
typedef struct Halves {
    Channel *server, *client;
    int socket;             // the client's end
} Halves;

static void read_all(int socket, unsigned char *bytes, size_t count)
{
    for (size_t n = 0; n < count;) {
        poll(&(struct pollfd){ .fd = socket, .events = POLLIN }, 1, 10000);
        ssize_t got = recv(socket, bytes + n, count - n, 0);
        if (!EXPECT(got > 0, "recv: %s", strerror(errno)))
            return;
        n += (size_t)got;
    }
}

static Halves halves_open(void)
{
    int ends[2];
    unsigned char bytes[HELLO + MAC];
    socket_pair(ends);
    Halves h = { channel_new(ends[0], true, key_one), channel_new(-1, false, key_one), ends[1] };
    channel_turn(h.server);
    read_all(h.socket, bytes, HELLO);
    channel_take(h.client, bytes, HELLO);
    EXPECT_EQ_INT(send(h.socket, bytes, channel_give(h.client, bytes, sizeof bytes), 0), HELLO + MAC);
    for (int i = 0; i < 10000 && channel_turn(h.server) == CHANNEL_OPENING; i++)
        usleep(1000);
    read_all(h.socket, bytes, MAC);
    EXPECT_EQ_INT(channel_take(h.client, bytes, MAC), CHANNEL_OPEN);
    return h;
}

static void halves_free(Halves *halves)
{
    channel_free(halves->server);
    channel_free(halves->client);
    close(halves->socket);
}

TEST(a_close_in_the_middle)
{
    unsigned char bytes[FRAME + 7];
    for (size_t cut = 0; cut <= sizeof bytes; cut++) {
        Halves h = halves_open();
        channel_send(h.client, "message", 7);
        channel_give(h.client, bytes, sizeof bytes);
        EXPECT_EQ_INT(send(h.socket, bytes, cut, 0), cut);
        shutdown(h.socket, SHUT_WR);
        size_t n, messages = 0;
        for (int i = 0; i < 1000 && channel_turn(h.server) != CHANNEL_CLOSED; i++) {
            while (channel_next(h.server, &n))
                messages++;
            usleep(1000);
        }
        EXPECT_EQ_INT(messages, cut == sizeof bytes);
        expect_closed(h.server, CHANNEL_LOST, "it has closed the connection");
        EXPECT((strstr(channel_why(h.server), "in the middle of a message") != NULL) ==
               (cut > 0 && cut < sizeof bytes), "%zu bytes: %s", cut, channel_why(h.server));
        halves_free(&h);
    }
}

// Who sends and sends finds that nothing more is received before the messages are taken.
TEST(memory_is_bounded)
{
    unsigned char bytes[FRAME + 100];
    Halves h = halves_open();
    size_t sent = 0, n, taken = 0, most = 0;
    bool full = false;
    for (double begin = now(); !full && now() < begin + 30;) {
        channel_send(h.client, big, 100);
        channel_give(h.client, bytes, sizeof bytes);
        ssize_t done = send(h.socket, bytes, sizeof bytes, 0);
        full = done != sizeof bytes;    // perhaps the beginning of it
        sent += !full;
        channel_turn(h.server);
    }
    EXPECT(full && sent > 200, "%zu messages", sent);
    EXPECT(!(channel_events(h.server) & POLLIN), "it wants more");
    while (channel_turn(h.server) == CHANNEL_OPEN && taken < sent) {
        size_t before = taken;
        while (channel_next(h.server, &n))
            taken++;
        most = taken - before > most ? taken - before : most;
    }
    EXPECT_EQ_INT(taken, sent);
    EXPECT(most <= (16 << 10) / 100, "%zu messages at once", most);
    halves_free(&h);
}

TEST(one_that_takes_nothing)
{
    Channel *server, *client;
    open_pair(&server, &client, key_one);
    int sent = 0;
    while (channel_turn(server) == CHANNEL_OPEN && sent < 1000) {
        channel_send(server, big, sizeof big);
        sent++;
    }
    EXPECT(sent > 60 && sent < 1000, "%d messages", sent);
    expect_closed(server, CHANNEL_LOST, "it takes nothing: 4");
    channel_free(server);
    channel_free(client);
}

TEST(garbage_over_a_socket)
{
    static const char text[] = "GET / HTTP/1.1\r\n\r\n";
    int ends[2];
    socket_pair(ends);
    Channel *server = channel_new(ends[0], true, key_one);
    EXPECT_EQ_INT(send(ends[1], text, sizeof text - 1, 0), sizeof text - 1);
    turn_till_closed(server);
    expect_closed(server, CHANNEL_NOT_OURS, "it sent 'GET / HTTP/1.1....'");
    unsigned char bytes[HELLO];
    read_all(ends[1], bytes, HELLO);                    // no further than the greeting
    for (int i = 0; i < 1000 && recv(ends[1], bytes, 1, 0) < 0 && errno == EAGAIN; i++)
        usleep(1000);
    EXPECT(recv(ends[1], bytes, 1, 0) <= 0 && errno != EAGAIN, "more");
    channel_free(server);
    close(ends[1]);
}

// A server that dies in the handshake says nothing about the token: it is worth another try.
TEST(a_server_that_dies)
{
    for (int stage = 0; stage < 2; stage++) {
        int ends[2];
        unsigned char hello[HELLO + MAC];
        socket_pair(ends);
        Channel *server = channel_new(ends[0], true, key_one);
        Channel *client = channel_new(ends[1], false, key_one);
        if (stage == 1) {
            channel_turn(server);
            for (int i = 0; i < 10000 && recv(ends[0], hello, 1, MSG_PEEK) < 1; i++) {
                usleep(1000);
                channel_turn(client);
            }
        }
        channel_free(server);
        turn_till_closed(client);
        expect_closed(client, CHANNEL_LOST, "it has closed the connection");
        channel_free(client);
    }
}

// --- keys ----------------------------------------------------------------------------------------

static const char digits[] = "00112233445566778899aabbccddeeff0123456789abcdefABCDEF0000000001";

static const char *file_with(const char *name, const void *bytes, size_t count, mode_t mode)
{
    const char *path = test_path(name);
    unlink(path);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    EXPECT_EQ_INT(write(file, bytes, count), count);
    fchmod(file, mode);
    close(file);
    return path;
}

static void expect_file(const char *path, const char *text, const char *hint)
{
    unsigned char key[CHANNEL_KEY];
    Error err = { .text = "" };
    bool good = channel_key_from_file(path, key, &err);
    EXPECT(good == (text == NULL), "%s: %s", path, err.text);
    EXPECT(good || (strstr(err.text, text) && strstr(err.hint, hint)),
           "'%s' '%s', wanted '%s' '%s'", err.text, err.hint, text ? text : "good", hint);
}

TEST(keys_as_text)
{
    unsigned char key[CHANNEL_KEY], other[CHANNEL_KEY];
    char text[2 * CHANNEL_KEY + 1];
    EXPECT(channel_key_from_text(digits, key), "refused");
    EXPECT(key[0] == 0 && key[1] == 0x11 && key[31] == 1 && key[24] == 0xAB, "other bytes");
    channel_key_to_text(key, text);
    EXPECT(strcasecmp(text, digits) == 0, "%s", text);
    EXPECT(!channel_key_from_text("", key) && !channel_key_from_text(digits + 1, key), "accepted");
    snprintf(text, sizeof text, "%.63sg", digits);
    EXPECT(!channel_key_from_text(text, key), "accepted");
    channel_key_random(key);
    channel_key_random(other);
    EXPECT(memcmp(key, other, sizeof key) != 0, "not random");
}

TEST(key_files)
{
    char text[200];
    snprintf(text, sizeof text, "%s\n\n%s", digits, digits);
    expect_file(file_with("good", text, 64, 0600), NULL, "");
    expect_file(file_with("newline", text, 65, 0400), NULL, "");
    expect_file(file_with("newlines", text, 66, 0600), "this is no token: those are 64", "openssl");
    expect_file(file_with("twice", text, 130, 0600), "no token", "openssl rand -hex 32");
    expect_file(file_with("short", text, 63, 0600), "no token", "the same file for every rank");
    expect_file(file_with("empty", text, 0, 0600), "no token", "");
    expect_file(file_with("nul", memcpy(text + 65, "", 1) ? text : "", 66, 0600), "no token", "");
    text[10] = '\0';
    expect_file(file_with("hole", text, 64, 0600), "no token", "");
    text[10] = ' ';
    expect_file(file_with("space", text, 64, 0600), "no token", "");
    text[10] = digits[10];
    text[64] = '\r';
    expect_file(file_with("return", text, 65, 0600), "no token", "");
    for (int bit = 0; bit < 6; bit++)
        expect_file(file_with("open", digits, 64, (mode_t)(0600 | 1 << bit)),
                    "others may read or write it (mode 06", "chmod 600 ");
}

TEST(no_key_files)
{
    expect_file(test_path("missing"), "No such file", "make one: (umask 077; openssl");
    expect_file(getenv("TMP") ? getenv("TMP") : "/tmp", "this is not a file", "");
    expect_file("/dev/zero", "this is not a file", "");
    const char *pipe = test_path("pipe");
    mkfifo(pipe, 0600);
    expect_file(pipe, "this is not a file", "");        // and is not waited for
    const char *link = test_path("link"), *path = file_with("linked", digits, 64, 0600);
    EXPECT_EQ_INT(symlink(path, link), 0);
    expect_file(link, NULL, "");
    if (geteuid() == 0) {
        EXPECT_EQ_INT(chown(path, 65534, 65534), 0);
        expect_file(link, "it belongs to user 65534, this is user 0", "a copy of your own");
    }
}

int main(void)
{
    EXPECT(sodium_init() >= 0, "libsodium");
    messages_arrive();
    many_small_ones();
    another_token();
    a_token_on_one_side();
    a_server_without_proof();
    the_bytes_are_these();
    every_bit_counts();
    a_recorded_session();
    mirrors();
    proofs_of_another_connection();
    messages_twice_exchanged_or_missing();
    a_length_that_is_too_much();
    other_programs();
    questions_and_answers();
    nobody_listens();
    a_wrong_token_over_sockets();
    last_words();
    a_close_in_the_middle();
    memory_is_bounded();
    one_that_takes_nothing();
    garbage_over_a_socket();
    a_server_that_dies();
    keys_as_text();
    key_files();
    no_key_files();
    return test_done();
}
