// machine.h - where this process runs: its machine, its cores, its program.
#pragma once
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

enum { MACHINE_NAME = 64 };

typedef struct Machine {
    char host[MACHINE_NAME];        // its name, for people
    uint64_t id;                    // of the name and of this boot: equal only on one machine
    cpu_set_t cores;                // that this process may use
} Machine;

Machine machine_here(void);
bool machine_shares_cores(const Machine *a, const Machine *b);  // on one machine, is a core both's?
int machine_parent_cores(void);     // that the parent process may use; 0: not known

// The program that this process runs, as text: "1234567 bytes, 0123456789abcdef".
const char *machine_program(void);
