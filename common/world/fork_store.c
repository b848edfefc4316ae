// fork_store.c - a few names and values, asked for over a socket.
#include "fork_store.h"
#include "alive.h"
#include "check.h"
#include "interrupt.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct Message {
    enum { PUT, GET, HERE, NOT_YET } what;
    char key[STORE_KEY_BYTES];
    char value[STORE_VALUE_BYTES];      // as many bytes of it as the message is long
} Message;
enum { HEAD = offsetof(Message, value) };

// --- asking --------------------------------------------------------------------------------------

// The other side is gone: if it was killed, so are we in a moment, and need not say so.
static _Noreturn void no_answer(const char *why)
{
    sleep(1);
    FAIL("the parent may have been killed", "store: %s", why);
}

// arg: the socket.
static void send_message(void *arg, const Message *message, size_t bytes)
{
    if (send(*(int *)arg, message, HEAD + bytes, MSG_NOSIGNAL) < 0)
        no_answer(strerror(errno));
}

void fork_store_check(const char *key, size_t bytes)
{
    CHECK(strlen(key) < STORE_KEY_BYTES && bytes <= STORE_VALUE_BYTES, "",
          "store: %.80s: a key of %zu bytes, a value of %zu: too long", key, strlen(key), bytes);
}

static void put(void *arg, const char *key, const void *value, size_t bytes)
{
    Message m = { .what = PUT };
    fork_store_check(key, bytes);
    snprintf(m.key, sizeof m.key, "%s", key);
    memcpy(m.value, value, bytes);
    send_message(arg, &m, bytes);
}

// Asks again and again rather than to be told: so that a signal can end a wait for a rank that
// never comes.
static size_t get(void *arg, const char *key, void *value, size_t capacity)
{
    Message m;
    ssize_t n;
    fork_store_check(key, 0);
    alive_wait_begin();
    for (int us = 1000;; us = us < 20000 ? 2 * us : us) {
        interrupt_leave();
        m = (Message){ .what = GET };
        snprintf(m.key, sizeof m.key, "%s", key);
        send_message(arg, &m, 0);
        while ((n = recv(*(int *)arg, &m, sizeof m, 0)) < 0 && errno == EINTR)
            interrupt_leave();
        if (n < HEAD)
            no_answer("no answer");
        if (m.what == HERE)
            break;
        usleep((useconds_t)us);
    }
    alive_wait_end();
    size_t bytes = (size_t)n - HEAD;
    memcpy(value, m.value, bytes < capacity ? bytes : capacity);
    return bytes;
}

Store fork_store_over(int *socket) { return (Store){ put, get, socket }; }

// --- answering -----------------------------------------------------------------------------------

typedef struct Entry {
    Message message;
    size_t bytes;
    struct Entry *next;
} Entry;

struct ForkStoreServer {
    Entry *entries;
    bool complained;        // of nonsense
};

ForkStoreServer *fork_store_server_new(void) { return xcalloc(1, sizeof(ForkStoreServer)); }

void fork_store_server_free(ForkStoreServer *server)
{
    for (Entry *entry = server->entries, *next; entry; entry = next) {
        next = entry->next;
        free(entry);
    }
    free(server);
}

static Entry *entry_of(const ForkStoreServer *server, const char *key)
{
    Entry *entry = server->entries;
    while (entry && strcmp(entry->message.key, key) != 0)
        entry = entry->next;
    return entry;
}

void fork_store_keep(ForkStoreServer *server, const char *key, const void *value, size_t bytes)
{
    Entry *entry = entry_of(server, key);
    if (entry == NULL) {
        entry = xcalloc(1, sizeof *entry);
        entry->next = server->entries;
        server->entries = entry;
    }
    entry->message.what = HERE;
    snprintf(entry->message.key, sizeof entry->message.key, "%s", key);
    memcpy(entry->message.value, value, bytes);
    entry->bytes = HEAD + bytes;
}

const void *fork_store_find(const ForkStoreServer *server, const char *key, size_t *bytes)
{
    const Entry *entry = entry_of(server, key);
    *bytes = entry ? entry->bytes - HEAD : 0;
    return entry ? entry->message.value : NULL;
}

bool fork_store_serve(ForkStoreServer *server, int socket, const char *who)
{
    Message m;
    const Message not_yet = { .what = NOT_YET };
    ssize_t n = recv(socket, &m, sizeof m, MSG_DONTWAIT | MSG_TRUNC);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    if (n >= HEAD && n <= (ssize_t)sizeof m && (m.what == PUT || m.what == GET) &&
        memchr(m.key, '\0', sizeof m.key)) {
        const Entry *entry = entry_of(server, m.key);
        if (m.what == PUT)
            fork_store_keep(server, m.key, m.value, (size_t)n - HEAD);
        else
            send(socket, entry ? &entry->message : &not_yet, entry ? entry->bytes : HEAD,
                 MSG_DONTWAIT | MSG_NOSIGNAL);
    } else if (!server->complained) {
        server->complained = true;
        WARN("", "%s sent a message of %zd bytes that means nothing", who, n);
    }
    return true;
}
