// If SPY is set, prints a line if gradients are sent on one stream and then scaled on another, which has not
// waited for the first.
#include "comm.h"
#include "ops.h"
#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>

static struct {
    const float *values;
    size_t count;
    const Stream *stream;
} under_way[64];                // messages for which no other stream has waited yet
static int messages;

WRAPPED(comm_all_reduce);
void __wrap_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    if (messages < 64)
        under_way[messages++] = (typeof(under_way[0])){ values, count, stream };
    __real_comm_all_reduce(comm, stream, values, count, type);
}

WRAPPED(stream_wait);
void __wrap_stream_wait(Stream *stream, Event *event)
{
    if (messages > 0 && stream != under_way[0].stream)
        messages = 0;
    __real_stream_wait(stream, event);
}

WRAPPED(values_scale);
void __wrap_values_scale(Stream *stream, float *values, size_t count, float factor)
{
    for (int i = 0; i < messages; i++)
        if (getenv("SPY") && stream != under_way[i].stream && values < under_way[i].values + under_way[i].count &&
            under_way[i].values < values + count)
            fprintf(stderr, "spy: gradients are scaled before ddp_wait\n");
    __real_values_scale(stream, values, count, factor);
}
