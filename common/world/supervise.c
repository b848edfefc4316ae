// supervise.c - forks the ranks, passes signals on, and ends all ranks with the run.
#include "supervise.h"
#include "alive.h"
#include "check.h"
#include "clock.h"
#include "interrupt.h"
#include "launcher.h"
#include "threads.h"
#include "watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

static const double kill_delay = 2;     // s from TERM to KILL
enum { CHECK_MS = 100 };                // between two checks when nothing happens

struct Supervisor {
    Watch watch;
    int first, ranks;
    Alive *pages;
    int memory;
    pid_t self;
    int signals;            // the descriptor from which they are read
    sigset_t before;        // the mask that this process was started with
    int asked;              // INT and TERM so far, plus 1 if a signal ended the ranks
    double kill_at;         // s: when the remaining ranks are killed; 0: the run is healthy
    int status;
};

static Watched *watched(Supervisor *s, int i) { return &s->watch.ranks[s->first + i]; }

// HUP stays ignored if it was ignored before (nohup). The others are handled even if they were
// ignored: a script's shell makes its background jobs ignore INT.
static void block_signals(Supervisor *s)
{
    static const int all[] = { SIGCHLD, SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP };
    struct sigaction old;
    sigset_t blocked;
    sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        sigaddset(&blocked, all[i]);
    if (sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
        sigaddset(&blocked, SIGHUP);
    signal(SIGCHLD, SIG_DFL);           // the parent may have set it to be ignored
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGTTOU, SIG_IGN);           // a background process may also print
    sigprocmask(SIG_BLOCK, &blocked, &s->before);
    s->signals = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    CHECK(s->signals >= 0, "raise ulimit -n, the limit on open files", "signalfd: %s",
          strerror(errno));
}

static void send_to_all(Supervisor *s, int signal)
{
    for (int i = 0; i < s->ranks; i++)
        if (watched(s, i)->alive && watched(s, i)->ended == 0)
            kill(-watched(s, i)->pid, signal);
}

// A rank takes a second INT or TERM as "at once" (interrupt.h). CONT wakes a stopped rank.
static void end_all(Supervisor *s, int status)
{
    s->status = status;
    s->kill_at = clock_now() + kill_delay;
    send_to_all(s, SIGINT);
    send_to_all(s, SIGTERM);
    send_to_all(s, SIGCONT);
}

static void pass_on(Supervisor *s, int signal)
{
    bool end = signal == SIGINT || signal == SIGTERM;
    sigaddset(&s->watch.passed, signal);
    if (end && ++s->asked == 1 && s->kill_at == 0 && alive_seen(&s->pages[0]))
        interrupt_announce();           // other programs handle it in their own way
    if (end && s->asked > 2) {
        s->status = 128 + signal;
        s->kill_at = clock_now();
    } else if (signal == SIGTSTP) {     // Ctrl-Z: also stop this process, until fg
        send_to_all(s, SIGSTOP);
        raise(SIGSTOP);
        send_to_all(s, SIGCONT);
    } else if (signal != SIGCHLD) {
        send_to_all(s, signal);
    }
}

// Waits up to `ms` for signals and passes them on. Returns the last one that asks to end, or 0.
static int read_signals(Supervisor *s, int ms)
{
    struct pollfd fd = { .fd = s->signals, .events = POLLIN };
    struct signalfd_siginfo info;
    int asks = 0;
    poll(&fd, 1, ms);
    while (read(s->signals, &info, sizeof info) == sizeof info) {
        int signal = (int)info.ssi_signo;
        pass_on(s, signal);
        if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT)
            asks = signal;
    }
    return asks;
}

Supervisor *supervise_new(int ranks, int first, int size)
{
    static Supervisor only;             // one per process
    Supervisor *s = &only;
    *s = (Supervisor){ .first = first, .ranks = ranks, .self = getpid() };
    s->pages = alive_pages(ranks, &s->memory);
    s->watch = (Watch){ .size = size, .ranks = xcalloc((size_t)size, sizeof *s->watch.ranks),
                        .now = clock_now() };
    sigemptyset(&s->watch.passed);
    prctl(PR_SET_CHILD_SUBREAPER, 1);   // a dead rank's children become ours
    block_signals(s);
    return s;
}

void supervise_free(Supervisor *s)
{
    close(s->signals);
    alive_pages_free(s->pages, s->ranks);
    close(s->memory);
    free(s->watch.ranks);
}

// Makes exec close all files but stdin, stdout and stderr. For other files that the rank's program
// needs, FD_CLOEXEC is cleared later, as in alive_bequeath. (Many clusters' kernels are too old for
// close_range with CLOSE_RANGE_CLOEXEC.)
static void close_on_exec(void)
{
    DIR *all = opendir("/proc/self/fd");
    CHECK(all, "is /proc mounted?", "/proc/self/fd: %s", strerror(errno));
    for (struct dirent *one; (one = readdir(all));)
        if (atoi(one->d_name) > STDERR_FILENO)
            fcntl(atoi(one->d_name), F_SETFD, FD_CLOEXEC);
    closedir(all);
}

