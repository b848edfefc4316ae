// rendezvous_file.h - a file with rank 0's address and port and the run's token, on a disk that all
// machines share.
//
//   rank 0   binds   | writes the file | meets ... all are there | removes it
//   others   look ...................| read it | meet
//
// The file has its run's name: ranks ignore another run's file, and the next run's rank 0 replaces
// it. All runs of `launch` have the same name, so rank 0 ends if another rank 0 listens on the
// address in the file. The file's mode is 0600. If rank 0 ends before all have joined, the file
// remains. After a restart ranks may read this old file, whose address does not answer. So each
// attempt to join reads the file again, until the new rank 0 has replaced it.
#pragma once
#include "rendezvous.h"
#include "store.h"

// Call it if config->meet is given, after setting store->rank and store->run. Rank 0 binds its
// socket, writes a temporary file and renames it, so that no rank reads half a file. The others
// look for the file in store_join. Ends the program if `meet` is not file:PATH; on rank 0, also if
// PATH is not a rendezvous file, if it cannot be written, or if its run's rank 0 listens.
void rendezvous_file(const RendezvousConfig *config, bool one_host, StoreConfig *store);
void rendezvous_file_remove(void);      // removes the file if this process has written it
