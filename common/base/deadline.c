#include "deadline.h"
#include "check.h"

#include <signal.h>
#include <time.h>

static double limit;                    // s
static const char *hint_text, *what_text;
static timer_t timer;

// Runs in its own thread.
static void on_time(union sigval unused)
{
    FAIL(hint_text, "%s within %.3g s", what_text, limit);
}

void deadline_set(double seconds, const char *hint, const char *what)
{
    struct sigevent event = { .sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_time };
    struct itimerspec once = { .it_value.tv_sec = (time_t)seconds };
    once.it_value.tv_nsec = (long)(1e9 * (seconds - (double)once.it_value.tv_sec));
    limit = seconds;
    hint_text = hint;
    what_text = what;
    if (limit > 0)
        CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 &&
              timer_settime(timer, 0, &once, NULL) == 0, "", "timer_create");
}

void deadline_met(void)
{
    if (limit > 0)
        timer_delete(timer);
}
