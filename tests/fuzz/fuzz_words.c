// fuzz_words.c - libFuzzer target: the input is a file of words. It must be refused, or leave each option with a value
// that is allowed and reads back as the same value.
#include "fuzz.h"
#include <setjmp.h>

// args.c refuses a word with a message and exit(). Here that only ends the attempt.
static jmp_buf refused;
static _Noreturn void refuse(void) { longjmp(refused, 1); }
#define exit(status) refuse()
#undef fprintf          // with _FORTIFY_SOURCE it is a macro
#define fprintf(...) ((void)0)
#include "base/args.c"
#undef exit
#undef fprintf

typedef struct Values {
    bool flag;
    int count;
    int64_t seed;
    double rate;
    const char *file, *choice;
} Values;

// Returns false if the text is refused; else writes all values to `out`.
static bool try_words(const char *text, size_t size, char out[6][PATH_MAX])
{
    Args args = { 0 };
    Values v = { 0 };
    char path[64], word[65];
    int fd = file_make(text, size, path);
    snprintf(word, sizeof word, "@%s", path);
    args_add(&args, ARGS_ROWS(
        { "flag", 'f', ARG_FLAG, &v.flag, NULL, "" },
        { "count", 'c', ARG_INT, &v.count, "N", "", -5, 2147483647, .needs = "flag" },
        { "seed", 0, ARG_INT64, &v.seed, "N", "", 0, 1e15 },
        { "rate", 0, ARG_DOUBLE, &v.rate, "X", "", -1e30, 1e30 },
        { "file", 0, ARG_STRING, &v.file, "FILE", "" },
        { "choice", 0, ARG_CHOICE, &v.choice, "red|green-blue|3", "" }));
    bool good = setjmp(refused) == 0;
    if (good)
        args_parse(&args, 2, (char *[]){ "train", word, NULL });
    for (int i = 0; good && i < args.count; i++)
        value_text(&args.rows[i], out[i], PATH_MAX);
    if (good)
        require(v.count >= -5 && v.seed >= 0 && v.seed <= 1000000000000000 &&
                v.rate >= -1e30 && v.rate <= 1e30 &&
                (!v.choice || is_listed("red|green-blue|3", v.choice)));
    for (; text_count > 0; texts[text_count] = NULL)
        free(texts[--text_count]);
    close(fd);
    return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const char *const names[] = { "flag", "count", "seed", "rate", "file", "choice" };
    static char first[6][PATH_MAX], second[6][PATH_MAX], printed[6 * PATH_MAX];
    size_t length = 0;
    if (size >= PATH_MAX || memchr(bytes, '@', size) || !try_words((const char *)bytes, size, first))
        return 0;
    for (int i = 0; i < 6; i++)
        if (i == 0)
            length += (size_t)sprintf(printed, "--%sflag\n", strcmp(first[i], "no") == 0 ? "no-" : "");
        else if (*first[i])
            length += (size_t)sprintf(printed + length, "--%s=%s\n", names[i], first[i]);
    require(try_words(printed, length, second));
    for (int i = 0; i < 6; i++)
        require(strcmp(first[i], second[i]) == 0);
    return 0;
}
