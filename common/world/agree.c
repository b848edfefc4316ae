#include "agree.h"
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

int agree_neighbours(World *world)
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
    char host[MACHINE_NAME];
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

// Rank 0 tells all whether it has found something.
static void conclude(const World *world, const char *name, const Error *found)
{
    Error err = *found;
    if (world->rank == 0)
        tell(world, name, 0, &err, sizeof err);
    hear(world, name, 0, &err, sizeof err);
    if (err.text[0])
        part(world, &err);
}

void agree_same(const World *world, const char *what, const char *value)
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
        tell(world, name, world->rank, ours, MACHINE_NAME + (size_t)length + 1);
    bool same = true;
    for (int i = 1; world->rank == 0 && i < world->size && same; i++) {
        hear(world, name, i, theirs, sizeof *theirs - 1);   // which ends in a zero
        same = compare(what, ours, theirs, i, &err);
    }
    snprintf(name, sizeof name, "agreed %d", calls);
    conclude(world, name, &err);
    free(ours);
}

// --- does nobody have another's? -----------------------------------------------------------------

enum { ROLL_WORD = 128 };               // bytes of what must differ

typedef struct Own {
    int rank;
    char host[MACHINE_NAME], word[ROLL_WORD];
} Own;

static int by_word(const void *a, const void *b)
{
    const Own *one = a, *other = b;
    int order = strcmp(one->word, other->word);
    return order ? order : one->rank - other->rank;
}

void agree_unique(const World *world, const char *what, const char *value, const char *hint)
{
    char name[24];
    Error err = { .text = "" };
    Own mine = { .rank = world->rank };
    snprintf(mine.host, sizeof mine.host, "%s", machine_here().host);
    snprintf(mine.word, sizeof mine.word, "%s", value);
    tell(world, what, world->rank, &mine, sizeof mine);
    if (world->rank == 0) {
        Own *all = xcalloc((size_t)world->size, sizeof *all);
        for (int i = 0; i < world->size; i++)
            hear(world, what, i, &all[i], sizeof *all);
        qsort(all, (size_t)world->size, sizeof *all, by_word);
        for (int i = 1; i < world->size && !err.text[0]; i++)
            if (strcmp(all[i - 1].word, all[i].word) == 0)
                error_set(&err, hint, "ranks %d and %d (%s) have the same %s: "
                          "%s", all[i - 1].rank, all[i].rank, all[i].host, what, all[i].word);
        free(all);
    }
    snprintf(name, sizeof name, "%.12s differs", what);
    conclude(world, name, &err);
}

// --- who is there? -------------------------------------------------------------------------------

void agree_print(const World *world, const char *line)
{
    char other[1024] = "";
    if (world->rank > 0)
        tell(world, "line", world->rank, line, strlen(line) + 1);
    for (int i = 0; world->rank == 0 && i < world->size; i++) {
        if (i > 0)
            hear(world, "line", i, other, sizeof other - 1);
        fputs(i > 0 ? other : line, stdout);
    }
    fflush(stdout);
}
