// link.h - copies between devices, over a simulated slow link if wanted.
#pragma once
#include "args.h"
#include "device.h"
#include "log.h"

typedef struct Link {
    double rate;            // MB/s; 0: no link is simulated, and no bytes are counted
    double idle;            // s: the time (clock.h) from which the link is free
    size_t bytes;           // in both directions, since the step began
} Link;
void link_options(Args *args, double *rate);

// Copies on the device's stream, which then waits for the simulated link. If `to` is `from`,
// nothing is copied, but the bytes cross the link as they would between GPUs.
void link_copy(Link *link, Device *device, void *to, const void *from, size_t bytes);
// Prints how many bytes crossed the link in the last step, if a link is simulated.
void link_report(const Link *link, Log *log);
