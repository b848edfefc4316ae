#include "machine.h"
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

static uint64_t hash_of(const char *text, size_t bytes)
{
    union { unsigned char bytes[crypto_generichash_BYTES_MIN]; uint64_t word; } hash;
    crypto_generichash(hash.bytes, sizeof hash.bytes, (const unsigned char *)text, bytes, NULL, 0);
    return hash.word;
}

// Containers of one machine have one boot id, and names of their own; clones of one virtual machine
// may have one name, and boot ids of their own.
Machine machine_here(void)
{
    Machine here = { 0 };
    char text[MACHINE_NAME + 64];
    gethostname(here.host, sizeof here.host - 1);
    int length = snprintf(text, sizeof text, "%s ", here.host);
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (boot) {
        length += (int)fread(text + length, 1, sizeof text - (size_t)length, boot);
        fclose(boot);
    }
    here.id = hash_of(text, (size_t)length);
    if (sched_getaffinity(0, sizeof here.cores, &here.cores) != 0)
        memset(&here.cores, 0xFF, sizeof here.cores);   // more than it can hold: any
    return here;
}

bool machine_shares_cores(const Machine *a, const Machine *b)
{
    cpu_set_t both;
    CPU_AND(&both, &a->cores, &b->cores);
    return a->id == b->id && CPU_COUNT(&both) > 0;
}

int machine_parent_cores(void)
{
    cpu_set_t cores;
    return sched_getaffinity(getppid(), sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 0;
}

const char *machine_program(void)
{
    static const char path[] = "/proc/self/exe";
    static char piece[1 << 16], text[64];
    crypto_generichash_state state;
    union { unsigned char bytes[crypto_generichash_BYTES_MIN]; uint64_t word; } hash;
    long long size = 0;
    ssize_t n;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    crypto_generichash_init(&state, NULL, 0, sizeof hash.bytes);
    for (; (n = read(file, piece, sizeof piece)) > 0; size += n)
        crypto_generichash_update(&state, (unsigned char *)piece, (unsigned long long)n);
    CHECK(file >= 0 && n == 0, "", "%s: %s", path, strerror(errno));
    close(file);
    crypto_generichash_final(&state, hash.bytes, sizeof hash.bytes);
    snprintf(text, sizeof text, "%lld bytes, %016llx", size, (unsigned long long)hash.word);
    return text;
}

// 'like this', which a shell takes as it is, unless there is nothing in it that it would not.
static void put_word(FILE *to, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-+=./,:@%";
    bool quoted = !word[0] || word[strspn(word, plain)];
    fputs(quoted ? "'" : "", to);
    for (; *word; word++)
        if (*word == '\'')
            fputs("'\\''", to);
        else
            putc(*word, to);
    fputs(quoted ? "'" : "", to);
}

const char *machine_command(void)
{
    static char text[8192];
    char words[4096] = "";
    FILE *from = fopen("/proc/self/cmdline", "re"), *to = fmemopen(text, sizeof text - 1, "w");
    size_t bytes = from ? fread(words, 1, sizeof words - 1, from) : 0;
    for (size_t i = 0; to && i < bytes; i += strlen(words + i) + 1) {
        fputs(i ? " " : "", to);
        put_word(to, words + i);
    }
    if (from)
        fclose(from);
    if (to)
        fclose(to);
    return text;
}
