// test_cudnn_plans.c - every convolution of every network has a cuDNN plan for an H200, tested
// without a GPU. ctest: BACKENDS cuda SANITIZERS none
//
// cuDNN can make plans from the description of a device, so this test can request the plans that
// the CUDA backend will request on an H200, with the same functions and rules. It cannot show that
// a plan computes the right result; test_ops does, on a GPU.
#include "test.h"

#include "check.h"
#include "cuda/cudnn_graph.h"
#include "model/net_builder.h"

#include <string.h>

// The format is cuDNN's own; the figures are those of an H200.
static const char h200[] =
    "{\"deviceName\":\"NVIDIA H200\",\"deviceVer\":900,\"driverVer\":13000,\"cudaDeviceId\":0,"
    "\"pciDeviceId\":0,\"multiProcessorCount\":132,\"warpSize\":32,\"maxThreadsPerBlock\":1024,"
    "\"maxThreadsPerSM\":2048,\"maxCtasPerSM\":32,\"maxBlockSize\":[1024,1024,64],"
    "\"maxGridSize\":[2147483647,65535,65535],\"regsPerBlock\":65536,\"maxRegistersPerSM\":65536,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"l2CacheSize\":62914560,"
    "\"totalGlobalMem\":150000000000,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,"
    "\"isTccDriver\":0,\"supportCoopLaunch\":1}";

static const char *const pass_names[] = { "forward", "data gradient", "weight gradient" };

static const char *type_name(cudnnDataType_t dtype)
{
    return dtype == CUDNN_DATA_FLOAT ? "f32" : dtype == CUDNN_DATA_HALF ? "f16" : "bf16";
}

// ==== The convolutions ===========================================================================

enum { MAX_PROBLEMS = 600 };

typedef struct Wanted {
    ConvProblem problem;
    bool needs_dx;
    char name[96];          // the first layer that has it
} Wanted;

static Wanted wanted[MAX_PROBLEMS];
static int wanted_count, product_count;

static void want(const ConvSpec *spec, cudnnDataType_t dtype, const char *arch, const char *layer)
{
    ConvProblem problem = conv_problem(spec, dtype);
    if (conv_is_product(&problem)) {
        product_count++;    // uses cuBLASLt, which cannot plan without the device
        return;
    }
    for (int i = 0; i < wanted_count; i++)
        if (memcmp(&wanted[i].problem, &problem, sizeof problem) == 0) {
            wanted[i].needs_dx |= spec->needs_dx;
            return;
        }
    CHECK(wanted_count < MAX_PROBLEMS, "", "more than %d convolutions", MAX_PROBLEMS);
    Wanted *w = &wanted[wanted_count++];
    w->problem = problem;
    w->needs_dx = spec->needs_dx;
    snprintf(w->name, sizeof w->name, "%s %s %s x (%d, %d, %d, %d)", arch, layer,
             type_name(dtype), problem.n, problem.h, problem.w, problem.c);
}

static void want_network(const char *arch, int channels, int size, int batch, cudnnDataType_t dtype)
{
    static Net net;
    ModelConfig config = { .arch = arch, .channels = channels, .height = size, .width = size,
                           .classes = 10, .batch = batch };
    memset(&net, 0, sizeof net);
    net_build(&net, &config, net_canvas(&config));
    for (int i = 0; i < net.layer_count; i++) {
        const Layer *l = &net.layers[i];
        Extent x = net.extents[l->in];
        ConvSpec spec = { { batch, x.c, x.h, x.w, x.c }, l->channels, l->kernel_h, l->kernel_w,
                          l->stride, l->pad, l->bias, l->in != 0 };
        if (l->type == LAYER_CONV)
            want(&spec, dtype, arch, l->name);
    }
}

