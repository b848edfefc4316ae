// test_replace_file.c - two writers of one file, on one host or several, and what a killed one leaves.
// (What a failing disk does is in test_save_fails.sh.)
#include "base/replace_file.h"
#include "test.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

static bool write_text(FileWriter *w, const void *arg)
{
    return writer_add(w, arg, strlen(arg));
}

static bool write_part(FileWriter *w, const void *arg)
{
    static char large[1 << 17];
    writer_add(w, large, sizeof large);
    (void)arg;
    raise(SIGKILL);
    return false;
}

static void expect_content(const char *path, const char *wanted)
{
    char text[64] = "";
    int fd = open(path, O_RDONLY);
    EXPECT(fd >= 0 && read(fd, text, sizeof text - 1) >= 0, "%s", path);
    close(fd);
    EXPECT_EQ_STR(text, wanted);
}

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    EXPECT(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s", path);
    close(fd);
}

// The pid does not matter: containers give the same one again.
TEST(what_a_killed_run_left_is_replaced)
{
    const char *path = test_path("killed"), *part = test_path("killed.tmp");
    Error err;
    put(path, "old");
    pid_t child = fork();
    if (child == 0) {
        replace_file(path, write_part, NULL, &err);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    EXPECT(access(part, F_OK) == 0, "nothing was left, so nothing is tested");
    expect_content(path, "old");
    EXPECT(replace_file(path, write_text, "new", &err), "%s", err.text);
    expect_content(path, "new");
    EXPECT(access(part, F_OK) != 0, "%s is still there", part);
}

// On a shared disk the lock is all that another host sees of the writer.
TEST(a_living_writer_is_left_alone)
{
    const char *path = test_path("living"), *part = test_path("living.tmp");
    Error err = { "", "" };
    put(path, "old");
    put(part, "half of");
    int theirs = open(part, O_RDWR);
    EXPECT(flock(theirs, LOCK_EX) == 0, "flock");
    EXPECT(replace_file_probe(path, &err), "%s", err.text);
    EXPECT(!replace_file(path, write_text, "new", &err), "two writers of one file");
    EXPECT(strstr(err.hint, "another run saves to this file") != NULL, "%s", err.hint);
    expect_content(path, "old");
    expect_content(part, "half of");
    close(theirs);
    EXPECT(replace_file(path, write_text, "new", &err), "%s", err.text);
    expect_content(path, "new");
}

// Somebody has put a link where the temporary file goes: what it leads to stays as it is.
TEST(a_link_is_no_trap)
{
    const char *path = test_path("trap"), *part = test_path("trap.tmp"), *victim = test_path("victim");
    Error err;
    put(victim, "mine");
    EXPECT(symlink(victim, part) == 0, "symlink");
    EXPECT(!replace_file(path, write_text, "new", &err), "followed a link");
    expect_content(victim, "mine");
    unlink(part);
    EXPECT(link(victim, part) == 0, "link");
    EXPECT(replace_file(path, write_text, "new", &err), "%s", err.text);
    expect_content(victim, "mine");
    expect_content(path, "new");
}

int main(void)
{
    what_a_killed_run_left_is_replaced();
    a_living_writer_is_left_alone();
    a_link_is_no_trap();
    return test_done();
}
