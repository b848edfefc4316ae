// agree.h - before training, ranks exchange values, for example to compare their options. Each
// function calls store_gather, so all ranks must make the same calls in the same order.
#pragma once
#include "world.h"

// Finds out which ranks share a machine. Sets world->sharers, and world->local_rank and local_size
// if they are -1.
void agree_neighbours(World *world);

// All ranks must have the same value. Otherwise rank 0 prints its first line that differs, and the
// line that a different rank has there, and ends the run. what: the value's name, for the message.
void agree_same(const World *world, const char *what, const char *value);
// Returns how many lower ranks have this rank's value, for example its GPU. Sets *different to the
// number of different values.
int agree_place(const World *world, const char *what, const char *value, int *different);

// Returns rank 0's value on all ranks. Call it where the ranks' values may differ, for example
// because they see different files.
bool agree_broadcast(const World *world, const char *what, bool value);
// Rank 0 prints one line from each rank, in rank order.
void agree_print(const World *world, const char *line);
