// test_step.c - one training step against PyTorch's.
// ctest: PROCESSORS 2 TIMEOUT 120 BACKENDS cpu cuda
//
// Two runs of a deep network part within a few steps whatever one does (PyTorch on one thread and
// PyTorch on two as well), so whole runs cannot be compared. A single step can: from the same
// weights, momentum and batch, everything that PyTorch computes must come out here too. The files
// are made by tools/reference; reference.py there says what stands in them.
//
//   test_step                                   the files of tests/reference
//   test_step STEP.safetensors...               these files
//   test_step predict CHECKPOINT IMAGES OUT     the logits of images, for a comparison elsewhere
//   test_step randperm SEED COUNT               torch_randperm, one number a line
#include "test.h"

#include "check.h"
#include "checkpoint.h"
#include "device.h"
#include "model.h"
#include "ops.h"
#include "rng.h"
#include "safetensors.h"

#include <limits.h>
#include <math.h>

// The recipe of all references.
static const Scalars recipe = { .lr = 0.01f, .momentum = 0.9f, .weight_decay = 1e-4f,
                                .nesterov = 1, .loss_scale = 1 };

static Device *device;
static Ops *ops;

// --- files --------------------------------------------------------------------------------------

static StFile file_open(const char *path)
{
    StFile file;
    Error err;
    if (!st_open(&file, path, &err))
        FAIL_ERROR(&err);
    return file;
}

static const StTensor *file_find(const StFile *file, const char *kind, const char *name)
{
    char key[96];
    snprintf(key, sizeof key, "%s%s", kind, name);
    return st_find(file, key);
}

static const void *file_data(const StFile *file, const char *name)
{
    const StTensor *tensor = st_find(file, name);
    CHECK(tensor, "make the references again", "a reference file has no tensor %s", name);
    return tensor->data;
}

static int file_int(const StFile *file, const char *key)
{
    const char *value = st_metadata(file, key);
    CHECK(value, "make the references again", "a reference file has no %s", key);
    return atoi(value);
}

static const char *reference_path(const char *name)
{
    static char path[PATH_MAX];
    const char *source = getenv("SRC");
    snprintf(path, sizeof path, "%s/tests/reference/%s", source ? source : ".", name);
    return path;
}

