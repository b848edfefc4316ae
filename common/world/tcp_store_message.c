// tcp_store_message.c - sends and receives messages, in pieces if the other side is slow.
#include "world/tcp_store_message.h"

#include <errno.h>
#include <sodium.h>
#include <sys/socket.h>

StoreRandom store_random(void)
{
    StoreRandom random;
    CHECK(sodium_init() >= 0, "", "libsodium: sodium_init failed");
    randombytes_buf(random.bytes, sizeof random.bytes);
    return random;
}

int store_move(int socket, bool sends, StoreMessage *m, size_t most)
{
    const size_t head = sizeof m->head;
    while (m->moved < head || m->moved < head + m->head.bytes) {
        bool in_head = m->moved < head;
        char *at = in_head ? (char *)&m->head + m->moved : (char *)m->value + m->moved - head;
        size_t left = (in_head ? head : head + m->head.bytes) - m->moved;
        int more = in_head && m->head.bytes > 0 ? MSG_MORE : 0;     // one packet for both
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
