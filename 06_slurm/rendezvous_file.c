// rendezvous_file.c - rank 0 writes its address into a file, and the other ranks read it.
#include "rendezvous_file.h"
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TITLE "ddp.c rendezvous\n"      // the file's first line; then run, token, address and port

static const char *path;        // the rendezvous file
static bool written;            // this process has written the file

void rendezvous_file_remove(void)
{
    if (written)
        unlink(path);
}

// Returns false if this run's file cannot be read yet, for the reason in err.
static bool read_file(StoreConfig *c, Error *err)
{
    char run[STORE_NAME] = "";
    FILE *in = fopen(path, "re");
    if (!in)
        return error_set(err, "", "cannot open %.300s: %s", path, strerror(errno));
    int read = fscanf(in, TITLE "%63[^\n] %79[^\n] %15s %d", run, c->token, c->place.address,
                      &c->place.port);
    fclose(in);
    if (read != 4)
        return error_set(err, "choose a different path", "%s exists, but is not a rendezvous file",
                         path);
    return strcmp(run, c->run) == 0 ||
           error_set(err, "choose a different path, or wait until that run has ended",
                     "%s belongs to the run '%.80s', but this is the run '%s'", path, run, c->run);
}

static void write_file(const StoreConfig *c)
{
    Error err;
    char temporary[4096];
    StoreConfig old = *c;
    old.place.port = 0;
    bool ours = read_file(&old, &err);
    if (!ours && old.place.port == 0 && access(path, F_OK) == 0)    // not a rendezvous file
        FAIL_ERROR(&err);
    bool in_use = old.place.port > 0 && tcp_connect(&old.place, 2, &err) >= 0;
    CHECK(!in_use, "choose a different path", "another run has a rendezvous at %s", path);
    snprintf(temporary, sizeof temporary, "%.4000s.XXXXXX", path);
    int file = mkostemp(temporary, O_CLOEXEC);      // creates the file with mode 0600
    written = file >= 0 && dprintf(file, TITLE "%s\n%s\n%s %d\n", c->run, c->token,
                                   c->place.address, c->place.port) > 0 &&
              fsync(file) == 0 && rename(temporary, path) == 0;
    if (file >= 0 && !written)
        unlink(temporary);
    CHECK(written, "give --rendezvous a file in a directory that exists, is writable, and is on a "
          "disk that all machines see", "cannot write %s: %s", path, strerror(errno));
    close(file);
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

// The file may be that of an earlier start, so it is read again before each attempt to join.
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
