// test_machine.c - a process moves to the cores next to its GPU, as far as it may use them.
#include "check.h"
#include "machine.h"
#include "test.h"
#include "threads.h"

#include <sys/stat.h>

static cpu_set_t all;

// Imitates /sys with one device, next to these cores. Returns the directory.
static const char *describe(const char *cores)
{
    char path[4096];
    snprintf(path, sizeof path, "mkdir -p '%s/bus/pci/devices/0000:3b:00.0' && printf '%%s\\n' '%s' >'%s%s'",
             test_path("sys"), cores, test_path("sys"), "/bus/pci/devices/0000:3b:00.0/local_cpulist");
    EXPECT_EQ_INT(system(path), 0);
    return test_path("sys");
}

static void *count_cores(void *count)
{
    *(int *)count = core_count();
    return NULL;
}

static const char *move(const cpu_set_t *from, const char *root)
{
    static char left[256];
    int inherited = 0;
    sched_setaffinity(0, sizeof *from, from);
    machine_stay_near(root, "0000:3b:00.0");
    pthread_join(thread_start(count_cores, &inherited, "a loader"), NULL);
    EXPECT_EQ_INT(inherited, core_count());
    snprintf(left, sizeof left, "%s", machine_cores());
    return left;
}

static const char *name_of(const cpu_set_t *cores)
{
    sched_setaffinity(0, sizeof *cores, cores);
    return machine_cores();
}

TEST(the_next_cores_are_taken)
{
    char list[64], every[256];
    int first = 0, second;
    cpu_set_t one;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0, "", "sched_getaffinity");
    snprintf(every, sizeof every, "%s", name_of(&all));
    while (!CPU_ISSET(first, &all))
        first++;
    for (second = first + 1; second < CPU_SETSIZE && !CPU_ISSET(second, &all);)
        second++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);

    snprintf(list, sizeof list, "%d,1000-1010", first);
    EXPECT_EQ_STR(move(&all, describe(list)), name_of(&one));
    EXPECT_EQ_STR(move(&all, describe("1000-1010")), every);    // a device next to cores that this process lacks
    EXPECT_EQ_STR(move(&all, describe("")), every);
    EXPECT_EQ_STR(move(&all, describe("0-2000")), every);
    EXPECT_EQ_STR(move(&all, test_path("nowhere")), every);
    if (second == CPU_SETSIZE)
        return;
    snprintf(list, sizeof list, "%d", second);
    EXPECT_EQ_STR(move(&all, describe(list)), list);
    EXPECT_EQ_STR(move(&one, describe(list)), name_of(&one));   // as when Slurm gives the process a different core
}

TEST_MAIN
