#include "interrupt.h"
#include "check.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t requested;

static void on_signal(int signal)
{
    if (requested) {
        check_clean_up();
        _exit(128 + signal);
    }
    requested = signal;
    static const char said[] = "\nstopping after this step; once more: at once\n";
    int kept = errno;           // whatever was interrupted may be about to read it
    ssize_t told = write(STDERR_FILENO, said, sizeof said - 1);
    (void)told;                 // there may be nobody to tell
    errno = kept;
}

void interrupt_install(void)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);   // a reader that goes away (| head) is no reason to stop training
}

int interrupt_requested(void) { return requested; }
