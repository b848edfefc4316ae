// rendezvous_file.h - a file on a disk that all machines share: where rank 0 of a run listens, and
// the run's secret.
//
//   rank 0   listens | writes the file | meets ... all are there | removes it
//   others   look ...................| read it | meet
//
// The file names its run: one that was left over from an earlier run is passed over, and the next
// rank 0 replaces it. Only the user may read it (0600), and a file that belongs to another user is
// not believed.
#pragma once
#include "tcp_store.h"

// Rank 0, after tcp_store_bind. Fails if it cannot. The file appears in one rename, so that no rank
// reads half of it. A process that is killed leaves it behind.
void rendezvous_file_write(const char *path, const TcpStoreConfig *config);
void rendezvous_file_remove(void);      // if there is one of ours, and no other run has replaced it

// Waits for this run's file, and fills in places and secret. Fails when it has not come within the
// config's timeout, and prints what was there instead.
void rendezvous_file_read(const char *path, TcpStoreConfig *config);
