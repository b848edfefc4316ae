// stop.h - if a signal asks one rank to end, all ranks stop after the same step.
#pragma once
#include "comm.h"
#include "model.h"

typedef struct Stop Stop;
// From now on the first signal only asks for a stop: interrupt_requested stays 0 until all ranks
// agree.
Stop *stop_new(Model *model, Comm *comm);
// Call it after each step.
void stop_agree(Stop *stop);
// All ranks call it after an epoch. They wait for rank 0, which has evaluated and saved; if rank 0
// got a signal, all stop.
void stop_agree_now(Stop *stop);
void stop_free(Stop *stop);     // after this, a signal stops this rank alone
