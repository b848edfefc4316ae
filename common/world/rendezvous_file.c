#include "rendezvous_file.h"
#include "check.h"
#include "interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES = 2048 };
static const char title[] = "ddp.c rendezvous";     // then the run, the token, and a place a line

// --- writing it ----------------------------------------------------------------------------------

static char left_at[4096];              // our own file, and before it is there: what will become it
static struct stat left;

// Only what is safe in a signal handler. Between the look and the end of it another run may have
// put its own there; then that one has to start again.
void rendezvous_file_remove(void)
{
    struct stat there;
    if (left_at[0] && lstat(left_at, &there) == 0 && there.st_ino == left.st_ino &&
        there.st_dev == left.st_dev)
        unlink(left_at);
    left_at[0] = '\0';
}

static bool write_all(int file, const char *text)
{
    size_t done = 0, all = strlen(text);
    for (ssize_t n; done < all && (n = write(file, text + done, all - done)) > 0;)
        done += (size_t)n;
    return done == all && fsync(file) == 0 && fstat(file, &left) == 0;
}

void rendezvous_file_write(const char *path, const TcpStoreConfig *c)
{
    char text[FILE_BYTES], token[SECRET_TEXT];
    secret_to_text(&c->secret, token);
    int n = snprintf(text, sizeof text, "%s\n%s\n%s\n", title, c->name, token);
    for (int i = 0; i < c->count; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s %d\n", c->places[i].address,
                      c->places[i].port);
    interrupt_install(false);
    errno = ENAMETOOLONG;
    int length = snprintf(left_at, sizeof left_at, "%s.XXXXXX", path);
    int file = length < (int)sizeof left_at ? mkostemp(left_at, O_CLOEXEC) : -1;  // makes it 0600
    bool good = file >= 0 && fstat(file, &left) == 0;
    check_on_exit(rendezvous_file_remove);
    good = good && write_all(file, text) && rename(left_at, path) == 0;
    CHECK(good, "a file on a disk that all machines see: file:PATH", "%s: %s", path, strerror(errno));
    close(file);
    left_at[length - 7] = '\0';         // that is where it is now
    sodium_memzero(text, sizeof text);
    sodium_memzero(token, sizeof token);
}

// --- finding it ----------------------------------------------------------------------------------

// Over NFS a machine may go on believing for a minute that there is no such file. Opening the
// directory makes it look again.
static void look_again(const char *path)
{
    char directory[4096];
    const char *slash = strrchr(path, '/');
    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    int file = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file >= 0)
        close(file);
}

static bool take(char *text, const char *path, TcpStoreConfig *c, Error *err)
{
    char *lines[3] = { "", "", "" }, *next = text;
    for (int i = 0; i < 3 && next; i++)
        lines[i] = strsep(&next, "\n");
    if (strcmp(lines[0], title) != 0)
        return error_set(err, "name another file", "%s: that is something else", path);
    if (strcmp(lines[1], c->name) != 0)
        return error_set(err, "each run needs a path of its own, or waits for the other's end",
                         "%s: that is of another run: '%.80s', this is '%s'", path, lines[1], c->name);
    c->count = 0;
    for (char *line; next && (line = strsep(&next, "\n")) && c->count < STORE_PLACES;)
        c->count += sscanf(line, "%45s %d", c->places[c->count].address,
                           &c->places[c->count].port) == 2;
    return (secret_from_text(lines[2], &c->secret) && c->count > 0) ||
           error_set(err, "", "%s: it is not whole", path);
}

static bool is_own(int file)
{
    struct stat about;
    return fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
           (about.st_mode & 077) == 0;
}

// false: not yet.
static bool look(const char *path, TcpStoreConfig *c, Error *err)
{
    char text[FILE_BYTES] = "";
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0)
        return error_set(err, "is that a disk which all machines see? is rank 0 started?",
                         "%s: %s", path, strerror(errno));
    bool own = is_own(file), good = own && read(file, text, sizeof text - 1) >= 0;
    close(file);
    if (!own)
        return error_set(err, "a path where nobody else writes", "%s: that is not this user's "
                         "own file with mode 0600, so it is not believed", path);
    good = good && take(text, path, c, err);
    sodium_memzero(text, sizeof text);
    return good;
}

void rendezvous_file_read(const char *path, TcpStoreConfig *c)
{
    Error err;
    int pause_ms = 20;                  // then longer: thousands may be looking
    double waited = 0;
    while (!look(path, c, &err)) {
        CHECK(c->timeout == 0 || waited < c->timeout, err.hint, "rank %d of %d has found no file of "
              "rank 0's within %.3g s: %s", c->rank, c->size, c->timeout, err.text);
        look_again(path);
        interrupt_leave();
        nanosleep(&(struct timespec){ 0, pause_ms * 1000000L }, NULL);
        waited += pause_ms / 1000.0;
        pause_ms = pause_ms < 500 ? 2 * pause_ms : pause_ms;
    }
}
