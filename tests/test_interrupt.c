// test_interrupt.c - a signal requests a stop, and does not disturb the code it interrupts.
// ctest: SANITIZERS none LABELS deadlines
#include "check.h"
#include "interrupt.h"
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { WHOLE = 1 << 20, OWN = 1 << 16 };
static unsigned char memory[WHOLE]; // its last OWN bytes are a stack
static ucontext_t here, there;
static pthread_t main_thread;

static void get_one_of_two_ranks(const void *signal)
{
    check_set_rank(1, 2);
    interrupt_install();
    raise(*(const int *)signal);
    exit(interrupt_received());
}

static void get_two(const void *signals)
{
    interrupt_install();
    interrupt_silence();
    raise(((const int *)signals)[0]);
    raise(((const int *)signals)[1]);
    exit(interrupt_received());
}

TEST(only_a_second_stop_signal_kills)
{
    EXPECT_EQ_INT(test_child(get_two, (int[]){ SIGINT, SIGTERM }), 128 + SIGTERM);
    EXPECT_EQ_INT(test_child(get_two, (int[]){ SIGTERM, SIGTERM }), SIGTERM);       // within 0.2 s
    EXPECT_EQ_INT(test_child(get_two, (int[]){ SIGUSR1, SIGUSR1 }), SIGUSR1);
    EXPECT_EQ_INT(test_child(get_two, (int[]){ SIGUSR1, SIGTERM }), SIGTERM);
    EXPECT_EQ_INT(test_child(get_two, (int[]){ SIGTERM, SIGUSR1 }), SIGTERM);
}

TEST(a_rank_that_cannot_agree_ends_at_once)
{
    EXPECT_EQ_INT(test_child(get_one_of_two_ranks, &(int){ SIGTERM }), 128 + SIGTERM);
    EXPECT_EQ_INT(test_child(get_one_of_two_ranks, &(int){ SIGUSR1 }), 128 + SIGUSR1);
}

TEST(a_signal_does_not_interrupt_a_read)
{
    int status, ends[2];
    EXPECT(pipe(ends) == 0, "pipe");
    interrupt_install();
    pid_t pid = fork();
    if (pid == 0)
        _exit(read(ends[0], &(char){ 0 }, 1) == 1 && interrupt_received() ? 0 : 1);
    usleep(100000);
    kill(pid, SIGINT);
    usleep(100000);
    EXPECT_EQ_INT(write(ends[1], "x", 1), 1);
    waitpid(pid, &status, 0);
    EXPECT_EQ_INT(status, 0);
    close(ends[0]);
    close(ends[1]);
}

static void *send_signal(void *arg)
{
    usleep(20000);
    pthread_kill(main_thread, SIGTERM);
    return NULL;
}

// Fills the memory below the stack pointer with a pattern that the signal handler must not change.
static void wait_for_signal(void)
{
    unsigned char *end = (unsigned char *)__builtin_frame_address(0) - 512;
    memset(memory, 0x5a, (size_t)(end - memory));
    while (!interrupt_received()) {
    }
    swapcontext(&there, &here);
}

// oneDNN's matrix products set the stack pointer to the beginning of a block from malloc. A handler on that stack would
// overwrite other memory.
TEST(memory_below_the_stack_pointer_is_kept)
{
    pthread_t sender;
    main_thread = pthread_self();
    interrupt_install();
    getcontext(&there);
    there.uc_stack = (stack_t){ .ss_sp = memory + WHOLE - OWN, .ss_size = OWN };
    makecontext(&there, wait_for_signal, 0);
    pthread_create(&sender, NULL, send_signal, NULL);
    swapcontext(&here, &there);
    pthread_join(sender, NULL);
    size_t intact = 0;
    while (intact < WHOLE && memory[intact] == 0x5a)
        intact++;
    EXPECT(intact > WHOLE - 2048, "overwritten from byte %zu of %d", intact, WHOLE);
}

TEST_MAIN
