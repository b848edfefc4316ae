#include "launcher.h"
#include "check.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

// The first variable above 0 gives the number of ranks that a launcher has started.
void launcher_check(int ranks)
{
    static const char *const sizes[] = { "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", "PMI_SIZE",
                                         "SLURM_STEP_NUM_TASKS" };
    const char *variable = NULL;
    int started = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && started <= 0; i++) {
        variable = sizes[i];
        started = getenv(variable) ? atoi(getenv(variable)) : 0;
    }
    if (started > ranks)
        FAIL_USAGE("use step 04 or later; with srun, step 06 or later, or srun --mpi=pmix; with "
                   "mpirun, the MPI that the program was built with; to train without a launcher, "
                   "unset the variable",
                   "a launcher has started %d processes (%s), but this program expects %d",
                   started, variable, ranks);
}

bool launcher_follow(void)
{
    static const char *const marks[] = { "TORCHELASTIC_RESTART_COUNT", "OMPI_COMM_WORLD_SIZE",
                                         "PMIX_RANK", "SLURM_STEP_ID" };
    size_t i = 0, count = sizeof marks / sizeof *marks;
    while (i < count && !getenv(marks[i]))
        i++;
    if (i == count)
        return false;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return i == 0;
}
