// signed_channel.h - messages over a connection that others may tamper with.
//
// It begins with both sides showing that they know a secret, without telling it:
//
//   client                                                          server
//                           <--   S: "ddp.c\n", version, has it a secret?, 32 random bytes
//   C: the same of the client, HMAC(secret, "client" S C)   -->
//                           <--   HMAC(secret, "server" S C), or zeros: that was not the secret
//
// Then each message travels behind its length and an HMAC of its number, its length and its bytes;
// the keys are HMAC(secret, "to server" S C) and HMAC(secret, "to client" S C). So what was
// recorded elsewhere, put in between, changed or left out is noticed, and a stranger learns nothing
// but the greeting. Nothing is encrypted. Without a secret the same bytes travel with a key that
// everybody knows (zeros): then they only show mistakes.
//
// Nothing here waits. Whoever feeds a wire cannot make it use more
// memory than one message (and a piece), nor keep anybody else waiting. A wire is for one thread at
// a time.
#pragma once
#include "check.h"
#include <stddef.h>

enum { CHANNEL_KEY = 32, CHANNEL_MOST = 66 << 10 };   // bytes: of a secret; of the longest message

typedef enum ChannelState { CHANNEL_OPENING, CHANNEL_OPEN, CHANNEL_CLOSED } ChannelState;
typedef enum ChannelFault {
    CHANNEL_LOST,              // the connection has ended, or never came about
    CHANNEL_NOT_OURS,          // the other side is another program, or what it sent was changed
    CHANNEL_TOKEN,             // the other side has another secret, or just one side has one
} ChannelFault;
typedef struct Channel Channel;

// Takes over a socket: connected, or about to be (tcp_connect); -1: none, then channel_take and
// channel_give are its two ends. key: the secret, or NULL.
Channel *channel_new(int socket, bool server, const unsigned char key[CHANNEL_KEY]);
void channel_free(Channel *wire);             // closes it
int channel_socket(const Channel *wire);
short channel_events(const Channel *wire);    // to poll for

// Takes what has come and sends what waits to be sent, as far as that goes at once.
ChannelState channel_turn(Channel *wire);
// Why it is closed: "it has closed the connection", "it does not know our token", ...; "it" is the
// other side.
const char *channel_why(const Channel *wire);
ChannelFault channel_fault(const Channel *wire);
// A message that has come, or NULL; also of a wire that was closed since. It stays until the next
// call of channel_next or channel_turn. Until it is taken, nothing more is received.
const void *channel_next(Channel *wire, size_t *bytes);
// To be sent, in this order: at once as far as that goes, the rest in channel_turn. More than a few MB
// that the other side does not take close the wire. Not before it is open; ignored once it is
// closed.
void channel_send(Channel *wire, const void *message, size_t bytes);

// What channel_turn does with bytes that came, and what it would send: up to `most` bytes; how many.
ChannelState channel_take(Channel *wire, const void *bytes, size_t count);
size_t channel_give(Channel *wire, void *bytes, size_t most);

// The secret from 64 hexadecimal digits (and a newline); false: it is something else.
bool channel_key_from_text(const char *text, unsigned char key[CHANNEL_KEY]);
void channel_key_to_text(const unsigned char key[CHANNEL_KEY], char text[2 * CHANNEL_KEY + 1]);
void channel_key_random(unsigned char key[CHANNEL_KEY]);
// From a file that only its owner may read (0600, owned by this user), else an error says what to
// do.
bool channel_key_from_file(const char *path, unsigned char key[CHANNEL_KEY], Error *err);