// The path of a file that lies beside another one.
static const char *beside(const char *path, const char *name)
{
    static char out[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    snprintf(out, sizeof out, "%.*s%s", folder, path, name);
    return out;
}

// --- a model and what a training step needs besides ---------------------------------------------

typedef struct Trainer {
    Model *model;
    float *velocity;            // device
    Scalars *scalars;           // device
    Stats *stats;               // device
    float *images;              // device, model->input
    int32_t *labels;            // device
} Trainer;

static Trainer trainer_new(const char *arch, int channels, int height, int width, int classes,
                           int rows)
{
    Trainer t;
    ModelConfig config = { arch, channels, height, width, classes, rows };
    t.model = model_new(device, ops, &config);
    t.velocity = device_alloc(device, t.model->param_count * sizeof(float));
    t.scalars = device_alloc(device, sizeof(Scalars));
    t.stats = device_alloc(device, sizeof(Stats));
    t.images = device_alloc(device, shape_count(t.model->input) * sizeof(float));
    t.labels = device_alloc(device, (size_t)rows * sizeof(int32_t));
    scalars_set(ops, t.scalars, recipe);
    return t;
}

static Trainer trainer_for(const StFile *file)
{
    return trainer_new(st_metadata(file, "arch"), file_int(file, "channels"),
                       file_int(file, "height"), file_int(file, "width"),
                       file_int(file, "classes"), file_int(file, "rows"));
}

static void trainer_free(Trainer *t)
{
    device_free(device, t->labels);
    device_free(device, t->images);
    device_free(device, t->stats);
    device_free(device, t->scalars);
    device_free(device, t->velocity);
    model_free(t->model);
}

// Images of (rows, c, h, w) to where the model reads them, in its block.
static void images_set(Trainer *t, const float *nchw, int rows)
{
    Shape s = t->model->input;
    const ModelConfig *config = &t->model->config;
    CHECK(s.h == config->height && s.w == config->width, NULL, "the model pads its images");
    float *host = xcalloc(shape_count(s), sizeof(float));
    for (int n = 0; n < rows; n++)
        for (int c = 0; c < config->channels; c++)
            for (int p = 0; p < s.h * s.w; p++) {
                size_t plane = (size_t)n * (s.c / s.block) + c / s.block;
                host[(plane * s.h * s.w + p) * s.block + c % s.block] = *nchw++;
            }
    copy_to_device(device_stream(device), t->images, host, shape_count(s) * sizeof(float));
    stream_sync(device_stream(device));
    free(host);
}

static void labels_set(Trainer *t, const int64_t *labels, int rows)
{
    int32_t *host = xmalloc((size_t)rows * sizeof *host);
    for (int n = 0; n < rows; n++)
        host[n] = (int32_t)labels[n];
    copy_to_device(device_stream(device), t->labels, host, (size_t)rows * sizeof *host);
    stream_sync(device_stream(device));
    free(host);
}

// Takes one step and returns the mean loss of the batch.
static double train_step(Trainer *t, int rows)
{
    Model *model = t->model;
    model_forward(model, t->images, rows, true);
    loss_cross_entropy(ops, rows, model->config.classes, model->logits, t->labels, t->scalars,
                       t->stats, model->dlogits);
    model_backward(model, NULL, NULL);
    sgd_update(ops, model->param_count, model->params, model->grads, t->velocity, t->scalars);
    Stats stats;
    copy_to_host(device_stream(device), &stats, t->stats, sizeof stats);
    stream_sync(device_stream(device));
    EXPECT_EQ_INT(stats.batch_count, rows);
    return stats.batch_loss_sum / (double)stats.batch_count;
}

static float *arena_copy(const float *arena, size_t count)
{
    float *host = xmalloc(count * sizeof *host);
    copy_to_host(device_stream(device), host, arena, count * sizeof *host);
    stream_sync(device_stream(device));
    return host;
}

// --- states made of numbers: reference.py makes the same ones, bit for bit ----------------------

enum { STREAM_IMAGES = 1 << 20, STREAM_NOISE, STREAM_LABELS };

// count multiples of 2^-15 in [-1, 1): eight from each Philox call, low halves first.
static void numbers_make(uint64_t seed, uint64_t stream, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i += 8) {
        Philox bits = philox(seed, stream, (uint64_t)i / 8);
        for (int j = 0; j < 8 && i + j < count; j++) {
            int half = bits.v[j / 2] >> 16 * (j % 2) & 0xffff;
            out[i + j] = (float)(half - 32768) * 0x1p-15f;
        }
    }
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

// The largest 2^-k whose uniform numbers have no more than He's deviation: 4^k >= fan_in / 6.
static float weight_scale(const ModelTensor *tensor)
{
    int64_t fan_in = tensor->count / tensor->shape[0], four = 1;
    float scale = 1;
    for (; 6 * four < fan_in; four *= 4)
        scale /= 2;
    return scale;
}

// Turns numbers in [-1, 1) into values that suit the tensor. What normalisation adds is about two
// deviations, up or down, so that few values come so close to ReLU's kink that rounding decides.
static void numbers_shape(const ModelTensor *tensor, float *u)
{
    float scale = tensor->kind == MODEL_WEIGHT ? weight_scale(tensor) : 1;
    bool positive = ends_with(tensor->name, ".weight") || ends_with(tensor->name, "running_var");
    bool shift = ends_with(tensor->name, ".bias") && !ends_with(tensor->name, "fc.bias");
    for (int64_t i = 0; i < tensor->count; i++) {
        if (tensor->kind == MODEL_WEIGHT)
            u[i] *= scale;
        else if (positive)
            u[i] = 1 + u[i] / 4;
        else if (shift)
            u[i] = u[i] / 2 + (i % 2 ? 2.0f : -2.0f);
        else
            u[i] = u[i] / 4;
    }
}

// Where a tensor stands in the order of the names.
static int tensor_rank(const Model *model, const ModelTensor *tensor)
{
    int rank = 0;
    for (int i = 0; i < model->tensor_count; i++)
        rank += strcmp(model->tensors[i].name, tensor->name) < 0;
    return rank;
}

static void state_make(Trainer *t, uint64_t seed)
{
    Model *model = t->model;
    float *params = xcalloc(model->param_count, sizeof(float));
    float *velocity = xcalloc(model->param_count, sizeof(float));
    float *buffers = xcalloc(model->buffer_count, sizeof(float));
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *tensor = &model->tensors[i];
        if (tensor->kind == MODEL_COUNTER)
            continue;
        uint64_t stream = 2 * (uint64_t)tensor_rank(model, tensor);
        float *u = xmalloc((size_t)tensor->count * sizeof(float));
        numbers_make(seed, stream, tensor->count, u);
        numbers_shape(tensor, u);
        model_import(model, tensor, tensor->kind == MODEL_BUFFER ? buffers : params, u);
        if (tensor->kind != MODEL_BUFFER) {
            float scale = tensor->kind == MODEL_WEIGHT ? weight_scale(tensor) : 1;
            numbers_make(seed, stream + 1, tensor->count, u);
            for (int64_t j = 0; j < tensor->count; j++)
                u[j] *= scale / 64;
            model_import(model, tensor, velocity, u);
        }
        free(u);
    }
    Stream *compute = device_stream(device);
    copy_to_device(compute, model->params, params, model->param_count * sizeof(float));
    copy_to_device(compute, t->velocity, velocity, model->param_count * sizeof(float));
    copy_to_device(compute, model->buffers, buffers, model->buffer_count * sizeof(float));
    stream_sync(compute);
    free(buffers);
    free(velocity);
    free(params);
}

