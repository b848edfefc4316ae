// fuzz_signed_channel.c - wires, for libFuzzer. The first byte says what the others are: what comes to a
// server or to a client; what somebody does between two that talk; or a file with a token. Random
// numbers are 0 1 2 ... here and the key is zeros: so the corpus has whole sessions in it, good
// proofs and all.
//
// Between two, whatever happens, channel_next gives what was sent: all of it, or its beginning.
#include "world/tcp_store_message.h"
#include "signed_channel.h"

#include <fcntl.h>
#include <sanitizer/allocator_interface.h>
#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SENT_MOST = 16, MEMORY_MOST = SENT_MOST * (CHANNEL_MOST + 64) * 2 };

static unsigned char next_random;
static bool limited;
static unsigned char pattern[SENT_MOST + CHANNEL_MOST];

static void require(bool good)
{
    if (!good)
        abort();
}

static const char *counted_name(void) { return "counted"; }
static uint32_t counted_number(void) { return 0; }

static void counted(void *const bytes, const size_t count)
{
    for (size_t i = 0; i < count; i++)
        ((unsigned char *)bytes)[i] = next_random++;
}

static void memory_asked(const volatile void *memory, size_t bytes)
{
    (void)memory;
    require(!limited || bytes <= MEMORY_MOST);
}

static void memory_given_back(const volatile void *memory) { (void)memory; }

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static struct randombytes_implementation counting = {
        .implementation_name = counted_name, .random = counted_number, .buf = counted
    };
    (void)argc;
    (void)argv;
    randombytes_set_implementation(&counting);
    require(sodium_init() >= 0);
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (unsigned char)(i * 7 + i / 256);
    __sanitizer_install_malloc_and_free_hooks(memory_asked, memory_given_back);
    return 0;
}

// --- one side ------------------------------------------------------------------------------------

// In pieces of 1, 2, 3 ... bytes, or at once.
static void feed(bool server, bool pieces, const uint8_t *bytes, size_t size)
{
    static unsigned char copy[CHANNEL_MOST];
    Channel *wire = channel_new(-1, server, NULL);
    for (size_t at = 0, step = 1; at < size; at += step++) {
        size_t n = size - at, length;
        step = pieces && step < n ? step : n;
        ChannelState state = channel_take(wire, bytes + at, step);
        require((state == CHANNEL_CLOSED) == (channel_why(wire)[0] != '\0'));
        for (const void *message; (message = channel_next(wire, &length));) {
            require(length <= size && length <= CHANNEL_MOST);
            memcpy(copy, message, length);      // each byte can be read
        }
    }
    channel_free(wire);
}

// --- between two ---------------------------------------------------------------------------------

typedef struct Way {
    Channel *from, *to;
    size_t lengths[SENT_MOST];  // of the messages that were sent: pattern, pattern + 1, ...
    int sent, got;
    bool touched;
} Way;

static void carry(Way *way, size_t most, int change)
{
    static unsigned char bytes[MEMORY_MOST];
    size_t n = channel_give(way->from, bytes, most < sizeof bytes ? most : sizeof bytes);
    if (change > 0 && n > 0) {
        bytes[n - 1] ^= (unsigned char)change;
        way->touched = true;
    }
    channel_take(way->to, bytes, n);
}

static void take_all(Way *way)
{
    size_t length;
    for (const unsigned char *message; (message = channel_next(way->to, &length)); way->got++) {
        require(way->got < way->sent && length == way->lengths[way->got]);
        require(memcmp(message, pattern + way->got, length) == 0);
    }
}

static void do_one(Way *way, const uint8_t *what, size_t left)
{
    size_t number = what[1] | (size_t)what[2] << 8;
    switch (what[0] >> 1 & 7) {
    case 0:
        if (way->sent < SENT_MOST && channel_take(way->from, "", 0) == CHANNEL_OPEN) {
            way->lengths[way->sent] = number % (CHANNEL_MOST + 1);
            channel_send(way->from, pattern + way->sent, way->lengths[way->sent]);
            way->sent++;
        }
        break;
    case 1: carry(way, number, 0); break;
    case 2: carry(way, number, what[0] >> 4); break;
    case 3:
        way->touched = true;
        channel_take(way->to, what, number < left ? number : left);
        break;
    case 4: {
        unsigned char lost[256];
        way->touched |= channel_give(way->from, lost, number % sizeof lost) > 0;
        break;
    }
    default: take_all(way); break;
    }
}

static void disturb(const uint8_t *bytes, size_t size)
{
    Channel *server = channel_new(-1, true, NULL), *client = channel_new(-1, false, NULL);
    Way ways[2] = { { .from = server, .to = client }, { .from = client, .to = server } };
    for (int i = 0; i < 3; i++)
        carry(&ways[i % 2], SIZE_MAX, 0);
    for (; size >= 3; bytes += 3, size -= 3)
        do_one(&ways[bytes[0] & 1], bytes, size);
    for (int i = 0; i < 2; i++) {
        carry(&ways[i], SIZE_MAX, 0);
        take_all(&ways[i]);
        require(ways[0].touched || ways[1].touched || ways[i].got == ways[i].sent);
    }
    channel_free(server);
    channel_free(client);
}

// --- a file with a token -------------------------------------------------------------------------

static void read_key(const uint8_t *bytes, size_t size)
{
    unsigned char key[CHANNEL_KEY], same[CHANNEL_KEY];
    char path[64], *text = calloc(1, size + 1);
    Error err = { .text = "" };
    int file = memfd_create("key", MFD_CLOEXEC);
    require(file >= 0 && fchmod(file, 0600) == 0 && write(file, bytes, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    memcpy(text, bytes, size);
    bool good = channel_key_from_text(text, same) && strlen(text) == size;
    require(channel_key_from_file(path, key, &err) == good && !good == (err.text[0] != '\0'));
    require(!good || memcmp(key, same, sizeof key) == 0);
    close(file);
    free(text);
}

// --- a message of a meeting ------------------------------------------------------------------------

// What is taken for one can be read as one: no text runs out of its place.
static void understand(const uint8_t *bytes, size_t size)
{
    TcpStoreMessage *m = calloc(1, sizeof *m);
    if (tcp_store_take(m, bytes, size)) {
        require(size >= tcp_store_bytes(m->what));
        if (m->what == TCP_STORE_JOIN || m->what == TCP_STORE_WELCOME)
            require(memchr(m->person.host, 0, TCP_STORE_NAME) && memchr(m->person.name, 0, TCP_STORE_NAME));
        if (m->what == TCP_STORE_NO || m->what == TCP_STORE_LATER || m->what == TCP_STORE_END)
            require(memchr(m->words.text, 0, sizeof m->words.text) &&
                    memchr(m->words.hint, 0, sizeof m->words.hint));
        if (m->what == TCP_STORE_PUT || m->what == TCP_STORE_GET || m->what == TCP_STORE_HERE)
            require(memchr(m->store.key, 0, sizeof m->store.key) != NULL);
    }
    free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0)
        return 0;
    next_random = 0;
    limited = true;
    switch (bytes[0] % 8) {
    case 0: feed(true, false, bytes + 1, size - 1); break;
    case 1: feed(true, true, bytes + 1, size - 1); break;
    case 2: feed(false, false, bytes + 1, size - 1); break;
    case 3: feed(false, true, bytes + 1, size - 1); break;
    case 4: read_key(bytes + 1, size - 1); break;
    case 5: understand(bytes + 1, size - 1); break;
    default: disturb(bytes + 1, size - 1); break;
    }
    limited = false;
    return 0;
}
