// call.c - what comm_run does around the library's call, and what happens if a rank is lost.
#include "check.h"
#include "comm/backend.h"
#include "interrupt.h"
#include "progress.h"
#include "trace.h"

#include <inttypes.h>
#include <time.h>

static const char *const names[] = {
    [CALL_ALL_REDUCE] = "all_reduce", [CALL_BROADCAST] = "broadcast",
    [CALL_ALL_GATHER] = "all_gather", [CALL_SEND] = "send",
    [CALL_RECEIVE] = "receive", [CALL_BARRIER] = "barrier",
};

size_t comm_width(CommType type)
{
    static const size_t widths[] = {
        [COMM_U8] = 1, [COMM_I64] = 8, [COMM_F32] = 4,
        [COMM_F64] = 8, [COMM_BF16] = 2, [COMM_F16] = 2,
    };
    return widths[type];
}

const char *call_describe(const Comm *comm, const Call *call, char text[CALL_TEXT])
{
    char values[32] = "";
    const char *section = call ? call->section : "";
    if (call && call->kind != CALL_BARRIER)
        snprintf(values, sizeof values, " of %zu", call->count);
    snprintf(text, CALL_TEXT, "%s%s (%s)%s%s", call ? names[call->kind] : "connect", values,
             comm->name, section[0] ? ", in " : "", section);
    return text;
}

bool call_begin(Comm *comm, Call *call)
{
    bool pair = call->kind == CALL_SEND || call->kind == CALL_RECEIVE;
    CHECK(call->peer >= 0 && call->peer < comm->size && !(pair && call->peer == comm->rank),
          "choose a rank in this range; a send or a receive needs a rank other than this one",
          "%s with rank %d: the ranks are 0 to %d, and this one is %d", names[call->kind],
          call->peer, comm->size - 1, comm->rank);
    call->section = trace_section();
    call->number = pair ? 0 : ++comm->calls;
    comm->bytes += call->count * comm_width(call->type);
    return call->count > 0;
}

// On a ring, an all-reduce sends 2 (size - 1) / size times the bytes that it sums, and an
// all-gather size - 1 times those of one rank.
void call_end(Comm *comm, Stream *stream, const Call *call)
{
    if (comm->network.rate > 0 && comm->size > 1) {
        double times = call->kind == CALL_ALL_REDUCE   ? 2 - 2.0 / comm->size
                       : call->kind == CALL_ALL_GATHER ? comm->size - 1
                                                       : 1;
        double bytes = times * (double)(call->count * comm_width(call->type));
        NetworkMessage message = { &comm->network, (size_t)bytes };
        stream_enqueue(stream, network_send, &message, sizeof message);
    }
}

void call_record(const Comm *comm, const Call *call)
{
    static _Thread_local char span[48];     // the open span's name: "all_reduce 62.1 KB"
    char together[40], text[CALL_TEXT];
    const char *name = names[call->kind];
    double bytes = (double)(call->count * comm_width(call->type));
    if (call->kind == CALL_BARRIER)
        snprintf(span, sizeof span, "%s", name);
    else if (bytes < 1e3)
        snprintf(span, sizeof span, "%s %.0f B", name, bytes);
    else
        snprintf(span, sizeof span, "%s %.1f %s", name, bytes / (bytes < 1e6 ? 1e3 : 1e6),
                 bytes < 1e6 ? "KB" : "MB");
    snprintf(together, sizeof together, "%s #%" PRIu64, comm->name, call->number);
    trace_begin_call(span, call->number ? together : NULL);
    progress_call("%s", call_describe(comm, call, text));
}

void call_lost(const Comm *comm, const Call *call, const char *why)
{
    char text[CALL_TEXT], reason[512];
    snprintf(reason, sizeof reason, "%s", why);     // another error may overwrite why
    for (int waited_ms = 0; waited_ms < 5000; waited_ms += 50) {
        if (interrupt_requested() || interrupt_received())
            leave_at_once(EXIT_REPORTED);   // not 128 + signal, as if the ranks had agreed to stop
        nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
    }
    FAIL(call ? "another rank has ended or is unreachable: check its last output"
              : "another rank has ended or is unreachable, or another program has connected to a "
                "rank's port: check the ranks' last output",
         "rank %d of %d lost another rank in %s: %s", comm->rank, comm->size,
         call_describe(comm, call, text), reason);
}
