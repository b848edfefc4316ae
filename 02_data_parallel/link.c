// link.c - simulates one slow link that all devices share. Messages in both directions cross it one
// after the other. Then each message has a latency, during which the link carries the next one:
//
//   the link   | to device 1 | to device 2 |
//   device 1   |             | latency |               arrived
//   device 2   |             |             | latency | arrived
#include "link.h"
#include "clock.h"
#include "trace.h"

#include <pthread.h>

static const double latency = 1e-3;     // s
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    // every device's thread sends

typedef struct Message {
    Link *link;
    size_t bytes;
} Message;

// Puts a message on the link. Returns the time (clock.h) at which it will arrive.
static double arrival(Link *link, size_t bytes)
{
    pthread_mutex_lock(&lock);
    double now = clock_now(), begin = link->idle > now ? link->idle : now;
    link->bytes += bytes;
    link->idle = begin + (double)bytes / (1e6 * link->rate);
    double arrives = link->idle + latency;
    pthread_mutex_unlock(&lock);
    return arrives;
}

static void wait_for_link(void *arg)
{
    const Message *message = arg;
    trace_begin("slow link");
    double end = arrival(message->link, message->bytes);
    struct timespec until = { (time_t)end, (long)((end - (double)(time_t)end) * 1e9) };
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    trace_end();
}

void link_copy(Link *link, Device *device, void *to, const void *from, size_t bytes)
{
    Stream *stream = device_stream(device);
    if (to != from)
        copy_on_device(stream, to, from, bytes);
    if (link->rate > 0)
        stream_enqueue(stream, wait_for_link, &(Message){ link, bytes }, sizeof(Message));
}

void link_report(const Link *link, Log *log)
{
    if (link->rate > 0)
        log_say(log, "   == link: %.3f MB in the last step", 1e-6 * (double)link->bytes);
}

void link_options(Args *args, double *rate)
{
    args_add(args, ARGS_ROWS(
        { "shared-link", 0, ARG_DOUBLE, rate, "MB/S",
          "simulate one link that all devices share: this rate, and 1 ms of latency (0: off)",
          .min = 0, .max = 1e6 }));
}
