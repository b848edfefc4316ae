#include "supervise.h"
#include "alive.h"
#include "check.h"
#include "clock.h"
#include "interrupt.h"
#include "launcher.h"
#include "threads.h"
#include "watch.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int exit_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Without sigabbrev_np, which old systems lack.
static const char *signal_name(int number)
{
    static const char *const names[SIGSYS + 1] = {
        [SIGHUP] = "HUP", [SIGINT] = "INT", [SIGQUIT] = "QUIT", [SIGILL] = "ILL",
        [SIGTRAP] = "TRAP", [SIGABRT] = "ABRT", [SIGBUS] = "BUS", [SIGFPE] = "FPE",
        [SIGKILL] = "KILL", [SIGUSR1] = "USR1", [SIGSEGV] = "SEGV", [SIGUSR2] = "USR2",
        [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM", [SIGTERM] = "TERM", [SIGXCPU] = "XCPU",
        [SIGXFSZ] = "XFSZ", [SIGSYS] = "SYS" };
    return number <= SIGSYS && names[number] ? names[number] : "?";
}

void report_death(int rank, int size, pid_t pid, int status)
{
    static const char resume[] = "with --save, --resume auto continues from the last checkpoint",
                      memory[] = "if you did not kill it, memory probably ran out (dmesg shows "
                                 "that): use a smaller batch or fewer ranks";
    int code = exit_code(status), number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (number)
        WARN(number == SIGKILL ? memory : resume, "rank %d of %d (pid %d) was killed by SIG%s (%s)",
             rank, size, (int)pid, signal_name(number), strsignal(number));
    else if (code != EXIT_USAGE && code != EXIT_DIVERGED && code != EXIT_REPORTED &&
             code != EXIT_RANKS_DIFFER)
        WARN(code == EXIT_FAILED ? "" : resume, "rank %d of %d (pid %d) ended with status %d", rank,
             size, (int)pid, code);
}

// In a thread of a rank: ends the rank when its launcher has died. (Many clusters' kernels are too
// old for pidfd_open.)
static void *wait_for_death(void *launcher)
{
    while (kill((pid_t)(intptr_t)launcher, 0) == 0 || errno == EPERM)
        usleep(100000);
    leave_at_once(EXIT_REPORTED);
}

// In a thread of a rank that launch has not started: ends the rank if it is lost. Runs until rank 0
// watches the rank.
static void *watch_self(void *arg)
{
    const Alive *page = arg;
    Watched self = { .alive = arg };
    Watch watch = { .size = 1, .ranks = &self, .now = clock_now() };
    for (; !page->watched; usleep(100000))
        if (watch_judge(&watch, clock_now()))
            leave_at_once(EXIT_FAILED);
    return NULL;
}

static bool is_dead(pid_t pid)      // or a zombie that nobody has reaped yet
{
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *in = fopen(path, "re");
    if (!in)
        return true;
    bool known = fscanf(in, "%*d (%*[^)]) %c", &state) == 1;
    fclose(in);
    return known && (state == 'Z' || state == 'X');
}

bool supervise_inherit(void)
{
    pid_t launcher = launcher_pid(), leader = getpgrp();
    bool launched = getenv("TORCHELASTIC_RESTART_COUNT");
    if (launcher > 0 && leader != getpid() && is_dead(leader))
        leave_at_once(EXIT_REPORTED);           // the script above has died, with its launcher
    if (launcher > 0 && getppid() == launcher)  // the kernel kills even a stopped rank
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (launcher > 0)
        pthread_detach(thread_start(wait_for_death, (void *)(intptr_t)launcher, "the launcher"));
    if (launched)
        interrupt_silence();
    pthread_detach(thread_start(watch_self, (void *)alive_here(), "its own watchdog"));
    return launched;
}
