// check.c - a rank tells that it looks for the note, and which port it has found there.
#include "rendezvous_file.h"

#include <stdio.h>

bool __real_rendezvous_file_read(const char *path, const char *run, double seconds, RendezvousFile *note, Error *err);
bool __wrap_rendezvous_file_read(const char *path, const char *run, double seconds, RendezvousFile *note, Error *err);
bool __real_rendezvous_file_write(const char *path, const char *run, const RendezvousFile *note, Error *err);
bool __wrap_rendezvous_file_write(const char *path, const char *run, const RendezvousFile *note, Error *err);

bool __wrap_rendezvous_file_read(const char *path, const char *run, double seconds, RendezvousFile *note, Error *err)
{
    fprintf(stderr, "spy: looks\n");
    bool found = __real_rendezvous_file_read(path, run, seconds, note, err);
    if (found)
        fprintf(stderr, "spy: port %d, by a note of the run '%s'\n", note->port, run);
    return found;
}

bool __wrap_rendezvous_file_write(const char *path, const char *run, const RendezvousFile *note, Error *err)
{
    bool left = __real_rendezvous_file_write(path, run, note, err);
    if (left)
        fprintf(stderr, "spy: port %d, by a note of the run '%s'\n", note->port, run);
    return left;
}
