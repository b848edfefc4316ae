// Streams and events: what runs in order, and what runs at the same time.
//
// ctest: PROCESSORS 2 BACKENDS cpu cuda fake SANITIZERS asan tsan
//
// Calls on a stream append a number to a log. A gate is a call that blocks its stream until the
// test opens it, so work queued after it cannot run early, however slow the machine is. Before a
// gate opens, work that runs too early gets the time SOON to show up in the log.
#include "check.h"
#include "test_device.h"
#include "threads.h"

#include <omp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

enum { SOON = 20000, LOG = 1 << 12 };   // us; entries

static int entries[LOG];
static atomic_int logged;

static Stream *compute, *beside;
static Event *event;
static struct {
    sem_t open, reached;
} gate;

static void begin(void)
{
    compute = device_stream(device);
    beside = stream_new_beside(device, "beside");
    event = event_new(device);
    sem_init(&gate.open, 0, 0);
    sem_init(&gate.reached, 0, 0);
    logged = 0;
}

static void end(void)
{
    stream_free(beside);
    event_free(event);
}

typedef struct Note {
    int number;
    char ballast[300];      // shows that the whole argument arrives
} Note;

static void note(void *arg)
{
    const Note *n = arg;
    entries[logged] = n->ballast[299] == 7 ? n->number : -1;
    logged++;
}

static void ask_note(Stream *stream, int number)
{
    Note n = { .number = number, .ballast[299] = 7 };
    stream_enqueue(stream, note, &n, sizeof n);
    memset(&n, 0, sizeof n);    // the stream must have copied the argument
}

static void gate_pass(void *arg)
{
    sem_post(&gate.reached);
    sem_wait(&gate.open);
}

static void ask_gate(Stream *stream) { stream_enqueue(stream, gate_pass, &gate, 1); }

static void *open_soon(void *arg)
{
    usleep(SOON);
    sem_post(&gate.open);
    return arg;
}

// Opens the gate a little later from another thread, since the caller is about to block.
static pthread_t gate_open_soon(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, open_soon, NULL) == 0, "", "pthread_create");
    return thread;
}

static void expect_log(int count, const int *wanted)
{
    EXPECT_EQ_INT(logged, count);
    for (int i = 0; i < count && i < logged; i++)
        EXPECT(entries[i] == wanted[i], "entry %d is %d, wanted %d", i, entries[i], wanted[i]);
}

static void expect_in_order(int count)
{
    int wrong = 0;
    EXPECT_EQ_INT(logged, count);
    for (int i = 0; i < count; i++)
        wrong += entries[i] != i;
    EXPECT_EQ_INT(wrong, 0);
}

TEST(a_stream_keeps_its_order)
{
    Stream *streams[] = { compute, beside };
    for (int s = 0; s < 2; s++) {
        logged = 0;
        for (int i = 0; i < LOG; i++)
            ask_note(streams[s], i);
        stream_sync(streams[s]);
        expect_in_order(LOG);
    }
}

TEST(memory_in_order)
{
    enum { BYTES = 1000 };
    unsigned char *a = device_alloc(device, BYTES), *b = device_alloc(device, BYTES);
    unsigned char *ones = host_alloc(BYTES), *back = host_alloc(3 * BYTES);
    memset(ones, 1, BYTES);
    memset(back, 9, 3 * BYTES);
    ask_gate(beside);
    copy_to_device(beside, a, ones, BYTES);
    copy_on_device(beside, b, a, BYTES);
    fill_zero(beside, a, BYTES / 2);
    copy_to_host(beside, back, a, BYTES);
    copy_to_host(beside, back + BYTES, b, BYTES);
    EXPECT_EQ_INT(back[0], 9);
    sem_post(&gate.open);
    stream_sync(beside);
    for (int i = 0; i < BYTES; i++)
        EXPECT(back[i] == (i >= BYTES / 2) && back[BYTES + i] == 1 && back[2 * BYTES + i] == 9,
               "byte %d is %d, %d, %d", i, back[i], back[BYTES + i], back[2 * BYTES + i]);
    host_free(ones);
    host_free(back);
    device_free(device, a);
    device_free(device, b);
}

