// secret.c - where a secret comes from, and HMAC-SHA256 over a conversation.
#include "secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

Secret secret_random(void)
{
    Secret secret;
    unsigned char bytes[SECRET_DIGITS / 2];
    CHECK(sodium_init() >= 0, "", "libsodium: sodium_init failed");
    randombytes_buf(bytes, sizeof bytes);
    sodium_bin2hex(secret.text, sizeof secret.text, bytes, sizeof bytes);
    return secret;
}

bool secret_read(const char *path, char *text, size_t size, Error *err)
{
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0)
        return error_set(err, "", "%.300s: %s", path, strerror(errno));
    bool own = fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
               (about.st_mode & 077) == 0;
    ssize_t n = own ? read(file, text, size - 1) : 0;
    text[n > 0 ? n : 0] = '\0';
    close(file);
    return own || error_set(err, "it holds a secret: make it a file of your own, chmod 600", "%.300s: "
                            "it is not this user's own file, or others may read it", path);
}

bool secret_find(const char *file, Secret *secret, Error *err)
{
    char text[SECRET_DIGITS + 3];
    const char *given = file ? text : getenv("DDP_TOKEN");
    secret->text[0] = '\0';
    if (file && !secret_read(file, text, sizeof text, err))
        return false;
    if (!given)
        return true;
    size_t digits = strspn(given, "0123456789abcdefABCDEF");
    if (digits != SECRET_DIGITS || (given[digits] && strcmp(given + digits, "\n") != 0))
        return error_set(err, "make one: (umask 077; openssl rand -hex 32 >FILE), the same file for "
                         "every rank", "%.300s: not a token of %d hexadecimal digits",
                         file ? file : "DDP_TOKEN", SECRET_DIGITS);
    memcpy(secret->text, given, digits);
    secret->text[digits] = '\0';
    return true;
}

Proof secret_prove(const Secret *secret, const char *speaker, const void *said, size_t bytes)
{
    Proof proof;
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, (const void *)secret->text, strlen(secret->text));
    crypto_auth_hmacsha256_update(&state, (const void *)speaker, strlen(speaker) + 1);
    crypto_auth_hmacsha256_update(&state, said, bytes);
    crypto_auth_hmacsha256_final(&state, proof.bytes);
    return proof;
}

bool secret_proves(const Secret *secret, const char *speaker, const void *said, size_t bytes,
                   const Proof *proof)
{
    Proof wanted = secret_prove(secret, speaker, said, bytes);
    return sodium_memcmp(proof->bytes, wanted.bytes, sizeof wanted.bytes) == 0;
}
