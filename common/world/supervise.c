// supervise.c - deaths, signs of life, and what is said about them.
#include "supervise.h"
#include "clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

static const double grace = 0.5;        // s for all ranks to say that the loss is not finite
static const double courtesy = 1;       // s for whoever started a rank elsewhere to say how it died
static const double leisure = 3;        // s that the last ones may be stopped, when all was done

Supervisor supervise_new(int size, double timeout)
{
    Supervisor watch = { .size = size, .timeout = timeout, .looked = clock_now() };
    watch.children = xcalloc((size_t)size, sizeof *watch.children);
    sigemptyset(&watch.passed);
    return watch;
}

bool supervise_lives(const Supervisor *watch)
{
    for (int i = 0; i < watch->size; i++)
        if (watch->children[i].ended == 0)
            return true;
    return false;
}

// Each is the head of a group of its own.
void supervise_signal(const Supervisor *watch, int signal)
{
    for (int i = 0; i < watch->size; i++)
        if (watch->children[i].ended == 0)
            kill(-watch->children[i].pid, signal);
}

// --- what is said --------------------------------------------------------------------------------

static void say(const Supervisor *watch)
{
    WARN(watch->verdict.hint, "%s", watch->verdict.text);
}

enum { WHO = 128 };
// "rank 2 (pid 4711)", "rank 2 (node2, pid 4711)"; with the size: "rank 2 of 4 (pid 4711)"
static const char *who_is(const Supervisor *watch, int rank, bool with_size, char who[WHO])
{
    const Child *c = &watch->children[rank];
    char of[24] = "";
    if (with_size)
        snprintf(of, sizeof of, " of %d", watch->size);
    snprintf(who, WHO, "rank %d%s (%.70s%spid %d)", rank, of, c->host ? c->host : "",
             c->host ? ", " : "", (int)c->pid);
    return who;
}

// It has never touched its page.
static bool gives_no_signs(const Supervisor *watch, const Child *c)
{
    return watch->foreign && atomic_load(&c->alive->beats) == 0 && !c->alive->joined;
}

// What a rank itself has said (it ends with 1, 2 or 3 then) is not explained again.
static void tell_death(Supervisor *watch, int rank)
{
    const Child *child = &watch->children[rank];
    char how[80], progress[256], who[WHO];
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
    bool bare = explained || gives_no_signs(watch, child);
    error_set(&watch->verdict, hint, "%s %s%s%s%s", who_is(watch, rank, true, who), how,
              explained ? "; the others are ended too" : "", bare ? "" : " ", bare ? "" : progress);
    say(watch);
}

