// test_replace_file.c - replacing a file while a second writer is active, or after one was killed.
// (test_save_fails.sh tests a failing disk.)
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

// The leftover must not be tied to a pid, which a new container may use again.
TEST(a_killed_writers_leftover_is_replaced)
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
    EXPECT(access(part, F_OK) == 0, "the killed writer left no %s", part);
    expect_content(path, "old");
    EXPECT(replace_file(path, write_text, "new", &err), "%s", err.text);
    expect_content(path, "new");
    EXPECT(access(part, F_OK) != 0, "%s was not removed", part);
}

// The lock also works between hosts that share a disk.
TEST(an_active_writer_is_not_disturbed)
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

// A symbolic or hard link in place of the temporary file: its target must not change.
TEST(links_are_not_followed)
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
    a_killed_writers_leftover_is_replaced();
    an_active_writer_is_not_disturbed();
    links_are_not_followed();
    return test_done();
}
