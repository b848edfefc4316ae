// text_file.h - results as text, for other programs.
#pragma once
#include "check.h"
#include <stddef.h>

// Could one be written there? Better asked before the work than after it.
bool text_file_probe(const char *path, Error *err);
// The file that was there, or the new one: never a part of it.
bool text_file_write(const char *path, const char *text, size_t bytes, Error *err);
