// check.c - a rank tells that it looks for the note, and which port it has found there.
#include "note.h"

#include <stdio.h>

bool __real_note_find(const char *path, const char *run, double seconds, Note *note, Error *err);
bool __wrap_note_find(const char *path, const char *run, double seconds, Note *note, Error *err);
bool __real_note_leave(const char *path, const char *run, const Note *note, Error *err);
bool __wrap_note_leave(const char *path, const char *run, const Note *note, Error *err);

bool __wrap_note_find(const char *path, const char *run, double seconds, Note *note, Error *err)
{
    fprintf(stderr, "spy: looks\n");
    bool found = __real_note_find(path, run, seconds, note, err);
    if (found)
        fprintf(stderr, "spy: port %d, by a note of the run '%s'\n", note->port, run);
    return found;
}

bool __wrap_note_leave(const char *path, const char *run, const Note *note, Error *err)
{
    bool left = __real_note_leave(path, run, note, err);
    if (left)
        fprintf(stderr, "spy: port %d, by a note of the run '%s'\n", note->port, run);
    return left;
}
