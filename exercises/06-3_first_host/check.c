// Takes each argument as a list of hosts, and prints the first host that slurm.c finds in it.
#include "slurm.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        setenv("SLURM_STEP_NODELIST", argv[i], 1);
        const char *first = slurm_first_host();
        printf("%s\n", first ? first : "NULL");
        fflush(stdout);
    }
    return 0;
}
