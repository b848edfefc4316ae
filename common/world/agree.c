// agree.c - ranks compare their options, and exchange other values, through the store. In most
// functions each rank puts its value into the store, and rank 0 reads all of them.
#include "agree.h"
#include "check.h"
#include "machine.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT = 60000, LINE = 1024 };

static const char *key_of(const char *what, int rank)
{
    static char key[64];
    snprintf(key, sizeof key, "%.40s %d", what, rank);
    return key;
}

// Rank 0 calls it if the run cannot begin.
static _Noreturn void end_run(const World *world)
{
    store_end_run(world);
    leave_at_once(EXIT_REPORTED);
}

int agree_neighbours(World *world)
{
    static const char what[] = "machine";
    Machine mine = machine_here(), *all = xcalloc((size_t)world->size, sizeof mine);
    size_t bytes = (size_t)world->size * sizeof mine;
    store_put(world, key_of(what, world->rank), &mine, sizeof mine);
    for (int i = 0; world->rank == 0 && i < world->size; i++)
        store_get(world, key_of(what, i), &all[i], sizeof mine);
    if (world->rank == 0)
        store_put(world, key_of("all machines", 0), all, bytes);
    store_get(world, key_of("all machines", 0), all, bytes);
    int before = 0, count = 0;
    world->sharers = 0;
    for (int i = 0; i < world->size; i++) {
        if (!machine_is_same(&all[i], &mine))
            continue;
        count++;
        before += i < world->rank;
        world->sharers += machine_shares_cores(&all[i], &all[world->rank]);
        CPU_OR(&mine.cores, &mine.cores, &all[i].cores);
    }
    world->local_rank = world->local_rank < 0 ? before : world->local_rank;
    world->local_size = world->local_size < 0 ? count : world->local_size;
    free(all);
    return CPU_COUNT(&mine.cores);
}

// Are the texts equal? If not, moves a and b to the first line that differs, or to a text's end.
static bool same_lines(const char **a, const char **b)
{
    for (const char *end; (end = strchr(*a, '\n')) && !strncmp(*a, *b, (size_t)(end - *a) + 1);) {
        *b += end - *a + 1;
        *a = end + 1;
    }
    return strcmp(*a, *b) == 0;
}

void agree_same(const World *world, const char *what, const char *value)
{
    char *text = xmalloc(TEXT);
    int host = snprintf(text, TEXT, "%s\n%s", machine_here().host, value) - (int)strlen(value) - 1;
    store_put(world, key_of(what, world->rank), text, strlen(text) + 1);
    for (int i = 1; world->rank == 0 && i < world->size; i++) {
        store_get(world, key_of(what, i), text, TEXT);
        const char *a = value, *b = text + strcspn(text, "\n") + 1;
        if (same_lines(&a, &b))
            continue;
        WARN(strcmp(what, "program") == 0
                 ? "all ranks need the same sources, compiler and kind of processor, or weights "
                   "may differ; for different x86 processors: cmake -DDDP_MARCH=x86-64-v3"
                 : "all ranks need the same options, data and kind of device",
             "%s: rank %d (%.*s) has %.*s, but rank 0 (%.*s) has %.*s", what, i,
             (int)strcspn(text, "\n"), text, *b ? (int)strcspn(b, "\n") : 7, *b ? b : "nothing",
             host, machine_here().host, *a ? (int)strcspn(a, "\n") : 7, *a ? a : "nothing");
        end_run(world);
    }
    free(text);
}

void agree_range(const World *world, const char *what, int value, int range[2])
{
    range[0] = range[1] = value;
    store_put(world, key_of(what, world->rank), &value, sizeof value);
    for (int i = 1; world->rank == 0 && i < world->size; i++) {
        store_get(world, key_of(what, i), &value, sizeof value);
        range[0] = value < range[0] ? value : range[0];
        range[1] = value > range[1] ? value : range[1];
    }
    if (world->rank == 0)
        store_put(world, key_of("range of", 0), range, 2 * sizeof *range);
    store_get(world, key_of("range of", 0), range, 2 * sizeof *range);
}

int agree_place(const World *world, const char *what, const char *value, int *different)
{
    size_t ranks = (size_t)world->size;
    char (*all)[LINE] = xcalloc(ranks, sizeof *all);
    int *places = xcalloc(ranks + 1, sizeof *places);       // the last one is *different
    store_put(world, key_of(what, world->rank), value, strlen(value) + 1);
    for (int i = 0; world->rank == 0 && i < world->size; i++) {
        store_get(world, key_of(what, i), all[i], LINE - 1);
        for (int k = 0; k < i; k++)
            places[i] += strcmp(all[k], all[i]) == 0;
        places[ranks] += places[i] == 0;
    }
    if (world->rank == 0)
        store_put(world, key_of("places by", 0), places, (ranks + 1) * sizeof *places);
    store_get(world, key_of("places by", 0), places, (ranks + 1) * sizeof *places);
    int place = places[world->rank];
    *different = places[ranks];
    free(places);
    free(all);
    return place;
}

bool agree_broadcast(const World *world, const char *what, bool value)
{
    if (world->rank == 0)
        store_put(world, key_of(what, 0), &value, sizeof value);
    store_get(world, key_of(what, 0), &value, sizeof value);
    return value;
}

void agree_print(const World *world, const char *line)
{
    static int calls;           // each call needs its own keys in the store
    char text[LINE] = "", what[24];
    snprintf(what, sizeof what, "line %d of", ++calls);
    store_put(world, key_of(what, world->rank), line, strlen(line) + 1);
    for (int i = 0; world->rank == 0 && i < world->size; i++) {
        store_get(world, key_of(what, i), text, sizeof text - 1);
        fputs(text, stdout);
    }
    fflush(stdout);
}
