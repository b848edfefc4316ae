// output.h - replaces a file as a whole: a crash leaves the old file or the new one.
#pragma once
#include "check.h"
#include <stdio.h>

// Reserves the files of --save, `path` and path.best, for this run. Fails if one of them exists and
// is neither empty nor a checkpoint. Until this process ends, output_claim fails for this path in
// all other processes, if the file system has locks. A killed run leaves path.lock, but unlocked.
bool output_claim(const char *path, Error *err);

// Can a file be put at this path? Fails for a directory.
bool replace_can(const char *path, Error *err);
// Opens path.tmp (mode 0644 & ~umask). If that fails, fills err and returns NULL. Each replace_open
// that succeeds needs one replace_commit. If a write fails, call replace_commit at once, before
// errno changes.
FILE *replace_open(const char *path, Error *err);
// Syncs the file to the disk, renames it to path and closes it. If anything fails, removes path.tmp
// and leaves path as it was. After a power failure path is the new file or, for some seconds, still
// the old one. A process that ends before this call leaves path.tmp, which the next replace_open of
// this path removes.
bool replace_commit(FILE *file, const char *path, Error *err);
