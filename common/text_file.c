// text_file.c - a text file is written beside the old one, and takes its place in one rename.
#include "text_file.h"
#include "alive.h"
#include "safetensors.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

// One that a killed program has left beside it is removed.
bool text_file_probe(const char *path, Error *err) { return st_probe(path, err); }

bool text_file_write(const char *path, const char *text, size_t bytes, Error *err)
{
    char beside[PATH_MAX];
    if (snprintf(beside, sizeof beside, "%s.tmp-%d-0", path, (int)getpid()) >= (int)sizeof beside)
        return error_set(err, "", "%.80s...: the path is too long", path);
    alive_outside_begin();
    FILE *file = fopen(beside, "wex");
    bool good = file && fwrite(text, 1, bytes, file) == bytes && fflush(file) == 0 &&
                fsync(fileno(file)) == 0;
    good = (!file || fclose(file) == 0) && good && rename(beside, path) == 0;
    int error = errno;
    if (file && !good)
        unlink(beside);
    alive_outside_end();
    return good || error_set(err, "the file that was there before, if any, is whole", "%.200s: %s",
                             path, strerror(error));
}
