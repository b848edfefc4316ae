// watch.c - deaths, signs of life, and what is said about them.
#include "watch.h"
#include "check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

static const double grace = 0.5;        // s for all ranks to say that the loss is not finite

double watch_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

Alive *alive_pages(int count)
{
    Alive *pages = mmap(NULL, (size_t)count * sizeof *pages, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED, "", "mmap: %s", strerror(errno));
    return pages;
}

Watch watch_new(int size, double timeout)
{
    Watch watch = { .size = size, .timeout = timeout, .looked = watch_now() };
    watch.children = xcalloc((size_t)size, sizeof *watch.children);
    sigemptyset(&watch.passed);
    return watch;
}

bool watch_lives(const Watch *watch)
{
    for (int i = 0; i < watch->size; i++)
        if (watch->children[i].ended == 0)
            return true;
    return false;
}

// Each is the head of a group of its own.
void watch_signal(const Watch *watch, int signal)
{
    for (int i = 0; i < watch->size; i++)
        if (watch->children[i].ended == 0)
            kill(-watch->children[i].pid, signal);
}

// --- what is said --------------------------------------------------------------------------------

// What a rank itself has said (it ends with 1, 2 or 3 then) is not explained again.
static void tell_death(const Watch *watch, int rank)
{
    const Child *child = &watch->children[rank];
    char how[80], progress[256];
    int number = WIFSIGNALED(child->status) ? WTERMSIG(child->status) : 0;
    int status = number ? 0 : WEXITSTATUS(child->status);
    bool explained = status >= EXIT_FAILED && status <= EXIT_DIVERGED;
    const char *hint = status || number ? "" : "something in it called exit";
    if (number == SIGKILL)
        hint = "if nobody did that, the machine ran out of memory (dmesg says so): a smaller batch "
               "or fewer ranks need less";
    else if (number == SIGABRT)
        hint = "a library gave up; if ranks were in different collectives, --check-collectives "
               "says so";
    else if (number && number != SIGTERM)
        hint = "ulimit -c unlimited; then a debugger shows where it was";
    if (number)
        snprintf(how, sizeof how, "was killed by SIG%s (%s)", sigabbrev_np(number),
                 strsignal(number));
    else
        snprintf(how, sizeof how, "ended with status %d", status);
    alive_progress(child->alive, progress, sizeof progress);
    WARN(hint, "rank %d of %d (pid %d) %s%s%s", rank, watch->size, (int)child->pid, how,
         explained ? "; the others are ended too" : " ", explained ? "" : progress);
}

static void tell_all(const Watch *watch)
{
    char progress[256];
    for (int i = 0; i < watch->size; i++) {
        const Child *c = &watch->children[i];
        alive_progress(c->alive, progress, sizeof progress);
        WARN("", "rank %d (pid %d) %s, %s", i, (int)c->pid,
             c->ended > 0 ? "is gone" : c->stopped > 0 ? "is stopped" : c->alive->done ? "is done"
             : c->alive->waiting > 0 ? "waits" : "works", progress);
    }
}

// --- a look --------------------------------------------------------------------------------------

static void reap(Child *c, double now)
{
    int status;
    while (c->ended == 0 && waitpid(c->pid, &status, WNOHANG | WUNTRACED | WCONTINUED) > 0) {
        c->stopped = WIFSTOPPED(status) ? now : 0;
        c->beaten = now;
        c->status = status;
        c->ended = WIFEXITED(status) || WIFSIGNALED(status) ? now : 0;
    }
}

void watch_look(Watch *watch)
{
    double now = watch_now();
    bool restart = now - watch->looked > 1; // we were stopped ourselves, or the machine slept
    watch->looked = now;
    for (int i = 0; i < watch->size; i++) {
        Child *c = &watch->children[i];
        if (restart || c->beaten == 0)
            c->beaten = now;
        if (restart && c->stopped > 0)
            c->stopped = now;
        reap(c, now);
    }
}

// --- deaths --------------------------------------------------------------------------------------

// Its exit status, as the program's would be. A signal that we passed on was somebody's wish.
static int status_of(const Watch *watch, const Child *c)
{
    if (WIFSIGNALED(c->status))
        return sigismember(&watch->passed, WTERMSIG(c->status)) ? 128 + WTERMSIG(c->status)
                                                                : EXIT_FAILED;
    return WEXITSTATUS(c->status);
}

int watch_status(const Watch *watch)
{
    for (int i = 0; i < watch->size; i++)
        if (status_of(watch, &watch->children[i]) != 0)
            return status_of(watch, &watch->children[i]);
    return 0;
}

// It went through to the end, though perhaps stopped after some step, as all have agreed to.
static bool ended_well(const Watch *watch, const Child *c)
{
    int status = status_of(watch, c);
    return WIFEXITED(c->status) && c->alive->done && (status == 0 || status > 128);
}

