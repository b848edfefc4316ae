// my_ddp.c - data-parallel training with CUDA and NCCL: fits a linear function, on one GPU per rank.
//
// To stay short, it computes on the host: gradients go to the GPU, are added up there, and come back.
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WEIGHTS = 8, SAMPLES = 480, BATCH = 24, EPOCHS = 2 };    // BATCH: of all ranks together

typedef struct Sample {
    float x[WEIGHTS], y;
} Sample;

static int rank, size;
static ncclComm_t comm;
static cudaStream_t stream;
static float *on_gpu;                           // WEIGHTS + 1 floats

// Ends the run if the call of CUDA or NCCL returns an error (not 0).
#define MUST(call) \
    do { \
        int status = (int)(call); \
        if (status) { \
            fprintf(stderr, "rank %d: %s returns error %d\n", rank, #call, status); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)

static float uniform(uint32_t *state)           // from -1 to 1
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (1 << 23) - 1;
}

// A GPU of its own for each rank, a stream and memory there, and a communicator of all ranks.
static void start(void)
{
    ncclUniqueId id;
    MUST(cudaSetDevice(rank));                  // on one machine; on several: the rank on this machine
    MUST(cudaStreamCreate(&stream));
    MUST(cudaMalloc((void **)&on_gpu, (WEIGHTS + 1) * sizeof(float)));
    if (rank == 0)
        MUST(ncclGetUniqueId(&id));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    MUST(ncclCommInitRank(&comm, size, id, rank));
}

// All ranks get the values of rank 0.
static void broadcast(float *values, size_t count)
{
    MUST(cudaMemcpyAsync(on_gpu, values, count * sizeof(float), cudaMemcpyHostToDevice, stream));
    MUST(ncclBroadcast(on_gpu, on_gpu, count, ncclFloat, 0, comm, stream));
    MUST(cudaMemcpyAsync(values, on_gpu, count * sizeof(float), cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
}

// All ranks get the sum of all ranks' values.
static void add_up(float *values, size_t count)
{
    MUST(cudaMemcpyAsync(on_gpu, values, count * sizeof(float), cudaMemcpyHostToDevice, stream));
    MUST(ncclAllReduce(on_gpu, on_gpu, count, ncclFloat, ncclSum, comm, stream));
    MUST(cudaMemcpyAsync(values, on_gpu, count * sizeof(float), cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
}

static void finish(void)
{
    MUST(ncclCommDestroy(comm));
    MUST(cudaFree(on_gpu));
    MUST(cudaStreamDestroy(stream));
}

// The same weights have the same hash, and different weights almost surely a different one (FNV-1a of 4-byte words).
static uint64_t hash(const float *weights)
{
    uint64_t h = 14695981039346656037u;
    for (int i = 0; i < WEIGHTS; i++) {
        uint32_t bits;
        memcpy(&bits, &weights[i], sizeof bits);
        h = (h ^ bits) * 1099511628211u;
    }
    return h;
}

// Adds the sample's part of the gradient, and of the loss, to sums. The loss is the mean over the batch of all ranks.
static void add_gradient(const Sample *s, const float *weights, float *sums)
{
    float error = -s->y;
    for (int i = 0; i < WEIGHTS; i++)
        error += weights[i] * s->x[i];
    for (int i = 0; i < WEIGHTS; i++)
        sums[i] += 2 * error * s->x[i] / BATCH;
    sums[WEIGHTS] += error * error / BATCH;
}

int main(int argc, char **argv)
{
    static Sample samples[SAMPLES];
    float weights[WEIGHTS];
    uint32_t same = 1;                          // the same samples on all ranks
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    start();

    for (int n = 0; n < SAMPLES; n++)
        for (int i = 0; i < WEIGHTS; i++) {
            samples[n].x[i] = uniform(&same);
            samples[n].y += ((float)i + 0.5f) * samples[n].x[i];
        }
    uint32_t own = 77u + (uint32_t)rank;        // but different weights
    for (int i = 0; i < WEIGHTS; i++)
        weights[i] = 0.2f * uniform(&own);
    broadcast(weights, WEIGHTS);

    for (int step = 0; step < EPOCHS * SAMPLES / BATCH; step++) {
        const Sample *batch = &samples[step * BATCH % SAMPLES];
        float sums[WEIGHTS + 1] = { 0 };        // the gradient, and the loss
        for (int n = rank; n < BATCH; n += size)
            add_gradient(&batch[n], weights, sums);
        add_up(sums, WEIGHTS + 1);
        for (int i = 0; i < WEIGHTS; i++)
            weights[i] -= 0.2f * sums[i];
        if (rank == 0 && (step + 1) % 10 == 0)
            printf("step %d, loss %.6f\n", step + 1, sums[WEIGHTS]);
    }

    uint64_t mine = hash(weights), least, most;
    MPI_Allreduce(&mine, &least, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&mine, &most, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    for (int i = 0; rank == 0 && i < WEIGHTS; i++)
        printf("weight %d: %.4f\n", i, weights[i]);
    if (rank == 0)
        printf("the weights are %s on all %d ranks\n", least == most ? "equal" : "NOT equal", size);
    finish();
    MPI_Finalize();
    return least != most;
}
