// test_output.c - claiming and replacing the files of a run, whatever others have left or planted beside them.
#include "output.h"
#include "test.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

static bool replace(const char *path, const char *text, Error *err)
{
    FILE *out = replace_open(path, err);
    if (!out)
        return false;
    fputs(text, out);
    return replace_commit(out, path, err);
}

// Starts a child that locks the file and begins to replace it. kill_child ends the child.
static pid_t lock_in_child(const char *path)
{
    Error err = { "", "" };
    int ready[2];
    char byte;
    EXPECT(pipe(ready) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        bool ok = output_lock(path, OUTPUT_CHECKPOINT, &err) && replace_open(path, &err) != NULL &&
                  write(ready[1], "", 1) == 1;
        while (ok)
            pause();
        _exit(1);
    }
    close(ready[1]);
    EXPECT(read(ready[0], &byte, 1) == 1, "the child cannot lock %s", path);
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
        kill_child(lock_in_child(path));
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
    pid_t child = lock_in_child(path);
    EXPECT(!output_lock(path, OUTPUT_CHECKPOINT, &err) && strstr(err.text, "another run is writing"),
           "two processes hold the lock");
    kill_child(child);
}

// In a directory such as /tmp, an ordinary user may replace only their own files. (Without root, this test checks
// nothing.)
TEST(a_file_of_another_user)
{
    Error err;
    EXPECT(mkdir(test_path("shared"), 0700) == 0 && chmod(test_path("shared"), 01777) == 0, "mkdir");
    test_file("shared/theirs", "", 0);
    pid_t child = fork();
    if (child == 0) {
        bool ready = chdir(test_path("shared")) == 0 && (geteuid() != 0 || seteuid(54321) == 0);
        bool kept = !output_lock("theirs", OUTPUT_CHECKPOINT, &err) && strstr(err.text, "belongs to another user");
        _exit(!ready || (geteuid() == 54321 && (!kept || !output_lock("ours", OUTPUT_CHECKPOINT, &err))));
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT_EQ_INT(status, 0);
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

// What a file holds, as which kind of file it is claimed, and the error (NULL: none).
static const struct {
    const char *content;
    OutputKind kind;
    const char *error;
} claimed[] = {
    { "", OUTPUT_EVENTS, NULL },
    { "{\"event\":\"config\"}\n", OUTPUT_EVENTS, NULL },
    { "{\"event\":\"config\"}\n", OUTPUT_CHECKPOINT, "exists, and cannot be read as a checkpoint" },
    { "[\n{\"ph\":\"M\"", OUTPUT_TIMELINE, NULL },
    { "[\n", OUTPUT_TIMELINE, NULL },
    { "[\n{\"ph\":\"M\"", OUTPUT_EVENTS, "exists, and cannot be read as a metrics file" },
    { "index,label,prediction\n", OUTPUT_TABLE, NULL },
    { "int main(void);\n", OUTPUT_EVENTS, "exists, and cannot be read" },
    { "{\"name\": 1}\n", OUTPUT_EVENTS, "exists, and cannot be read" },
    { "index,label,prediction\n", OUTPUT_TIMELINE, "exists, and cannot be read as a timeline" },
};

TEST(kinds)
{
    Error err;
    for (size_t i = 0; i < sizeof claimed / sizeof *claimed; i++) {
        char name[16];
        snprintf(name, sizeof name, "kind%zu", i);
        const char *path = test_file(name, claimed[i].content, strlen(claimed[i].content));
        bool ok = output_claim(path, claimed[i].kind, &err);
        EXPECT(ok == !claimed[i].error && (ok || strstr(err.text, claimed[i].error)), "case %zu: %s",
               i, ok ? "accepted" : err.text);
    }
    EXPECT(output_claim("/dev/null", OUTPUT_EVENTS, &err) &&
           output_claim("/dev/null", OUTPUT_TIMELINE, &err), "%s", err.text);
}

// Rank 0 empties an old timeline while other ranks look at it.
TEST(another_rank_begins_the_file)
{
    const char *path = test_path("begun"), text[] = "[\n{\"ph\":\"M\"}\n";
    Error err;
    int fd = open(path, O_WRONLY | O_CREAT, 0644), refused = 0;
    pid_t child = fork();
    while (child == 0)
        if (ftruncate(fd, 0) != 0 || pwrite(fd, text, strlen(text), 0) < 0)
            _exit(1);
    for (int i = 0; i < 2000; i++)
        refused += !output_claim(path, OUTPUT_TIMELINE, &err);
    kill_child(child);
    close(fd);
    EXPECT(refused == 0, "refused %d times of 2000: %s", refused, err.text);
}

TEST_MAIN
