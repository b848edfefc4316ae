// watch.c - four ways to be lost: to die; to be stopped; to fall silent; and to wait for each
// other.
#include "watch.h"
#include "check.h"
#include "clock.h"

#include <string.h>
#include <sys/wait.h>

static const double grace = 0.2;        // s in which a rank shows that was killed before

bool watch_lives(const Watch *w)
{
    for (int i = 0; i < w->size; i++)
        if (w->ranks[i].alive && w->ranks[i].ended == 0)
            return true;
    return false;
}

// --- what is said --------------------------------------------------------------------------------

enum { WHO = 128, PROGRESS = 256 };

static const char *who_is(const Watch *w, int rank, char who[WHO])
{
    snprintf(who, WHO, "rank %d of %d (%.70s, pid %d)", rank, w->size, w->ranks[rank].host,
             (int)w->ranks[rank].pid);
    return who;
}

static void tell_death(const Watch *w, int rank)
{
    const Watched *r = &w->ranks[rank];
    char how[80] = "is gone", progress[PROGRESS] = "", who[WHO], hint[256];
    bool own = r->heard == 0;
    int number = own && WIFSIGNALED(r->status) ? WTERMSIG(r->status) : 0;
    const char *name = number ? sigabbrev_np(number) : NULL;
    if (number)
        snprintf(how, sizeof how, "was killed by SIG%s (%s)", name ? name : "?", strsignal(number));
    else if (own)
        snprintf(how, sizeof how, "ended with status %d", WEXITSTATUS(r->status));
    snprintf(hint, sizeof hint, "%swith --save, --resume auto continues from the last checkpoint",
             number == SIGKILL   ? "if nobody killed it, the machine ran out of memory (dmesg): use a "
                                   "smaller batch or fewer ranks; "
             : number == SIGABRT ? "a library gave up; if ranks were in different collectives, "
                                   "--check-collectives says so; "
             : number            ? "ulimit -c unlimited, and a debugger shows where it was; "
             : !own              ? "what it or its machine said last tells why; "
                                 : "");
    if (alive_seen(r->alive)) {
        memcpy(progress, ": ", 2);
        alive_progress(r->alive, progress + 2, sizeof progress - 2);
    }
    // What a rank has explained itself needs no hint, nor does a program that is not ours.
    bool hinted = alive_seen(r->alive) && (!own || number || WEXITSTATUS(r->status) != EXIT_FAILED);
    WARN(hinted ? hint : "", "%s %s%s", who_is(w, rank, who), how, progress);
}

static void tell_all(const Watch *w)
{
    char progress[PROGRESS];
    for (int i = 0; i < w->size; i++) {
        const Watched *r = &w->ranks[i];
        alive_progress(r->alive, progress, sizeof progress);
        WARN("", "rank %d (%.70s, pid %d) %s, %s", i, r->host, (int)r->pid,
             r->alive->done ? "is done" : "waits", progress);
    }
}

// --- deaths --------------------------------------------------------------------------------------

// Our own child's exit status; a signal that we passed on was somebody's wish.
static int status_of(const Watch *w, const Watched *r)
{
    int number = WTERMSIG(r->status);
    return !WIFSIGNALED(r->status) ? WEXITSTATUS(r->status)
           : sigismember(&w->passed, number) ? 128 + number : EXIT_FAILED;
}

static bool was_wished(const Watch *w, const Watched *r)
{
    int status = status_of(w, r);
    return status > 128 && sigismember(&w->passed, status - 128) == 1;
}

static bool ended_well(const Watch *w, const Watched *r)
{
    int status = status_of(w, r);
    if (r->heard > 0 || (WIFEXITED(r->status) && alive_seen(r->alive)))
        return r->alive->done && (status == 0 || status > 128);
    return status == 0;
}

// Of several that died at once, which is to blame? One that was killed, before one that failed; not
// one that was ended because another was lost.
static int blame(const Watch *w, const Watched *r)
{
    if (!r->alive || r->ended == 0 || ended_well(w, r))
        return 0;
    if (r->heard > 0)
        return w->looked > r->ended + r->slack ? 3 : 0;
    return was_wished(w, r) || status_of(w, r) == EXIT_REPORTED ? 1 : WIFSIGNALED(r->status) ? 4 : 3;
}

