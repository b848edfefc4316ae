// line.c - data-parallel training in one file: fits a line. Of this repository, it needs only exchange.h.
//
//   cc line.c exchange_fork.c && ./a.out 2                                         any POSIX system, nothing to install
//   mpicc -o line line.c exchange_mpi.c && mpirun -np 2 ./line                     on CPUs
//   mpicc -o line line.c exchange_nccl.c -lnccl -lcudart && mpirun -np 2 ./line    on two GPUs (-I, -L: reuse.md)
#include "exchange.h"

#include <stdio.h>
#include <string.h>

enum { INPUTS = 4, SAMPLES = 1024, BATCH = 64, EPOCHS = 8 };     // BATCH: of all ranks together

typedef struct Sample {
    float x[INPUTS], y;
} Sample;

static unsigned next_random(unsigned *state) { return (*state = *state * 1664525u + 1013904223u) >> 8; }

static float uniform(unsigned *state) { return (float)next_random(state) / (1 << 23) - 1; }

// y = 1 x0 + 2 x1 + 3 x2 + 4 x3, and a little noise. Every rank makes the same samples, because the seed is the same.
static void make_samples(Sample *samples)
{
    unsigned state = 1;
    for (int i = 0; i < SAMPLES; i++) {
        samples[i].y = 0.01f * uniform(&state);
        for (int k = 0; k < INPUTS; k++) {
            samples[i].x[k] = uniform(&state);
            samples[i].y += (float)(k + 1) * samples[i].x[k];
        }
    }
}

// A different order in each epoch, but the same on all ranks, although they do not communicate.
static void shuffle(int *order, int epoch)
{
    unsigned state = 1000u + (unsigned)epoch;
    for (int i = 0; i < SAMPLES; i++)
        order[i] = i;
    for (int i = SAMPLES - 1; i > 0; i--) {
        int k = (int)(next_random(&state) % (unsigned)(i + 1)), other = order[k];
        order[k] = order[i];
        order[i] = other;
    }
}

static float error_of(const Sample *s, const float *weights)
{
    float error = -s->y;
    for (int k = 0; k < INPUTS; k++)
        error += weights[k] * s->x[k];
    return error;
}

// Adds this sample's share of the gradient of the loss, which is the batch's mean squared error. It divides by the size
// of all ranks' batch, so that the ranks' sum is the mean, even if they have different numbers of samples.
static void add_gradient(const Sample *s, const float *weights, float *gradient)
{
    for (int k = 0; k < INPUTS; k++)
        gradient[k] += 2 * error_of(s, weights) * s->x[k] / BATCH;
}

static void print_loss(int epoch, const Sample *samples, const float *weights)
{
    float loss = 0;
    for (int i = 0; i < SAMPLES; i++)
        loss += error_of(&samples[i], weights) * error_of(&samples[i], weights) / SAMPLES;
    printf("epoch %d, loss %.6f\n", epoch, loss);
}

// Nothing else shows that the ranks have different weights: the loss falls nevertheless.
static int any_rank_differs(const float *weights)
{
    float first[INPUTS], differs;
    memcpy(first, weights, sizeof first);
    exchange_broadcast(first, INPUTS);
    differs = memcmp(first, weights, sizeof first) != 0;
    exchange_sum(&differs, 1);
    return differs > 0;
}

int main(int argc, char **argv)
{
    static Sample samples[SAMPLES];
    int rank, size, order[SAMPLES];
    float weights[INPUTS];
    exchange_begin(argc, argv, &rank, &size);
    make_samples(samples);
    unsigned own = (unsigned)rank + 77;
    for (int k = 0; k < INPUTS; k++)
        weights[k] = uniform(&own);     // different on each rank, until the broadcast

    exchange_broadcast(weights, INPUTS);                            // Rule 1: all ranks start with the same weights.
    for (int epoch = 1; epoch <= EPOCHS; epoch++) {
        shuffle(order, epoch);
        for (int first = 0; first < SAMPLES; first += BATCH) {
            float gradient[INPUTS] = { 0 };
            for (int i = first + rank; i < first + BATCH; i += size)    // Rule 2: each rank takes different samples.
                add_gradient(&samples[order[i]], weights, gradient);
            exchange_sum(gradient, INPUTS);                         // Rule 3: all ranks take the same step.
            for (int k = 0; k < INPUTS; k++)
                weights[k] -= 0.1f * gradient[k];
        }
        if (rank == 0)
            print_loss(epoch, samples, weights);
    }

    int differ = any_rank_differs(weights);
    if (rank == 0)
        printf("weights %.4f %.4f %.4f %.4f, %s on all %d ranks\n", weights[0], weights[1], weights[2],
               weights[3], differ ? "NOT equal" : "equal", size);
    exchange_end();
    return differ;
}
