// tool_types.c - what a short type gains: images a second and bytes of activations of a training
// step, in f32 and in another type by turns, in one process.
//
//   tool_types [ARCH [BATCH [THREADS [ROUNDS [bf16|f16]]]]]       resnet18 256 2 15 bf16
#include "check.h"
#include "model.h"
#include "rng.h"
#include "trace.h"

#include <stdlib.h>
#include <string.h>

typedef struct Run {
    Model *model;
    void *images;
    float *velocity;
    double *rates; // of each round
} Run;

static Device *device;
static Ops *ops;
static int32_t *labels;
static Scalars *scalars;
static Stats *stats;

static Run run_new(const char *arch, int batch, Type type, int rounds)
{
    Run run = { .model = model_new(device, ops,
                                   &(ModelConfig){ arch, 3, 32, 32, 10, batch, .type = type }) };
    Augment plain = { .mean = { 0.5f, 0.5f, 0.5f }, .std = { 0.25f, 0.25f, 0.25f } };
    size_t bytes = 3 * 32 * 32;
    uint8_t *pixels = xmalloc((size_t)batch * bytes);
    int32_t *ids = xmalloc((size_t)batch * sizeof *ids);
    for (size_t i = 0; i < (size_t)batch * bytes; i++)
        pixels[i] = (uint8_t)philox(1, 2, i).v[0];
    for (int i = 0; i < batch; i++)
        ids[i] = labels[i] = i % 10;
    run.images = device_alloc(device, shape_bytes(run.model->input));
    images_load(device_stream(device), pixels, labels, 3, 32, 32, ids, batch, 0, &plain, run.images,
                run.model->input, labels);
    run.velocity = device_alloc(device, run.model->param_count * sizeof(float));
    run.rates = xmalloc((size_t)rounds * sizeof *run.rates);
    model_init(run.model, 1);
    model_cast_weights(run.model);
    free(pixels);
    free(ids);
    return run;
}

static double milliseconds(int64_t *since)
{
    int64_t now = trace_now();
    double ms = (double)(now - *since) * 1e-6;
    *since = now;
    return ms;
}

// One training step; `parts` gets the milliseconds of forward, loss, backward, optimizer, cast.
static void step(Run *run, double parts[5])
{
    Model *m = run->model;
    int rows = m->config.batch;
    int64_t since = trace_now();
    model_forward(m, run->images, rows, true);
    parts[0] = milliseconds(&since);
    loss_cross_entropy(ops, rows, 10, m->logits, labels, scalars, stats, m->dlogits);
    parts[1] = milliseconds(&since);
    model_backward(m, NULL, NULL);
    parts[2] = milliseconds(&since);
    sgd_update(ops, m->param_count, m->params, m->grads, run->velocity, scalars);
    parts[3] = milliseconds(&since);
    model_cast_weights(m);
    parts[4] = milliseconds(&since);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

int main(int argc, char **argv)
{
    const char *arch = argc > 1 ? argv[1] : "resnet18", *name = argc > 5 ? argv[5] : "bf16";
    int batch = argc > 2 ? atoi(argv[2]) : 256, threads = argc > 3 ? atoi(argv[3]) : 2;
    int rounds = argc > 4 ? atoi(argv[4]) : 15;
    Type type = strcmp(name, "f16") == 0 ? TYPE_F16 : TYPE_BF16;
    device = device_open(0, threads);
    ops = ops_new(device, &(OpsConfig){ 0 });
    labels = xcalloc((size_t)batch, sizeof *labels);
    scalars = device_alloc(device, sizeof *scalars);
    stats = device_alloc(device, sizeof *stats);
    scalars_set(ops, scalars, (Scalars){ .lr = 0.01f, .momentum = 0.9f, .loss_scale = 1 });
    Run runs[2] = { run_new(arch, batch, TYPE_F32, rounds), run_new(arch, batch, type, rounds) };
    static double all[2][5][1000];
    for (int i = -2; i < rounds && i < 1000; i++)
        for (int k = 0; k < 2; k++) {
            double parts[5], sum = 0;
            step(&runs[k], parts);
            for (int p = 0; p < 5 && i >= 0; p++) {
                all[k][p][i] = parts[p];
                sum += parts[p];
            }
            if (i >= 0)
                runs[k].rates[i] = batch / sum * 1e3;
        }
    double rate[2];
    for (int k = 0; k < 2; k++) {
        rate[k] = median(runs[k].rates, rounds);
        printf("%-4s %7.0f images/s", k ? name : "f32", rate[k]);
        static const char *const names[] = { "forward", "loss", "backward", "optimizer", "cast" };
        for (int p = 0; p < 5; p++)
            printf("  %s %.1f", names[p], median(all[k][p], rounds));
        printf(" ms, %.1f MB of activations\n",
               (double)model_activation_bytes(runs[k].model, k ? type : TYPE_F32) / 1e6);
    }
    printf("%s is %.2f times as fast with %.3f of the bytes%s\n", name, rate[1] / rate[0],
           (double)model_activation_bytes(runs[1].model, type) /
               (double)model_activation_bytes(runs[0].model, TYPE_F32),
           ops_emulates(device, type) ? " (emulated)" : "");
    return 0;
}
