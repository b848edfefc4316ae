// test_comm_fails.c - what the other ranks print when a rank dies, and what a rank prints when a stranger (a
// program that is no rank) connects to it.
// ctest: SANITIZERS asan
#include "../tools/ranks.h"
#include "check.h"
#include "clock.h"
#include "comm.h"
#include "interrupt.h"
#include "test.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>

enum { BIG = 4000000 };

static int lose_rank_1(void *arg, const World *world)
{
    test_redirect(arg);
    interrupt_install(false);
    Device *device = device_open(0, 1);
    Comm *comm = comm_new(world, device, "grads", NULL);
    Stream *stream = stream_new_beside(device, "comm");
    float *values = device_alloc(device, sizeof(float[BIG]));
    if (world->rank == 0)   // an empty message needs no receiver
        comm_send(comm, stream, values, 0, COMM_F32, 1);
    for (int i = 0; i < 1000; i++) {
        comm_all_reduce(comm, stream, values, BIG, COMM_F32);
        if (world->rank == 1 && i == 3) {
            stream_sync(stream);
            raise(SIGKILL);
        }
    }
    stream_sync(stream);
    return 0;
}

// The other ranks wait before they end, so that a supervisor can end them and name the dead rank. There is none here.
TEST(ranks_report_a_loss_without_a_supervisor)
{
    enum { RANKS = 3 };
    pid_t pids[RANKS];
    char path[4096];
    snprintf(path, sizeof path, "%s", test_path("alone"));
    Store *store = ranks_store_new();
    ranks_start(RANKS, store, lose_rank_1, path, pids);
    EXPECT_EQ_INT(ranks_join(pids[1]), 128 + SIGKILL);
    double begin = clock_now();
    EXPECT_EQ_INT(ranks_join(pids[0]), EXIT_FAILED);
    EXPECT_EQ_INT(ranks_join(pids[2]), EXIT_FAILED);
    EXPECT(clock_now() > begin + 4, "a supervisor had only %.1f s to end the ranks", clock_now() - begin);
    ranks_store_free(store);
    const char *said = test_read(path);
    EXPECT_HAS(said, "rank 0 of 3 lost another rank in all_reduce #");
    EXPECT_HAS(said, "of 4000000 f32 (grads): ");
    EXPECT_HAS(said, "rank 2 of 3 lost another rank in all_reduce #");
    EXPECT_HAS(said, "hint: another rank has ended");
}

static pid_t *started;

// Sends 64 bytes to each port at which the process listens. False: it does not listen yet.
static bool knock_at(pid_t pid)
{
    bool listens = false;
    char path[64], link[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/net/tcp", (int)pid);
    FILE *in = fopen(path, "r");
    while (in && fgets(line, sizeof line, in)) {
        unsigned port, state;
        unsigned long inode;
        if (sscanf(line, " %*d: %*x:%x %*s %x %*s %*s %*s %*s %*s %lu", &port, &state, &inode) != 3 || state != 10)
            continue;
        for (int fd = 0; fd < 256; fd++) {
            snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
            ssize_t n = readlink(path, link, sizeof link - 1);
            link[n > 0 ? n : 0] = '\0';
            if (strtoul(link + strcspn(link, "0123456789"), NULL, 10) != inode || strncmp(link, "socket", 6) != 0)
                continue;
            struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                      .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
            int stranger = socket(AF_INET, SOCK_STREAM, 0);
            listens = true;
            if (connect(stranger, (struct sockaddr *)&to, sizeof to) == 0)
                send(stranger,
                     "GET / HTTP/1.1\r\nHost: a stranger, who is not a rank of the run\r\n", 64, MSG_NOSIGNAL);
            usleep(200 * 1000);
            close(stranger);
        }
    }
    if (in)
        fclose(in);
    return listens;
}

static int meet_a_stranger(void *arg, const World *world)
{
    test_redirect(arg);
    interrupt_install(false);
    Device *device = device_open(0, 1);
    while (world->rank == 1 && !knock_at(started[0]))
        usleep(100 * 1000);
    Comm *comm = comm_new(world, device, "grads", NULL);
    comm_barrier(comm);         // no rank ends while the other one connects
    comm_free(comm);
    return 0;
}

TEST(a_stranger_is_ignored_or_named_as_a_possible_cause)
{
    char path[4096];
    snprintf(path, sizeof path, "%s", test_path("stranger"));
    pid_t pids[2];
    Store *store = ranks_store_new();
    started = pids;
    ranks_start(2, store, meet_a_stranger, path, pids);
    int status = ranks_join(pids[0]);
    if (status != 0)
        kill(pids[1], SIGKILL); // as a supervisor would: rank 1 may still wait for rank 0
    int other = ranks_join(pids[1]);
    ranks_store_free(store);
    if (status == 0) {          // this version of Gloo has ignored the stranger
        EXPECT_EQ_INT(other, 0);
        return;
    }
    EXPECT_EQ_INT(status, EXIT_FAILED);
    EXPECT_HAS(test_read(path), "hint: another rank has ended, or its machine is unreachable, or another program");
}

TEST_MAIN