// Images of blocks, 8 pixels wide, with noise on them, and labels.
static void batch_make(Trainer *t, uint64_t seed, int rows)
{
    const ModelConfig *config = &t->model->config;
    int planes = rows * config->channels, h = config->height, w = config->width;
    float *blocks = xmalloc((size_t)planes * (h / 8) * (w / 8) * sizeof(float));
    float *images = xmalloc((size_t)planes * h * w * sizeof(float));
    int64_t *labels = xmalloc((size_t)rows * sizeof *labels);
    numbers_make(seed, STREAM_IMAGES, (int64_t)planes * (h / 8) * (w / 8), blocks);
    numbers_make(seed, STREAM_NOISE, (int64_t)planes * h * w, images);
    for (int p = 0; p < planes; p++)
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++) {
                float *pixel = &images[((size_t)p * h + y) * w + x];
                *pixel = blocks[((size_t)p * (h / 8) + y / 8) * (w / 8) + x / 8] + *pixel / 2;
            }
    for (int n = 0; n < rows; n++)
        labels[n] = philox(seed, STREAM_LABELS, (uint64_t)n).v[0] % (uint32_t)config->classes;
    images_set(t, images, rows);
    labels_set(t, labels, rows);
    free(labels);
    free(images);
    free(blocks);
}

// --- one step -----------------------------------------------------------------------------------

// How close the tensors of one file came, for the line at its end.
typedef struct Verdict {
    double worst;               // distance from PyTorch's float32, in parts of the largest entry
    char worst_name[80];
    int tensors, by_float64;    // how many were compared; how many passed by the second rule only
} Verdict;

// A tensor is right if it is within 1e-3 of its largest entry from PyTorch's; or else no further
// from float64 than twice what PyTorch's own float32 is (`far`).
static void tensor_compare(const StFile *file, const char *kind, const char *name,
                           const float *ours, int64_t count, double far, Verdict *verdict)
{
    const StTensor *pair = file_find(file, kind, name), *index = file_find(file, "index.", name);
    if (!EXPECT(pair && pair->ndim == 2 && pair->shape[0] == 2, "%s%s is not there", kind, name))
        return;
    int64_t kept = (int64_t)(pair->bytes / 8);
    const float *theirs = pair->data;
    if (!EXPECT(index ? index->shape[0] == kept : count == kept, "%s%s: %lld entries", kind, name,
                (long long)kept))
        return;
    double largest = 0, off32 = 0, off64 = 0;
    bool finite = true;
    for (int64_t i = 0; i < kept; i++) {
        double mine = ours[index ? ((const int32_t *)index->data)[i] : i];
        double f32 = theirs[i], f64 = f32 + theirs[kept + i];
        finite = finite && isfinite(mine);
        largest = fmax(largest, fabs(f32));
        off32 = fmax(off32, fabs(mine - f32));
        off64 = fmax(off64, fabs(mine - f64));
    }
    bool close = off32 <= 1e-3 * largest;
    EXPECT(finite && (close || off64 <= 2 * far),
           "%s%s: largest entry %.3g; off by %.3g from PyTorch, by %.3g from float64, and "
           "PyTorch from that by %.3g", kind, name, largest, off32, off64, far);
    verdict->tensors++;
    verdict->by_float64 += !close;
    if (close && off32 > verdict->worst * largest) {
        verdict->worst = off32 / largest;
        snprintf(verdict->worst_name, sizeof verdict->worst_name, "%s%s", kind, name);
    }
}