// Would deadlock if stream_enqueue waited for its call.
TEST(stream_call_does_not_wait)
{
    ask_gate(beside);
    ask_note(beside, 2);
    sem_wait(&gate.reached);
    note(&(Note){ .number = 1, .ballast[299] = 7 });
    sem_post(&gate.open);
    stream_sync(beside);
    expect_log(2, (int[]){ 1, 2 });
}

TEST(waiting_for_a_second_stream)
{
    for (int way = 0; way < 3; way++) {
        logged = 0;
        ask_gate(beside);
        ask_note(beside, 1);
        event_record(event, beside);
        pthread_t opener = gate_open_soon();
        if (way == 0)
            stream_wait(compute, event);
        else if (way == 1)
            event_sync(event);
        else
            stream_sync(beside);
        ask_note(compute, 2);
        stream_sync(compute);
        expect_log(2, (int[]){ 1, 2 });
        pthread_join(opener, NULL);
    }
}

TEST(two_streams_take_turns)
{
    for (int i = 0; i < 100; i++) {
        ask_note(compute, 2 * i);
        event_record(event, compute);
        stream_wait(beside, event);
        ask_note(beside, 2 * i + 1);
        event_record(event, beside);
        stream_wait(compute, event);
    }
    stream_sync(compute);
    expect_in_order(200);
}

static void step_with_call(void *arg) { ask_note(*(Stream **)arg, 5); }

TEST(a_step_that_is_never_recorded)
{
    replay_forbid(device);
    Replay *replay = replay_new(device, 1);
    for (int i = 0; i < 4; i++)
        replay_run(replay, 0, step_with_call, &compute);
    stream_sync(compute);
    expect_log(4, (int[]){ 5, 5, 5, 5 });
    replay_free(replay);
}

// The tests from here on are for the CPU only: in CUDA, a host function may not call CUDA.

typedef struct Thread {
    pthread_t id;
    int threads;
    sigset_t blocked;
} Thread;

static void look_around(void *arg)
{
    Thread *thread = *(Thread **)arg;
    device_use(device);
    thread->id = pthread_self();
    pthread_sigmask(SIG_SETMASK, NULL, &thread->blocked);
    thread->threads = omp_get_max_threads();
}

// A stream that works beside the caller has its own thread. That thread blocks signals. Its loops use one thread, since
// the caller's loops need the cores.
TEST(the_thread_of_a_stream)
{
    Thread there, *to = &there;
    stream_enqueue(beside, look_around, &to, sizeof to);
    stream_sync(beside);
    EXPECT(!pthread_equal(there.id, pthread_self()), "the call ran in the caller's thread");
    EXPECT_EQ_INT(there.threads, 1);
    EXPECT(sigismember(&there.blocked, SIGINT) && sigismember(&there.blocked, SIGTERM),
           "the stream's thread takes signals");
}

// Threads per device: the option, else OMP_NUM_THREADS, else an equal share of the cores.
TEST(thread_counts)
{
    int cores = core_count();
    const struct {
        const char *set;
        int devices, asked, wanted;
    } cases[] = {
        { "", 1, 0, cores }, { "", cores + 1, 0, 1 }, { "", 4, 3, 3 }, { "3", 1, 0, 3 }, { "many", 1, 0, cores },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("OMP_NUM_THREADS", cases[i].set, 1);
        EXPECT(device_share(cases[i].devices, cases[i].asked, false) == cases[i].wanted,
               "case %zu: not %d", i, cases[i].wanted);
    }
    unsetenv("OMP_NUM_THREADS");
}

int main(void)
{
    bool cpu = strcmp(device_backend, "cpu") == 0;
    test_open_device(2, (OpsConfig){ 0 });
    for (int i = 0; i < test_count && (cpu || test_list[i] != the_thread_of_a_stream); i++) {
        begin();
        test_list[i]();
        end();
    }
    test_close_device();
    return test_done();
}
