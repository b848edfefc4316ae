// crash.c - crashes a rank or its parent at an exact moment. Preloaded (LD_PRELOAD) into a program that forks its
// ranks, or into a launcher, it watches what one rank writes to its timeline (--trace), and acts when a text appears
// there:
//
//   CRASH_RANK=1                    the rank to watch: the second child that was forked, or the process with RANK=1
//   CRASH_TEXT='"name":"save"'      the text to wait for: a timeline event as it is in the file; empty: act when this
//                                   rank is forked
//   CRASH_AT=3                      act at the third write with the text (from 1); default 1
//   CRASH_DO=KILL                   what to do, before the text is written: send a signal (KILL, ...); EXIT0, EXIT7:
//                                   _exit with 0, 7; HANG: spin in this thread when it next reads the clock
//                                   (not in the write, since a write may take long)
//   CRASH_WHOM=parent               send the signal to the parent; other values: to the parent's group, as Ctrl-C does;
//                                   default: to the watched rank
//   CRASH_NOTE=file                 write the target's process id (a group's: negative) to this file; the file's
//                                   modification time is then the moment of the crash
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int children;
static int rank = -1;           // of this process; -1: the parent
static atomic_int appeared;
static __thread int hangs;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void launched(void)
{
    if (getenv("RANK"))
        rank = atoi(getenv("RANK"));
}

static pid_t whom(void)
{
    const char *name = getenv("CRASH_WHOM");
    if (name == NULL)
        return getpid();
    return strcmp(name, "parent") == 0 ? getppid() : -getpgid(getppid());
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

static void crash(const char *what)
{
    pid_t pid = whom();
    note(pid);
    for (int signal = 1; signal < NSIG; signal++)
        if (sigabbrev_np(signal) && strcmp(what, sigabbrev_np(signal)) == 0)
            kill(pid, signal);
    if (pid != getpid())        // give the other process time to react; a signal from it ends this sleep
        sleep(2);
    if (strncmp(what, "EXIT", 4) == 0)
        _exit(atoi(what + 4));
    hangs = strcmp(what, "HANG") == 0;
}

static int is_the_one(void)
{
    const char *wanted = getenv("CRASH_RANK");
    return rank >= 0 && wanted && atoi(wanted) == rank;
}

static void watch(const void *bytes, size_t size)
{
    const char *text = getenv("CRASH_TEXT"), *at = getenv("CRASH_AT"), *what = getenv("CRASH_DO");
    if (!is_the_one() || !text || !text[0] || !what || !memmem(bytes, size, text, strlen(text)))
        return;
    if (atomic_fetch_add(&appeared, 1) + 1 == (at ? atoi(at) : 1))
        crash(what);
}

pid_t fork(void)
{
    pid_t pid = REAL(fork)();
    if (pid != 0) {
        children++;
        return pid;
    }
    const char *text = getenv("CRASH_TEXT"), *what = getenv("CRASH_DO");
    rank = rank < 0 ? children : rank;
    if (is_the_one() && text && !text[0] && what)
        crash(what);
    return pid;
}

// fflush writes timeline events, through a write inside glibc that we cannot intercept.
int fflush(FILE *out)
{
    if (out)
        watch(out->_IO_write_base, (size_t)(out->_IO_write_ptr - out->_IO_write_base));
    return REAL(fflush)(out);
}

int clock_gettime(clockid_t id, struct timespec *time)
{
    while (hangs)
        ;
    return REAL(clock_gettime)(id, time);
}
