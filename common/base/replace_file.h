// replace_file.h - a file that is whole at any moment: the old one, or the new one.
#pragma once
#include "check.h"
#include <stddef.h>

// Could replace_file write there, as far as can be seen without trying?
bool replace_file_probe(const char *path, Error *err);

typedef struct FileWriter FileWriter;
// Small pieces are collected, large ones go straight to the file. false: give up.
bool writer_add(FileWriter *w, const void *bytes, size_t size);

// Has fill write path.tmp (mode 0644 & ~umask), fsyncs it, renames it to path and fsyncs the
// directory. On any failure removes path.tmp, leaves path as it was, and says which call failed and
// why. Fails if another process, here or on another host, is writing the same file; what a killed
// process has left is overwritten.
bool replace_file(const char *path, bool (*fill)(FileWriter *w, const void *arg), const void *arg,
                  Error *err);
