// turns.c - computations that take turns in one thread: swapcontext stops one in the middle, and
// continues another where it had stopped.
//
//   computation 0   | ... pass |          | ... pass |          | ... end |
//   computation 1              | ... pass |          | ... pass |         | ... end |
//
// Number 0 has the thread's stack, each of the others a stack of its own.
#include "turns.h"
#include "check.h"

#include <stdlib.h>
#include <ucontext.h>

enum { STACK = 8 << 20 };       // bytes, as a thread's; what is not used takes no memory

struct Turns {
    int count, current;
    ucontext_t *places;         // where each has stopped
    char *stacks;
    void (*compute)(void *arg, int i);
    void *arg;
};

static Turns *starting;         // makecontext passes on numbers only

static void start(int i)
{
    Turns *turns = starting;
    turns->current = i;
    turns->compute(turns->arg, i);
}

// Number i will start when it is first its turn, and pass on to the next one when it ends.
static void set_start(Turns *turns, int i)
{
    ucontext_t *place = &turns->places[i];
    getcontext(place);
    place->uc_stack.ss_sp = turns->stacks + (size_t)i * STACK;
    place->uc_stack.ss_size = STACK;
    place->uc_link = &turns->places[(i + 1) % turns->count];
    makecontext(place, (void (*)(void))start, 1, i);
}

void turns_run(Turns *turns, void (*compute)(void *arg, int i), void *arg)
{
    starting = turns;
    turns->compute = compute;
    turns->arg = arg;
    turns->current = 0;
    for (int i = 1; i < turns->count; i++)
        set_start(turns, i);
    compute(arg, 0);
    turns_pass(turns);
}

void turns_pass(Turns *turns)
{
    int me = turns->current;
    swapcontext(&turns->places[me], &turns->places[(me + 1) % turns->count]);
    turns->current = me;
}

Turns *turns_new(int count)
{
    Turns *turns = xcalloc(1, sizeof *turns);
    turns->count = count;
    turns->places = xcalloc((size_t)count, sizeof *turns->places);
    turns->stacks = xmalloc((size_t)count * STACK);
    return turns;
}

void turns_free(Turns *turns)
{
    free(turns->stacks);
    free(turns->places);
    free(turns);
}
