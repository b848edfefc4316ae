// agree.h - before training, ranks exchange values, for example to compare their options. Each
// function calls store_gather, so all ranks must make the same calls in the same order.
#pragma once
#include "world.h"

// Finds out which ranks share a machine. Sets world->sharers; also sets world->local_rank and
// local_size where these are -1.
void agree_neighbours(World *world);

// Ends the run if any rank's value differs from rank 0's. Before that, rank 0 prints the first line
// that differs, from the lowest such rank and from rank 0. what: the value's name, for the message.
void agree_same(const World *world, const char *what, const char *value);
// Returns how many lower ranks have the same value as this rank, such as a GPU's UUID. Sets
// *different to the number of distinct values.
int agree_place(const World *world, const char *what, const char *value, int *different);

// Returns rank 0's value on all ranks. Call it where the ranks' values may differ, for example
// because the ranks see different files.
bool agree_broadcast(const World *world, const char *what, bool value);
// Rank 0 prints one line from each rank, in rank order.
void agree_print(const World *world, const char *line);
