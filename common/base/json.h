// json.h - JSON strings of text that may not be UTF-8, which jansson refuses.
#pragma once
#include "check.h"
#include <jansson.h>
#include <stdlib.h>

// A string, or null for NULL. If it is not valid UTF-8 (a file name may hold any bytes), all bytes
// that are not ASCII become '?'.
static inline json_t *json_text(const char *text)
{
    json_t *json = text ? json_string(text) : json_null();
    if (json)
        return json;
    char *copy = xstrdup(text);
    for (char *c = copy; *c; c++)
        *c = *c & 0x80 ? '?' : *c;
    json = json_string(copy);
    free(copy);
    return json;
}