// Everything that a step changes, exported tensor by tensor in torch's layout.
typedef struct Arenas {
    float *params, *buffers;    // host
} Arenas;

static Arenas arenas_copy(const Model *model)
{
    return (Arenas){ arena_copy(model->params, model->param_count),
                     arena_copy(model->buffers, model->buffer_count) };
}

static void arenas_free(Arenas *arenas)
{
    free(arenas->params);
    free(arenas->buffers);
}

// out = new - old of one tensor
static void export_change(const Model *model, const ModelTensor *tensor, const float *old,
                          const float *new, float *out)
{
    float *before = xmalloc((size_t)tensor->count * sizeof(float));
    model_export(model, tensor, old, before);
    model_export(model, tensor, new, out);
    for (int64_t i = 0; i < tensor->count; i++)
        out[i] -= before[i];
    free(before);
}

static void tensors_compare(const StFile *file, const Model *model, const Arenas *old,
                            const Arenas *new, Verdict *verdict)
{
    const StTensor *far_tensor = st_find(file, "far");
    if (!EXPECT(far_tensor && far_tensor->shape[0] == model->tensor_count,
                "the model has %d tensors, PyTorch's another number", model->tensor_count))
        return;
    float *grads = arena_copy(model->grads, model->param_count);
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        if (t->kind == MODEL_COUNTER)
            continue;
        const float *far = (const float *)far_tensor->data + 3 * tensor_rank(model, t);
        float *ours = xmalloc((size_t)t->count * sizeof(float));
        if (t->kind == MODEL_BUFFER) {
            export_change(model, t, old->buffers, new->buffers, ours);
            tensor_compare(file, "stat.", t->name, ours, t->count, far[2], verdict);
        } else {
            model_export(model, t, grads, ours);
            tensor_compare(file, "grad.", t->name, ours, t->count, far[0], verdict);
            export_change(model, t, old->params, new->params, ours);
            tensor_compare(file, "update.", t->name, ours, t->count, far[1], verdict);
        }
        free(ours);
    }
    free(grads);
}

// Puts weights, momentum and batch of a file in place.
static void step_prepare(const StFile *file, const char *path, Trainer *t, int rows)
{
    const char *state_name = st_metadata(file, "state");
    if (state_name) {
        TrainState state;
        Error err;
        if (!checkpoint_load(beside(path, state_name), t->model, t->velocity, &state, &err))
            FAIL_ERROR(&err);
        EXPECT_EQ_INT(state.global_step, file_int(file, "global_step"));
        EXPECT_EQ_INT(t->model->batches_seen, file_int(file, "global_step"));
        images_set(t, file_data(file, "images"), rows);
        labels_set(t, file_data(file, "labels"), rows);
    } else {
        state_make(t, (uint64_t)file_int(file, "seed"));
        batch_make(t, (uint64_t)file_int(file, "seed"), rows);
    }
}

static void step_compare(const char *path)
{
    StFile file = file_open(path);
    int rows = file_int(&file, "rows");
    Trainer t = trainer_for(&file);
    step_prepare(&file, path, &t, rows);
    Arenas old = arenas_copy(t.model);
    double loss = train_step(&t, rows);
    Arenas new = arenas_copy(t.model);
    const double *wanted = file_data(&file, "loss");
    EXPECT_NEAR(loss, wanted[0], 1e-5 * fmax(1, fabs(wanted[0])));

    Verdict verdict = { 0 };
    tensors_compare(&file, t.model, &old, &new, &verdict);
    const char *slash = strrchr(path, '/');
    printf("%s: loss %.6f (off by %.1e), %d tensors (%d by float64), worst %.1e %s\n",
           slash ? slash + 1 : path, loss, fabs(loss - wanted[0]), verdict.tensors,
           verdict.by_float64, verdict.worst, verdict.worst_name);
    fflush(stdout);
    arenas_free(&new);
    arenas_free(&old);
    trainer_free(&t);
    st_close(&file);
}

