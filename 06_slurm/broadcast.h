// broadcast.h - rule 1: all ranks start with the same weights. Also raises an alarm if their
// weights ever differ.
#pragma once
#include "comm.h"

// In place: all ranks get rank 0's values. All lists must have the same counts in the same order.
void broadcast(Comm *comm, Device *device, const Array *arrays, int count);

// hash: of what should be the same on all ranks. If any rank's differs from rank 0's, rank 0 names
// those ranks, and all ranks end with EXIT_RANKS_DIFFER.
void compare_hashes(Comm *comm, Device *device, uint64_t hash);
