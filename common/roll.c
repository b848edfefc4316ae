#include "roll.h"
#include "check.h"
#include "machine.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROLL_TEXT = 60000 };

static void tell(const World *world, const char *what, int which, const void *value, size_t bytes)
{
    char key[40];
    snprintf(key, sizeof key, "roll %s %d", what, which);
    world->store.put(world->store.arg, key, value, bytes);
}

static size_t hear(const World *world, const char *what, int which, void *value, size_t capacity)
{
    char key[40];
    snprintf(key, sizeof key, "roll %s %d", what, which);
    size_t bytes = world->store.get(world->store.arg, key, value, capacity);
    CHECK(bytes <= capacity, "", "%s: %zu bytes, wanted were %zu", key, bytes, capacity);
    return bytes;
}

// --- who is on one machine with whom? ------------------------------------------------------------

// What each rank tells rank 0, and what it is told.
typedef struct Place {
    Machine machine;
    int local_rank, local_size;         // -1: to be counted
    int sharers, cores;                 // the answer's
} Place;

// Several launchers on one machine, as if they were machines of their own, may each count from 0.
static void check_local(const World *world, const Place *all, int rank, int counted)
{
    const Place *one = &all[rank];
    CHECK(one->local_rank < counted && one->local_size <= counted,
          "with nothing said of local ranks they are counted",
          "rank %d (%s): local rank %d of %d, but %d of the %d ranks %s on that machine", rank,
          one->machine.host, one->local_rank, one->local_size < 0 ? counted : one->local_size,
          counted, world->size, counted == 1 ? "is" : "are");
    for (int i = 0; i < rank && (one->local_size < 0 || one->local_size == counted); i++)
        CHECK(all[i].machine.id != one->machine.id || one->local_rank < 0 ||
                  all[i].local_rank != one->local_rank,
              "with nothing said of local ranks they are counted",
              "ranks %d and %d (%s) are both local rank %d", i, rank, one->machine.host,
              one->local_rank);
}

static void answer(const World *world, const Place *all, int rank)
{
    Place place = all[rank];
    int before = 0, here = 0;
    for (int i = 0; i < world->size; i++)
        if (all[i].machine.id == place.machine.id) {
            here++;
            before += i < rank;
            place.sharers += machine_shares_cores(&all[i].machine, &all[rank].machine);
            CPU_OR(&place.machine.cores, &place.machine.cores, &all[i].machine.cores);
        }
    check_local(world, all, rank, here);
    place.cores = CPU_COUNT(&place.machine.cores);
    place.local_rank = place.local_rank < 0 ? before : place.local_rank;
    place.local_size = place.local_size < 0 ? here : place.local_size;
    tell(world, "neighbours", rank, &place, sizeof place);
}

int roll_neighbours(World *world)
{
    Place mine = { machine_here(), world->local_rank, world->local_size, 0, 0 };
    tell(world, "place", world->rank, &mine, sizeof mine);
    if (world->rank == 0) {
        Place *all = xcalloc((size_t)world->size, sizeof *all);
        for (int i = 0; i < world->size; i++)
            hear(world, "place", i, &all[i], sizeof *all);
        for (int i = 0; i < world->size; i++)
            answer(world, all, i);
        free(all);
    }
    hear(world, "neighbours", world->rank, &mine, sizeof mine);
    world->local_rank = mine.local_rank;
    world->local_size = mine.local_size;
    world->sharers = mine.sharers;
    return mine.cores;
}

// --- does everybody have the same? ---------------------------------------------------------------

typedef struct Claim {
    char host[MACHINE_HOST];
    char text[ROLL_TEXT];
} Claim;

static int line_length(const char *text)
{
    size_t length = strcspn(text, "\n");
    return length < 300 ? (int)length : 300;
}

static bool compare(const char *what, const Claim *ours, const Claim *theirs, int rank, Error *err)
{
    const char *a = theirs->text, *b = ours->text;
    if (strcmp(a, b) == 0)
        return true;
    for (const char *end; (end = strchr(a, '\n')) && strncmp(a, b, (size_t)(end - a) + 1) == 0;) {
        b += end - a + 1;
        a = end + 1;
    }
    return error_set(err, "all ranks must have the same", "%s: rank %d (%s) has %.*s, rank 0 (%s) "
                     "has %.*s", what, rank, theirs->host, *a ? line_length(a) : 7,
                     *a ? a : "nothing", ours->host, *b ? line_length(b) : 7, *b ? b : "nothing");
}

// The first rank of each machine says it. Rank 0 keeps the store until all have heard.
static _Noreturn void part(const World *world, const Error *err)
{
    if (world->local_rank == 0)
        WARN(err->hint, "%s", err->text);
    usleep(500000);
    check_clean_up();
    _exit(EXIT_FAILED);
}

void roll_agree(const World *world, const char *what, const char *value)
{
    static int calls;
    char name[24];
    Error err = { .text = "" };
    Claim *ours = xcalloc(2, sizeof *ours), *theirs = &ours[1];
    snprintf(ours->host, sizeof ours->host, "%s", machine_here().host);
    int length = snprintf(ours->text, sizeof ours->text, "%s", value);
    CHECK(length < ROLL_TEXT, "", "%s: %d bytes are too many to compare", what, length);
    snprintf(name, sizeof name, "claim %d", ++calls);
    if (world->rank > 0)
        tell(world, name, world->rank, ours, MACHINE_HOST + (size_t)length + 1);
    bool same = true;
    for (int i = 1; world->rank == 0 && i < world->size && same; i++) {
        hear(world, name, i, theirs, sizeof *theirs - 1);   // which ends in a zero
        same = compare(what, ours, theirs, i, &err);
    }
    snprintf(name, sizeof name, "agreed %d", calls);
    if (world->rank == 0)
        tell(world, name, 0, &err, sizeof err);
    hear(world, name, 0, &err, sizeof err);
    if (err.text[0])
        part(world, &err);
    free(ours);
}
