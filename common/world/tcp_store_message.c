// tcp_store_message.c - sends and receives messages, if need be in pieces; makes tokens.
#include "world/tcp_store_message.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

void tcp_store_new_token(char token[STORE_TOKEN])
{
    unsigned char bytes[16];
    CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "", "getrandom: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
}

int store_move(int socket, bool sends, StoreMessage *m, size_t most)
{
    const size_t head = sizeof m->head;
    while (m->moved < head || m->moved < head + m->head.bytes) {
        bool in_head = m->moved < head;
        char *at = in_head ? (char *)&m->head + m->moved : (char *)m->value + m->moved - head;
        size_t left = (in_head ? head : head + m->head.bytes) - m->moved;
        int more = in_head && m->head.bytes > 0 ? MSG_MORE : 0;     // the value follows
        ssize_t n = sends ? send(socket, at, left, MSG_NOSIGNAL | MSG_DONTWAIT | more)
                          : recv(socket, at, left, MSG_DONTWAIT);
        if (n <= 0)
            return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
        m->moved += (size_t)n;
        if (m->moved == head && !sends && m->head.bytes > most)
            return -1;
        if (m->moved == head && !sends)
            m->value = xmalloc(m->head.bytes);
    }
    return 1;
}

const char *store_transfer(int socket, bool sends, StoreMessage *message, double seconds)
{
    struct pollfd fd = { .fd = socket, .events = sends ? POLLOUT : POLLIN };
    const int slice_ms = 100;
    int moved;
    while ((moved = store_move(socket, sends, message, STORE_MOST)) == 0)
        if (poll(&fd, 1, slice_ms) <= 0 && (seconds -= slice_ms / 1000.0) <= 0)
            return "no answer; it may be stopped, or its machine unreachable";
    return moved < 0 ? "the connection was closed" : NULL;
}
