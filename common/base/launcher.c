#include "launcher.h"
#include "check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

unsigned long launcher_namespace(void)
{
    struct stat here;
    return stat("/proc/self/ns/pid", &here) == 0 ? here.st_ino : 0;
}

static bool has_variable(pid_t pid, const char *name)
{
    char path[64], *line = NULL;
    size_t size = 0, length = strlen(name);
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *in = fopen(path, "re");       // fails for another user's process, such as Slurm's
    while (in && !found && getdelim(&line, &size, '\0', in) > 0)
        found = strncmp(line, name, length) == 0 && line[length] == '=';
    free(line);
    if (in)
        fclose(in);
    return found;
}

static pid_t parent_of(pid_t pid)
{
    char path[64], line[512] = "";
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *in = fopen(path, "re");
    if (in && fgets(line, sizeof line, in) && strrchr(line, ')'))
        sscanf(strrchr(line, ')'), ") %*c %d", &parent);
    if (in)
        fclose(in);
    return parent;
}

// The nearest ancestor without the variable that a launcher sets for its ranks.
pid_t launcher_pid(void)
{
    static const char *const marks[] = {
        "OMPI_COMM_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "PMIX_RANK", "SLURM_STEP_ID",
    };
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (getenv(marks[i])) {
            pid_t pid = getppid();
            while (pid > 0 && has_variable(pid, marks[i]))
                pid = parent_of(pid);
            return pid;
        }
    return 0;
}
