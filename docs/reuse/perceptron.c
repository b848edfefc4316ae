// perceptron.c - a program of your own that trains on several GPUs: it has its own arrays, backward
// and optimizer. ddp.c, broadcast.c and sampler.c are step 03's, unchanged.
//
// It learns which points of a square lie inside a circle. To stay short and to need no nvcc, it
// computes in functions of the host, which CUDA calls in the stream's order, as it would run
// kernels. The host enqueues a whole epoch, and then waits once.
#include "broadcast.h"
#include "check.h"
#include "ddp.h"
#include "rng.h"
#include "sampler.h"

#include <cuda_runtime.h>
#include <math.h>
#include <mpi.h>

enum { HIDDEN = 64, SAMPLES = 2048, BATCH = 64, EPOCHS = 8 };   // BATCH: of all ranks together
// Where weights and gradients are in their arrays: in the order in which backward finishes them.
enum { OUT = 0, OUT_BIAS = HIDDEN, IN = OUT_BIAS + 1, IN_BIAS = IN + 2 * HIDDEN,
       COUNT = IN_BIAS + HIDDEN };
enum { BUCKET = 64 };   // bytes: so small that each layer is a message. A large network needs MiB

typedef struct Step {   // one batch of this rank
    const int32_t *ids;
    int rows;
} Step;

static float points[SAMPLES][2], inside[SAMPLES];
static float *weights, *grads;                  // pinned memory of the host, (COUNT)
static float *gpu_weights, *gpu_grads;          // and their copies on the GPU
static float hidden[BATCH][HIDDEN], error[BATCH];   // of the current batch
static double loss;                             // summed over the epoch's steps

// ---- What kernels would do ----------------------------------------------------------------------

// points -> hidden -> the output's error, and the gradients of the output layer.
static void forward_and_output(void *arg)
{
    const Step *step = arg;
    for (int k = OUT; k <= OUT_BIAS; k++)
        grads[k] = 0;
    for (int row = 0; row < step->rows; row++) {
        const float *x = points[step->ids[row]], y = inside[step->ids[row]];
        float z = weights[OUT_BIAS];
        for (int h = 0; h < HIDDEN; h++) {
            const float *w = weights + IN + 2 * h;
            hidden[row][h] = tanhf(w[0] * x[0] + w[1] * x[1] + weights[IN_BIAS + h]);
            z += weights[OUT + h] * hidden[row][h];
        }
        loss += log1p(exp(y ? -z : z)) / step->rows;
        error[row] = (1 / (1 + expf(-z)) - y) / (float)step->rows;
        grads[OUT_BIAS] += error[row];
        for (int h = 0; h < HIDDEN; h++)
            grads[OUT + h] += error[row] * hidden[row][h];
    }
}

static void backward_hidden(void *arg)
{
    const Step *step = arg;
    for (int k = IN; k < COUNT; k++)
        grads[k] = 0;
    for (int row = 0; row < step->rows; row++)
        for (int h = 0; h < HIDDEN; h++) {
            float d = error[row] * weights[OUT + h] * (1 - hidden[row][h] * hidden[row][h]);
            grads[IN + 2 * h] += d * points[step->ids[row]][0];
            grads[IN + 2 * h + 1] += d * points[step->ids[row]][1];
            grads[IN_BIAS + h] += d;
        }
}

static void update(void *arg)
{
    for (int k = 0; k < COUNT; k++)
        weights[k] -= 0.5f * grads[k];
}

static void call(Stream *stream, void (*function)(void *arg), void *arg)
{
    CHECK(cudaLaunchHostFunc((cudaStream_t)stream, function, arg) == 0, "", "cudaLaunchHostFunc");
}

typedef struct Scale {
    float *values, factor;
    size_t count;
} Scale;

static void scale(void *arg)
{
    const Scale *s = arg;
    for (size_t i = 0; i < s->count; i++)
        s->values[i] *= s->factor;
}

// ddp.c calls this to divide a bucket's sums. With nvcc it would be a kernel of one line.
void values_scale(Stream *stream, float *values, size_t count, float factor)
{
    static Scale jobs[COUNT];           // index: the bucket's first gradient
    ptrdiff_t at = values - gpu_grads;
    jobs[at] = (Scale){ grads + at, factor, count };
    copy_to_host(stream, grads + at, values, count * sizeof *values);
    call(stream, scale, &jobs[at]);
    copy_to_device(stream, values, grads + at, count * sizeof *values);
}

