// secret.h - the run's secret. Processes prove that they know it; it never crosses the network.
#pragma once
#include "check.h"
#include <stddef.h>

enum { SECRET_BYTES = 32, SECRET_TEXT = 2 * SECRET_BYTES + 1 };

typedef struct Secret {
    bool known;                         // false: there is none
    unsigned char bytes[SECRET_BYTES];
} Secret;

Secret secret_random(void);
// From 64 hexadecimal digits (and a newline). False: the text is something else.
bool secret_from_text(const char *text, Secret *secret);
void secret_to_text(const Secret *secret, char text[SECRET_TEXT]);
// Reads up to size - 1 bytes of a file. Fails unless this user owns it and no other may read it.
bool secret_read(const char *path, char *text, size_t size, Error *err);
// The run's secret: from this file, or if that is NULL from DDP_TOKEN, or none. False: invalid.
bool secret_find(const char *file, Secret *secret, Error *err);

// HMAC(secret, who + said); without a secret the key is zeros.
void secret_prove(const Secret *secret, const char *who, const void *said, size_t bytes,
                  unsigned char proof[SECRET_BYTES]);
bool secret_proves(const Secret *secret, const char *who, const void *said, size_t bytes,
                   const unsigned char proof[SECRET_BYTES]);
