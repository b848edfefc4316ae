// communicators.h - how steps.c and exercises.c make NCCL's communicators, in nccl.c.
#pragma once
#include "fake.h"

#include <nccl.h>

// Waits for the other ranks.
ncclResult_t fake_comm_new(ncclComm_t *made, int size, const ncclUniqueId *id, int rank);
int fake_nccl_version(void);
