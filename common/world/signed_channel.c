// signed_channel.c - both sides of the handshake and the messages behind it: a machine that is fed with
// bytes, whoever they come from, and the socket around it.
#include "signed_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "ddp.c\n"
enum {
    MAGIC_BYTES = sizeof MAGIC - 1, VERSION = 1,
    HELLO = MAGIC_BYTES + 2 + 32,       // version, has a token, random bytes
    MAC = crypto_auth_hmacsha256_BYTES,
    LENGTH = 4, FRAME = LENGTH + MAC,   // before each message
    PIECE = 16 << 10,                   // received at once
    UNSENT_MOST = 4 << 20,
    SLICE_MS = 200,                     // a signal is noticed so late at most
};
_Static_assert(CHANNEL_KEY == crypto_auth_hmacsha256_KEYBYTES, "the key of an HMAC");

typedef struct Buffer {
    unsigned char *bytes;
    size_t begin, end, capacity;
} Buffer;

typedef struct Direction {
    unsigned char key[CHANNEL_KEY];
    uint64_t number;                    // of the next message
} Direction;

struct Channel {
    int socket;
    bool server, greeted;
    ChannelState state;
    ChannelFault fault;
    char why[160];
    unsigned char key[CHANNEL_KEY];
    unsigned char hello[2][HELLO];      // the server's, the client's
    Direction in, out;
    Buffer taken, unsent;
    size_t checked;                     // bytes of `taken`: whole messages with a good MAC
    size_t given;                       // those of the message that channel_next gave
    int broken;                         // why nothing can be sent any more, or 0
};

// --- bytes ---------------------------------------------------------------------------------------

static size_t buffered(const Buffer *buffer) { return buffer->end - buffer->begin; }

static void buffer_add(Buffer *buffer, const void *bytes, size_t count)
{
    if (count > buffer->capacity - buffer->end && buffer->begin > 0) {
        memmove(buffer->bytes, buffer->bytes + buffer->begin, buffered(buffer));
        buffer->end = buffered(buffer);
        buffer->begin = 0;
    }
    if (count > buffer->capacity - buffer->end) {
        size_t capacity = buffer->end + count > 2 * buffer->capacity ? buffer->end + count
                                                                     : 2 * buffer->capacity;
        buffer->bytes = realloc(buffer->bytes, capacity);
        CHECK(buffer->bytes, "", "out of memory: no %zu bytes for messages", capacity);
        buffer->capacity = capacity;
    }
    if (count > 0)
        memcpy(buffer->bytes + buffer->end, bytes, count);
    buffer->end += count;
}

static void buffer_drop(Buffer *buffer, size_t count)
{
    buffer->begin += count;
    if (buffer->begin == buffer->end)
        buffer->begin = buffer->end = 0;
}

// The other side may have another byte order.
static void number_to_bytes(uint64_t number, unsigned char *bytes, int count)
{
    for (int i = 0; i < count; i++)
        bytes[i] = (unsigned char)(number >> 8 * i);
}

static uint32_t length_at(const unsigned char *bytes)
{
    return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

__attribute__((format(printf, 3, 4)))
static ChannelState closed(Channel *wire, ChannelFault fault, const char *format, ...)
{
    if (wire->state != CHANNEL_CLOSED) {
        va_list args;
        va_start(args, format);
        vsnprintf(wire->why, sizeof wire->why, format, args);
        va_end(args);
        wire->fault = fault;
        wire->state = CHANNEL_CLOSED;
    }
    return wire->state;
}

// --- proofs --------------------------------------------------------------------------------------

// HMAC(secret, label S C). No label is another's beginning, and S and C have fixed lengths.
static void prove(const Channel *wire, const char *label, unsigned char mac[MAC])
{
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, wire->key, sizeof wire->key);
    crypto_auth_hmacsha256_update(&state, (const unsigned char *)label, strlen(label));
    crypto_auth_hmacsha256_update(&state, wire->hello[0], sizeof wire->hello);
    crypto_auth_hmacsha256_final(&state, mac);
    sodium_memzero(&state, sizeof state);
}

static bool proves(const Channel *wire, const char *label, const unsigned char *mac)
{
    unsigned char wanted[MAC];
    prove(wire, label, wanted);
    return sodium_memcmp(mac, wanted, MAC) == 0;
}

