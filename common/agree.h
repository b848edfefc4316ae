// agree.h - ranks compare what must be equal (or must differ) before they train, through the store of
// their World. All ranks make the same calls in the same order.
#pragma once
#include "world.h"

// Who is on one machine with whom? Where world's local_rank and local_size are -1 they are counted,
// else compared with what is counted; and sharers is counted. Returns how many cores this machine's
// ranks may use together.
int agree_neighbours(World *world);

// Something that all ranks must have the same of. Where one differs, all end, and the first of each
// machine says both values: of several lines, the first that is not the same.
void agree_same(const World *world, const char *what, const char *value);

// Something that no two ranks may have the same of, such as the GPU that they compute on: else both
// are named, and all end.
void agree_unique(const World *world, const char *what, const char *value, const char *hint);

// A line of each rank: rank 0 prints them all, in order.
void agree_print(const World *world, const char *line);
