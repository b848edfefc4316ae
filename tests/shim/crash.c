// crash.c - something happens to a rank, or to its parent, at an exact moment. Preloaded into a
// program that forks its ranks (LD_PRELOAD), it watches what one of them writes to its timeline
// (--trace) and tells its parent, and strikes when a text appears there:
//
//   CRASH_RANK=1                    whom to watch: the second child that was forked, from 0
//   CRASH_TEXT='"name":"save"'      what to wait for: an event of the timeline, as it stands in the
//                                   file; or a key of the store, in a rendezvous; empty: not to
//                                   wait, it strikes when this rank is born
//   CRASH_AT=3                      the third time that it appears (from 1); default 1
//   CRASH_DO=KILL                   what happens, before it is written: KILL and so on: that signal;
//                                   EXIT0, EXIT7: _exit with 0, 7; HANG: the thread goes on and on;
//                                   HOLD: it sleeps for 5 s
//   CRASH_WHOM=2                    who gets the signal, while whoever is watched pauses: this rank; or
//                                   parent, or group: that of the parent, which Ctrl-C reaches;
//                                   default: whoever is watched
//   CRASH_NOTE=file                 gets the process id of who is struck; its time is the moment
//
// Build: cc -shared -fPIC -o crash.so crash.c
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int children;            // forked so far
static int rank = -1;           // of this process; -1: the parent
static atomic_int appeared;     // how often the text did

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// Of our parent's children, the one that was forked as this one, from 0.
static pid_t sibling(int number)
{
    char path[64];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)getppid(), (int)getppid());
    FILE *in = fopen(path, "r");
    for (int i = 0; in && i <= number; i++)
        if (fscanf(in, "%d", &pid) != 1)
            abort();
    return pid;
}

static pid_t whom(void)
{
    const char *name = getenv("CRASH_WHOM");
    if (name == NULL)
        return getpid();
    return strcmp(name, "parent") == 0 ? getppid()
           : strcmp(name, "group") == 0 ? -getpgid(getppid()) : sibling(atoi(name));
}

static void note(pid_t pid)
{
    const char *path = getenv("CRASH_NOTE");
    FILE *out = path ? fopen(path, "w") : NULL;
    if (out) {
        fprintf(out, "%d\n", (int)pid);
        fclose(out);
    }
}

static void crash(void)
{
    const char *what = getenv("CRASH_DO");
    pid_t pid = whom();
    note(pid);
    for (int signal = 1; what && signal < NSIG; signal++)
        if (sigabbrev_np(signal) && strcmp(what, sigabbrev_np(signal)) == 0)
            kill(pid, signal);
    if (pid != getpid())        // it is to have heard before we get on
        nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
    if (what && strncmp(what, "EXIT", 4) == 0)
        _exit(atoi(what + 4));
    if (what && strcmp(what, "HOLD") == 0)
        for (struct timespec left = { .tv_sec = 5 }; nanosleep(&left, &left) < 0;)
            ;
    while (what && strcmp(what, "HANG") == 0)
        ;
}

static int is_the_one(void)
{
    const char *wanted = getenv("CRASH_RANK");
    return rank >= 0 && wanted && atoi(wanted) == rank;
}

// The file is let go of first: who stops here is not to stop the others there.
static void watch(int fd, const void *bytes, size_t size)
{
    const char *text = getenv("CRASH_TEXT"), *at = getenv("CRASH_AT");
    if (is_the_one() && text && text[0] && memmem(bytes, size, text, strlen(text)) &&
        atomic_fetch_add(&appeared, 1) + 1 == (at ? atoi(at) : 1)) {
        fcntl(fd, F_SETLK, &(struct flock){ .l_type = F_UNLCK });
        crash();
    }
}

// --- the calls -----------------------------------------------------------------------------------

pid_t fork(void)
{
    pid_t pid = REAL(fork)();
    if (pid != 0) {
        children++;
        return pid;
    }
    const char *text = getenv("CRASH_TEXT");
    rank = rank < 0 ? children : rank;
    if (is_the_one() && text && !text[0])
        crash();
    return pid;
}

#define DEFINE_PWRITE(name, Offset)                                           \
    ssize_t name(int fd, const void *bytes, size_t size, Offset at)           \
    {                                                                         \
        watch(fd, bytes, size);                                               \
        return REAL(name)(fd, bytes, size, at);                               \
    }
DEFINE_PWRITE(pwrite, off_t)
DEFINE_PWRITE(pwrite64, off64_t)

ssize_t send(int fd, const void *bytes, size_t size, int flags)
{
    watch(fd, bytes, size);
    return REAL(send)(fd, bytes, size, flags);
}
