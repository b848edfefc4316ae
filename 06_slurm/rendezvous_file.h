// rendezvous_file.h - a file on a disk that all machines share. It holds the address of rank 0 and
// the run's token.
//
//   rank 0   binds   | writes the file | meets ... all are there | removes it
//   others   look ...................| read it | meet
//
// The file names its run: ranks ignore a file of an earlier run, and the next run's rank 0 replaces
// it. The file's mode is 0600. If SIGKILL ends rank 0 before all are there, the file remains.
#pragma once
#include "store.h"

// For rank 0, after tcp_bind. The file appears in one rename, so no rank reads half of it.
// Ends the program if the file cannot be written, or would replace a file of a different kind.
void rendezvous_file_write(const char *path, const StoreConfig *config);
void rendezvous_file_remove(void);      // unless another run has replaced it, or there is none

// store_join then looks for this run's file, and fills in place and token.
void rendezvous_file_read(const char *path, StoreConfig *config);
