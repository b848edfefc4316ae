// test_comm_fails.c - ranks that die, and strangers: which rank prints what, and how soon all ranks end.
// (test_diverges.sh has ranks that call different collectives.)
// ctest: SANITIZERS asan
#include "../tools/ranks.h"
#include "check.h"
#include "clock.h"
#include "comm.h"
#include "interrupt.h"
#include "test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

enum { COUNT = 1000, BIG = 4000000 };

static char text[1 << 16];

static void redirect(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

static const char *said(const char *path)
{
    FILE *in = fopen(path, "r");
    text[in ? fread(text, 1, sizeof text - 1, in) : 0] = '\0';
    if (in)
        fclose(in);
    return text;
}

static void expect_said(const char *path, const char *words)
{
    EXPECT(strstr(said(path), words) != NULL, "no '%s' in:\n%s", words, text);
}

typedef struct Story {
    const char *file;       // for the ranks' stderr
    void (*last)(Comm *comm, Stream *stream, float *values, int rank);
    bool beside;            // on a second stream
} Story;

static int tell(void *arg, const World *world)
{
    const Story *story = arg;
    redirect(story->file);
    interrupt_install(false);
    Device *device = device_open(0, 1);
    Comm *comm = comm_new(world, device, "grads", NULL);
    Stream *stream = story->beside ? stream_new_beside(device, "comm") : device_stream(device);
    float *values = device_alloc(device, sizeof(float[BIG]));
    if (world->rank == 0)   // an empty message needs no receiver
        comm_send(comm, stream, values, 0, COMM_F32, 1);
    for (int i = 0; i < 3; i++)
        comm_all_reduce(comm, stream, values, COUNT, COMM_F32);
    story->last(comm, stream, values, world->rank);
    stream_sync(stream);
    return 0;
}

// Expects rank `first` to end with `its_status`, then the others with `status`, after `signal` is
// sent to them (0: none). Returns the seconds in between.
static double expect_end(int size, const Story *story, int first, int its_status, int signal, int status)
{
    pid_t pids[RANKS_MAX];
    Store *store = ranks_store_new();
    ranks_start(size, store, tell, (void *)story, pids);
    EXPECT_EQ_INT(ranks_join(pids[first]), its_status);
    double begin = clock_now();
    if (signal)
        usleep(200 * 1000);     // time to notice the loss
    for (int rank = 0; rank < size; rank++)
        if (rank != first && signal)
            kill(pids[rank], signal);
    for (int rank = 0; rank < size; rank++)
        if (rank != first)
            EXPECT_EQ_INT(ranks_join(pids[rank]), status);
    ranks_store_free(store);
    return clock_now() - begin;
}

// --- ranks that die ------------------------------------------------------------------------------

static void die_in_the_middle(Comm *comm, Stream *stream, float *values, int rank)
{
    for (int i = 0; i < 1000; i++) {
        comm_all_reduce(comm, stream, values, BIG, COMM_F32);
        if (rank == 1 && i == 3) {
            stream_sync(stream);
            raise(SIGKILL);
        }
    }
}

static void die_before_barrier(Comm *comm, Stream *stream, float *values, int rank)
{
    if (rank == 1)
        raise(SIGKILL);
    comm_barrier(comm);
}

TEST(sigterm_after_a_loss_prints_nothing)
{
    Story stories[] = { { .last = die_in_the_middle },
                        { .last = die_in_the_middle, .beside = true },
                        { .last = die_before_barrier } };
    for (int i = 0; i < 3; i++) {
        stories[i].file = test_path("quiet");
        double seconds = expect_end(3, &stories[i], 1, 128 + SIGKILL, SIGTERM, 128 + SIGTERM);
        EXPECT_EQ_STR(said(stories[i].file), "");
        EXPECT(seconds < 4, "death %d: %.1f s", i, seconds);
    }
}

TEST(ranks_report_a_loss_without_a_supervisor)
{
    Story story = { .file = test_path("alone"), .last = die_in_the_middle, .beside = true };
    double seconds = expect_end(3, &story, 1, 128 + SIGKILL, 0, EXIT_FAILED);
    EXPECT(seconds > 4, "a supervisor had only %.1f s to end the ranks", seconds);
    expect_said(story.file, "rank 0 of 3 lost another rank in all_reduce #");
    expect_said(story.file, "of 4000000 f32 (grads): ");
    expect_said(story.file, "rank 2 of 3 lost another rank in all_reduce #");
    expect_said(story.file, "hint: another rank has ended");
}

// --- a stranger ----------------------------------------------------------------------------------

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
    const Story *story = arg;
    redirect(story->file);
    interrupt_install(false);
    Device *device = device_open(0, 1);
    while (world->rank == 1 && !knock_at(started[0]))
        usleep(100 * 1000);
    comm_new(world, device, "grads", NULL);
    return 0;
}

TEST(a_stranger_is_named_as_a_possible_cause)
{
    Story story = { .file = test_path("stranger") };
    pid_t pids[2];
    Store *store = ranks_store_new();
    started = pids;
    ranks_start(2, store, meet_a_stranger, &story, pids);
    EXPECT_EQ_INT(ranks_join(pids[0]), EXIT_FAILED);
    kill(pids[1], SIGKILL);     // as a supervisor would: it may wait until rank 0 connects
    ranks_join(pids[1]);
    ranks_store_free(store);
    expect_said(story.file, "hint: another rank has ended, or its machine is unreachable, or another program");
}

int main(void)
{
    test_all();
    return test_done();
}
