#include "interrupt.h"
#include "check.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

// Atomic, not only sig_atomic_t: two signals may be handled at once, in two threads.
static atomic_int received;     // the first signal; after SIGUSR1, the next Ctrl-C or SIGTERM
static atomic_int stopped_by;   // the signal after which the ranks have agreed to stop
static atomic_llong since = LLONG_MAX;      // when SIGINT or SIGTERM came, in ms
static atomic_bool held, agrees, silenced;  // agrees: interrupt_hold was called

static long long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1000LL * t.tv_sec + t.tv_nsec / 1000000;
}

static void on_signal(int signal)
{
    int none = 0, early = SIGUSR1, kept = errno; // the interrupted code may read errno next
    if (signal == SIGUSR1 && received)
        return;
    bool alone = rank_count() > 1 && !agrees;
    if (!alone && (atomic_compare_exchange_strong(&received, &none, signal) ||
                   atomic_compare_exchange_strong(&received, &early, signal)))
        since = signal == SIGUSR1 ? LLONG_MAX : now_ms();
    else if (alone || signal != received || now_ms() - 200 > since)
        leave_at_once(128 + signal);    // a rank that stopped alone would leave the others waiting
    else
        return;     // timeout signals its child twice; systemd, both launch and its ranks
    if (!silenced && signal != SIGUSR1)     // SIGUSR1 comes from a batch system, not from a user
        interrupt_announce();
    errno = kept;
}

// The handler needs its own stack: oneDNN's matrix products set the stack pointer to the start of a
// block from malloc, and a handler on that "stack" would overwrite the heap below the block.
void interrupt_install(void)
{
    static char memory[1 << 16];
    sigaltstack(&(stack_t){ .ss_sp = memory, .ss_size = sizeof memory }, NULL);
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    signal(SIGPIPE, SIG_IGN);   // a reader that closes the pipe (| head) must not end training
    signal(SIGXFSZ, SIG_IGN);   // a write beyond ulimit -f fails, and its error is reported
}

void interrupt_silence(void) { silenced = true; }

void interrupt_announce(void)
{
    static const char said[] =
        "\nstopping after this step or evaluation; press Ctrl-C again to stop at once\n";
    ssize_t written = write(STDERR_FILENO, said, sizeof said - 1);
    (void)written;              // stderr may be closed
}

int interrupt_requested(void)
{
    if (stopped_by || held)
        return stopped_by;
    return received;
}

void interrupt_hold(void) { held = agrees = true; }

int interrupt_received(void) { return received; }

void interrupt_stop(int signal) { stopped_by = signal; }

void interrupt_release(void) { held = false; }

void interrupt_leave(void)
{
    if (received)
        leave_at_once(128 + received);
}
