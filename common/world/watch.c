// watch.c - a rank can be lost in four ways: dead, stopped, silent, or deadlocked with others.
#include "watch.h"
#include "check.h"

#include <stddef.h>
#include <string.h>
#include <sys/wait.h>

static const double reap_delay = 0.2;   // s: a rank that was killed earlier may be reaped later

bool watch_lives(const Watch *w)
{
    for (int i = 0; i < w->size; i++)
        if (w->ranks[i].alive && w->ranks[i].ended == 0)
            return true;
    return false;
}

static void report(const Watch *w, int rank, const char *how, const char *hint)
{
    const Watched *r = &w->ranks[rank];
    char progress[256] = "";
    bool ours = alive_seen(r->alive);   // a program that sends heartbeats
    if (ours)
        alive_progress(r->alive, progress, sizeof progress);
    WARN(ours ? hint : "", "rank %d of %d (%.70s, pid %d) %s%s%s", rank, w->size, r->host,
         (int)r->pid, how, ours ? ": " : "", progress);
}

// --- deaths --------------------------------------------------------------------------------------

// In rising order of blame for the end of the run.
enum { NO_BLAME, FOLLOWED, FAILED, KILLED };

// Exit status of our own child. A signal that we passed on counts as an intended end.
static int status_of(const Watch *w, const Watched *r)
{
    int number = WTERMSIG(r->status);
    return !WIFSIGNALED(r->status) ? WEXITSTATUS(r->status)
           : sigismember(&w->passed, number) ? 128 + number : EXIT_FAILED;
}

static int blame(const Watch *w, const Watched *r)
{
    int status = status_of(w, r);
    bool own = !r->remote, interrupted = status > 128, well = status == 0;
    if (!own || (WIFEXITED(r->status) && alive_seen(r->alive)))
        well = r->alive->done && (well || interrupted);
    if (r->ended == 0 || well)
        return NO_BLAME;
    if (!own)
        return w->now > r->ended + r->delay ? FAILED : NO_BLAME;
    if (status == EXIT_REPORTED || (interrupted && sigismember(&w->passed, status - 128) == 1))
        return FOLLOWED;
    return WIFSIGNALED(r->status) ? KILLED : FAILED;
}

