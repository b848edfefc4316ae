// agree.h - ranks compare what must be equal, or must differ, before they train. All ranks make the
// same calls in the same order.
#pragma once
#include "world.h"
#include <stdbool.h>

// Which ranks share a machine? Counts the world's local_rank and local_size where they are -1, and
// counts sharers. Returns how many cores this machine's ranks may use together.
int agree_neighbours(World *world);

// All ranks must have the same value. Otherwise rank 0 prints both and ends the run: of several
// lines, the first that differs.
void agree_same(const World *world, const char *what, const char *value);
// No two ranks may have the same value, such as the GPU that they compute on. Otherwise rank 0 names
// both and ends the run.
void agree_unique(const World *world, const char *what, const char *value, const char *hint);

// Returns rank 0's answer on all ranks, since the other ranks' disks may differ.
bool agree_ask(const World *world, const char *what, bool answer);
// A line of each rank: rank 0 prints them all, in order.
void agree_print(const World *world, const char *line);
