// broadcast.h - rule 1: all ranks start with the same weights. Later, compare_hashes ends the run
// if the weights of two ranks differ.
#pragma once
#include "comm.h"

// In place: all ranks get rank 0's values. All ranks must pass the same counts in the same order.
void broadcast(Comm *comm, Device *device, const Array *arrays, int count);

// hash: of what should be the same on all ranks. If any rank's hash differs from rank 0's, rank 0
// names all such ranks, and all ranks end with EXIT_RANKS_DIFFER.
void compare_hashes(Comm *comm, Device *device, uint64_t hash);
