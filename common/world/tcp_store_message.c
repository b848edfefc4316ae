// tcp_store_message.c - what comes over a connection is checked before it is believed.
#include "world/tcp_store_message.h"
#include "check.h"
#include "clock.h"

#include <string.h>
#include <unistd.h>

static size_t part_of(TcpStoreWhat what)
{
    switch (what) {
    case TCP_STORE_JOIN: case TCP_STORE_WELCOME: return sizeof(TcpStorePerson);
    case TCP_STORE_PULSE: case TCP_STORE_LEAVE: return sizeof(TcpStoreSigns);
    case TCP_STORE_GO: return TCP_STORE_NAME;
    case TCP_STORE_NO: case TCP_STORE_LATER: case TCP_STORE_END: return sizeof(Error);
    case TCP_STORE_PUT: case TCP_STORE_GET: case TCP_STORE_HERE: return STORE_KEY_BYTES;
    default: return 0;
    }
}

size_t tcp_store_bytes(TcpStoreWhat what) { return offsetof(TcpStoreMessage, person) + part_of(what); }

static void person_end(TcpStorePerson *person)
{
    person->host[sizeof person->host - 1] = '\0';
    person->name[sizeof person->name - 1] = '\0';
}

bool tcp_store_take(TcpStoreMessage *to, const void *message, size_t bytes)
{
    if (bytes < tcp_store_bytes(0) || bytes > sizeof *to)
        return false;
    memcpy(to, message, bytes);
    bool has_value = to->what == TCP_STORE_PUT || to->what == TCP_STORE_HERE;
    size_t least = tcp_store_bytes(to->what);
    if (to->what < TCP_STORE_JOIN || to->what > TCP_STORE_BYE || bytes < least ||
        (bytes > least && !has_value))
        return false;
    if (part_of(to->what) == sizeof(TcpStorePerson))
        person_end(&to->person);
    if (has_value || to->what == TCP_STORE_GET)
        to->store.key[STORE_KEY_BYTES - 1] = '\0';
    if (to->what == TCP_STORE_GO)
        to->run[sizeof to->run - 1] = '\0';
    if (part_of(to->what) == sizeof(Error)) {
        to->words.text[sizeof to->words.text - 1] = '\0';
        to->words.hint[sizeof to->words.hint - 1] = '\0';
    }
    return true;
}

double tcp_store_absence(double *looked)
{
    double now = clock_now(), absence = now - *looked;
    *looked = now;
    return absence > 1 ? absence : 0;
}

void tcp_store_leave_silently(void)
{
    if (ftrylockfile(stdout) == 0)      // who holds it may be stuck there
        fflush(stdout);
    check_clean_up();
    _exit(EXIT_FAILED);
}