static void want_all(cudnnDataType_t dtype)
{
    static const struct {
        const char *arch;
        int channels, size;
    } nets[] = { { "resnet18", 3, 32 }, { "resnet18", 1, 28 },  { "resnet18", 3, 224 },
                 { "resnet50", 3, 64 }, { "resnet50", 3, 224 }, { "convnet", 1, 28 },
                 { "convnet", 3, 32 },  { "lenet", 1, 28 },     { "lenet", 3, 32 } };
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
        for (int batch = 128; batch <= 256; batch += 128)
            want_network(nets[i].arch, nets[i].channels, nets[i].size, batch, dtype);
}

// A device from its description in JSON; NULL if cuDNN refuses it.
static cudnnBackendDescriptor_t profile_new(const char *json)
{
    cudnnBackendDescriptor_t profile;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &profile) ||
        cudnnBackendSetAttribute(profile, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                 CUDNN_TYPE_CHAR, (int64_t)strlen(json), json) ||
        cudnnBackendFinalize(profile))
        return NULL;
    return profile;
}

// ==== Tests ======================================================================================

// Makes a plan for each pass of each convolution. Returns how many plans use tensor cores.
static int plan_all(const PlanRules *rules)
{
    int tensor_cores = 0;
    for (int i = 0; i < wanted_count; i++)
        for (ConvPass pass = 0; pass < PASS_COUNT; pass++) {
            const Wanted *w = &wanted[i];
            ConvPlan plan;
            Error err = { .text = "" };
            if (pass == PASS_DATA && !w->needs_dx)
                continue;
            bool made = conv_plan_new(&plan, &w->problem, pass, rules, &err);
            EXPECT(made, "%s, %s: %s", w->name, pass_names[pass], err.text);
            if (!made)
                continue;
            bool uses_cores = plan.notes >> CUDNN_NUMERICAL_NOTE_TENSOR_CORE & 1;
            bool varies = plan.notes >> CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC & 1;
            bool rounds = w->problem.dtype == CUDNN_DATA_FLOAT && uses_cores;
            EXPECT(!varies || !rules->deterministic, "%s, %s", w->name, pass_names[pass]);
            EXPECT(!rounds || rules->tf32, "%s, %s", w->name, pass_names[pass]);
            EXPECT(plan.workspace >= 0 && plan.workspace <= 1 << 30, "%s, %s: %lld", w->name,
                   pass_names[pass], (long long)plan.workspace);
            tensor_cores += uses_cores;
            conv_plan_free(&plan);
        }
    return tensor_cores;
}

// Nearly all 16-bit plans must use tensor cores; cuDNN prefers other engines for some convolutions
// on images of one or three channels. f32 plans may use tensor cores only with tf32.
TEST(every_convolution_has_a_plan)
{
    static const cudnnDataType_t types[] = { CUDNN_DATA_FLOAT, CUDNN_DATA_BFLOAT16,
                                             CUDNN_DATA_HALF };
    PlanRules rules = { .profile = profile_new(h200) };
    if (!EXPECT(rules.profile != NULL, "cuDNN refuses the description of an H200"))
        return;
    for (int t = 0; t < 3; t++) {
        int plans = 0;
        wanted_count = product_count = 0;
        want_all(types[t]);
        for (int w = 0; w < wanted_count; w++)
            plans += wanted[w].needs_dx ? 3 : 2;
        EXPECT(wanted_count > 60 && product_count > 10, "%d and %d", wanted_count, product_count);
        for (int i = 0; i < (t == 0 ? 4 : 2); i++) {
            rules.deterministic = i & 1;
            rules.tf32 = i & 2;
            int tensor_cores = plan_all(&rules), least = t == 0 ? rules.tf32 : plans * 9 / 10 + 1;
            printf("%s%s: %d of %d plans use tensor cores\n", type_name(types[t]),
                   rules.deterministic ? ", deterministic" : "", tensor_cores, plans);
            EXPECT(tensor_cores >= least, "%d of %d use tensor cores", tensor_cores, plans);
        }
    }
    cudnnBackendDestroyDescriptor(rules.profile);
}

TEST_MAIN
