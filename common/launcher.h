// launcher.h - the mpirun, torchrun, srun or launch that has started this process.
#pragma once
#include <stdbool.h>

// Ends the process if a launcher has started more than `ranks` ranks: they would be several runs,
// which would write the same files.
void launcher_check(int ranks);
// From now on the kernel kills this process when its parent dies: its launcher, or a script between
// them. Returns whether launch or torchrun has started it: these report how ranks die, and what
// Ctrl-C does.
bool launcher_follow(void);
