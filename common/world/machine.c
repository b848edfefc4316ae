#include "machine.h"
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t hash_of(const void *bytes, size_t count)
{
    union { unsigned char bytes[crypto_generichash_BYTES_MIN]; uint64_t word; } hash;
    crypto_generichash(hash.bytes, sizeof hash.bytes, bytes, count, NULL, 0);
    return hash.word;
}

// Containers of one machine share its boot id but have different names. Clones of one virtual
// machine may share a name but have different boot ids.
Machine machine_here(void)
{
    Machine here = { 0 };
    char text[MACHINE_NAME + 64] = "", boot[64] = "";
    gethostname(here.host, sizeof here.host - 1);
    FILE *in = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (in) {
        boot[fread(boot, 1, sizeof boot - 1, in)] = '\0';
        fclose(in);
    }
    snprintf(text, sizeof text, "%s %s", here.host, boot);
    here.id = hash_of(text, sizeof text);
    if (sched_getaffinity(0, sizeof here.cores, &here.cores) != 0)
        memset(&here.cores, 0xFF, sizeof here.cores);   // too many for a mask: all
    return here;
}

bool machine_shares_cores(const Machine *a, const Machine *b)
{
    cpu_set_t both;
    CPU_AND(&both, &a->cores, &b->cores);
    return a->id == b->id && CPU_COUNT(&both) > 0;
}

int machine_parent_cores(void)
{
    cpu_set_t cores;
    return sched_getaffinity(getppid(), sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 0;
}

const char *machine_program(void)
{
    static char text[64];
    struct stat about = { 0 };
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    fstat(file, &about);
    size_t bytes = (size_t)about.st_size;
    void *program = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    CHECK(program != MAP_FAILED, "", "/proc/self/exe: %s", strerror(errno));
    snprintf(text, sizeof text, "%zu bytes, %016llx", bytes,
             (unsigned long long)hash_of(program, bytes));
    munmap(program, bytes);
    close(file);
    return text;
}
