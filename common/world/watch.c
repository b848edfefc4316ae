// watch.c - decides which rank is lost. The limits of time (Watched.delay is added to them):
//
//   a rank                                               printed after   run ends after
//   dies                                                                 at once
//   is stopped, or sends nothing                                         timeout
//   computes without a heartbeat                                         timeout
//   waits for others, and so do all of them                              timeout
//     on GPUs, whose steps may be longer                                 10 steps, at least timeout
//     on GPUs, before a step has ended                                   patience, at least timeout
//   waits for something outside: files, libraries,       timeout         patience
//     NCCL's start, ranks that have not arrived
//   writes to a terminal, a pipe or a disk               timeout         never
#include "watch.h"
#include "check.h"

#include <math.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const double reap_delay = 0.2;   // s: a rank that was killed earlier may be reaped later

bool watch_lives(const Watch *w)
{
    for (int i = 0; i < w->size; i++)
        if (w->ranks[i].alive && w->ranks[i].ended == 0)
            return true;
    return false;
}

static double or_never(double limit) { return limit > 0 ? limit : INFINITY; }

static void report(const Watch *w, int rank, const char *how, const char *hint)
{
    const Watched *r = &w->ranks[rank];
    char name[120] = "this process", progress[256] = "";
    bool ours = alive_seen(r->alive);   // a program that sends heartbeats
    if (ours)
        alive_progress(r->alive, progress, sizeof progress);
    if (r->host[0])
        snprintf(name, sizeof name, "rank %d of %d (%.70s, pid %d)", rank, w->size, r->host,
                 (int)r->pid);
    WARN(ours ? hint : "", "%s %s%s%s", name, how, ours ? ": " : "", progress);
}

// How a rank ended, in rising order of blame for the end of the run.
enum { NO_BLAME, FOLLOWED, FAILED, KILLED };

// Exit status of our own child. If a signal killed the child: 128 + the signal if we passed it on,
// else EXIT_FAILED.
static int status_of(const Watch *w, const Watched *r)
{
    int number = WTERMSIG(r->status);
    return !WIFSIGNALED(r->status) ? WEXITSTATUS(r->status)
           : sigismember(&w->passed, number) ? 128 + number : EXIT_FAILED;
}

static int blame(const Watch *w, const Watched *r)
{
    int status = status_of(w, r);
    bool own = !r->remote, well = status == 0;
    bool interrupted = status > 128 && status != EXIT_RANKS_DIFFER;
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
    snprintf(memory, sizeof memory, "if you did not kill it, memory probably ran out (dmesg shows "
             "that): use a smaller batch or fewer ranks; %s", resume);
    if (number)
        snprintf(how, sizeof how, "was killed by SIG%s (%s)", name ? name : "?", strsignal(number));
    else
        snprintf(how, sizeof how, own ? "ended with status %d" : "has disconnected",
                 WEXITSTATUS(r->status));
    bool explained = own && !number && WEXITSTATUS(r->status) == EXIT_FAILED;
    report(w, rank, how, explained ? "" : number == SIGKILL ? memory : resume);
}

// Of several ranks that died together, blames the one most to blame; of equals, the first to end.
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
    bool explained = status == EXIT_USAGE || status == EXIT_DIVERGED || status == EXIT_RANKS_DIFFER;
    if (most > FOLLOWED && !(explained && alive_seen(culprit->alive)))
        report_death(w, (int)(culprit - w->ranks));
    return status == 0 || status == EXIT_REPORTED ? EXIT_FAILED : status;
}

// If the last look was over 1 s ago, this process was stopped: the clocks of beats, messages and
// stops restart. Waits are read before beats: if the end of a wait is seen, its last beat is too.
static void update_clocks(Watch *w, double now)
{
    bool absent = now - w->now > 1;
    w->now = now;
    for (Watched *r = w->ranks; r < w->ranks + w->size; r++) {
        r->waits = r->alive && r->alive->waits_for_ranks > 0 && !r->alive->done;
        r->outside = r->alive ? atomic_load(&r->alive->outside) : 0;
        uint64_t beats = r->alive ? atomic_load(&r->alive->beats) : 0;
        if (absent || beats != r->beats || r->last_beat == 0) {
            r->last_beat = now;
            r->printed = false;
        }
        r->beats = beats;
        r->last_message = absent ? now : r->last_message;
        r->stopped = absent && r->stopped > 0 ? now : r->stopped;
    }
}

static bool sends_heartbeats(const Watched *r)
{
    return r->alive && r->ended == 0 && alive_seen(r->alive);
}

typedef struct Loss {
    bool applies;
    double since, limit;    // s
    const char *how;
} Loss;

static const char waited[] = "has waited for something outside";

// Has the rank passed one of its limits? Returns how it is lost, and since when. If it is not lost,
// `how` is NULL. A wait for other ranks has no limit here: see deadlock().
static Loss loss_of(const Watch *w, const Watched *r)
{
    double timeout = or_never(r->alive->timeout), patience = or_never(r->alive->patience);
    const Loss losses[] = {
        { r->stopped > 0, r->stopped, timeout, "has been stopped" },
        { r->remote, r->last_message, timeout, "is stopped or unreachable: it has sent nothing" },
        { r->outside == ALIVE_PATIENT, r->last_beat, patience, waited },
        { !r->waits && !r->outside, r->last_beat, timeout, "has sent no heartbeat" },
    };
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        if (losses[i].applies && w->now > losses[i].since + losses[i].limit + r->delay)
            return losses[i];
    return (Loss){ .how = NULL };
}

