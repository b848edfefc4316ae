// link.h - copies between devices, and an imitation of one slow link that all devices share.
#pragma once
#include "args.h"
#include "device.h"
#include "log.h"

typedef struct Link {
    double rate;            // MB/s; 0: nothing is imitated or counted
    double idle;            // s: when the bytes so far have passed (clock.h)
    size_t bytes;           // so far, in both directions
} Link;
void link_options(Args *args, double *rate);

// Copies to or from a device, on its stream, and then waits for the imitated link. If to and from
// are the same, nothing is copied, but the bytes cross the link as they would between GPUs.
void link_copy(Link *link, Device *device, void *to, const void *from, size_t bytes);
// Prints how many bytes crossed the link, if one is imitated.
void link_report(const Link *link, Log *log);
