// exchange_fork.c - for one computer: fork makes the ranks, and rank 0 adds up. Any POSIX system will do.
//
//   rank 1 ------ rank 0 ------ rank 2     each line is a pair of sockets. For a sum all ranks send to rank 0, which
//                   |                      adds and sends the sum back. Rank 0 has all the traffic, so this is for a
//                 rank 3                   few ranks; the ring of exercise 03-8 loads all ranks alike.
#include "exchange.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 64 };
static int rank, size, sockets[RANKS];      // rank 0: one for each rank; the others: sockets[0]

static void must(int ok, const char *error)
{
    if (!ok) {
        fprintf(stderr, "rank %d: %s\n", rank, error);
        exit(1);
    }
}

// When a rank dies, the system closes its sockets. Then these calls fail, so no rank waits forever.
static void put(int peer, const float *values, int count)
{
    size_t bytes = (size_t)count * sizeof *values;
    must(send(sockets[peer], values, bytes, 0) == (ssize_t)bytes, "cannot send: a rank has ended");
}

static void get(int peer, float *values, int count)
{
    size_t bytes = (size_t)count * sizeof *values;
    must(recv(sockets[peer], values, bytes, MSG_WAITALL) == (ssize_t)bytes, "cannot receive: a rank has ended");
}

void exchange_begin(int argc, char **argv, int *this_rank, int *ranks)
{
    size = argc == 2 ? atoi(argv[1]) : 0;
    must(size >= 1 && size <= RANKS, "how many ranks, from 1 to 64? For example: ./a.out 2");
    signal(SIGPIPE, SIG_IGN);       // sending to a rank that has ended is then an error, which must() reports
    for (int peer = 1, pair[2]; peer < size && rank == 0; peer++) {
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair has failed");
        pid_t child = fork();
        must(child >= 0, "fork has failed");
        rank = child == 0 ? peer : 0;
        sockets[child == 0 ? 0 : peer] = pair[child == 0];
        close(pair[child != 0]);
    }
    *this_rank = rank;
    *ranks = size;
}

void exchange_broadcast(float *values, int count)
{
    if (rank > 0)
        get(0, values, count);
    for (int peer = 1; rank == 0 && peer < size; peer++)
        put(peer, values, count);
}

void exchange_sum(float *values, int count)
{
    if (rank > 0)
        put(0, values, count);
    float others[count];
    for (int peer = 1; rank == 0 && peer < size; peer++) {
        get(peer, others, count);
        for (int i = 0; i < count; i++)
            values[i] += others[i];
    }
    exchange_broadcast(values, count);
}

void exchange_end(void) { while (wait(NULL) > 0) { } }
