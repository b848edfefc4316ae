// json.h - JSON strings, for the files here that write or read JSON.
#pragma once
#include <stdio.h>
#include <string.h>

// The length of the UTF-8 character at text, of which at most `left` bytes may be read. 0: it is
// invalid: cut short, overlong, half of a surrogate pair, or above U+10FFFF.
static inline int utf8_length(const unsigned char *text, size_t left)
{
    static const unsigned smallest[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    if (left == 0)
        return 0;
    if (text[0] < 0x80)
        return 1;
    int length = text[0] >= 0xF8 ? 0 : text[0] >= 0xF0 ? 4 : text[0] >= 0xE0 ? 3
                 : text[0] >= 0xC0 ? 2 : 0;
    if (length == 0 || (size_t)length > left)
        return 0;
    unsigned code = text[0] & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3Fu);
    }
    if (code < smallest[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return 0;
    return length;
}

// Writes text as a JSON string, quotes included. A byte that is not UTF-8 (a file name may hold any
// bytes) becomes U+FFFD, so that the output is always valid JSON. NULL becomes null.
static inline void json_text(FILE *out, const char *text)
{
    if (text == NULL) {
        fputs("null", out);
        return;
    }
    const unsigned char *p = (const unsigned char *)text, *end = p + strlen(text);
    fputc('"', out);
    while (p < end) {
        int length = utf8_length(p, (size_t)(end - p));
        if (length == 0)
            fputs("\\ufffd", out);
        else if (*p == '"' || *p == '\\')
            fprintf(out, "\\%c", *p);
        else if (*p < 0x20 || *p == 0x7F)
            fprintf(out, "\\u%04x", *p);
        else
            fwrite(p, 1, (size_t)length, out);
        p += length ? length : 1;
    }
    fputc('"', out);
}
