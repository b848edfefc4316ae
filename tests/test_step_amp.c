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
// On the mock, where a state takes half a minute, only the first is tested, and its loss is not judged.
// On a CPU with bf16 instructions the test runs again without them.
#include "step_reference.h"
#include "test_device.h"

#include <errno.h>

enum { STATES = 5, OUTCOMES = 200 };

static StFile amp;

typedef struct Exact {
    double loss;
    float *values[OUTCOMES];
    int count;
} Exact;

// A tensor's squared distances from the exact tensor, divided by its squared norm, and summed over the states.
typedef struct Closeness {
    char name[80];
    double ours, theirs;
} Closeness;

// `like`: the 16-bit type of PyTorch's runs that ours are compared with.
typedef struct Distances {
    Type type, like;
    Closeness closeness[OUTCOMES];
    int count;
    double ours, theirs;        // sums of the squared errors of the losses
    const Exact *exact;         // of this state
    const float *far;           // PyTorch's distances in this state
} Distances;

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
    Distances *verdict = arg;
    const float *exact = verdict->exact->values[verdict->count];
    Closeness *closeness = &verdict->closeness[verdict->count++];
    double ours = 0, size = 0, far = verdict->far[o->place];
    for (int64_t i = 0; i < o->tensor->count; i++) {
        ours += ((double)o->ours[i] - exact[i]) * ((double)o->ours[i] - exact[i]);
        size += (double)exact[i] * exact[i];
    }
    closeness->ours += ours / size;
    closeness->theirs += far * far * (double)o->tensor->count / size;
    snprintf(closeness->name, sizeof closeness->name, "%s%s", o->kind, o->tensor->name);
}

static double run_step(int state, Type type, Judge judge, void *arg)
{
    StepRun run;
    char name[64];
    snprintf(name, sizeof name, "resnet18-%d.step.safetensors", state);
    step_open(&run, name);
    ModelConfig config = step_config(&run, run.batch);
    config.type = type;
    Model *model = model_new(device, ops, &config);
    step_begin(&run, model, 0, run.batch);
    double loss = step_take(&run, type == TYPE_F16 ? (float)file_int(&amp, "f16.scale") : 1, NULL, NULL, NULL);
    if (type == TYPE_F32)
        step_compare(&run, loss);
    step_outcomes(&run, judge, arg);
    step_close(&run);
    model_free(model);
    return loss;
}

static void try_state(int state, Distances verdicts[], int count)
{
    Exact exact = { 0 };
    exact.loss = run_step(state, TYPE_F32, keep, &exact);
    for (Distances *v = verdicts; v < verdicts + count; v++) {
        char name[64], loss[72];
        if (v->type != v->like && state > 1)
            continue;
        snprintf(name, sizeof name, "resnet18-%d.%s", state, type_names[v->like]);
        snprintf(loss, sizeof loss, "%s.loss", name);
        v->exact = &exact;
        v->far = file_data(&amp, name);
        v->count = 0;
        v->ours += pow(run_step(state, v->type, judge, v) - exact.loss, 2);
        v->theirs += pow(*(const double *)file_data(&amp, loss), 2);
    }
    for (int i = 0; i < exact.count; i++)
        free(exact.values[i]);
}

static double ratio_of(const Closeness *closeness) { return sqrt(closeness->ours / closeness->theirs); }

static void conclude(const Distances *verdict, int states)
{
    double loss = sqrt(verdict->ours / verdict->theirs), typical = 1, worst = 0;
    const char *name = "";
    bool mistaken = verdict->type != verdict->like;
    for (const Closeness *c = verdict->closeness; c < verdict->closeness + verdict->count; c++) {
        EXPECT(mistaken || ratio_of(c) <= 2, "%s: %s is %.3g times as far from exact as PyTorch's autocast",
               type_names[verdict->type], c->name, ratio_of(c));
        typical *= pow(ratio_of(c), 1.0 / verdict->count);
        name = ratio_of(c) > worst ? c->name : name;
        worst = fmax(worst, ratio_of(c));
    }
    printf("%s: distance from exact / PyTorch autocast's in %s: %.2f (%d tensors; worst %.2f, %s; losses %.2f)\n",
           type_names[verdict->type], type_names[verdict->like], typical, verdict->count, worst, name, loss);
    EXPECT(mistaken ? typical > 2 : typical <= 1.5 && (loss <= 6 || states < STATES), "%s judged as %s: %g, losses %g",
           type_names[verdict->type], type_names[verdict->like], typical, loss);
}

// An emulated f16 is tested only in the run in which bf16 is also emulated. In state 1, bf16 must not pass as f16.
TEST(steps_in_16_bits)
{
    static Distances verdicts[3] = { { TYPE_BF16, TYPE_BF16 }, { TYPE_BF16, TYPE_F16 }, { TYPE_F16, TYPE_F16 } };
    int count = !ops_emulates(device, TYPE_F16) || ops_emulates(device, TYPE_BF16) ? 3 : 2;
    int states = strstr(program_invocation_short_name, "_fake") ? 1 : STATES;
    amp = file_open("amp.safetensors");
    for (int state = 1; state <= states; state++)
        try_state(state, verdicts, count);
    for (int i = 0; i < count; i++)
        conclude(&verdicts[i], states);
    st_close(&amp);
}

int main(int argc, char **argv)
{
    test_open_device(0, (OpsConfig){ .deterministic = true });
    printf("bf16 is %s\n", ops_emulates(device, TYPE_BF16) ? "emulated" : "native");
    test_all();
    if (strcmp(device_backend, "cpu") == 0 && !ops_emulates(device, TYPE_BF16))
        test_again_with("DNNL_MAX_CPU_ISA", "AVX512_CORE", argv);
    test_close_device();
    return test_done();
}
