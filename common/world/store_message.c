#include "world/store_message.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

// sends: 0 to receive; else the flags for send: MSG_NOSIGNAL, and MSG_MORE if the rest of the
// message follows.
static const char *move(int socket, int sends, void *data, size_t bytes)
{
    for (char *at = data; bytes > 0;) {
        ssize_t n = sends ? send(socket, at, bytes, sends) : recv(socket, at, bytes, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 && errno == EAGAIN ? "no answer" : "the connection was closed";
        at += n;
        bytes -= (size_t)n;
    }
    return NULL;
}

const char *store_send(int socket, StoreHead head, const void *value)
{
    int more = head.bytes > 0 ? MSG_MORE : 0;
    const char *error = move(socket, MSG_NOSIGNAL | more, &head, sizeof head);
    return error ? error : move(socket, MSG_NOSIGNAL, (void *)value, head.bytes);
}

const char *store_receive(int socket, StoreHead *head, void **value, size_t most)
{
    *value = NULL;
    const char *error = move(socket, 0, head, sizeof *head);
    if (error || head->bytes > most)
        return error ? error : "the message is too long";
    head->key[STORE_KEY - 1] = '\0';
    *value = xmalloc(head->bytes);
    return move(socket, 0, *value, head->bytes);
}

void store_new_token(char token[STORE_TOKEN])
{
    unsigned char bytes[16];
    CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "",
          "cannot make a random token: getrandom: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
}
