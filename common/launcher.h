// launcher.h - finds out whether mpirun, torchrun, srun or launch has started this process.
#pragma once
#include <sys/types.h>

// Ends the process if a launcher has started more ranks than these: each would train alone, and all
// would write the same files.
void launcher_check(int ranks);
// Pids may be compared only between processes for which this returns the same.
unsigned long launcher_namespace(void);
// The launcher's process on this machine, even if scripts started this process. 0: none.
pid_t launcher_pid(void);