static void tell_all(const Supervisor *watch)
{
    char progress[256], who[WHO];
    for (int i = 0; i < watch->size; i++) {
        const Child *c = &watch->children[i];
        alive_progress(c->alive, progress, sizeof progress);
        WARN("", "%s %s, %s", who_is(watch, i, false, who),
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

void supervise_look(Supervisor *watch)
{
    double now = clock_now();
    bool restart = now - watch->looked > 1; // we were stopped ourselves, or the machine slept
    watch->looked = now;
    for (int i = 0; i < watch->size; i++) {
        Child *c = &watch->children[i];
        if (restart || c->beaten == 0)
            c->beaten = now;
        if (restart && c->stopped > 0)
            c->stopped = now;
        if (c->heard == 0)
            reap(c, now);
        else if (restart)
            c->heard = now;
    }
}

// --- deaths --------------------------------------------------------------------------------------

// Its exit status, as the program's would be. A signal that we passed on was somebody's wish.
static int status_of(const Supervisor *watch, const Child *c)
{
    if (WIFSIGNALED(c->status))
        return sigismember(&watch->passed, WTERMSIG(c->status)) ? 128 + WTERMSIG(c->status)
                                                                : EXIT_FAILED;
    return WEXITSTATUS(c->status);
}

int supervise_status(const Supervisor *watch)
{
    for (int i = 0; i < watch->size; i++)
        if (status_of(watch, &watch->children[i]) != 0)
            return status_of(watch, &watch->children[i]);
    return 0;
}

// It went through to the end, though perhaps stopped after some step, as all have agreed to.
static bool ended_well(const Supervisor *watch, const Child *c)
{
    int status = status_of(watch, c);
    if (c->heard > 0)
        return c->alive->done;
    return WIFEXITED(c->status) && ((c->alive->done && (status == 0 || status > 128)) ||
                                    (gives_no_signs(watch, c) && status == 0));
}

// Did it end because of a signal that we passed on? After the loss of another it leaves at once.
static bool was_wished(const Supervisor *watch, const Child *c)
{
    int status = status_of(watch, c);
    return status > 128 && sigismember(&watch->passed, status - 128) == 1;
}

// Of several that died at once, which was the first? One that was killed; not one that complains.
static int suspicion(const Supervisor *watch, const Child *c)
{
    if (c->ended == 0 || c->heard > 0 || ended_well(watch, c))
        return 0;
    if (was_wished(watch, c))
        return 2;
    bool ours = !watch->foreign || c->alive->beats > 0; // what a status means, others decide
    return WIFSIGNALED(c->status) ? 4 : ours && WEXITSTATUS(c->status) == EXIT_DIVERGED ? 1 : 3;
}

static int judge_deaths(Supervisor *watch)
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
    bool more_may_come = supervise_lives(watch) && watch->looked < c->ended + grace;
    if (suspected == 0 || (suspected == 1 && more_may_come))
        return 0;
    if (status == 0)
        status = EXIT_FAILED;           // too early
    if (!was_wished(watch, c) && !all_diverged)
        tell_death(watch, culprit);
    return status;
}

// Those elsewhere: of the ones whose connections have closed, the first. What became of it is known
// there, and is said there first.
static int judge_absence(Supervisor *watch)
{
    const Child *all = watch->children;
    char progress[256], who[WHO];
    int first = -1;
    for (int i = 0; i < watch->size; i++)
        if (all[i].heard > 0 && all[i].ended > 0 && !ended_well(watch, &all[i]) &&
            (first < 0 || all[i].ended < all[first].ended))
            first = i;
    if (first < 0 || watch->looked < all[first].ended + courtesy)
        return 0;
    alive_progress(all[first].alive, progress, sizeof progress);
    error_set(&watch->verdict, "what it or its machine said last tells why",
              "%s is gone: %s", who_is(watch, first, true, who), progress);
    say(watch);
    return EXIT_FAILED;
}

// --- signs of life -------------------------------------------------------------------------------

// Whose turn it is to be suspected; -1: nobody's.
typedef struct Suspects {
    int stopped, silent;    // the one who is so for longest
    int unheard;            // the one who was last heard of longest ago
    int behind, ahead;      // who has begun the fewest collectives, and the most
    int waiting;            // how many wait
    double last;            // when anybody has beaten
} Suspects;

static Suspects look_for_life(Supervisor *watch)
{
    Suspects found = { .stopped = -1, .silent = -1, .unheard = -1 };
    Child *all = watch->children;
    for (int i = 0; i < watch->size; i++) {
        Child *c = &all[i];
        bool waits = atomic_load(&c->alive->waiting) > 0; // before the beats, see alive_wait_end
        uint64_t beats = atomic_load(&c->alive->beats);
        if (beats != c->beats || atomic_load(&c->alive->outside) > 0 || gives_no_signs(watch, c))
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
        if (c->heard > 0 && (found.unheard < 0 || c->heard < all[found.unheard].heard))
            found.unheard = i;
        if (!waits && (found.silent < 0 || c->beaten < all[found.silent].beaten))
            found.silent = i;
    }
    return found;
}

static void tell_deadlock(Supervisor *watch, const Suspects *found)
{
    static const char hint[] = "--check-collectives shows where they part; what each did last:";
    const Child *behind = &watch->children[found->behind];
    char who[WHO];
    if (behind->alive->begun < watch->children[found->ahead].alive->begun)
        error_set(&watch->verdict, hint, "all wait for each other, for %.3g s now: %s is behind",
                  watch->timeout, who_is(watch, found->behind, false, who));
    else
        error_set(&watch->verdict, hint, "all wait for each other, for %.3g s now, in different "
                  "calls", watch->timeout);
}

// Four ways to be lost: to be stopped; not to be heard of; to do nothing, without saying that one
// waits; and when all wait, for each other. Who waits while another works is honest, however long.
static int judge_life(Supervisor *watch)
{
    static const char more[] = "--timeout SECONDS gives more time (0: any); what each did last:";
    const Suspects found = look_for_life(watch);
    const Child *stopped = found.stopped < 0 ? NULL : &watch->children[found.stopped];
    const Child *unheard = found.unheard < 0 ? NULL : &watch->children[found.unheard];
    const Child *silent = found.silent < 0 ? NULL : &watch->children[found.silent];
    double since = watch->looked - watch->timeout;
    char who[WHO];
    if (watch->timeout == 0 || (stopped && stopped->stopped >= since))
        return 0;
    if (stopped)                        // the others can only wait for it
        error_set(&watch->verdict, "kill -CONT wakes a process that was stopped",
                  "%s is stopped (SIG%s) for %.3g s now", who_is(watch, found.stopped, true, who),
                  sigabbrev_np(WSTOPSIG(stopped->status)), watch->timeout);
    else if (unheard && unheard->heard < since)
        error_set(&watch->verdict, more, "%s has not been heard of for %.3g s: it is stopped or "
                  "its machine is out of reach", who_is(watch, found.unheard, true, who),
                  watch->timeout);
    else if (silent && silent->beaten < since)
        error_set(&watch->verdict, more, "%s has given no sign of life for %.3g s",
                  who_is(watch, found.silent, true, who), watch->timeout);
    else if (found.waiting > 0 && !silent && found.last < since)
        tell_deadlock(watch, &found);
    else
        return 0;
    say(watch);
    tell_all(watch);
    return EXIT_FAILED;
}

// Where others judge signs of life. Whoever is stopped when all is done, or when one of us has ended
// already, is missed by nobody there.
static int judge_rest(Supervisor *watch)
{
    bool done = true, ended = false;
    int last = -1;                      // to be stopped
    char who[WHO];
    for (int i = 0; i < watch->size; i++) {
        const Child *c = &watch->children[i];
        if (c->ended > 0) {
            ended = ended || (c->pid > 0 && ended_well(watch, c));
            continue;
        }
        if (c->stopped == 0 || gives_no_signs(watch, c))
            return 0;
        done = done && c->alive->done;
        last = last < 0 || c->stopped > watch->children[last].stopped ? i : last;
    }
    if (last < 0 || !(done || ended) || watch->looked < watch->children[last].stopped + leisure)
        return 0;
    error_set(&watch->verdict, "kill -CONT wakes a process that was stopped",
              "%s is stopped (SIG%s) for %.3g s now, and nobody waits for it any more",
              who_is(watch, last, true, who), sigabbrev_np(WSTOPSIG(watch->children[last].status)),
              leisure);
    say(watch);
    return EXIT_FAILED;
}

int supervise_judge(Supervisor *watch)
{
    int status = judge_deaths(watch);
    if (status == 0)
        status = judge_absence(watch);
    if (status == 0)
        status = judge_life(watch);
    return status == 0 && watch->foreign ? judge_rest(watch) : status;
}
