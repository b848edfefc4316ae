// test_interrupt.c - a signal asks, and leaves alone what it interrupts.
// ctest: SANITIZERS none
#include "interrupt.h"
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

enum { WHOLE = 1 << 20, OWN = 1 << 16 };
static unsigned char memory[WHOLE]; // its end is a stack; what lies below is not
static ucontext_t here, there;
static pthread_t main_thread;

static void *send_signal(void *arg)
{
    (void)arg;
    usleep(20000);
    pthread_kill(main_thread, SIGTERM);
    return NULL;
}

// The stack as it is: all that lies far below the present end of it must stay as it is.
static void wait_for_signal(void)
{
    unsigned char *end = (unsigned char *)__builtin_frame_address(0) - 512;
    memset(memory, 0x5a, (size_t)(end - memory));
    while (!interrupt_wish()) {
    }
    swapcontext(&there, &here);
}

// oneDNN's matrix products let the stack pointer point to the beginning of a block from malloc.
TEST(what_lies_below_the_stack_pointer_stays)
{
    pthread_t sender;
    main_thread = pthread_self();
    interrupt_install(false);
    getcontext(&there);
    there.uc_stack = (stack_t){ .ss_sp = memory + WHOLE - OWN, .ss_size = OWN };
    makecontext(&there, wait_for_signal, 0);
    pthread_create(&sender, NULL, send_signal, NULL);
    swapcontext(&here, &there);
    pthread_join(sender, NULL);
    size_t intact = 0;
    while (intact < WHOLE && memory[intact] == 0x5a)
        intact++;
    EXPECT(intact > WHOLE - 2048, "written over from byte %zu of %d", intact, WHOLE);
}

TEST(the_first_signal_is_a_wish)
{
    EXPECT_EQ_INT(interrupt_requested(), SIGTERM);
    interrupt_defer();
    EXPECT_EQ_INT(interrupt_requested(), 0);
    EXPECT_EQ_INT(interrupt_wish(), SIGTERM);
    interrupt_grant(SIGINT);
    EXPECT_EQ_INT(interrupt_requested(), SIGINT);
}

int main(void)
{
    what_lies_below_the_stack_pointer_stays();
    the_first_signal_is_a_wish();
    return test_done();
}
