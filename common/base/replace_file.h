// replace_file.h - replaces a file so that at any moment either the old or the new one is complete.
#pragma once
#include "check.h"
#include <stddef.h>

// Could replace_file write there? It checks without writing.
bool replace_file_probe(const char *path, Error *err);

typedef struct FileWriter FileWriter;
// Small pieces are collected, large ones go straight to the file. false: give up.
bool writer_add(FileWriter *w, const void *bytes, size_t size);

// Lets fill write path.tmp (mode 0644 & ~umask), fsyncs it, renames it to path and fsyncs the
// directory. On any failure removes path.tmp, leaves path as it was, and err names the call that
// failed. Fails if another process, on this or another host, is writing the same file. Overwrites
// the file that a killed process has left.
bool replace_file(const char *path, bool (*fill)(FileWriter *w, const void *arg), const void *arg,
                  Error *err);
