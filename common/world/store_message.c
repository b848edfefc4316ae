#include "world/store_message.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

static const double early_line = 10;    // s

// sends: MSG_NOSIGNAL, perhaps with MSG_MORE: the rest of the message follows; 0: receives.
static const char *move(int socket, int sends, void *data, size_t bytes, double seconds,
                        const char *early)
{
    struct pollfd fd = { .fd = socket, .events = sends ? POLLOUT : POLLIN };
    double waited = 0;
    for (char *at = data; bytes > 0;) {
        ssize_t n = sends ? send(socket, at, bytes, sends | MSG_DONTWAIT)
                          : recv(socket, at, bytes, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return "the connection was closed";
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
        if (n > 0 || poll(&fd, 1, 100) != 0)
            continue;
        if ((waited += 0.1) >= seconds)
            return "no answer";
        if (early && waited >= early_line)
            WARN("", "%s", early);
        early = waited >= early_line ? NULL : early;
    }
    return NULL;
}

const char *store_send(int socket, StoreHead head, const void *value, double seconds,
                       const char *early)
{
    int more = head.bytes > 0 ? MSG_MORE : 0;
    const char *error = move(socket, MSG_NOSIGNAL | more, &head, sizeof head, seconds, early);
    return error ? error : move(socket, MSG_NOSIGNAL, (void *)value, head.bytes, seconds, early);
}

const char *store_receive(int socket, StoreHead *head, void **value, size_t most, double seconds,
                          const char *early)
{
    *value = NULL;
    const char *error = move(socket, 0, head, sizeof *head, seconds, early);
    if (error || head->bytes > most)
        return error ? error : "the message is too long";
    head->key[STORE_KEY - 1] = '\0';
    *value = xmalloc(head->bytes);
    return move(socket, 0, *value, head->bytes, seconds, early);
}

void store_new_token(char token[STORE_TOKEN])
{
    unsigned char bytes[16];
    CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "", "getrandom: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
}
