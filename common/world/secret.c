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
    Secret secret = { .known = true };
    CHECK(sodium_init() >= 0, "", "libsodium: sodium_init failed");
    randombytes_buf(secret.bytes, sizeof secret.bytes);
    return secret;
}

bool secret_from_text(const char *text, Secret *secret)
{
    size_t bytes, digits = strcspn(text, "\n");
    secret->known = digits == 2 * SECRET_BYTES && !text[digits + (text[digits] == '\n')] &&
                    sodium_hex2bin(secret->bytes, SECRET_BYTES, text, digits, NULL, &bytes,
                                   NULL) == 0;
    return secret->known;
}

void secret_to_text(const Secret *secret, char text[SECRET_TEXT])
{
    sodium_bin2hex(text, SECRET_TEXT, secret->bytes, SECRET_BYTES);
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
    char text[SECRET_TEXT + 2];
    const char *given = getenv("DDP_TOKEN");
    *secret = (Secret){ .known = false };
    if (!file && !given)
        return true;
    if (file && !secret_read(file, text, sizeof text, err))
        return false;
    bool good = secret_from_text(file ? text : given, secret);
    sodium_memzero(text, sizeof text);
    return good || error_set(err, "make one: (umask 077; openssl rand -hex 32 >FILE), the same file for "
                             "every rank", "%.300s: not a token of %d hexadecimal digits",
                             file ? file : "DDP_TOKEN", 2 * SECRET_BYTES);
}

void secret_prove(const Secret *secret, const char *who, const void *said, size_t bytes,
                  unsigned char proof[SECRET_BYTES])
{
    static const unsigned char none[SECRET_BYTES];
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, secret->known ? secret->bytes : none, SECRET_BYTES);
    crypto_auth_hmacsha256_update(&state, (const unsigned char *)who, strlen(who) + 1);
    crypto_auth_hmacsha256_update(&state, said, bytes);
    crypto_auth_hmacsha256_final(&state, proof);
}

bool secret_proves(const Secret *secret, const char *who, const void *said, size_t bytes,
                   const unsigned char proof[SECRET_BYTES])
{
    unsigned char wanted[SECRET_BYTES];
    secret_prove(secret, who, said, bytes, wanted);
    return sodium_memcmp(proof, wanted, SECRET_BYTES) == 0;
}
