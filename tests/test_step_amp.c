// test_step_amp.c - one training step in 16-bit types, compared with PyTorch's autocast.
// ctest: PROCESSORS 2 TIMEOUT 400 BACKENDS cpu cuda fake SANITIZERS none
//
// Two programs that round to 8 bits share hardly any digits, so we compare their distances from an exact step in
// float64. From the same state, our distance may be at most twice PyTorch's for each tensor's gradient, update or
// statistic. The geometric mean of these ratios may be at most 1.5. PyTorch's distances are in
// reference/amp.safetensors (tools/reference, part amp). Our f32 step serves as the exact one: it is much closer to
// float64 than any 16-bit step.
//
// At ReLU's kink, rounding decides whether a gradient passes, and one wrong value can change the gradient of a small
// layer a lot, in PyTorch as in ours. So each distance is a root mean square over five states. A loss is only one
// number in each state. So its limit is six times, which luck alone exceeds once in 1,500 tries (F distribution).
// On a CPU with bf16 instructions the test runs again without them.
//
//   test_step_amp                               the files of tests/reference
//   test_step_amp AMP.safetensors ARCH STATE... five ARCH-STATE.step.safetensors in its folder
#include "step_reference.h"
#include "test_device.h"

enum { STATES = 5, OUTCOMES = 512 };


static const char *amp_path;
static StFile amp;

typedef struct Exact {
    double loss;
    float *values[OUTCOMES];
    int count;
} Exact;

// An emulated type is tested only in the run in which bf16 is also emulated: see main.
static bool is_tried(Type type)
{
    return !ops_emulates(device, type) || ops_emulates(device, TYPE_BF16);
}

// A tensor's squared distances from the exact tensor, divided by its squared norm, and summed over the states.
typedef struct Closeness {
    char name[80];
    double ours, theirs;
} Closeness;

typedef struct Trial {
    const Exact *exact;
    const float *far;           // PyTorch's distances in this state
    Closeness *closeness;
    int count;
} Trial;

static void keep(void *arg, const Outcome *o)
{
    Exact *exact = arg;
    size_t bytes = (size_t)o->tensor->count * sizeof(float);
    CHECK(exact->count < OUTCOMES, NULL, "too many tensors");
    exact->values[exact->count] = xmalloc(bytes);
    memcpy(exact->values[exact->count++], o->ours, bytes);
}

static void judge(void *arg, const Outcome *o)
{
    Trial *trial = arg;
    const float *exact = trial->exact->values[trial->count];
    Closeness *closeness = &trial->closeness[trial->count++];
    double ours = 0, size = 0, far = trial->far[3 * o->rank + o->column];
    for (int64_t i = 0; i < o->tensor->count; i++) {
        ours += ((double)o->ours[i] - exact[i]) * ((double)o->ours[i] - exact[i]);
        size += (double)exact[i] * exact[i];
    }
    closeness->ours += ours / size;
    closeness->theirs += far * far * (double)o->tensor->count / size;
    snprintf(closeness->name, sizeof closeness->name, "%s%s", o->kind, o->tensor->name);
}

static double take_step(StepRun *run, float loss_scale)
{
    Model *model = run->model;
    Scalars scalars = { .set = step_recipe, .scale.value = loss_scale };
    copy_to_device(device_stream(device), run->scalars, &scalars, sizeof scalars);
    model_forward(model, run->inputs, run->rows, true);
    loss_cross_entropy(ops, run->rows, model->config.classes, model->logits, run->labels,
                       run->scalars, run->stats, model->dlogits);
    model_backward(model, NULL, NULL);
    gradients_unscale(ops, model->grad_count, model->grads, run->scalars);
    gradients_check(ops, model->grad_count, model->grads, run->scalars, run->stats);
    sgd_update(ops, model->param_count, model->grad_count, model->params, model->grads,
               run->velocity, run->scalars);
    return step_loss(run);
}

static double run_step(const char *path, Type type, float loss_scale, Judge judge, void *arg)
{
    StepRun run;
    step_open(&run, path);
    ModelConfig config = step_config(&run, run.batch);
    config.type = type;
    Model *model = model_new(device, ops, &config);
    step_begin(&run, model, 0, run.batch);
    double loss = take_step(&run, loss_scale);
    if (type == TYPE_F32)
        step_compare(&run, loss);
    step_outcomes(&run, judge, arg);
    step_close(&run);
    model_free(model);
    return loss;
}

typedef struct Verdicts {
    Closeness closeness[OUTCOMES];
    int count;
    double ours, theirs;        // sums of the squared errors of the losses
} Verdicts;

// PyTorch's distance on this kind of device: on a CPU a convolution's bias is added before
// rounding, on a GPU after cuDNN has rounded.
static const void *far_of(const char *name, Type like, const char *what)
{
    char key[96], after[96];
    snprintf(key, sizeof key, "%s.%s%s", name, type_names[like], what);
    snprintf(after, sizeof after, "%s.%s.after%s", name, type_names[like], what);
    bool on_gpu = strcmp(device_backend, "cuda") == 0;
    return file_data(&amp, on_gpu && st_find(&amp, after) ? after : key);
}

