// output.h - replaces a file as a whole: a crash leaves the old one or the new one.
#pragma once
#include "check.h"
#include <stdio.h>

// Keeps the files of --save, `path` and path.best, for this run. Fails if one exists and is not a
// checkpoint. Until this process ends, output_claim fails in all other processes, if the file
// system has locks. A killed run leaves the file path.lock, but no lock on it.
bool output_claim(const char *path, Error *err);

// Opens path.tmp (mode 0644 & ~umask). Each replace_open that succeeds needs one replace_commit,
// also after a failed write (then at once, while errno is still that of the write). NULL: err is
// filled.
FILE *replace_open(const char *path, Error *err);
// Syncs the file to the disk, renames it to path and closes it. If anything fails, removes path.tmp
// and leaves path as it was. After a power failure path is the new file or, for some seconds, still
// the old one. A process that ends before this call leaves path.tmp, which the next replace_open
// removes.
bool replace_commit(FILE *file, const char *path, Error *err);
