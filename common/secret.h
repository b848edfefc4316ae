// secret.h - the run's secret. Processes prove that they know it; it never crosses the network.
#pragma once
#include "check.h"
#include <stddef.h>

enum { SECRET_DIGITS = 64, PROOF_BYTES = 32 };

typedef struct Secret {
    char text[SECRET_DIGITS + 1];       // hexadecimal; "": there is none
} Secret;

typedef struct Proof {
    unsigned char bytes[PROOF_BYTES];
} Proof;

Secret secret_random(void);
// Reads up to size - 1 bytes of a file. Fails unless this user owns it and no other may read it.
bool secret_read(const char *path, char *text, size_t size, Error *err);
// The run's secret: from this file, or if that is NULL from DDP_TOKEN, or none. False: invalid.
bool secret_find(const char *file, Secret *secret, Error *err);

// HMAC(secret, speaker + said).
Proof secret_prove(const Secret *secret, const char *speaker, const void *said, size_t bytes);
bool secret_proves(const Secret *secret, const char *speaker, const void *said, size_t bytes,
                   const Proof *proof);
