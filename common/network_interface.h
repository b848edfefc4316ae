// network_interface.h - which network interface to use on machines that have several.
#pragma once
#include "tcp.h"

// All ranks of MPI_COMM_WORLD call it: rank 0's address in the first of its networks that all are
// in. rank_0_is_here: on this machine. Where another machine has the very same address, as each has in
// a bridge of its own for containers, it is another network. false: there is none.
bool interface_common(bool rank_0_is_here, TcpAddress address, Error *err);

// The libraries that ask the environment which interface to use will get this answer, unless there is
// another: NCCL, Gloo, Open MPI.
void interface_prefer(const char *interface);
