// launcher.h - the mpirun, torchrun, srun or launch that has started this process.
#pragma once
#include <stdbool.h>

// Ends the process if a launcher has started more than `ranks` processes: they would be several
// runs, which would write the same files.
void launcher_check(int ranks);
// If a launcher has started this process, from now on the kernel kills the process when its parent
// dies: the launcher, or a script between them. Returns true if the launcher is launch or torchrun,
// which report how ranks die.
bool launcher_follow(void);
