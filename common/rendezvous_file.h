// rendezvous_file.h - a file on a disk that all machines share: where rank 0 of a run listens, and
// the run's secret.
//
//   rank 0   listens | leaves a note | meets ... all are there | takes it away
//   others   look ...................| read it | meet
//
// A note says of which run it is: one that was left over from an earlier run is not taken for ours,
// and the next rank 0 puts its own in its place. Nobody but the user may read it (0600), and who
// reads believes nobody else's.
#pragma once
#include "tcp.h"
#include "signed_channel.h"

typedef struct RendezvousFile {
    TcpAddress address;                 // where rank 0 listens
    int port;
    unsigned char token[CHANNEL_KEY];
} RendezvousFile;

// Puts it there in one rename, so that nobody reads half of it. It is removed by the call below, and
// when the process ends by fail_at or a signal (interrupt.h); a process that is killed leaves it.
bool rendezvous_file_write(const char *path, const char *run, const RendezvousFile *note,
                           Error *err);
void rendezvous_file_remove(void);      // if there is one of ours, and it is still ours

// Waits for the note of this run. false: it has not come within so many seconds (0: any), or cannot
// be believed; err says what was there instead.
bool rendezvous_file_read(const char *path, const char *run, double seconds, RendezvousFile *note,
                          Error *err);
