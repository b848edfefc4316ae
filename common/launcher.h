// launcher.h - finds the mpirun, torchrun, srun or launch that has started this process.
#pragma once
#include <sys/types.h>

// Ends the process if a launcher has started more than `ranks` ranks: they would be several runs,
// which would write the same files.
void launcher_check(int ranks);
// Pids may be compared only between processes for which this returns the same number.
unsigned long launcher_namespace(void);
// The pid of the launcher on this machine, even if it started this process through scripts. 0:
// not known.
pid_t launcher_pid(void);
