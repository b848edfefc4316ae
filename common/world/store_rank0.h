// store_rank0.h - rank 0's side of the store.
#pragma once
#include "world/store_message.h"

static const double death_delay = 2.5;  // seconds from a death to the end of the others (store.h)

// Starts rank 0's threads, which run until the process ends.
void store_serve(const StoreConfig *config);
// Returns the answer to a rank's request. *value stays valid until the process ends.
StoreHead store_answer(int rank, const StoreHead *request, const void *sent, const void **value);
// Ends all ranks, and this process.
void store_end_all(void) __attribute__((noreturn));
// Waits until the other ranks have left, up to `seconds`.
void store_await_leaving(double seconds);