static void seal(Direction *way, const void *message, size_t bytes, unsigned char mac[MAC])
{
    unsigned char numbers[8 + LENGTH];
    number_to_bytes(way->number++, numbers, 8);
    number_to_bytes(bytes, numbers + 8, LENGTH);
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, way->key, sizeof way->key);
    crypto_auth_hmacsha256_update(&state, numbers, sizeof numbers);
    if (bytes > 0)
        crypto_auth_hmacsha256_update(&state, message, bytes);
    crypto_auth_hmacsha256_final(&state, mac);
    sodium_memzero(&state, sizeof state);
}

// --- the handshake -------------------------------------------------------------------------------

static unsigned char *has_token(Channel *wire, bool server)
{
    return &wire->hello[server ? 0 : 1][MAGIC_BYTES + 1];
}

static void make_hello(Channel *wire, bool token)
{
    unsigned char *hello = wire->hello[wire->server ? 0 : 1];
    memcpy(hello, MAGIC, MAGIC_BYTES);
    hello[MAGIC_BYTES] = VERSION;
    *has_token(wire, wire->server) = token;
    randombytes_buf(hello + MAGIC_BYTES + 2, HELLO - MAGIC_BYTES - 2);
}

static void not_ours(Channel *wire, const unsigned char *bytes, size_t count)
{
    char sent[33];
    size_t n = count < sizeof sent - 1 ? count : sizeof sent - 1;
    for (size_t i = 0; i < n; i++)
        sent[i] = bytes[i] >= 0x20 && bytes[i] < 0x7F ? (char)bytes[i] : '.';
    sent[n] = '\0';
    closed(wire, CHANNEL_NOT_OURS, "this is another program: it sent '%s'", sent);
}

// Takes the other side's hello when it is there; whoever begins differently is noticed before.
static bool take_hello(Channel *wire, size_t wanted)
{
    const unsigned char *bytes = wire->taken.bytes + wire->taken.begin;
    size_t count = buffered(&wire->taken);
    size_t magic = count < MAGIC_BYTES ? count : MAGIC_BYTES;
    if (memcmp(bytes, MAGIC, magic) != 0 || (count > MAGIC_BYTES + 1 && bytes[MAGIC_BYTES + 1] > 1))
        not_ours(wire, bytes, count);
    else if (count > MAGIC_BYTES && bytes[MAGIC_BYTES] != VERSION)
        closed(wire, CHANNEL_NOT_OURS, "it is another version of this program: %d, this is %d",
               bytes[MAGIC_BYTES], VERSION);
    if (wire->state == CHANNEL_CLOSED || count < wanted)
        return false;
    memcpy(wire->hello[wire->server ? 1 : 0], bytes, HELLO);
    buffer_drop(&wire->taken, HELLO);
    return true;
}

static bool tokens_differ(Channel *wire)
{
    bool ours = *has_token(wire, wire->server), theirs = *has_token(wire, !wire->server);
    if (ours != theirs)
        closed(wire, CHANNEL_TOKEN, theirs ? "it wants a token, but this rank has none: --token-file"
                                        : "it has no token, but this rank has one: --token-file");
    return ours != theirs;
}

static bool take_proof(Channel *wire, const char *label)
{
    bool good = proves(wire, label, wire->taken.bytes + wire->taken.begin);
    buffer_drop(&wire->taken, MAC);
    if (!good && *has_token(wire, true))
        closed(wire, CHANNEL_TOKEN, "it does not know our token");
    else if (!good)
        closed(wire, CHANNEL_NOT_OURS, "what it sent was changed on its way");
    return good;
}

static void opened(Channel *wire)
{
    prove(wire, "to server", (wire->server ? &wire->in : &wire->out)->key);
    prove(wire, "to client", (wire->server ? &wire->out : &wire->in)->key);
    sodium_memzero(wire->key, sizeof wire->key);
    wire->state = CHANNEL_OPEN;
}

// Who does not know the token gets zeros: so a client knows that from a server that has just died.
static void open_as_server(Channel *wire)
{
    unsigned char mac[MAC] = { 0 };
    if (!take_hello(wire, HELLO + MAC) || tokens_differ(wire))
        return;
    if (take_proof(wire, "client")) {
        prove(wire, "server", mac);
        opened(wire);
    }
    buffer_add(&wire->unsent, mac, sizeof mac);
}

// The hello is sent even where just one side has a token, so that the server can say so too.
static void greet_as_client(Channel *wire)
{
    unsigned char mac[MAC] = { 0 };
    if (!take_hello(wire, HELLO))
        return;
    wire->greeted = true;
    if (!tokens_differ(wire))
        prove(wire, "client", mac);
    buffer_add(&wire->unsent, wire->hello[1], HELLO);
    buffer_add(&wire->unsent, mac, sizeof mac);
}

