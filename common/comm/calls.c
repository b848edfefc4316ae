// calls.c - for both backends: a call's name in messages, in the timeline and in the heartbeats,
// and what happens if a rank is lost.
#include "comm/backend.h"
#include "alive.h"
#include "check.h"
#include "interrupt.h"
#include "trace.h"

#include <inttypes.h>
#include <time.h>
#include <unistd.h>

const char *const call_names[CALL_KINDS] = {
    [CALL_ALL_REDUCE] = "all_reduce", [CALL_BROADCAST] = "broadcast",
    [CALL_ALL_GATHER] = "all_gather", [CALL_GATHER] = "gather", [CALL_SEND] = "send",
    [CALL_RECEIVE] = "receive", [CALL_BARRIER] = "barrier", [CALL_FREE] = "comm_free",
};
const char *const call_peers[CALL_KINDS] = {
    [CALL_BROADCAST] = " from rank ", [CALL_GATHER] = " to rank ", [CALL_SEND] = " to rank ",
    [CALL_RECEIVE] = " from rank ",
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

const char *comm_describe(const Call *call, char text[CALL_TEXT])
{
    char what[40] = "", other[24] = "";
    if (call->kind < CALL_BARRIER)
        snprintf(what, sizeof what, " of %zu %s", call->count, types[call->type].name);
    if (call_peers[call->kind])
        snprintf(other, sizeof other, "%s%d", call_peers[call->kind], call->other);
    snprintf(text, CALL_TEXT, "%s #%" PRIu64 "%s%s", call_names[call->kind], call->number, what,
             other);
    return text;
}

// --- around the work -----------------------------------------------------------------------------

// The name of internal calls, which compare the ranks' calls.
static const char *name_of(const Call *call)
{
    return call->number ? call_names[call->kind] : "compare";
}

void comm_call_begin(const Comm *comm, const Call *call)
{
    char name[64], size[32] = "";
    double bytes = (double)call->bytes;
    const char *unit = bytes < 1e3 ? "B" : bytes < 1e6 ? "KB" : "MB";
    if (bytes > 0)
        snprintf(size, sizeof size, " %.*f %s", bytes < 1e3 ? 0 : 1,
                 bytes / (bytes < 1e3 ? 1 : bytes < 1e6 ? 1e3 : 1e6), unit);
    snprintf(name, sizeof name, "%s%s", name_of(call), size);
    trace_begin(name);
    alive_collective_begin(comm->name, name_of(call), (int64_t)call->count);
}

void comm_call_asked(void) { trace_end(); }

void comm_call_end(void)
{
    alive_collective_end();
    trace_end();
}

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000L }, NULL);
}

void comm_lost(const Comm *comm, const Call *call, const char *text)
{
    enum { PATIENCE_MS = 5000, LOOK_MS = 50 };
    char doing[CALL_TEXT] = "meeting the other ranks", said[512];
    snprintf(said, sizeof said, "%s", text);    // before something else overwrites it
    if (call)
        comm_describe(call, doing);
    for (int waited = 0; waited < PATIENCE_MS; waited += LOOK_MS) {
        int signal = interrupt_requested() ? interrupt_requested() : interrupt_wish();
        if (signal)
            leave_at_once(128 + signal);
        sleep_ms(LOOK_MS);
    }
    FAIL("a rank has ended or its machine is unreachable; its last message gives the reason",
         "rank %d of %d lost a rank in %s (%s): %s", comm->rank, comm->size, doing,
         comm->name, said);
}
