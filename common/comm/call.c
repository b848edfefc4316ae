// call.c - what every call does, whatever the backend, and what happens if a rank is lost.
#include "comm/backend.h"
#include "progress.h"
#include "check.h"
#include "interrupt.h"
#include "trace.h"

#include <inttypes.h>
#include <time.h>

static const struct {
    const char *name;
    const char *peer;       // the text before call->peer: " from rank "; NULL: no peer
} kinds[CALL_KINDS] = {
    [CALL_ALL_REDUCE] = { "all_reduce" },
    [CALL_BROADCAST] = { "broadcast", " from rank " },
    [CALL_ALL_GATHER] = { "all_gather" },
    [CALL_GATHER] = { "gather", " to rank " },
    [CALL_SEND] = { "send", " to rank " },
    [CALL_RECEIVE] = { "receive", " from rank " },
    [CALL_BARRIER] = { "barrier" },
    [CALL_FREE] = { "comm_free" },
};
static const struct {
    const char *name;
    size_t width;
} types[] = {
    [COMM_U8] = { "u8", 1 }, [COMM_I64] = { "i64", 8 }, [COMM_F32] = { "f32", 4 },
    [COMM_F64] = { "f64", 8 }, [COMM_BF16] = { "bf16", 2 }, [COMM_F16] = { "f16", 2 },
};

size_t comm_width(CommType type) { return types[type].width; }
const char *comm_type_name(CommType type) { return types[type].name; }

const char *call_describe(const Call *call, char text[CALL_TEXT])
{
    char values[40] = "", peer[24] = "";
    if (call->kind < CALL_BARRIER)
        snprintf(values, sizeof values, " of %zu %s", call->count, types[call->type].name);
    if (kinds[call->kind].peer)
        snprintf(peer, sizeof peer, "%s%d", kinds[call->kind].peer, call->peer);
    snprintf(text, CALL_TEXT, "%s #%" PRIu64 "%s%s", kinds[call->kind].name, call->number, values,
             peer);
    return text;
}

static bool is_pair(const Call *call)
{
    return call->kind == CALL_SEND || call->kind == CALL_RECEIVE;
}

static void sleep_for(double seconds)
{
    time_t whole = (time_t)seconds;
    nanosleep(&(struct timespec){ whole, (long)((seconds - (double)whole) * 1e9) }, NULL);
}

bool call_begin(Comm *comm, Stream *stream, Call *call)
{
    bool pair = is_pair(call);
    const char *peer = kinds[call->kind].peer;
    bool exists = call->peer >= 0 && call->peer < comm->size;
    CHECK(!peer || (exists && !(pair && call->peer == comm->rank)),
          "choose a rank in this range; a send or a receive needs another rank than this",
          "%s%s%d: the ranks are 0 to %d, and this one is %d", kinds[call->kind].name, peer,
          call->peer, comm->size - 1, comm->rank);
    call->section = trace_section();
    if (!comm->checking) {
        call->number = pair ? ++comm->pair_calls : ++comm->calls;
        comm->bytes += call->count * comm_width(call->type);
        if (comm->check && !pair)
            comm->check(comm, stream, call);
    }
    return call->count > 0;
}

// An all-reduce on a ring sends 2 (size - 1) / size times the bytes that it sums.
void call_end(Comm *comm, Stream *stream, const Call *call)
{
    if (comm->network.rate > 0 && comm->size > 1 && call->count > 0 && !comm->checking) {
        double times = call->kind == CALL_ALL_REDUCE ? 2 - 2.0 / comm->size : 1;
        double bytes = times * (double)(call->count * comm_width(call->type));
        NetworkMessage message = { &comm->network, (size_t)bytes };
        stream_enqueue(stream, network_send, &message, sizeof message);
    }
}

void call_work_begin(Comm *comm, const Call *call)
{
    const char *name = call->number ? kinds[call->kind].name : "compare";
    double bytes = (double)(call->count * comm_width(call->type));
    static _Thread_local char span[64];
    char size[32] = "", joined[48];
    if (bytes >= 1e3)
        snprintf(size, sizeof size, " %.1f %s", bytes / (bytes < 1e6 ? 1e3 : 1e6),
                 bytes < 1e6 ? "KB" : "MB");
    else if (bytes > 0)
        snprintf(size, sizeof size, " %.0f B", bytes);
    snprintf(span, sizeof span, "%s%s", name, size);
    snprintf(joined, sizeof joined, "%s #%" PRIu64, comm->name, call->number);
    trace_begin_call(span, call->number && !is_pair(call) ? joined : NULL);
    joined[0] = '\0';
    if (call->count > 0)
        snprintf(joined, sizeof joined, " of %zu", call->count);
    progress_call("%s%s (%s)%s%s", name, joined, comm->name, call->section[0] ? ", in " : "",
                  call->section);
}

void call_work_end(Comm *comm, const Call *call)
{
    trace_end();
}

void call_lost(const Comm *comm, const Call *call, const char *text)
{
    const double wait = 5, look = 0.05;         // seconds
    char doing[CALL_TEXT] = "the rendezvous", reason[512];
    snprintf(reason, sizeof reason, "%s", text);    // before something else overwrites it
    if (call)
        call_describe(call, doing);
    for (double waited = 0; waited < wait; waited += look) {
        int signal = interrupt_requested() ? interrupt_requested() : interrupt_received();
        if (signal)
            leave_at_once(128 + signal);
        sleep_for(look);
    }
    FAIL(call ? "another rank has ended or is unreachable; its last output may say why"
              : "another rank has ended, or its machine is unreachable, or another program has "
                "connected to a port of a rank",
         "rank %d of %d lost another rank in %s (%s): %s", comm->rank, comm->size, doing,
         comm->name, reason);
}
