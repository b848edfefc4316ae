#include "launcher.h"
#include "check.h"
#include "threads.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

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
        FAIL_USAGE("launchers work from step 04 on, srun from step 06 on, and mpirun only if it "
                   "belongs to the MPI that the program was built with; to train without a "
                   "launcher, unset the variable", "a launcher has started %d processes (%s), but "
                   "this program expects %d", started, variable, ranks);
}

// 0: the process is dead, or not known.
static pid_t parent_of(pid_t pid)
{
    char path[64], line[512] = "", state = 'Z';
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *in = fopen(path, "re");
    if (in && fgets(line, sizeof line, in) && strrchr(line, ')'))
        sscanf(strrchr(line, ')'), ") %c %d", &state, &parent);
    if (in)
        fclose(in);
    return state == 'Z' || state == 'X' ? 0 : parent;
}

static pid_t leader, launcher;      // whom wait_for_death watches, if they are other processes

// In a thread. (Many clusters' kernels are too old for pidfd_open.)
static void *wait_for_death(void *arg)
{
    pid_t parent = getppid();
    while (getppid() == parent && (leader == getpid() || parent_of(leader) == launcher))
        usleep(100000);
    leave_at_once(EXIT_REPORTED);
}

static bool is_above(pid_t pid)
{
    pid_t at = getpid();
    while (at > 1 && at != pid)
        at = parent_of(at);
    return at == pid;
}

// launch makes each process that it starts the leader of a process group. If that is a script, this
// process is in its group, and launch is the leader's parent. Slurm puts all tasks of a node into
// the group of the first: a leader that is not above this process does not matter.
bool launcher_follow(void)
{
    static const char *const marks[] = { "TORCHELASTIC_RESTART_COUNT", "OMPI_COMM_WORLD_SIZE",
                                         "PMIX_RANK", "SLURM_STEP_ID" };
    size_t i = 0, count = sizeof marks / sizeof *marks;
    while (i < count && !getenv(marks[i]))
        i++;
    leader = getpgrp();
    if (parent_of(leader) != 0 && !is_above(leader))
        leader = getpid();
    launcher = parent_of(leader);
    if (i == count || parent_of(getpid()) == 0)     // no launcher, or /proc is not readable
        return i == 0;
    if (launcher == 0 && i > 0)         // a shell made the group, and has ended: (train &)
        return false;
    if (launcher == 0)
        leave_at_once(EXIT_REPORTED);   // the script has died: launch did, or ended it
    if (launcher == getppid())          // the kernel then also kills a stopped process
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    pthread_detach(thread_start(wait_for_death, NULL, "the launcher"));
    return i == 0;
}