TEST(committed_steps)
{
    static const char *const names[] = {
        "convnet-000", "convnet-005", "convnet-020", "convnet-050", "convnet-100",
        "resnet18-1",  "resnet18-2",  "resnet18-3",  "resnet18-4",  "resnet18-5",
        "resnet50-1",  "resnet50-2",  "resnet50-3",  "resnet50-4",  "resnet50-5",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.step.safetensors", names[i]);
        step_compare(reference_path(name));
    }
}

// --- lenet: without normalisation, twenty steps stay together -----------------------------------

// Batch i of the images in the file (bytes), through the operation that the loader uses.
static void lenet_batch(Trainer *t, const StFile *file, const uint8_t *images,
                        const int32_t *labels, int batch, int rows)
{
    Augment augment = { .mean = { *(const float *)file_data(file, "mean") },
                        .std = { *(const float *)file_data(file, "std") } };
    int32_t *ids = xmalloc((size_t)rows * sizeof *ids);
    for (int i = 0; i < rows; i++)
        ids[i] = batch * rows + i;
    int32_t *device_ids = device_alloc(device, (size_t)rows * sizeof *ids);
    copy_to_device(device_stream(device), device_ids, ids, (size_t)rows * sizeof *ids);
    images_load(device_stream(device), images, labels, 1, 28, 28, device_ids, rows, 0, &augment,
                t->images, t->model->input, t->labels);
    stream_sync(device_stream(device));
    device_free(device, device_ids);
    free(ids);
}

static void lenet_final(const StFile *file, const Model *model)
{
    float *params = arena_copy(model->params, model->param_count);
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        const StTensor *wanted = file_find(file, "final.", t->name);
        if (!EXPECT(wanted && wanted->bytes == (size_t)t->count * 4, "%s: no such tensor", t->name))
            continue;
        float *ours = xmalloc(wanted->bytes);
        const float *theirs = wanted->data;
        model_export(model, t, params, ours);
        double largest = 0, off = 0;
        bool finite = true;
        for (int64_t j = 0; j < t->count; j++) {
            finite = finite && isfinite(ours[j]);
            largest = fmax(largest, fabs(theirs[j]));
            off = fmax(off, fabs((double)ours[j] - theirs[j]));
        }
        EXPECT(finite && off <= 5e-3 * largest, "%s: off by %g of %g", t->name, off, largest);
        free(ours);
    }
    free(params);
}

TEST(lenet_run)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", reference_path("lenet.state.safetensors"));
    StFile file = file_open(reference_path("lenet.run.safetensors"));
    int rows = file_int(&file, "rows");
    const StTensor *losses = st_find(&file, "losses"), *pixels = st_find(&file, "images");
    const int64_t *wide_labels = file_data(&file, "labels");
    int steps = (int)losses->shape[0], count = steps * rows;

    Trainer t = trainer_new("lenet", 1, 32, 32, 10, rows);
    Error err;
    if (!checkpoint_load(path, t.model, NULL, NULL, &err))
        FAIL_ERROR(&err);
    EXPECT_EQ_INT(t.model->torch_params, 61706);
    int32_t *labels = xmalloc((size_t)count * sizeof *labels);
    for (int i = 0; i < count; i++)
        labels[i] = (int32_t)wide_labels[i];
    uint8_t *device_images = device_alloc(device, pixels->bytes);
    int32_t *device_labels = device_alloc(device, (size_t)count * sizeof *labels);
    copy_to_device(device_stream(device), device_images, pixels->data, pixels->bytes);
    copy_to_device(device_stream(device), device_labels, labels, (size_t)count * sizeof *labels);

    double worst = 0;
    for (int i = 0; i < steps; i++) {
        lenet_batch(&t, &file, device_images, device_labels, i, rows);
        double wanted = ((const double *)losses->data)[i], loss = train_step(&t, rows);
        EXPECT_NEAR(loss, wanted, 1e-4);
        worst = fmax(worst, fabs(loss - wanted));
    }
    printf("lenet: %d losses, off by at most %.1e\n", steps, worst);
    lenet_final(&file, t.model);
    device_free(device, device_labels);
    device_free(device, device_images);
    free(labels);
    trainer_free(&t);
    st_close(&file);
}

