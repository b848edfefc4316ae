// agree.c - ranks compare their options, and exchange other values.
#include "agree.h"
#include "check.h"
#include "machine.h"
#include "progress.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 400 };

void agree_neighbours(World *world)
{
    Machine mine = machine_here(), *all = xcalloc((size_t)world->size, sizeof mine);
    int before = 0, count = 0;
    store_gather(world, "machine", &mine, sizeof mine, all);
    world->sharers = 0;
    for (int i = 0; i < world->size; i++) {
        if (!machine_is_same(&all[i], &mine))
            continue;
        count++;
        before += i < world->rank;
        world->sharers += machine_shares_cores(&all[i], &mine);
    }
    world->local_rank = world->local_rank < 0 ? before : world->local_rank;
    world->local_size = world->local_size < 0 ? count : world->local_size;
    free(all);
}

// Moves a and b to the first line that differs, or to a text's end.
static void skip_same_lines(const char **a, const char **b)
{
    for (const char *end; (end = strchr(*a, '\n')) && !strncmp(*a, *b, (size_t)(end - *a) + 1);) {
        *b += end - *a + 1;
        *a = end + 1;
    }
}

static const char *hint_for(const char *what)
{
    return strcmp(what, "program") == 0
               ? "all ranks need the same sources, compiler and kind of processor, or weights may "
                 "differ; for different x86 processors: cmake -DDDP_MARCH=x86-64-v3"
               : "all ranks need the same options, data and kind of device";
}

// Each rank compares its value with rank 0's. If any differs, rank 0 prints the message of the
// lowest rank that differs, and the run ends.
void agree_same(const World *world, const char *what, const char *value)
{
    char key[64], *of_rank0 = xcalloc(1, STORE_MOST);
    char mine[LINE] = "", (*all)[LINE] = xcalloc((size_t)world->size, sizeof *all);
    snprintf(key, sizeof key, "%.40s of rank 0", what);
    if (world->rank == 0)
        store_put(world, key, value, strlen(value) + 1);
    store_get(world, key, of_rank0, STORE_MOST);
    const char *a = of_rank0, *b = value;
    skip_same_lines(&a, &b);
    if (strcmp(a, b) != 0)
        snprintf(mine, sizeof mine, "%s: rank %d (%s) has %.*s, but rank 0 has %.*s", what,
                 world->rank, machine_here().host, *b ? (int)strcspn(b, "\n") : 7,
                 *b ? b : "nothing", *a ? (int)strcspn(a, "\n") : 7, *a ? a : "nothing");
    store_gather(world, what, mine, sizeof mine, all);
    for (int i = 1; i < world->size; i++)
        if (all[i][0]) {
            if (world->rank == 0)
                WARN(hint_for(what), "%s", all[i]);
            leave_only_with(EXIT_USAGE);    // not with the status of a lost rank
            store_gather(world, "the status", mine, sizeof mine, all);  // all have set theirs
            store_end_run(world);
        }
    free(all);
    free(of_rank0);
}

int agree_place(const World *world, const char *what, const char *value, int *different)
{
    char mine[LINE] = "", (*all)[LINE] = xcalloc((size_t)world->size, sizeof *all);
    int place = 0;
    snprintf(mine, sizeof mine, "%s", value);
    store_gather(world, what, mine, sizeof mine, all);
    *different = 0;
    for (int i = 0; i < world->size; i++) {
        int before = 0;
        for (int k = 0; k < i; k++)
            before += strcmp(all[k], all[i]) == 0;
        *different += before == 0;
        place = i == world->rank ? before : place;
    }
    free(all);
    return place;
}

bool agree_broadcast(const World *world, const char *what, bool value)
{
    bool *all = xcalloc((size_t)world->size, sizeof *all);
    store_gather(world, what, &value, sizeof value, all);
    value = all[0];
    free(all);
    return value;
}

void agree_print(const World *world, const char *line)
{
    static int calls;           // so that each call has its own name
    char what[24], mine[LINE] = "", (*all)[LINE] = xcalloc((size_t)world->size, sizeof *all);
    snprintf(what, sizeof what, "line %d", ++calls);
    snprintf(mine, sizeof mine, "%s", line);
    store_gather(world, what, mine, sizeof mine, all);
    PROGRESS_WRITING("to stdout");
    for (int i = 0; world->rank == 0 && i < world->size; i++)
        fputs(all[i], stdout);
    fflush(stdout);
    free(all);
}
