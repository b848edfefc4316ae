// agree.c - everything here is one exchange: each rank puts what it has, and gets what all have.
#include "agree.h"
#include "check.h"
#include "machine.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT = 60000, LINE = 300 };

// Returns (size, bytes), by rank; the caller frees. Rank 0 collects: so each rank asks once.
static void *exchange(const World *world, const char *what, const void *mine, size_t bytes)
{
    const Store *s = &world->store;
    size_t size = (size_t)world->size;
    char key[64];
    char *all = xcalloc(size, bytes);
    snprintf(key, sizeof key, "%.40s %d", what, world->rank);
    s->put(s->arg, key, mine, bytes);
    for (size_t i = 0; world->rank == 0 && i < size; i++) {
        snprintf(key, sizeof key, "%.40s %zu", what, i);
        s->get(s->arg, key, all + i * bytes, bytes);
    }
    snprintf(key, sizeof key, "%.40s of all", what);
    if (world->rank == 0)
        s->put(s->arg, key, all, size * bytes);
    else
        s->get(s->arg, key, all, size * bytes);
    return all;
}

// All ranks have found the same. Rank 0 says it and ends the run; the others wait for that.
static _Noreturn void part(const World *world, const Error *found)
{
    if (world->rank == 0)
        WARN(found->hint, "%s", found->text);
    if (world->rank == 0 && world->store.end)
        world->store.end(world->store.arg);
    while (world->rank > 0 && world->store.end)
        pause();
    leave_at_once();
}

// --- who is on one machine with whom? ------------------------------------------------------------

typedef struct Seat {
    Machine machine;
    int local_rank, local_size;         // -1: to be counted
} Seat;

// Several launchers on one machine may each count from 0, as if they were on machines of their own.
static void check_seat(const World *world, const Seat *all, int rank, int counted)
{
    static const char hint[] = "with nothing said of local ranks they are counted";
    const Seat *one = &all[rank];
    Error found = { .text = "" };
    if (one->local_rank >= counted || one->local_size > counted)
        error_set(&found, hint, "rank %d (%s): local rank %d of %d, but %d of the %d ranks %s on that "
                  "machine", rank, one->machine.host, one->local_rank,
                  one->local_size < 0 ? counted : one->local_size, counted, world->size,
                  counted == 1 ? "is" : "are");
    for (int i = 0; i < rank && (one->local_size < 0 || one->local_size == counted); i++)
        if (all[i].machine.id == one->machine.id && one->local_rank >= 0 &&
            all[i].local_rank == one->local_rank)
            error_set(&found, hint, "ranks %d and %d (%s) are both local rank %d", i, rank,
                      one->machine.host, one->local_rank);
    if (found.text[0])
        part(world, &found);
}

static int count_here(const World *world, const Seat *all, int rank)
{
    int count = 0;
    for (int i = 0; i < world->size; i++)
        count += all[i].machine.id == all[rank].machine.id;
    return count;
}

int agree_neighbours(World *world)
{
    Seat mine = { machine_here(), world->local_rank, world->local_size };
    Seat *all = exchange(world, "seat", &mine, sizeof mine);
    int before = 0;
    cpu_set_t cores = mine.machine.cores;
    world->sharers = 0;
    for (int i = 0; i < world->size; i++) {
        check_seat(world, all, i, count_here(world, all, i));
        if (all[i].machine.id != mine.machine.id)
            continue;
        before += i < world->rank;
        world->sharers += machine_shares_cores(&all[i].machine, &mine.machine);
        CPU_OR(&cores, &cores, &all[i].machine.cores);
    }
    if (world->local_rank < 0)
        world->local_rank = before;
    if (world->local_size < 0)
        world->local_size = count_here(world, all, world->rank);
    free(all);
    return CPU_COUNT(&cores);
}

// --- is it the same? -----------------------------------------------------------------------------

static int line_length(const char *text)
{
    size_t length = strcspn(text, "\n");
    return length == 0 ? 7 : length < LINE / 2 ? (int)length : LINE / 2;   // of "nothing"
}

void agree_same(const World *world, const char *what, const char *value)
{
    const Store *s = &world->store;
    char key[64], first[TEXT] = "", line[LINE + 160] = "";
    Error found = { .text = "" };
    snprintf(key, sizeof key, "%.40s of rank 0", what);
    if (world->rank == 0) {
        snprintf(first, sizeof first, "%s\n%s", machine_here().host, value);
        s->put(s->arg, key, first, strlen(first) + 1);
    }
    s->get(s->arg, key, first, sizeof first - 1);
    const char *a = first + strcspn(first, "\n") + 1, *b = value;
    int host = (int)strcspn(first, "\n");
    for (const char *end; (end = strchr(a, '\n')) && strncmp(a, b, (size_t)(end - a) + 1) == 0;) {
        b += end - a + 1;
        a = end + 1;
    }
    if (strcmp(a, b) != 0)
        snprintf(line, sizeof line, "rank %d (%s) has %.*s, rank 0 (%.*s) has %.*s", world->rank,
                 machine_here().host, line_length(b), *b ? b : "nothing", host, first,
                 line_length(a), *a ? a : "nothing");
    char *all = exchange(world, what, line, sizeof line);
    for (int i = world->size - 1; i > 0; i--)
        if (all[(size_t)i * sizeof line])
            error_set(&found, "all ranks must have the same", "%s: %s", what,
                      all + (size_t)i * sizeof line);
    free(all);
    if (found.text[0])
        part(world, &found);
}

void agree_unique(const World *world, const char *what, const char *value, const char *hint)
{
    char line[160];
    Error found = { .text = "" };
    snprintf(line, sizeof line, "%s", value);
    char *all = exchange(world, what, line, sizeof line);
    for (int i = 0; i < world->size; i++)
        for (int k = 0; k < i && !found.text[0]; k++)
            if (strcmp(all + (size_t)k * sizeof line, all + (size_t)i * sizeof line) == 0)
                error_set(&found, hint, "ranks %d and %d have the same %s: %s", k, i, what,
                          all + (size_t)i * sizeof line);
    free(all);
    if (found.text[0])
        part(world, &found);
}

// --- the rest ------------------------------------------------------------------------------------

bool agree_ask(const World *world, const char *what, bool answer)
{
    const Store *s = &world->store;
    if (world->rank == 0)
        s->put(s->arg, what, &answer, sizeof answer);
    s->get(s->arg, what, &answer, sizeof answer);
    return answer;
}

void agree_print(const World *world, const char *line)
{
    char mine[1024];
    snprintf(mine, sizeof mine, "%s", line);
    char *all = exchange(world, "line", mine, sizeof mine);
    for (int i = 0; world->rank == 0 && i < world->size; i++)
        fputs(all + (size_t)i * sizeof mine, stdout);
    fflush(stdout);
    free(all);
}
