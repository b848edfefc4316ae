// launcher.h - mpirun, torchrun, srun or launch, if one of them has started this process.
#pragma once
#include <sys/types.h>

// Ends the process if a launcher has started more ranks than these: each would train alone, and all
// would write the same files.
void launcher_check(int ranks);
// Process numbers mean the same only in processes that return the same.
unsigned long launcher_namespace(void);
// The launcher's process on this machine, whatever scripts it has started in between. 0: none.
pid_t launcher_pid(void);