// --- the order of an epoch ----------------------------------------------------------------------

// Tensors named SEED.COUNT hold the beginnings of torch.randperm(COUNT) with that seed.
TEST(permutations)
{
    StFile file = file_open(reference_path("randperm.safetensors"));
    for (int i = 0; i < file.count; i++) {
        const StTensor *wanted = &file.tensors[i];
        unsigned long long seed;
        int count;
        if (!EXPECT(sscanf(wanted->name, "%llu.%d", &seed, &count) == 2, "%s", wanted->name))
            continue;
        int32_t *ours = xmalloc((size_t)count * sizeof *ours);
        torch_randperm(seed, count, ours);
        for (int64_t j = 0; j < wanted->shape[0]; j++)
            if (!EXPECT(ours[j] == ((const int64_t *)wanted->data)[j], "%s [%d]: %d", wanted->name,
                        (int)j, ours[j]))
                break;
        free(ours);
    }
    st_close(&file);
}

// --- answers for a comparison elsewhere ---------------------------------------------------------

// images: a file with "images" F32 (n, c, h, w) and the metadata of a step. Writes "logits".
static int predict(const char *checkpoint, const char *images_path, const char *out_path)
{
    StFile file = file_open(images_path);
    const StTensor *images = st_find(&file, "images");
    CHECK(images && images->ndim == 4, NULL, "%s: no images", images_path);
    int rows = file_int(&file, "rows"), count = (int)images->shape[0];
    Trainer t = trainer_for(&file);
    Error err;
    if (!checkpoint_load(checkpoint, t.model, NULL, NULL, &err))
        FAIL_ERROR(&err);
    int classes = t.model->config.classes;
    size_t image_floats = images->bytes / 4 / (size_t)count;
    float *logits = xmalloc((size_t)count * classes * sizeof(float));
    for (int at = 0; at < count; at += rows) {
        int n = count - at < rows ? count - at : rows;
        images_set(&t, (const float *)images->data + at * image_floats, n);
        model_forward(t.model, t.images, n, false);
        float *part = arena_copy(t.model->logits, (size_t)n * classes);
        memcpy(logits + (size_t)at * classes, part, (size_t)n * classes * sizeof(float));
        free(part);
    }
    StTensor out = { .name = "logits", .dtype = "F32", .ndim = 2, .shape = { count, classes },
                     .data = logits, .bytes = (size_t)count * classes * sizeof(float) };
    if (!st_write(out_path, &out, 1, NULL, 0, &err))
        FAIL_ERROR(&err);
    free(logits);
    trainer_free(&t);
    st_close(&file);
    return 0;
}

static int randperm(uint64_t seed, int count)
{
    int32_t *order = xmalloc((size_t)count * sizeof *order);
    torch_randperm(seed, count, order);
    for (int i = 0; i < count; i++)
        printf("%d\n", order[i]);
    free(order);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "randperm") == 0)
        return randperm(strtoull(argv[2], NULL, 10), atoi(argv[3]));
    if (strcmp(device_backend, "cuda") == 0 && device_count() == 0)
        TEST_SKIP("no GPU here");
    device = device_open(0, 0);
    ops = ops_new(device, &(OpsConfig){ .tf32 = false, .deterministic = true });
    int status = 0;
    if (argc == 5 && strcmp(argv[1], "predict") == 0) {
        status = predict(argv[2], argv[3], argv[4]);
    } else {
        for (int i = 1; i < argc; i++)
            step_compare(argv[i]);
        if (argc == 1) {
            permutations();
            lenet_run();
            committed_steps();
        }
        status = test_done();
    }
    ops_free(ops);
    device_close(device);
    return status;
}