// In the child. Ctrl-C reaches only the parent, which passes it on.
static void set_up_child(const Supervisor *s, int i)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != s->self)           // the supervisor died before prctl
        _exit(EXIT_REPORTED);
    setpgid(0, 0);
    close(s->signals);
    free(s->watch.ranks);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    sigprocmask(SIG_SETMASK, &s->before, NULL);
    close_on_exec();
    alive_publish(&s->pages[i]);
    alive_bequeath(s->memory, i);
    interrupt_silence();
}

pid_t supervise_fork(Supervisor *s, int rank, double timeout)
{
    int i = rank - s->first;
    fflush(NULL);
    memset((void *)&s->pages[i], 0, sizeof s->pages[i]);
    s->pages[i].timeout = timeout;
    s->pages[i].patience = ALIVE_PATIENCE;
    s->pages[i].watched = true;
    s->pages[i].supervisor = s->self;
    s->pages[i].pid_namespace = launcher_namespace();
    pid_t pid = fork();
    if (pid == 0)
        set_up_child(s, i);
    if (pid <= 0)
        return pid;
    setpgid(pid, pid);                  // in parent and child, since either may run first
    *watched(s, i) = (Watched){ .alive = &s->pages[i], .pid = pid };
    gethostname(watched(s, i)->host, WATCH_HOST - 1);
    return pid;
}

static void reap(Supervisor *s)
{
    double now = clock_now();
    int status;
    for (int i = 0; i < s->ranks; i++)
        for (Watched *r = watched(s, i); r->ended == 0 &&
                 waitpid(r->pid, &status, WNOHANG | WUNTRACED | WCONTINUED) > 0;) {
            r->stopped = WIFSTOPPED(status) ? now : 0;
            r->status = status;
            r->last_beat = now;
            r->ended = WIFEXITED(status) || WIFSIGNALED(status) ? now : 0;
        }
}

// Children that outlived their rank are now ours. Returns whether a rank's group has any. Only such
// groups get the signal: the number of an empty group may belong to unrelated processes by now.
static bool signal_orphans(Supervisor *s, int signal)
{
    bool any = false;
    for (int i = 0; i < s->ranks; i++) {
        pid_t found;
        while ((found = waitpid(-watched(s, i)->pid, NULL, WNOHANG)) > 0) {
        }
        any = any || found == 0;
        if (found == 0 && signal)
            kill(-watched(s, i)->pid, signal);
    }
    return any;
}

int supervise(Supervisor *s)
{
    s->kill_at = s->status = 0;
    s->watch.now = clock_now();
    while (watch_lives(&s->watch)) {
        read_signals(s, CHECK_MS);
        reap(s);
        int status = s->kill_at == 0 ? watch_judge(&s->watch, clock_now()) : 0;
        if (status)
            end_all(s, status);
        if (s->kill_at > 0 && clock_now() >= s->kill_at)
            send_to_all(s, SIGKILL);
    }
    bool agreed = s->kill_at == 0;      // the ranks stopped together, or all are done
    if (agreed)
        s->status = WEXITSTATUS(watched(s, 0)->status);
    if (s->status > 128 && (agreed || sigismember(&s->watch.passed, s->status - 128) == 1))
        s->asked++;                     // perhaps only the ranks got the signal
    s->kill_at = clock_now() + kill_delay;
    for (int signal = s->asked ? 0 : SIGTERM; signal_orphans(s, signal); read_signals(s, CHECK_MS))
        signal = clock_now() < s->kill_at ? 0 : SIGKILL;
    return s->status;
}

// In a thread of a rank: ends the rank when its launcher has died. (Many clusters' kernels are too
// old for pidfd_open.)
static void *wait_for_death(void *launcher)
{
    while (kill((pid_t)(intptr_t)launcher, 0) == 0 || errno == EPERM)
        usleep(100000);
    leave_at_once(EXIT_REPORTED);
}

// In a thread of a rank that no supervisor of ours has started: ends the rank if it is lost. Runs
// until rank 0 watches the rank.
static void *watch_self(void *arg)
{
    const Alive *page = arg;
    Watched self = { .alive = arg };
    Watch watch = { .size = 1, .ranks = &self, .now = clock_now() };
    for (; !page->watched; usleep(1000 * CHECK_MS))
        if (watch_judge(&watch, clock_now()))
            leave_at_once(EXIT_FAILED);
    return NULL;
}

bool supervise_inherit(void)
{
    bool inherited = alive_inherit();
    bool known = inherited && alive_here()->pid_namespace == launcher_namespace();
    pid_t launcher = known ? (pid_t)alive_here()->supervisor : launcher_pid();
    if (launcher > 0 && getppid() == launcher)  // the kernel kills even a stopped rank
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (launcher > 0)
        pthread_detach(thread_start(wait_for_death, (void *)(intptr_t)launcher, "the launcher"));
    if (inherited)
        interrupt_silence();
    else
        pthread_detach(thread_start(watch_self, (void *)alive_here(), "its own watchdog"));
    return inherited;
}

int supervise_pause(Supervisor *s, double seconds)
{
    int asks = s->asked > 0 ? s->status - 128 : 0;
    for (double until = clock_now() + seconds; asks == 0 && clock_now() < until;)
        asks = read_signals(s, CHECK_MS);
    return asks;
}