static void try_type(const char *name, const char *path, Type type, Type like, const Exact *exact,
                     Verdicts *verdicts)
{
    float loss_scale = type == TYPE_F16 ? (float)file_int(&amp, "f16.scale") : 1;
    Trial trial = { exact, far_of(name, like, ""), verdicts->closeness, 0 };
    double off = run_step(path, type, loss_scale, judge, &trial) - exact->loss;
    double theirs = *(const double *)far_of(name, like, ".loss");
    verdicts->count = trial.count;
    verdicts->ours += off * off;
    verdicts->theirs += theirs * theirs;
}

static double ratio_of(const Closeness *closeness)
{
    return sqrt(closeness->ours / closeness->theirs);
}

static double typical_ratio(const Verdicts *verdicts)
{
    double sum = 0;
    for (int i = 0; i < verdicts->count; i++)
        sum += log(ratio_of(&verdicts->closeness[i]));
    return exp(sum / verdicts->count);
}

static void conclude(const char *arch, Type type, const Verdicts *verdicts)
{
    const Closeness *worst = verdicts->closeness;
    for (int i = 0; i < verdicts->count; i++) {
        const Closeness *c = &verdicts->closeness[i];
        EXPECT(ratio_of(c) <= 2, "%s, %s: %s is %.3g times as far from exact as PyTorch's "
               "autocast", arch, type_names[type], c->name, ratio_of(c));
        worst = ratio_of(c) > ratio_of(worst) ? c : worst;
    }
    double loss = sqrt(verdicts->ours / verdicts->theirs), typical = typical_ratio(verdicts);
    EXPECT(typical <= 1.5, "%s, %s: a tensor is typically %.3g times as far from exact as PyTorch's "
           "autocast", arch, type_names[type], typical);
    EXPECT(loss <= 6, "%s, %s: losses are %.3g times as far from exact as PyTorch's autocast",
           arch, type_names[type], loss);
    printf("%s, %s: distance from exact / PyTorch autocast's: %.2f (%d tensors; worst "
           "%.2f, %s; losses %.2f)\n", arch, type_names[type], typical,
           verdicts->count, ratio_of(worst), worst->name, loss);
    fflush(stdout);
}

// verdicts: one for each type; f32's place holds the verdict on bf16 judged as if it were f16.
static void try_state(const char *name, Verdicts verdicts[TYPE_F16 + 1])
{
    char file[96], path[PATH_MAX];
    snprintf(file, sizeof file, "%s.step.safetensors", name);
    snprintf(path, sizeof path, "%s", beside(amp_path, file));
    Exact exact = { 0 };
    exact.loss = run_step(path, TYPE_F32, 1, keep, &exact);
    for (Type type = TYPE_BF16; type <= TYPE_F16; type++)
        if (is_tried(type))
            try_type(name, path, type, type, &exact, &verdicts[type]);
    if (exact.count < 30)       // a small network
        try_type(name, path, TYPE_BF16, TYPE_F16, &exact, &verdicts[TYPE_F32]);
    for (int i = 0; i < exact.count; i++)
        free(exact.values[i]);
}

static void compare_network(const char *arch, const char *const states[STATES])
{
    Verdicts *verdicts = xcalloc(TYPE_F16 + 1, sizeof *verdicts);
    for (int i = 0; i < STATES; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s-%s", arch, states[i]);
        try_state(name, verdicts);
    }
    for (Type type = TYPE_BF16; type <= TYPE_F16; type++)
        if (is_tried(type))
            conclude(arch, type, &verdicts[type]);
    const Verdicts *mistaken = &verdicts[TYPE_F32];
    EXPECT(mistaken->count == 0 || typical_ratio(mistaken) > 4,
           "bf16 passes as f16: only %.3g times as far off", typical_ratio(mistaken));
    free(verdicts);
}

// The mock CUDA runtime is slow, so there only test_step compares ResNet-50, in f32.
static bool is_stand_in(void) { return strcmp(device_name(device), "Fake GPU") == 0; }

static void compare_committed_steps(void)
{
    compare_network("convnet", (const char *[]){ "000", "005", "020", "050", "100" });
    compare_network("resnet18", (const char *[]){ "1", "2", "3", "4", "5" });
    if (!is_stand_in())
        compare_network("resnet50", (const char *[]){ "1", "2", "3", "4", "5" });
}

int main(int argc, char **argv)
{
    bool cpu = strcmp(device_backend, "cpu") == 0;
    test_open_device(0, (OpsConfig){ .deterministic = true });
    amp_path = argc > 1 ? argv[1] : reference_path("amp.safetensors");
    amp = file_open(amp_path);
    printf("bf16 is %s\n", ops_emulates(device, TYPE_BF16) ? "emulated" : "native");
    if (argc == 3 + STATES)
        compare_network(argv[2], (const char *const *)argv + 3);
    else
        compare_committed_steps();
    if (cpu && !ops_emulates(device, TYPE_BF16))
        test_again_with("DNNL_MAX_CPU_ISA", "AVX512_CORE", argv);
    st_close(&amp);
    test_close_device();
    return test_done();
}