// ---- Training -----------------------------------------------------------------------------------

static void send(Stream *stream, Ddp *ddp, size_t offset, size_t count)
{
    copy_to_device(stream, gpu_grads + offset, grads + offset, count * sizeof *grads);
    ddp_ready(ddp, offset, count);
}

static void train_step(Stream *stream, Ddp *ddp, Step *step)
{
    call(stream, forward_and_output, step);
    send(stream, ddp, OUT, IN - OUT);       // while this layer's gradients travel ...
    call(stream, backward_hidden, step);    // ... those of the next one are computed
    send(stream, ddp, IN, COUNT - IN);
    ddp_wait(ddp);                          // Rule 3: all ranks take the same step
    copy_to_host(stream, grads, gpu_grads, COUNT * sizeof *grads);
    call(stream, update, NULL);
    copy_to_device(stream, gpu_weights, weights, COUNT * sizeof *weights);
}

static void train_epoch(Stream *stream, Ddp *ddp, Sampler *sampler, int epoch)
{
    static int32_t ids[SAMPLES];
    static Step steps[SAMPLES];
    int share = sampler_share(sampler), rows = BATCH / sampler->size, count = 0;
    sampler_set_epoch(sampler, epoch);
    sampler_ids(sampler, ids);              // Rule 2: each rank takes different samples
    for (int at = 0; at < share; at += rows) {
        steps[count] = (Step){ ids + at, share - at < rows ? share - at : rows };
        train_step(stream, ddp, &steps[count++]);
    }
    stream_sync(stream);
    if (sampler->rank == 0)
        printf("epoch %d, loss of rank 0: %.4f\n", epoch + 1, loss / count);
    loss = 0;
}

static float uniform(uint64_t *state) { return (float)next_random(state) / (1u << 30) - 1; }

static void make(Device *device, int rank)
{
    uint64_t data = 1, own = 77 + (uint64_t)rank;
    for (int i = 0; i < SAMPLES; i++) {
        points[i][0] = uniform(&data);
        points[i][1] = uniform(&data);
        inside[i] = points[i][0] * points[i][0] + points[i][1] * points[i][1] < 0.5f;
    }
    CHECK(cudaMallocHost((void **)&weights, COUNT * sizeof *weights) == 0 &&
          cudaMallocHost((void **)&grads, COUNT * sizeof *grads) == 0, "", "cudaMallocHost");
    gpu_weights = device_alloc(device, COUNT * sizeof *weights);
    gpu_grads = device_alloc(device, COUNT * sizeof *grads);
    for (int k = 0; k < COUNT; k++)
        weights[k] = uniform(&own);         // different on each rank, until the broadcast
    copy_to_device(device_stream(device), gpu_weights, weights, COUNT * sizeof *weights);
}

int main(int argc, char **argv)
{
    int rank, size;
    char id[NCCL_ID];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(BATCH % size == 0, "start 1, 2, 4, ... ranks", "%d ranks cannot share a batch", size);
    Device *device = gpu_open(rank);        // on several machines: the local rank
    if (rank == 0)
        nccl_id(id);
    MPI_Bcast(id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    Comm *comm = nccl_open(id, rank, size);
    Sampler sampler = { .count = SAMPLES, .rank = rank, .size = size, .shuffle = true, .seed = 5 };
    make(device, rank);
    Ddp *ddp = ddp_new(gpu_grads, COUNT, device, comm, BUCKET);
    broadcast(comm, device, &(Array){ gpu_weights, COUNT }, 1);     // Rule 1: the same start
    copy_to_host(device_stream(device), weights, gpu_weights, COUNT * sizeof *weights);
    for (int epoch = 0; epoch < EPOCHS; epoch++)
        train_epoch(device_stream(device), ddp, &sampler, epoch);

    uint64_t hash = 0xcbf29ce484222325u;
    double sum = 0;
    for (int k = 0; k < COUNT; sum += (k % 10 + 1) * (double)weights[k], k++)
        for (size_t byte = 0; byte < sizeof *weights; byte++)
            hash = (hash ^ ((unsigned char *)&weights[k])[byte]) * 0x100000001b3u;
    compare_hashes(comm, device, hash);
    if (rank == 0)
        printf("weights %.3f, equal on all %d ranks\n", sum, size);
    nccl_close(comm);
    ddp_free(ddp);
    gpu_close(device);
    MPI_Finalize();
    return 0;
}
