// rendezvous_file.h - a file on a disk that all machines share: where rank 0 of a run listens, and
// the run's secret.
//
//   rank 0   listens | writes the file | meets ... all are there | removes it
//   others   look ...................| read it | meet
//
// The file names its run: one that was left over from an earlier run is not taken for ours, and the
// next rank 0 replaces it. Only the user may read it (0600), and a file that is anybody else's is
// not believed.
#pragma once
#include "tcp_store.h"

// Rank 0, after tcp_store_bind. Fails if it cannot. The file appears in one rename, so that nobody
// reads half of it. It is removed by the call below, and when the process ends by fail_at or a
// signal (interrupt.h); a process that is killed leaves it.
void rendezvous_file_write(const char *path, const TcpStoreConfig *config);
void rendezvous_file_remove(void);      // if there is one of ours, and it is still ours

// Waits for this run's file, and fills in places and secret. Fails when it has not come within the
// config's timeout, and says what was there instead.
void rendezvous_file_read(const char *path, TcpStoreConfig *config);
