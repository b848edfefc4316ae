// tool_rank.c - a scripted rank that does not train, for tests of the launcher.
//
//   tool_rank RULE...          a rank started by launch
//
//   RULE is RANK=PART,PART...  RANK is 1, 1.0 (rank 1 before the first restart) or all;
//                              PART is a name in `parts`, often with a number: wait, exit7, sleep100
//
// A rank plays the parts of all rules that apply to it, in order. Then it exits with 0.
#include "check.h"
#include "launcher.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <netinet/in.h>
#include <time.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"     // `none`: for parts without a number

static int this, start;         // this process's rank; how often it was started before

static const char *variable(const char *name) { return getenv(name) ? getenv(name) : "-"; }

static void say(const char *text)
{
    char line[256];
    int n = snprintf(line, sizeof line, "%s: rank %d, pid %d\n", text, this, (int)getpid());
    CHECK(write(STDOUT_FILENO, line, (size_t)n) == n, "", "write");
}

static bool listens(void)
{
    struct sockaddr_in address;
    socklen_t bytes = sizeof address, size = sizeof(int);
    int fd = atoi(variable("DDP_LISTEN")), listening = 0;
    return getsockname(fd, (struct sockaddr *)&address, &bytes) == 0
           && ntohs(address.sin_port) == atoi(variable("MASTER_PORT"))
           && listen(fd, 8) == 0
           && getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening;
}

static void print_contract(int none)
{
    static const char *const names[] = {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
        "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "OMP_NUM_THREADS", "GOMP_SPINCOUNT", "DDP_TOKEN",
    };
    char line[2048] = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(line);
        snprintf(line + n, sizeof line - n, "%s=%s ", names[i], variable(names[i]));
    }
    printf("%slistens=%d\n", line, getenv("DDP_LISTEN") ? listens() : -1);
    fflush(stdout);
}

// --- parts ---------------------------------------------------------------------------------------

static const char *name_of(int signal) { return signal == SIGINT ? "INT" : signal == SIGTERM ? "TERM" : "USR1"; }

static void on_signal(int signal)
{
    char line[64];
    int n = snprintf(line, sizeof line, "caught %s: rank %d\n", name_of(signal), this);
    if (write(STDOUT_FILENO, line, (size_t)n) != n)
        _exit(99);
    if (signal == SIGINT || signal == SIGTERM)
        _exit(128 + signal);
}

static void catch_signals(int none)
{
    static const int all[] = { SIGINT, SIGTERM, SIGUSR1 };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        signal(all[i], on_signal);
    say("ready");
}

static void be_deaf(int none)
{
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    say("ready");
}

static void wait_long(int none)
{
    for (;;)
        pause();
}

static void sleep_ms(int ms)
{
    struct timespec left = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };
    while (nanosleep(&left, &left) != 0)
        continue;
}

static void die_of(int signal_number)
{
    signal(signal_number, SIG_DFL);     // AddressSanitizer installs its own handlers
    raise(signal_number);
}

// The child is in this rank's process group and ignores SIGINT and SIGTERM.
static void have_child(int none)
{
    if (fork() != 0)
        return;
    be_deaf(0);
    wait_long(0);
}

static void follow(int none) { launcher_follow(); }

static const struct {
    const char *name;
    void (*play)(int count);
} parts[] = {
    { "contract", print_contract }, { "follow", follow }, { "catch", catch_signals }, { "deaf", be_deaf },
    { "wait", wait_long }, { "sleep", sleep_ms }, { "exit", exit }, { "die", die_of }, { "child", have_child },
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
    this = atoi(variable("RANK"));
    start = atoi(variable("TORCHELASTIC_RESTART_COUNT"));
    snprintf(mine, sizeof mine, "%d", this);
    snprintf(now, sizeof now, "%d.%d", this, start);
    for (int i = 1; i < argc; i++) {
        char *who = strtok(argv[i], "=");
        if (strcmp(who, "all") != 0 && strcmp(who, mine) != 0 && strcmp(who, now) != 0)
            continue;
        for (char *part; (part = strtok(NULL, ",")) != NULL;)
            play(part);
    }
    return 0;
}
