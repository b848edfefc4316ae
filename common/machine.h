// machine.h - identifies this process's machine, its cores, and the build of its program.
#pragma once
#include <sched.h>
#include <stdbool.h>

enum { MACHINE_NAME = 64 };

typedef struct Machine {
    char host[MACHINE_NAME], boot[MACHINE_NAME];    // together unique to a machine or container
    cpu_set_t cores;
} Machine;

Machine machine_here(void);
bool machine_is_same(const Machine *a, const Machine *b);
bool machine_shares_cores(const Machine *a, const Machine *b);  // same machine and a common core?

// Returns the number of GPUs that programs may use, according to CUDA_VISIBLE_DEVICES or, if that
// is not set, to nvidia-smi. Does not start CUDA, which would take longer.
int machine_gpus_listed(void);

// Returns two lines about this program's build: the kind of processor; the revision, the compiler
// and DDP_MARCH (if native, also the CPU on which the program was built).
const char *machine_program(void);