static void open_as_client(Channel *wire)
{
    if (!wire->greeted)
        greet_as_client(wire);
    if (wire->greeted && wire->state == CHANNEL_OPENING && buffered(&wire->taken) >= MAC &&
        take_proof(wire, "server"))
        opened(wire);
}

// --- messages ------------------------------------------------------------------------------------

// Goes on behind those that were checked before. False: there is no other whole one.
static bool check_message(Channel *wire)
{
    const unsigned char *frame = wire->taken.bytes + wire->taken.begin + wire->checked;
    size_t there = buffered(&wire->taken) - wire->checked;
    if (there < LENGTH)
        return false;
    uint32_t bytes = length_at(frame);
    if (bytes > CHANNEL_MOST) {
        closed(wire, CHANNEL_NOT_OURS, "it announced a message of %u bytes: the most are %d", bytes,
               CHANNEL_MOST);
        return false;
    }
    if (there < FRAME + bytes)
        return false;
    unsigned char mac[MAC];
    seal(&wire->in, frame + FRAME, bytes, mac);
    if (sodium_memcmp(mac, frame + LENGTH, MAC) != 0) {
        closed(wire, CHANNEL_NOT_OURS, "a message was changed on its way, or one is missing");
        return false;
    }
    wire->checked += FRAME + bytes;
    return true;
}

ChannelState channel_take(Channel *wire, const void *bytes, size_t count)
{
    if (wire->state == CHANNEL_CLOSED || count == 0)
        return wire->state;
    buffer_add(&wire->taken, bytes, count);
    if (wire->state == CHANNEL_OPENING && wire->server)
        open_as_server(wire);
    else if (wire->state == CHANNEL_OPENING)
        open_as_client(wire);
    while (wire->state == CHANNEL_OPEN && check_message(wire))
        continue;
    return wire->state;
}

size_t channel_give(Channel *wire, void *bytes, size_t most)
{
    size_t count = buffered(&wire->unsent) < most ? buffered(&wire->unsent) : most;
    if (count > 0)
        memcpy(bytes, wire->unsent.bytes + wire->unsent.begin, count);
    buffer_drop(&wire->unsent, count);
    return count;
}

const void *channel_next(Channel *wire, size_t *bytes)
{
    buffer_drop(&wire->taken, wire->given);
    wire->checked -= wire->given;
    wire->given = 0;
    if (wire->checked == 0)
        return NULL;
    const unsigned char *frame = wire->taken.bytes + wire->taken.begin;
    *bytes = length_at(frame);
    wire->given = FRAME + *bytes;
    return frame + FRAME;
}

// --- the socket ----------------------------------------------------------------------------------

// The other side may have said why it closes: what it said is received before that counts.
static void flush(Channel *wire)
{
    while (buffered(&wire->unsent) > 0 && wire->socket >= 0 && !wire->broken) {
        ssize_t n = send(wire->socket, wire->unsent.bytes + wire->unsent.begin,
                         buffered(&wire->unsent), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0)
            buffer_drop(&wire->unsent, (size_t)n);
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return;
        else if (errno != EINTR)
            wire->broken = errno;
    }
    if (wire->broken)
        buffer_drop(&wire->unsent, buffered(&wire->unsent));
}

void channel_send(Channel *wire, const void *message, size_t bytes)
{
    unsigned char frame[FRAME];
    CHECK(wire->state != CHANNEL_OPENING && bytes <= CHANNEL_MOST, "",
          "a message of %zu bytes cannot be sent %s", bytes,
          wire->state == CHANNEL_OPENING ? "yet" : "at once");
    if (wire->state == CHANNEL_CLOSED || wire->broken)
        return;
    number_to_bytes(bytes, frame, LENGTH);
    seal(&wire->out, message, bytes, frame + LENGTH);
    buffer_add(&wire->unsent, frame, sizeof frame);
    buffer_add(&wire->unsent, message, bytes);
    flush(wire);
    if (buffered(&wire->unsent) > UNSENT_MOST)
        closed(wire, CHANNEL_LOST, "it takes nothing: %zu bytes wait for it", buffered(&wire->unsent));
}

static void lost(Channel *wire, int error)
{
    if (error != 0 && error != EPIPE && error != ECONNRESET)
        closed(wire, CHANNEL_LOST, "%s", strerror(error));
    else if (buffered(&wire->taken) > wire->checked)
        closed(wire, CHANNEL_LOST, "it has closed the connection in the middle of a message");
    else
        closed(wire, CHANNEL_LOST, "it has closed the connection");
}

