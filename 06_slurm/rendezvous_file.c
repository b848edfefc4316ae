// rendezvous_file.c - rank 0 writes where it listens into a file, and the other ranks read it.
#include "rendezvous_file.h"
#include "check.h"
#include "interrupt.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TITLE "ddp.c rendezvous\n"      // then the run, the token, and rank 0's place

static const char *path;        // of the file
static char left_at[4096];      // its path, while rank 0's file is there
static struct stat left;

// Async-signal-safe: it also runs when a signal ends the process.
void rendezvous_file_remove(void)
{
    struct stat there;
    if (left_at[0] && lstat(left_at, &there) == 0 && there.st_ino == left.st_ino)
        unlink(left_at);
    left_at[0] = '\0';
}

// False: this run's file cannot be read yet, for the reason in err.
static bool read_file(StoreConfig *c, Error *err)
{
    char run[STORE_NAME] = "";
    FILE *in = fopen(path, "re");
    if (!in)
        return error_set(err, "", "%.300s: %s", path, strerror(errno));
    int read = fscanf(in, TITLE "%63[^\n] %79s %15s %d", run, c->token, c->place.address,
                      &c->place.port);
    fclose(in);
    if (read != 4)
        return error_set(err, "choose another path", "%s exists, but is not a rendezvous file",
                         path);
    return strcmp(run, c->run) == 0 ||
           error_set(err, "choose another path, or wait until that run has ended",
                     "%s belongs to the run '%.80s', but this is the run '%s'", path, run, c->run);
}

static void write_file(const StoreConfig *c)
{
    Error err;
    StoreConfig old = *c;
    bool in_use = read_file(&old, &err) && tcp_connect(&old.place, 2, &err) >= 0;
    CHECK(!in_use, "choose another path", "another run is meeting through %s", path);
    snprintf(left_at, sizeof left_at, "%.4000s.XXXXXX", path);
    int file = mkostemp(left_at, O_CLOEXEC);        // makes it 0600
    bool good = file >= 0 && fstat(file, &left) == 0;
    interrupt_install(false);
    check_on_exit(rendezvous_file_remove);
    good = good && dprintf(file, TITLE "%s\n%s\n%s %d\n", c->run, c->token, c->place.address,
                           c->place.port) > 0;
    good = good && fsync(file) == 0 && rename(left_at, path) == 0;
    CHECK(good, "--rendezvous needs a file in a directory that exists, is writable, and is on a "
          "disk that all machines see", "cannot write %s: %s", path, strerror(errno));
    close(file);
    left_at[strlen(path)] = '\0';       // the file's name is now `path`
}

// An NFS client may remember for a minute that a file did not exist. When a program opens the
// directory, the client asks the server again.
static void refresh(void)
{
    char copy[4096];
    snprintf(copy, sizeof copy, "%s", path);
    DIR *directory = opendir(dirname(copy));
    if (directory)
        closedir(directory);
}

// The file may be an earlier start's: it is read again before each attempt to join.
static bool locate(StoreConfig *c, Error *err)
{
    bool found = read_file(c, err);
    if (!found)
        refresh();
    return found;
}

void rendezvous_file(const RendezvousConfig *config, bool one_host, StoreConfig *store)
{
    if (strncmp(config->meet, "file:", 5) != 0 || !config->meet[5])
        FAIL_USAGE("", "--rendezvous %s is not of the form file:PATH", config->meet);
    path = config->meet + strlen("file:");
    store->locate = locate;
    if (store->rank > 0)
        return;
    store_offer(store, config->address, config->port, one_host);
    write_file(store);
}
