// line.c - data-parallel training in one file, without anything of this repository: fits a line.
//
//   mpicc -o line line.c exchange_mpi.c && mpirun -np 2 ./line                     on CPUs
//   mpicc -o line line.c exchange_nccl.c -lnccl -lcudart && mpirun -np 2 ./line    on two GPUs
#include "exchange.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { INPUTS = 4, SAMPLES = 1000, BATCH = 64, EPOCHS = 20 };    // BATCH: of all ranks together

typedef struct Sample {
    float x[INPUTS], y;
} Sample;

static unsigned next_random(unsigned *state) { return (*state = *state * 1664525u + 1013904223u) >> 8; }

static float uniform(unsigned *state) { return (float)next_random(state) / (1 << 23) - 1; }

// Every rank makes the same samples: the seed is the same.
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

// A different order in each epoch, but the same on all ranks, although they do not talk to each other.
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

// Adds this sample's share of the gradient of the batch's mean loss. Returns the sample's loss.
static float add_gradient(const Sample *s, const float *weights, int batch, float *gradient)
{
    float error = -s->y;
    for (int k = 0; k < INPUTS; k++)
        error += weights[k] * s->x[k];
    for (int k = 0; k < INPUTS; k++)
        gradient[k] += 2 * error * s->x[k] / (float)batch;
    return error * error;
}

int main(int argc, char **argv)
{
    int rank, size, order[SAMPLES];
    static Sample samples[SAMPLES];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    exchange_begin(rank, size);
    make_samples(samples);

    // Rule 1: all ranks start with the weights of rank 0.
    float weights[INPUTS] = { 0 };
    unsigned own = (unsigned)rank + 77;
    for (int k = 0; k < INPUTS; k++)
        weights[k] = uniform(&own);         // different on each rank: the broadcast is not optional
    MPI_Bcast(weights, INPUTS, MPI_FLOAT, 0, MPI_COMM_WORLD);

    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        float loss = 0;
        shuffle(order, epoch);
        for (int first = 0; first + BATCH <= SAMPLES; first += BATCH) {
            // Rule 2: each rank takes different samples, here every size-th of the batch.
            float sums[INPUTS + 1] = { 0 };         // the gradient, and the loss
            for (int i = first + rank; i < first + BATCH; i += size)
                sums[INPUTS] += add_gradient(&samples[order[i]], weights, BATCH, sums) / BATCH;
            // Rule 3: all ranks take the same step. add_gradient divides by the batch of all ranks, so a sum is
            // right, also if BATCH is not a multiple of size.
            exchange_sum(sums, INPUTS + 1);
            for (int k = 0; k < INPUTS; k++)
                weights[k] -= 0.2f * sums[k];
            loss = sums[INPUTS];
        }
        if (rank == 0 && (epoch + 1) % 5 == 0)
            printf("epoch %2d, loss %.6f\n", epoch + 1, loss);
    }

    // If a rule is broken, the weights differ, and nothing else shows it.
    float first[INPUTS];
    int differ, any;
    memcpy(first, weights, sizeof first);
    MPI_Bcast(first, INPUTS, MPI_FLOAT, 0, MPI_COMM_WORLD);
    differ = memcmp(first, weights, sizeof first) != 0;
    MPI_Allreduce(&differ, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0)
        printf("weights %.4f %.4f %.4f %.4f, %s on all %d ranks\n", weights[0], weights[1], weights[2],
               weights[3], any ? "NOT equal" : "equal", size);
    exchange_end();
    MPI_Finalize();
    return any;
}
