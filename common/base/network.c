#include "network.h"
#include "clock.h"
#include "trace.h"

#include <pthread.h>

static const double latency = 1e-3;     // seconds, for each message
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    // guards every Network

// Puts a message on the link. Returns the time (clock.h) at which it will arrive.
static double arrival(Network *network, size_t bytes)
{
    pthread_mutex_lock(&lock);
    double now = clock_now(), begin = network->idle > now ? network->idle : now;
    network->bytes += bytes;
    network->idle = begin + (double)bytes / (1e6 * network->rate);
    double arrives = network->idle + latency;
    pthread_mutex_unlock(&lock);
    return arrives;
}

void network_send(void *message)
{
    const NetworkMessage *m = message;
    trace_begin("slow network");
    double end = arrival(m->network, m->bytes);
    struct timespec until = { (time_t)end, (long)((end - (double)(time_t)end) * 1e9) };
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    trace_end();
}