static void report_death(const Watch *w, int rank)
{
    static const char *const names[SIGSYS + 1] = {
        [SIGHUP] = "HUP", [SIGINT] = "INT", [SIGQUIT] = "QUIT", [SIGILL] = "ILL",
        [SIGTRAP] = "TRAP", [SIGABRT] = "ABRT", [SIGBUS] = "BUS", [SIGFPE] = "FPE",
        [SIGKILL] = "KILL", [SIGUSR1] = "USR1", [SIGSEGV] = "SEGV", [SIGUSR2] = "USR2",
        [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM", [SIGTERM] = "TERM", [SIGXCPU] = "XCPU",
        [SIGXFSZ] = "XFSZ", [SIGSYS] = "SYS" };
    static const char resume[] = "with --save, --resume auto continues from the last checkpoint";
    const Watched *r = &w->ranks[rank];
    bool own = !r->remote;
    char how[80], memory[256];
    int number = own && WIFSIGNALED(r->status) ? WTERMSIG(r->status) : 0;
    const char *name = number <= SIGSYS ? names[number] : NULL;
    snprintf(memory, sizeof memory, "if you did not kill it, memory probably ran out (see dmesg, "
             "ulimit -t): use a smaller batch or fewer ranks; %s", resume);
    if (number)
        snprintf(how, sizeof how, "was killed by SIG%s (%s)", name ? name : "?", strsignal(number));
    else
        snprintf(how, sizeof how, own ? "ended with status %d" : "has disconnected",
                 WEXITSTATUS(r->status));
    bool explained = own && !number && WEXITSTATUS(r->status) == EXIT_FAILED;
    report(w, rank, how, explained ? "" : number == SIGKILL ? memory : resume);
}

// Of several ranks that died together, blames the first of those most to blame.
static int judge_deaths(const Watch *w)
{
    const Watched *culprit = NULL;
    int most = FOLLOWED;
    for (const Watched *r = w->ranks; r < w->ranks + w->size; r++) {
        int blamed = r->alive ? blame(w, r) : NO_BLAME;
        if (blamed < most || (culprit && blamed == most && r->ended >= culprit->ended))
            continue;
        culprit = r;
        most = blamed;
    }
    if (!culprit)
        return 0;
    int status = culprit->remote ? EXIT_FAILED : status_of(w, culprit);
    bool early = !culprit->remote && most < KILLED && w->now < culprit->ended + reap_delay;
    if (early && watch_lives(w))
        return 0;
    bool explained = status == EXIT_USAGE || status == EXIT_DIVERGED;
    if (most > FOLLOWED && !(explained && alive_seen(culprit->alive)))
        report_death(w, (int)(culprit - w->ranks));
    return status == 0 || status == EXIT_REPORTED ? EXIT_FAILED : status;
}

// --- heartbeats ----------------------------------------------------------------------------------

// If this process was stopped or the machine slept since the last look, all clocks restart.
static void update_clocks(Watch *w, double now)
{
    bool absent = now - w->now > 1;
    w->now = now;
    for (Watched *r = w->ranks; r < w->ranks + w->size; r++) {
        uint64_t beats = r->alive ? atomic_load(&r->alive->beats) : 0;
        bool excused = absent || (r->alive && r->alive->waits_for_system > 0);
        if (excused || beats != r->beats || r->last_beat == 0)
            r->last_beat = now;
        r->beats = beats;
        r->last_message = absent ? now : r->last_message;
        r->stopped = absent && r->stopped > 0 ? now : r->stopped;
    }
}

static bool waits(const Watched *r) { return r->alive->waits_for_ranks > 0 && !r->alive->done; }

// How the rank has been lost for longer than its timeout, and since when (s); NULL: it is not lost.
// A rank may wait without limit while a different rank works.
static const char *loss_of(const Watch *w, const Watched *r, double *since)
{
    const struct { bool applies; double since; const char *how; } losses[] = {
        { r->stopped > 0, r->stopped, "has been stopped" },
        { r->remote, r->last_message, "is stopped or unreachable: it has sent nothing" },
        { !waits(r), r->last_beat, "has sent no heartbeat" },
    };
    double timeout = r->alive->timeout;
    for (size_t i = 0; timeout > 0 && i < sizeof losses / sizeof *losses; i++) {
        *since = losses[i].since;
        if (losses[i].applies && w->now > *since + timeout + r->delay)
            return losses[i].how;
    }
    return NULL;
}

// A send meets a receive, perhaps of a different size.
static bool is_pair(const AliveCollective *c) { return strchr("sr", *(const char *)c->operation); }

static bool differ(const AliveCollective *a, const AliveCollective *b)
{
    if (!a || !b)
        return a != b;
    bool same = memcmp((const void *)a, (const void *)b, offsetof(AliveCollective, section)) == 0;
    return !same && !(is_pair(a) && is_pair(b));
}

// The first place at which two ranks' calls differ, as far as they are kept; 0: none.
static uint64_t parting(const Alive *a, const Alive *b)
{
    uint64_t last = a->latest > b->latest ? a->latest : b->latest;
    for (uint64_t at = last < ALIVE_KEPT ? 1 : last - ALIVE_KEPT + 1; at <= last; at++)
        if (differ(alive_collective(a, at), alive_collective(b, at)))
            return at;
    return 0;
}

// The last calls of two ranks, side by side: of rank 0 and the first one that differs from it.
static void report_parting(const Watch *w)
{
    uint64_t place = 0;
    int other = 0;
    while (place == 0 && ++other < w->size)
        place = parting(w->ranks[0].alive, w->ranks[other].alive);
    if (place == 0)
        return;
    fprintf(stderr, "%10s%-52srank %d\n", "", "rank 0", other);
    for (uint64_t at = place > 3 ? place - 3 : 1; at <= place; at++) {
        char text[2][ALIVE_TEXT] = { "-", "-" };
        for (int i = 0; i < 2; i++) {
            const AliveCollective *c = alive_collective(w->ranks[i ? other : 0].alive, at);
            if (c)
                alive_describe(c, text[i]);
        }
        fprintf(stderr, "  #%-7llu%-52s%s%s\n", (unsigned long long)at, text[0], text[1],
                at == place ? "    <- first difference" : "");
    }
}

// All ranks wait for each other, or are done. Also reports which ranks have begun fewer
// collectives.
static bool deadlock(const Watch *w)
{
    uint64_t most = 0;
    double since = 0, timeout = 0;
    bool met = true;
    for (const Watched *r = w->ranks; r < w->ranks + w->size; r++) {
        if (!r->alive || r->stopped > 0 || !alive_seen(r->alive) || (r->ended == 0 && !waits(r)))
            return false;
        most = r->alive->begun > most ? r->alive->begun : most;
        since = r->last_beat + r->delay > since ? r->last_beat + r->delay : since;
        timeout = r->alive->timeout;
        met = met && r->alive->joined;
    }
    if (timeout == 0 || w->now < since + timeout || !watch_lives(w))
        return false;
    WARN(met ? "--check-collectives stops the ranks at the first call that differs"
             : "they have not met: is the network up, also the loopback (ip -brief address)?",
         "all ranks have been waiting for each other for %.3g s", timeout);
    for (int i = 0; i < w->size; i++) {
        const Alive *page = w->ranks[i].alive;
        report(w, i, page->done ? "is done" : page->begun < most ? "is behind" : "waits", "");
    }
    report_parting(w);
    return true;
}

// Of several lost ranks, names the one that has been lost for the longest time.
static int judge_heartbeats(const Watch *w)
{
    static const char hint[] = "--timeout SECONDS gives more time (0: no limit); with --save, "
                               "--resume auto continues from the last checkpoint";
    const char *how = NULL;
    char text[100];
    int lost = 0;
    double since = 0, when;
    for (int i = 0; i < w->size; i++) {
        const Watched *r = &w->ranks[i];
        bool lives = r->alive && r->ended == 0 && alive_seen(r->alive);
        const char *loss = lives ? loss_of(w, r, &when) : NULL;
        if (!loss || (how && when > since))
            continue;
        how = loss;
        since = when;
        lost = i;
    }
    if (!how)
        return deadlock(w) ? EXIT_FAILED : 0;
    snprintf(text, sizeof text, "%s for %.3g s", how, w->now - since);
    report(w, lost, text, hint);
    return EXIT_FAILED;
}

int watch_judge(Watch *w, double now)
{
    update_clocks(w, now);
    int status = judge_deaths(w);
    return status ? status : judge_heartbeats(w);
}