// "has been reading train/1.jpg for 30 s"
static void describe_wait(const Watch *w, const Watched *r, char text[ALIVE_DOING + 40])
{
    char doing[ALIVE_DOING];
    alive_doing(r->alive, doing);
    snprintf(text, ALIVE_DOING + 40, "has been %s for %.3g s", doing, w->now - r->last_beat);
}

// Prints a line when waits for something outside pass the timeout, about the longest of them. Skips
// ranks with a delay, whose own supervisor prints the line. Prints nothing yet if stderr would
// block: the ranks may be waiting for the same terminal.
static void print_waits(Watch *w)
{
    Watched *longest = NULL;
    int waiting = 0;
    char text[ALIVE_DOING + 80];
    if (poll(&(struct pollfd){ .fd = STDERR_FILENO, .events = POLLOUT }, 1, 0) <= 0)
        return;
    for (Watched *r = w->ranks; r < w->ranks + w->size; r++)
        if (sends_heartbeats(r) && r->outside && r->stopped == 0 && !r->printed && r->delay == 0
            && w->now > r->last_beat + or_never(r->alive->timeout)) {
            r->printed = true;
            waiting++;
            longest = longest && longest->last_beat <= r->last_beat ? longest : r;
        }
    if (!longest)
        return;
    describe_wait(w, longest, text);
    if (waiting > 1)
        snprintf(text + strlen(text), 40, ", as one of %d ranks", waiting);
    report(w, (int)(longest - w->ranks), text, "");
}

// Is it a send or a receive? Such a call meets a different one on the other rank.
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

// Takes the first rank whose calls differ from rank 0's. Prints both ranks' first different call,
// and up to three calls before it.
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

// How long all ranks may wait for each other. With a GPU it may be longer than the timeout, because
// a GPU may work while its host waits.
static double limit_of_waits(const Alive *a)
{
    double step = a->device_step;
    return fmax(or_never(a->timeout), step < 0 ? or_never(a->patience) : 10 * step);
}

// Have all ranks that have not ended waited for each other too long? If so, reports every rank. A
// rank that is not done and has begun fewer calls than another is "behind".
static bool deadlock(const Watch *w)
{
    uint64_t most = 0;
    double since = 0, limit = 0;
    bool met = true;
    for (const Watched *r = w->ranks; r < w->ranks + w->size; r++) {
        if (!r->alive || r->stopped > 0 || !alive_seen(r->alive) || r->outside
            || (r->ended == 0 && !r->waits))
            return false;
        most = r->alive->begun > most ? r->alive->begun : most;
        since = r->last_beat + r->delay > since ? r->last_beat + r->delay : since;
        limit = fmax(limit, limit_of_waits(r->alive));
        met = met && r->alive->joined;
    }
    if (w->now < since + limit || !watch_lives(w))
        return false;
    WARN(met ? "--check-collectives stops the ranks at the first call that differs"
             : "they have never met: is the network up, and the loopback (ip -brief address)? "
               "Between machines a firewall must allow all ports, as ranks connect in pairs",
         "all ranks have been waiting for each other for %.3g s", limit);
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
    static const char silent[] = "--timeout SECONDS gives more time (0: no limit); with --save, "
                                 "--resume auto continues from the last checkpoint",
                      slow[] = "from step 04 on, --patience SECONDS gives more time (0: no limit)";
    Loss longest = { .how = NULL };
    char text[ALIVE_DOING + 40];
    int lost = 0;
    for (int i = 0; i < w->size; i++) {
        const Watched *r = &w->ranks[i];
        Loss loss = sends_heartbeats(r) ? loss_of(w, r) : (Loss){ .how = NULL };
        if (!loss.how || (longest.how && loss.since > longest.since))
            continue;
        longest = loss;
        lost = i;
    }
    if (!longest.how)
        return deadlock(w) ? EXIT_FAILED : 0;
    snprintf(text, sizeof text, "%s for %.3g s", longest.how, w->now - longest.since);
    if (longest.how == waited)
        describe_wait(w, &w->ranks[lost], text);
    report(w, lost, text, longest.how == waited ? slow : silent);
    return EXIT_FAILED;
}

int watch_judge(Watch *w, double now)
{
    update_clocks(w, now);
    print_waits(w);
    int status = judge_deaths(w);
    return status ? status : judge_heartbeats(w);
}

// All ranks' steps take the same time, since each waits for the slowest. What differs is the time
// until a rank needs the others: its wait for data, then its work until its first message.
void watch_slowest(const Watch *w, char text[ALIVE_DOING])
{
    const Alive *first = w->ranks[0].alive;
    double all = 0, most[3] = { 0 };        // ms: waiting for data, then working; their sum
    int slowest = 0;
    text[0] = '\0';
    for (int i = 0; i < w->size; i++) {
        const Alive *a = w->ranks[i].alive;
        if (!a || a->steps < 10 || a->epoch != first->epoch)
            return;                         // too few: a GPU's host runs some steps ahead
        double data = 1e3 * a->waited / (double)a->steps;
        double own = a->messages ? 1e3 * a->own / (double)a->messages : 0;
        all += data + own;
        if (data + own > most[2]) {
            memcpy(most, (double[]){ data, own, data + own }, sizeof most);
            slowest = i;
        }
    }
    double step = 1e3 * first->spent / (double)(first->steps - 1);
    double others = (all - most[2]) / fmax(w->size - 1, 1);
    char own[64] = "";
    if (most[1] > 0)                        // 0: recorded steps hide it
        snprintf(own, sizeof own, " and %.1f ms until its first message", most[1]);
    if (w->size > 1 && most[2] > others + 0.1 * step)
        snprintf(text, ALIVE_DOING, "rank %d (%.70s): %.1f ms for data%s, in a step of %.1f ms; the"
                 " others: %.1f ms", slowest, w->ranks[slowest].host, most[0], own, step, others);
}
