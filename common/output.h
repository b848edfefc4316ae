// output.h - checks and locks the files that a run writes, and replaces a file as a whole: a crash
// leaves the old one or the new one.
#pragma once
#include "check.h"
#include <stdio.h>

typedef enum OutputKind {
    OUTPUT_CHECKPOINT,      // safetensors
    OUTPUT_EVENTS,          // JSON lines of --metrics
    OUTPUT_TIMELINE,        // of --trace
    OUTPUT_TABLE,           // CSV
    OUTPUT_RENDEZVOUS       // rank 0's address, for a file system that all machines share
} OutputKind;

// Call it before opening a file to write. Fails if a regular file is there that cannot be read, or
// whose first bytes show content of a different kind. An empty file is fine.
bool output_claim(const char *path, OutputKind kind, Error *err);

// Like output_claim, but the file must be regular or not exist yet. Also locks path.lock until this
// process ends: until then output_lock fails in other processes on this host (if the file system
// has locks). When a process is killed, its lock is gone; path.lock may remain.
bool output_lock(const char *path, OutputKind kind, Error *err);

// Locks an open file, if it is a regular one, until it is closed. Waits up to 3 s for another
// process's lock: a run that was just killed may still be ending. False: the lock is still held.
bool output_hold(int fd);

// Opens path.tmp (mode 0644 & ~umask). Each replace_open that succeeds needs one replace_commit,
// also after a failed write (then at once, while errno is still that of the write). NULL: err is
// filled.
FILE *replace_open(const char *path, Error *err);
// Syncs the file to the disk, renames it to path, closes it and syncs the directory. If anything
// fails up to the rename, removes path.tmp and leaves path as it was. If only the directory cannot
// be synced, path is already the new file.
bool replace_commit(FILE *file, const char *path, Error *err);