static int judge_deaths(const Watch *w)
{
    int culprit = 0;
    for (int i = 1; i < w->size; i++) {
        int more = blame(w, &w->ranks[i]) - blame(w, &w->ranks[culprit]);
        if (more > 0 || (more == 0 && w->ranks[i].ended < w->ranks[culprit].ended))
            culprit = i;
    }
    const Watched *r = &w->ranks[culprit];
    int blamed = blame(w, r), status = status_of(w, r);
    bool first_may_show = r->heard == 0 && blamed < 4 && w->looked < r->ended + grace;
    if (blamed == 0 || (first_may_show && watch_lives(w)))
        return 0;
    bool explained = status == EXIT_USAGE || status == EXIT_DIVERGED;
    if (blamed > 1 && !(explained && alive_seen(r->alive)))
        tell_death(w, culprit);
    return r->heard > 0 || status == 0 || status == EXIT_REPORTED ? EXIT_FAILED : status;
}

// --- signs of life -------------------------------------------------------------------------------

static void look(Watch *w)
{
    double now = clock_now();
    bool absent = now - w->looked > 1;  // we were stopped ourselves, or the machine slept
    w->looked = now;
    for (int i = 0; i < w->size; i++) {
        Watched *r = &w->ranks[i];
        if (!r->alive)
            continue;
        uint64_t beats = atomic_load(&r->alive->beats);
        if (absent || beats != r->beats || r->beaten == 0 || atomic_load(&r->alive->outside) > 0)
            r->beaten = now;
        r->beats = beats;
        if (absent && r->heard > 0)
            r->heard = now;
        if (absent && r->stopped > 0)
            r->stopped = now;
    }
}

static bool deadlock(const Watch *w)
{
    static const char hint[] = "--check-collectives shows where they part; what each did last:";
    int behind = 0, ahead = 0;
    double since = 0, patience = 0, slack = 0;
    char who[WHO];
    for (int i = 0; i < w->size; i++) {
        const Watched *r = &w->ranks[i];
        if (!r->alive || r->stopped > 0 || !alive_seen(r->alive) ||
            (r->ended == 0 && (atomic_load(&r->alive->waiting) == 0 || r->alive->done)))
            return false;
        behind = r->alive->begun < w->ranks[behind].alive->begun ? i : behind;
        ahead = r->alive->begun > w->ranks[ahead].alive->begun ? i : ahead;
        since = r->beaten > since ? r->beaten : since;
        slack = r->slack > slack ? r->slack : slack;
        patience = atomic_load(&r->alive->patience);
    }
    if (patience == 0 || w->looked < since + patience + slack || !watch_lives(w))
        return false;
    bool differ = w->ranks[behind].alive->begun < w->ranks[ahead].alive->begun;
    WARN(hint, "all wait for each other, for %.3g s now%s%s%s", patience, differ ? ": " : "",
         differ ? who_is(w, behind, who) : ", in different calls", differ ? " is behind" : "");
    tell_all(w);
    return true;
}

// A rank that waits while another works is honest, however long it waits.
static int judge_life(const Watch *w)
{
    static const char more[] = "--timeout SECONDS gives more time (0: any); with --save, --resume auto "
                               "continues from the last checkpoint";
    const char *how = NULL, *why = "";
    int lost = 0;
    double since = 0;                   // of those that have been lost for too long, the first
    char who[WHO], progress[PROGRESS];
    for (int i = 0; i < w->size; i++) {
        const Watched *r = &w->ranks[i];
        if (!r->alive || r->ended > 0 || !alive_seen(r->alive))
            continue;
        bool waits = atomic_load(&r->alive->waiting) > 0 && !r->alive->done;
        bool unheard = r->heard > 0 && r->heard < r->beaten;
        double last = r->stopped > 0 ? r->stopped : r->heard > 0 && (waits || unheard) ? r->heard
                      : waits ? w->looked : r->beaten;
        double patience = atomic_load(&r->alive->patience);
        if (patience == 0 || w->looked < last + patience + r->slack || (how && last > since))
            continue;
        how = r->stopped > 0 ? "is stopped" : last == r->heard ? "has not been heard of"
              : "has given no sign of life";
        why = last == r->heard ? ", it is stopped or its machine is out of reach" : "";
        since = last;
        lost = i;
    }
    if (!how)
        return deadlock(w) ? EXIT_FAILED : 0;
    alive_progress(w->ranks[lost].alive, progress, sizeof progress);
    WARN(more, "%s %s for %.3g s%s: %s", who_is(w, lost, who), how, w->looked - since, why, progress);
    return EXIT_FAILED;
}

int watch_judge(Watch *w)
{
    look(w);
    int status = judge_deaths(w);
    return status ? status : judge_life(w);
}
