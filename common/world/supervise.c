#include "supervise.h"
#include "check.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

int exit_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void report_death(int rank, int size, pid_t pid, int status)
{
    static const char resume[] = "to continue from the last checkpoint, use --save FILE "
                                 "--resume auto",
                      memory[] = "if you did not kill it, memory probably ran out (dmesg shows "
                                 "that): use a smaller batch or fewer ranks";
    int code = exit_code(status), number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (number)
        WARN(number == SIGKILL ? memory : resume, "rank %d of %d (pid %d) was killed by signal %d "
             "(%s)", rank, size, (int)pid, number, strsignal(number));
    else if (code != EXIT_USAGE && code != EXIT_DIVERGED && code != EXIT_REPORTED &&
             code != EXIT_RANKS_DIFFER)
        WARN(code == EXIT_FAILED ? "" : resume, "rank %d of %d (pid %d) ended with status %d", rank,
             size, (int)pid, code);
}
