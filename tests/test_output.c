// test_output.c - claiming and replacing the files of a run, whatever others have left or planted beside them.
#include "output.h"
#include "test.h"
#include <signal.h>
#include <sys/wait.h>

static bool replace(const char *path, const char *text, Error *err)
{
    FILE *out = replace_open(path, err);
    if (!out)
        return false;
    fputs(text, out);
    return replace_commit(out, path, err);
}

// Starts a child that claims the file and begins to replace it. kill_child ends the child.
static pid_t claim_in_child(const char *path)
{
    Error err = { "", "" };
    int ready[2];
    char byte;
    EXPECT(pipe(ready) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        bool ok = output_claim(path, &err) && replace_open(path, &err) != NULL && write(ready[1], "", 1) == 1;
        while (ok)
            pause();
        _exit(1);
    }
    close(ready[1]);
    EXPECT(read(ready[0], &byte, 1) == 1, "the child cannot claim %s", path);
    close(ready[0]);
    return child;
}

static void kill_child(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

// A killed writer leaves its lock file and its temporary file. Neither stops the next writer.
TEST(killed_writers)
{
    const char *path = test_path("killed"), *part = test_path("killed.tmp");
    Error err;
    for (int i = 0; i < 2; i++) {
        kill_child(claim_in_child(path));
        EXPECT(access(part, F_OK) == 0 && access(test_path("killed.lock"), F_OK) == 0, "no left-overs");
    }
    EXPECT(replace(path, "new", &err), "%s", err.text);
    EXPECT_EQ_STR(test_read(path), "new");
    EXPECT(access(part, F_OK) != 0, "%s was not removed", part);
}

TEST(a_running_writer_keeps_others_out)
{
    const char *path = test_path("running");
    Error err;
    pid_t child = claim_in_child(path);
    EXPECT(!output_claim(path, &err) && strstr(err.text, "another run is writing"), "two processes hold the lock");
    kill_child(child);
}

// A symbolic or hard link in place of the temporary file.
TEST(links_are_not_followed)
{
    const char *path = test_path("trap"), *part = test_path("trap.tmp"), *victim = test_file("victim", "mine", 4);
    Error err;
    EXPECT(symlink(victim, part) == 0, "symlink");
    EXPECT(replace(path, "new", &err), "%s", err.text);
    EXPECT_EQ_STR(test_read(victim), "mine");
    EXPECT(link(victim, part) == 0, "link");
    EXPECT(replace(path, "newer", &err), "%s", err.text);
    EXPECT_EQ_STR(test_read(victim), "mine");
    EXPECT_EQ_STR(test_read(path), "newer");
}

TEST(only_checkpoints_are_replaced)
{
    Error err;
    test_file("st", "\x10\0\0\0\0\0\0\0{}", 10);
    test_file("empty", "", 0);
    test_file("text", "int main(void);\n", 16);
    test_file("best.best", "{\"event\":\"config\"}\n", 19);
    EXPECT(output_claim(test_path("st"), &err), "%s", err.text);
    EXPECT(output_claim(test_path("empty"), &err), "%s", err.text);
    EXPECT(!output_claim(test_path("text"), &err) && strstr(err.text, "text exists, and is not a checkpoint"),
           "%s", err.text);
    EXPECT(!output_claim(test_path("best"), &err) && strstr(err.text, "best.best exists"), "%s", err.text);
    EXPECT(!output_claim(test_path(""), &err) && strstr(err.text, "exists, and is not a checkpoint"), "%s", err.text);
}

TEST_MAIN
