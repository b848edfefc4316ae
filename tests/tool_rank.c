// tool_rank.c - plays a rank, for test_launch.sh: tool_rank RULE...
//
//   RULE is WHO=PART,PART...   WHO is 1 (rank 1), 1.0 (only before the first restart) or all
//
// Parts are played in this order, that of all rules that hold. Then it exits with 0.
#include "alive.h"
#include "check.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int rank, start;

static const char *variable(const char *name) { return getenv(name) ? getenv(name) : "-"; }

static void say(const char *text)
{
    char line[256];
    int n = snprintf(line, sizeof line, "%s: rank %d, pid %d\n", text, rank, (int)getpid());
    CHECK(write(STDOUT_FILENO, line, (size_t)n) == n, "", "write");
}

// --- what it was told ----------------------------------------------------------------------------

// Does somebody listen there, where the others will look for it?
static bool listens(void)
{
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    int fd = atoi(variable("DDP_LISTEN")), listening = 0;
    socklen_t size = sizeof listening;
    return getsockname(fd, (struct sockaddr *)&address, &bytes) == 0
           && ntohs(address.sin_port) == atoi(variable("MASTER_PORT"))
           && listen(fd, 8) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening;
}

static void print_contract(int count)
{
    static const char *const names[] = {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
        "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "OMP_NUM_THREADS", "GOMP_SPINCOUNT",
        "DDP_TOKEN",
    };
    (void)count;
    char line[2048] = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(line);
        snprintf(line + n, sizeof line - n, "%s=%s ", names[i], variable(names[i]));
    }
    printf("%slistens=%d\n", line, getenv("DDP_LISTEN") ? listens() : -1);
    fflush(stdout);
}

// Descriptors beside the first three, blocked and ignored signals, and its group.
static void print_inherited(int count)
{
    (void)count;
    sigset_t blocked;
    struct sigaction action;
    char line[512];
    int n = snprintf(line, sizeof line, "inherited:");
    for (int fd = STDERR_FILENO + 1; fd < 64; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            n += snprintf(line + n, sizeof line - (size_t)n, " %s",
                          fcntl(fd, F_GET_SEALS) >= 0             ? "memory"
                          : fd == atoi(variable("DDP_LISTEN")) ? "listening" : "unknown");
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    n += snprintf(line + n, sizeof line - (size_t)n, "; blocked:");
    for (int signal = 1; signal < SIGSYS; signal++)
        if (sigismember(&blocked, signal))
            n += snprintf(line + n, sizeof line - (size_t)n, " %s", sigabbrev_np(signal));
    n += snprintf(line + n, sizeof line - (size_t)n, "; ignored:");
    for (int signal = 1; signal < SIGSYS; signal++)
        if (sigaction(signal, NULL, &action) == 0 && action.sa_handler == SIG_IGN)
            n += snprintf(line + n, sizeof line - (size_t)n, " %s", sigabbrev_np(signal));
    printf("%s; own group: %d\n", line, getpgrp() == getpid());
    fflush(stdout);
}

// --- what it does --------------------------------------------------------------------------------

static void on_signal(int signal)
{
    char line[64];
    int n = snprintf(line, sizeof line, "caught %s: rank %d\n", sigabbrev_np(signal), rank);
    if (write(STDOUT_FILENO, line, (size_t)n) != n)
        _exit(99);
    if (signal == SIGINT || signal == SIGTERM) {
        alive_done();
        _exit(128 + signal);
    }
}

static void catch_signals(int count)
{
    (void)count;
    static const int all[] = { SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        signal(all[i], on_signal);
    say("ready");
}

static void be_deaf(int count)
{
    (void)count;
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    say("ready");
}

static void wait_long(int count)
{
    (void)count;
    for (;;)
        pause();
}

static void sleep_ms(int count) { usleep((useconds_t)count * 1000); }

static void leave_with(int count) { exit(count); }

static void die_of(int count)
{
    signal(count, SIG_DFL);             // AddressSanitizer has its own ideas
    raise(count);
}

// In this group, or (1) in a session of its own; deaf.
static void have_child(int own_session)
{
    if (fork() != 0)
        return;
    if (own_session)
        setsid();
    be_deaf(0);
    wait_long(0);
}

static void write_lines(int count)
{
    char line[256];
    for (int i = 0; i < count; i++) {
        int n = snprintf(line, sizeof line, "line %d of rank %d %.*s|\n", i, rank, i % 100,
                         "....................................................................."
                         "...............................");
        int fd = STDOUT_FILENO + i % 2, half = i % n;   // two pieces, as of a small buffer
        CHECK(write(fd, line, (size_t)half) == half, "", "write");
        CHECK(write(fd, line + half, (size_t)(n - half)) == n - half, "", "write");
    }
}

static void write_long(int count)
{
    char *line = xmalloc((size_t)count);
    memset(line, 'x', (size_t)count);
    CHECK(write(STDOUT_FILENO, line, (size_t)count) == count, "", "write");
    free(line);
}

static void live(int step)
{
    alive_inherit();
    alive_joined();
    alive_step(2, step);
}

static void be_done(int count)
{
    (void)count;
    alive_done();
}

static const struct {
    const char *name;
    void (*play)(int count);
} parts[] = {
    { "contract", print_contract }, { "inherited", print_inherited }, { "catch", catch_signals },
    { "deaf", be_deaf }, { "wait", wait_long }, { "sleep", sleep_ms }, { "exit", leave_with },
    { "die", die_of }, { "child", have_child }, { "lines", write_lines }, { "long", write_long },
    { "live", live }, { "done", be_done },
};

static void play(const char *text)
{
    char name[32] = "";
    int count = 0;
    sscanf(text, "%31[a-z]%d", name, &count);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(parts[i].name, name) == 0) {
            parts[i].play(count);
            return;
        }
    FAIL("", "there is no part '%s'", text);
}

int main(int argc, char **argv)
{
    char mine[32], now[32];
    rank = atoi(variable("RANK"));
    start = atoi(variable("TORCHELASTIC_RESTART_COUNT"));
    snprintf(mine, sizeof mine, "%d", rank);
    snprintf(now, sizeof now, "%d.%d", rank, start);
    for (int i = 1; i < argc; i++) {
        char *who = strtok(argv[i], "=");
        if (strcmp(who, "all") != 0 && strcmp(who, mine) != 0 && strcmp(who, now) != 0)
            continue;
        for (char *part; (part = strtok(NULL, ",")) != NULL;)
            play(part);
    }
    return 0;
}
