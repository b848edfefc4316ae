// note.h - a note on a disk that several machines share: where rank 0 of a run listens, and a secret.
//
//   rank 0   listens | leaves a note | meets ... all are there | takes it away
//   others   look ...................| read it | meet
//
// A note says of which run it is: one that was left over from an earlier run is not taken for ours,
// and the next rank 0 puts its own in its place. Nobody but the user may read it (0600), and who
// reads believes nobody else's.
#pragma once
#include "tcp.h"
#include "wire.h"

typedef struct Note {
    TcpAddress address;                 // where rank 0 listens
    int port;
    unsigned char token[WIRE_KEY];
} Note;

// Puts it there in one rename, so that nobody reads half of it. It is taken away by note_remove, or
// when the process ends by fail_at or a signal (interrupt.h); what is left by one that was killed is
// only a file.
bool note_leave(const char *path, const char *run, const Note *note, Error *err);
void note_remove(void);                 // if there is one of ours, and it is still ours

// Waits for the note of this run. false: it has not come within so many seconds (0: any), or cannot
// be believed; err says what was there instead.
bool note_find(const char *path, const char *run, double seconds, Note *note, Error *err);
