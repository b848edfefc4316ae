// test.h - a minimal test framework.
//
//   TEST(crop_stays_inside)
//   {
//       EXPECT(x <= 8, "x is %d", x);
//       EXPECT_EQ_INT(count, 3);
//   }
//
//   TEST_MAIN                    // runs all tests of the file
#pragma once
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEST_SKIPPED = 77 }; // CTest and tests/run.sh count this exit status as skipped

static _Atomic int test_passed, test_failed; // atomic: some tests have threads

// Defines a test. Constructors list the tests, in the order of their lines.
#define TEST(name)                                                                                 \
    static void name(void);                                                                        \
    __attribute__((constructor(1000 + __LINE__))) static void name##_is_a_test(void)               \
    {                                                                                              \
        test_list[test_count++] = name;                                                            \
    }                                                                                              \
    static void name(void)

static void (*test_list[64])(void);
static int test_count;

// The process that runs the tests, until test_done. If it exits earlier, its status reports failure, even if the tested
// code calls exit(0).
static pid_t test_process;
static void test_exits(void)
{
    if (getpid() == test_process) {
        fflush(stdout);
        fprintf(stderr, "not so: the program ended during a test\n");
        _exit(1);
    }
}
__attribute__((constructor)) static void test_begins(void)
{
    test_process = getpid();
    atexit(test_exits);
}

static inline void test_all(void)
{
    for (int i = 0; i < test_count; i++)
        test_list[i]();
}

#define EXPECT(condition, ...) test_expect(__FILE__, __LINE__, (condition), #condition, __VA_ARGS__)

__attribute__((format(printf, 5, 6))) static inline int
test_expect(const char *file, int line, int holds, const char *condition, const char *format, ...)
{
    if (holds) {
        test_passed++;
        return 1;
    }
    test_failed++;
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: not so: %s: ", file, line, condition);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return 0;
}

#define EXPECT_EQ_INT(value, wanted)                                                               \
    do {                                                                                           \
        long long value_ = (long long)(value), wanted_ = (long long)(wanted);                      \
        EXPECT(value_ == wanted_, "%s is %lld, wanted %lld", #value, value_, wanted_);             \
    } while (0)

#define EXPECT_EQ_STR(value, wanted)                                                               \
    do {                                                                                           \
        const char *value_ = (value), *wanted_ = (wanted);                                         \
        EXPECT(strcmp(value_, wanted_) == 0, "%s is \"%s\", wanted \"%s\"", #value, value_, wanted_); \
    } while (0)

#define EXPECT_HAS(text, part)                                                                     \
    do {                                                                                           \
        const char *text_ = (text), *part_ = (part);                                               \
        EXPECT(strstr(text_, part_) != NULL, "'%s' is not in '%s'", part_, text_);                 \
    } while (0)

// Fails for a NaN.
#define EXPECT_NEAR(value, wanted, tolerance)                                                      \
    do {                                                                                           \
        double value_ = (value), wanted_ = (wanted), off_ = value_ - wanted_;                      \
        EXPECT((off_ < 0 ? -off_ : off_) <= (tolerance), "%s is %.9g, wanted %.9g +- %g", #value,  \
               value_, wanted_, (double)(tolerance));                                              \
    } while (0)

#define TEST_SKIP(...)                                                                             \
    do {                                                                                           \
        printf("skipped: " __VA_ARGS__);                                                           \
        printf("\n");                                                                              \
        test_process = 0;                                                                          \
        exit(TEST_SKIPPED);                                                                        \
    } while (0)

// A path in the scratch directory ($TMP, else /tmp). Valid during the next three calls.
static inline const char *test_path(const char *name)
{
    static char paths[4][4096];
    static int turn;
    char *path = paths[turn++ % 4];
    const char *directory = getenv("TMP");
    snprintf(path, sizeof paths[0], "%s/%s", directory ? directory : "/tmp", name);
    return path;
}

static inline const char *test_file(const char *name, const void *bytes, size_t size)
{
    const char *path = test_path(name);
    FILE *out = fopen(path, "w");
    EXPECT(out && fwrite(bytes, 1, size, out) == size && fclose(out) == 0, "%s", path);
    return path;
}

// Returns "" if the file cannot be read. Valid until the next call.
static inline const char *test_read(const char *path)
{
    static char text[8 << 20];
    FILE *in = fopen(path, "r");
    text[in ? fread(text, 1, sizeof text - 1, in) : 0] = '\0';
    if (in)
        fclose(in);
    return text;
}

static inline void test_redirect(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    EXPECT(fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0 && dup2(fd, STDERR_FILENO) >= 0, "%s", path);
    close(fd);
}

static inline int test_times(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        n++;
    return n;
}

// Runs work(arg) in a child process; test_said: its output. Returns its exit status, or 128 + the signal that ended it.
static char test_said[1 << 20];
static inline int test_child(void (*work)(const void *arg), const void *arg)
{
    int status, ends[2];
    size_t n = 0;
    fflush(NULL);
    EXPECT(pipe(ends) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        work(arg);
        exit(0);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], test_said + n, sizeof test_said - 1 - n)) > 0;)
        n += (size_t)got;
    test_said[n] = '\0';
    close(ends[0]);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs this program again with NAME=VALUE in its environment, and expects it to succeed.
static inline void test_again_with(const char *name, const char *value, char *const argv[])
{
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv(name, value, 1);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    waitpid(child, &status, 0);
    EXPECT(status == 0, "with %s=%s: status %d", name, value, status);
}

// The last line of main: return test_done(). A program without checks fails.
static inline int test_done(void)
{
    test_process = 0;
    printf("%d passed, %d failed\n", test_passed, test_failed);
    return test_failed > 0 || test_passed == 0;
}

#define TEST_MAIN                                                                                  \
    int main(void)                                                                                 \
    {                                                                                              \
        test_all();                                                                                \
        return test_done();                                                                        \
    }
