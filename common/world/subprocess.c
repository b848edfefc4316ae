// subprocess.c - between fork and exec, and after the end.
#include "subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

static sigset_t blocked;                // when we were started; and what SIGPIPE did
static void (*on_pipe)(int);

int subprocess_parent(void)
{
    static const int all[] = { SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2,
                               SIGTSTP, SIGCONT, SIGWINCH };
    struct sigaction old;
    sigset_t taken;
    sigemptyset(&taken);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (i < 3 || (sigaction(all[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN))
            sigaddset(&taken, all[i]);
    signal(SIGCHLD, SIG_DFL);           // whoever started us may not have wanted to know of ends
    on_pipe = signal(SIGPIPE, SIG_IGN);
    signal(SIGTTOU, SIG_IGN);           // in the background we may print all the same
    sigprocmask(SIG_BLOCK, &taken, &blocked);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int fd = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    CHECK(fd >= 0, "ulimit -n", "signalfd: %s", strerror(errno));
    return fd;
}

// In the child. The parent's death is SIGKILL here; unless it was faster. Returns if that cannot be
// executed.
static void become(const Subprocess *p, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILED);
    setpgid(0, 0);                      // Ctrl-C is for the parent, who passes it on
    if (isatty(STDIN_FILENO))           // who reads it from the background would be stopped
        dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    signal(SIGPIPE, on_pipe);
    dup2(p->output[0], STDOUT_FILENO);
    dup2(p->output[1], STDERR_FILENO);
    close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
    for (int i = 0; i < 2; i++)
        if (p->keep[i] >= 0)
            fcntl(p->keep[i], F_SETFD, 0);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    execvp(p->words[0], p->words);
}

// Executing closes the pipe that would tell why it failed.
pid_t subprocess_start(const Subprocess *p, Error *err)
{
    int news[2], error = 0;
    pid_t parent = getpid(), pid = -1;
    if (pipe2(news, O_CLOEXEC) != 0 || (pid = fork()) < 0) {
        error_set(err, "fewer processes; ulimit -u, ulimit -n", "%.200s cannot be started: %s",
                  p->words[0], strerror(errno));
        return -1;
    }
    if (pid == 0) {
        become(p, parent);
        error = errno;
        _exit(write(news[1], &error, sizeof error) < 0);
    }
    setpgid(pid, pid);                  // both sides: whoever comes first
    close(news[1]);
    bool failed = read(news[0], &error, sizeof error) > 0;
    close(news[0]);
    if (!failed)
        return pid;
    waitpid(pid, NULL, 0);
    error_set(err, "it, or what its first line names, is not there or may not be executed",
              "%.200s cannot be started: %s", p->words[0], strerror(error));
    return 0;
}

// A group that holds no child of ours may be a stranger's by now.
bool subprocess_orphans(pid_t group, int signal)
{
    pid_t found;
    while ((found = waitpid(-group, NULL, WNOHANG)) > 0) {
    }
    if (found == 0 && signal)
        kill(-group, signal);
    return found == 0;
}
