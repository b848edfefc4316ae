// secret.c - where a secret comes from, and HMAC-SHA256 over a conversation.
#include "secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(SECRET_BYTES == crypto_auth_hmacsha256_KEYBYTES &&
               SECRET_BYTES == crypto_auth_hmacsha256_BYTES, "an HMAC and its key");

Secret secret_random(void)
{
    Secret secret = { .known = true };
    CHECK(sodium_init() >= 0, "", "libsodium cannot begin");
    randombytes_buf(secret.bytes, sizeof secret.bytes);
    return secret;
}

bool secret_from_text(const char *text, Secret *secret)
{
    const char *end;
    size_t bytes;
    secret->known = sodium_hex2bin(secret->bytes, SECRET_BYTES, text, strcspn(text, "\n"), NULL,
                                   &bytes, &end) == 0 &&
                    bytes == SECRET_BYTES && (*end == '\0' || strcmp(end, "\n") == 0);
    return secret->known;
}

void secret_to_text(const Secret *secret, char text[SECRET_TEXT])
{
    sodium_bin2hex(text, SECRET_TEXT, secret->bytes, SECRET_BYTES);
}

bool secret_from_file(const char *path, Secret *secret, Error *err)
{
    static const char how[] = "make one: (umask 077; openssl rand -hex 32 >FILE), the same file for "
                              "every rank";
    char text[SECRET_TEXT + 2] = "";
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0 || fstat(file, &about) != 0)
        return error_set(err, how, "%.300s: %s", path, strerror(errno));
    bool own = S_ISREG(about.st_mode) && about.st_uid == geteuid() && (about.st_mode & 077) == 0;
    ssize_t n = own ? read(file, text, sizeof text - 1) : 0;
    close(file);
    if (!own)
        return error_set(err, "a token is a secret: a file of your own, chmod 600", "%.300s: it is "
                         "not this user's own file, or others may read it", path);
    if (n < 0 || !secret_from_text(text, secret))
        return error_set(err, how, "%.300s: a token has %d hexadecimal digits, and this has not",
                         path, 2 * SECRET_BYTES);
    sodium_memzero(text, sizeof text);
    return true;
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
    sodium_memzero(&state, sizeof state);
}

bool secret_proves(const Secret *secret, const char *who, const void *said, size_t bytes,
                   const unsigned char proof[SECRET_BYTES])
{
    unsigned char wanted[SECRET_BYTES];
    secret_prove(secret, who, said, bytes, wanted);
    return sodium_memcmp(proof, wanted, SECRET_BYTES) == 0;
}