static void receive(Channel *wire)
{
    unsigned char piece[PIECE];
    while (wire->state != CHANNEL_CLOSED && wire->checked == wire->given) {
        ssize_t n = recv(wire->socket, piece, sizeof piece, MSG_DONTWAIT);
        if (n > 0)
            channel_take(wire, piece, (size_t)n);
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        else if (n == 0 || errno != EINTR)
            lost(wire, n == 0 ? wire->broken : errno);
    }
}

ChannelState channel_turn(Channel *wire)
{
    if (wire->socket >= 0) {
        receive(wire);
        flush(wire);
        if (wire->state == CHANNEL_CLOSED)
            shutdown(wire->socket, SHUT_RDWR);
    }
    return wire->state;
}

short channel_events(const Channel *wire)
{
    if (wire->state == CHANNEL_CLOSED)
        return 0;
    return (short)((wire->checked == wire->given ? POLLIN : 0) |
                   (buffered(&wire->unsent) > 0 ? POLLOUT : 0));
}

Channel *channel_new(int socket, bool server, const unsigned char key[CHANNEL_KEY])
{
    CHECK(sodium_init() >= 0, "", "libsodium cannot begin");
    Channel *wire = xcalloc(1, sizeof *wire);
    wire->socket = socket;
    wire->server = server;
    if (key)
        memcpy(wire->key, key, CHANNEL_KEY);
    make_hello(wire, key != NULL);
    if (server)
        buffer_add(&wire->unsent, wire->hello[0], HELLO);
    if (socket >= 0) {
        fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
        fcntl(socket, F_SETFD, FD_CLOEXEC);
        setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
    }
    return wire;
}

void channel_free(Channel *wire)
{
    if (wire == NULL)
        return;
    if (wire->socket >= 0)
        close(wire->socket);
    free(wire->taken.bytes);
    free(wire->unsent.bytes);
    sodium_memzero(wire, sizeof *wire);
    free(wire);
}

int channel_socket(const Channel *wire) { return wire->socket; }
const char *channel_why(const Channel *wire) { return wire->why; }
ChannelFault channel_fault(const Channel *wire) { return wire->fault; }

// --- keys ----------------------------------------------------------------------------------------

bool channel_key_from_text(const char *text, unsigned char key[CHANNEL_KEY])
{
    size_t digits = strcspn(text, "\n"), bytes;
    return digits == 2 * CHANNEL_KEY && (text[digits] == '\0' || text[digits + 1] == '\0') &&
           sodium_hex2bin(key, CHANNEL_KEY, text, digits, NULL, &bytes, NULL) == 0 &&
           bytes == CHANNEL_KEY;
}

void channel_key_to_text(const unsigned char key[CHANNEL_KEY], char text[2 * CHANNEL_KEY + 1])
{
    sodium_bin2hex(text, 2 * CHANNEL_KEY + 1, key, CHANNEL_KEY);
}

void channel_key_random(unsigned char key[CHANNEL_KEY])
{
    CHECK(sodium_init() >= 0, "", "libsodium cannot begin");
    randombytes_buf(key, CHANNEL_KEY);
}

static bool key_file_allowed(const char *path, int file, Error *err)
{
    struct stat about;
    char hint[256];
    if (fstat(file, &about) != 0)
        return error_set(err, "", "%s: %s", path, strerror(errno));
    if (!S_ISREG(about.st_mode))
        return error_set(err, "", "%s: this is not a file", path);
    if (about.st_uid != geteuid())
        return error_set(err, "make a copy of your own, which nobody else can read",
                         "%s: it belongs to user %u, this is user %u", path, about.st_uid,
                         geteuid());
    snprintf(hint, sizeof hint, "a token is a secret: chmod 600 %s", path);
    return (about.st_mode & 077) == 0 ||
           error_set(err, hint, "%s: others may read or write it (mode %04o)", path,
                     about.st_mode & 07777);
}

bool channel_key_from_file(const char *path, unsigned char key[CHANNEL_KEY], Error *err)
{
    static const char make_one[] = "make one: (umask 077; openssl rand -hex 32 >FILE), the same "
                                   "file for every rank";
    char text[2 * CHANNEL_KEY + 3] = "";           // one more than it may have
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0)
        return error_set(err, make_one, "%s: %s", path, strerror(errno));
    bool good = key_file_allowed(path, file, err);
    if (good) {
        ssize_t n = read(file, text, sizeof text - 1);
        good = (n == (ssize_t)strlen(text) && channel_key_from_text(text, key)) ||
               error_set(err, make_one, "%s: this is no token: those are %d hexadecimal digits",
                         path, 2 * CHANNEL_KEY);
    }
    sodium_memzero(text, sizeof text);
    close(file);
    return good;
}