// Did it end because of a signal that we passed on? After the loss of another it leaves at once.
static bool was_wished(const Watch *watch, const Child *c)
{
    int status = status_of(watch, c);
    return status > 128 && sigismember(&watch->passed, status - 128) == 1;
}

// Of several that died at once, which was the first? One that was killed; not one that complains.
static int suspicion(const Watch *watch, const Child *c)
{
    if (c->ended == 0 || ended_well(watch, c))
        return 0;
    if (was_wished(watch, c))
        return 2;
    return WIFSIGNALED(c->status) ? 4 : WEXITSTATUS(c->status) != EXIT_DIVERGED ? 3 : 1;
}

static int judge_deaths(const Watch *watch)
{
    int culprit = 0;
    bool all_diverged = true;
    for (int i = 0; i < watch->size; i++) {
        int suspected = suspicion(watch, &watch->children[i]);
        culprit = suspected > suspicion(watch, &watch->children[culprit]) ? i : culprit;
        all_diverged = all_diverged && suspected == 1;
    }
    const Child *c = &watch->children[culprit];
    int suspected = suspicion(watch, c), status = status_of(watch, c);
    bool more_may_come = watch_lives(watch) && watch->looked < c->ended + grace;
    if (suspected == 0 || (suspected == 1 && more_may_come))
        return 0;
    if (status == 0)
        status = EXIT_FAILED;           // too early
    if (!was_wished(watch, c) && !all_diverged)
        tell_death(watch, culprit);
    return status;
}

// --- signs of life -------------------------------------------------------------------------------

// Whose turn it is to be suspected; -1: nobody's.
typedef struct Suspects {
    int stopped, silent;    // the one who is so for longest
    int behind, ahead;      // who has begun the fewest collectives, and the most
    int waiting;            // how many wait
    double last;            // when anybody has beaten
} Suspects;

static Suspects look_for_life(Watch *watch)
{
    Suspects found = { .stopped = -1, .silent = -1 };
    Child *all = watch->children;
    for (int i = 0; i < watch->size; i++) {
        Child *c = &all[i];
        bool waits = atomic_load(&c->alive->waiting) > 0; // before the beats, see alive_wait_end
        uint64_t beats = atomic_load(&c->alive->beats);
        if (beats != c->beats || atomic_load(&c->alive->outside) > 0)
            c->beaten = watch->looked;
        c->beats = beats;
        found.last = c->beaten > found.last ? c->beaten : found.last;
        found.behind = c->alive->begun < all[found.behind].alive->begun ? i : found.behind;
        found.ahead = c->alive->begun > all[found.ahead].alive->begun ? i : found.ahead;
        if (c->ended > 0)
            continue;
        waits = waits && !c->alive->done;
        found.waiting += waits;
        if (c->stopped > 0 && (found.stopped < 0 || c->stopped < all[found.stopped].stopped))
            found.stopped = i;
        if (!waits && (found.silent < 0 || c->beaten < all[found.silent].beaten))
            found.silent = i;
    }
    return found;
}

static void tell_deadlock(const Watch *watch, const Suspects *found)
{
    static const char hint[] = "--check-collectives shows where they part; what each did last:";
    const Child *behind = &watch->children[found->behind];
    if (behind->alive->begun < watch->children[found->ahead].alive->begun)
        WARN(hint, "all wait for each other, for %.3g s now: rank %d (pid %d) is behind",
             watch->timeout, found->behind, (int)behind->pid);
    else
        WARN(hint, "all wait for each other, for %.3g s now, in different calls", watch->timeout);
}

// Three ways to be lost: to be stopped; to do nothing, without saying that one waits; and when all
// wait, for each other. Who waits while another works is honest, however long.
static int judge_life(Watch *watch)
{
    static const char more[] = "--timeout SECONDS gives more time (0: any); what each did last:";
    const Suspects found = look_for_life(watch);
    const Child *stopped = found.stopped < 0 ? NULL : &watch->children[found.stopped];
    const Child *silent = found.silent < 0 ? NULL : &watch->children[found.silent];
    double since = watch->looked - watch->timeout;
    if (watch->timeout == 0 || (stopped && stopped->stopped >= since))
        return 0;
    if (stopped)                        // the others can only wait for it
        WARN("kill -CONT wakes a process that was stopped", "rank %d of %d (pid %d) is stopped "
             "(SIG%s) for %.3g s now", found.stopped, watch->size, (int)stopped->pid,
             sigabbrev_np(WSTOPSIG(stopped->status)), watch->timeout);
    else if (silent && silent->beaten < since)
        WARN(more, "rank %d of %d (pid %d) has given no sign of life for %.3g s", found.silent,
             watch->size, (int)silent->pid, watch->timeout);
    else if (found.waiting > 0 && !silent && found.last < since)
        tell_deadlock(watch, &found);
    else
        return 0;
    tell_all(watch);
    return EXIT_FAILED;
}

int watch_judge(Watch *watch)
{
    int status = judge_deaths(watch);
    return status ? status : judge_life(watch);
}
