// test_cudnn_plans.c - the networks' convolutions, and attention, have cuDNN plans on nine kinds of GPU, tested
// without a GPU. ctest: TIMEOUT 600 BACKENDS cuda SANITIZERS none LABELS slow
//
// cuDNN can make plans from the description of a device, so this test requests the plans that the CUDA backend will
// request on such a device, with the same functions and rules. It cannot show that a plan computes the right result.
#include "test.h"

#include "check.h"
#include "cuda/cudnn_graph.h"
#include "model/net_builder.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <math.h>
#include <string.h>

typedef struct DeviceFacts {
    const char *name;
    int version, processors, threads, blocks, shared, l2_mb, memory_gb, clock_mhz, memory_mhz, bus_bits;
} DeviceFacts;

enum { H200 };
static const DeviceFacts devices[] = {
    [H200] = { "H200", 900, 132, 2048, 32, 232448, 60, 141, 1980, 3201, 6144 },
    { "H100", 900, 132, 2048, 32, 232448, 50, 80, 1980, 2619, 5120 },
    { "A100", 800, 108, 2048, 32, 166912, 40, 80, 1410, 1593, 5120 },
    { "RTX 3090", 860, 82, 1536, 16, 101376, 6, 24, 1695, 9751, 384 },
    { "RTX 4090", 890, 128, 1536, 24, 101376, 72, 24, 2520, 10501, 384 },
    { "L4", 890, 58, 1536, 24, 101376, 48, 24, 2040, 6251, 192 },
    { "T4", 750, 40, 1024, 16, 65536, 4, 16, 1590, 5001, 256 },
    { "B200", 1000, 148, 2048, 32, 232448, 126, 180, 1965, 3996, 8192 },
    { "RTX 5090", 1200, 170, 1536, 24, 101376, 96, 32, 2407, 14001, 512 },
};

// A device, described in cuDNN's own format; NULL if cuDNN refuses it. (9.27 needs memoryBusWidth.)
static cudnnBackendDescriptor_t profile_new(const DeviceFacts *d)
{
    static char json[2000];
    snprintf(json, sizeof json,
             "{\"deviceName\":\"NVIDIA %s\",\"deviceVer\":%d,\"driverVer\":13000,\"cudaDeviceId\":0,"
             "\"pciDeviceId\":0,\"multiProcessorCount\":%d,\"warpSize\":32,\"maxThreadsPerBlock\":1024,"
             "\"maxThreadsPerSM\":%d,\"maxCtasPerSM\":%d,\"maxBlockSize\":[1024,1024,64],"
             "\"maxGridSize\":[2147483647,65535,65535],\"regsPerBlock\":65536,\"maxRegistersPerSM\":65536,"
             "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
             "\"reservedSharedMemoryPerBlock\":1024,\"l2CacheSize\":%lld,\"totalGlobalMem\":%lld,"
             "\"smClockRateKHz\":%d,\"memClockRateKHz\":%d,\"memoryBusWidth\":%d,"
             "\"isTccDriver\":0,\"supportCoopLaunch\":1}",
             d->name, d->version, d->processors, d->threads, d->blocks, d->shared, (long long)d->l2_mb << 20,
             (long long)d->memory_gb << 30, d->clock_mhz * 1000, d->memory_mhz * 1000, d->bus_bits);
    cudnnBackendDescriptor_t profile;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &profile) ||
        cudnnBackendSetAttribute(profile, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                 CUDNN_TYPE_CHAR, (int64_t)strlen(json), json) ||
        cudnnBackendFinalize(profile))
        return NULL;
    return profile;
}

// From 9.27 on, cuDNN makes no plans without the driver's library, so no_driver.c takes its place. Returns false if the
// library of no_driver.c is not there, as in a bundle.
static bool load_driver(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/../tests/no_driver/libcuda.so.1", getenv("BUILD"));
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

static const char *const pass_names[] = { "forward", "data gradient", "weight gradient" };

static const char *type_name(cudnnDataType_t dtype)
{
    return dtype == CUDNN_DATA_FLOAT ? "f32" : dtype == CUDNN_DATA_HALF ? "f16" : "bf16";
}

enum { MAX_PROBLEMS = 1000 };

typedef struct Wanted {
    ConvProblem problem;
    bool needs_dx;
    char name[96];          // the first layer with this problem
} Wanted;

static Wanted wanted[MAX_PROBLEMS];
static int wanted_count, product_count;

static void want(const OpSpec *spec, cudnnDataType_t dtype, const char *arch, const char *layer)
{
    ConvProblem problem = conv_problem(spec, dtype);
    if (conv_is_product(&problem)) {
        product_count++;    // for cuBLASLt, which cannot plan without the device
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
        OpSpec spec = { OP_CONV, { batch, x.c, x.h, x.w }, l->channels, l->kernel_h,
                        l->kernel_w, l->stride, l->pad, l->bias, l->in != 0 };
        if (l->kind == OP_CONV)
            want(&spec, dtype, arch, l->name);
    }
}

// every_batch: besides batches of 256 images, also batches of 80, 3 and 1.
static void want_all(cudnnDataType_t dtype, bool every_batch)
{
    static const struct {
        const char *arch;
        int channels, size;
    } nets[] = { { "resnet18", 3, 32 }, { "resnet18", 1, 28 }, { "resnet18", 3, 224 }, { "resnet50", 3, 64 },
                 { "resnet50", 3, 224 }, { "convnet", 1, 28 }, { "convnet", 3, 32 }, { "convnet", 1, 30 },
                 { "lenet", 1, 28 }, { "lenet", 3, 32 } };
    static const int batches[] = { 256, 3, 1, 80 };
    size_t most = every_batch ? sizeof batches / sizeof *batches : 1;
    wanted_count = product_count = 0;
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
        for (size_t b = 0; b < most; b++)
            want_network(nets[i].arch, nets[i].channels, nets[i].size, batches[b], dtype);
}

static int plan_all(const DeviceFacts *device, const PlanRules *rules)
{
    int tensor_cores = 0;
    for (int i = 0; i < wanted_count; i++)
        for (ConvPass pass = 0; pass < PASS_COUNT; pass++) {
            const Wanted *w = &wanted[i];
            CudnnPlan plan;
            Error err = { .text = "" };
            if (pass == PASS_DATA && !w->needs_dx)
                continue;
            bool made = conv_plan_new(&plan, &w->problem, pass, rules, &err);
            EXPECT(made, "%s, %s, %s: %s", device->name, w->name, pass_names[pass], err.text);
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
            cudnn_plan_free(&plan);
        }
    return tensor_cores;
}

static const cudnnDataType_t types[] = { CUDNN_DATA_FLOAT, CUDNN_DATA_BFLOAT16, CUDNN_DATA_HALF };

// Uses the strictest rules: a plan that they allow is allowed by all other rules too.
TEST(every_convolution_has_a_plan_on_every_gpu)
{
    load_driver();
    for (size_t d = 0; d < sizeof devices / sizeof *devices; d++) {
        PlanRules rules = { .profile = profile_new(&devices[d]), .deterministic = true };
        if (!EXPECT(rules.profile != NULL, "cuDNN refuses the description of the %s", devices[d].name))
            continue;
        for (int t = 0; t < 3; t++) {
            if (types[t] == CUDNN_DATA_BFLOAT16 && devices[d].version < 800)
                continue;       // no GPU before 8.0 has bf16 instructions
            want_all(types[t], d == H200);
            EXPECT(wanted_count > 60 && product_count > 10, "%d and %d", wanted_count, product_count);
            plan_all(&devices[d], &rules);
        }
        cudnnBackendDestroyDescriptor(rules.profile);
    }
}

// More than 90 % of the 16-bit plans must use tensor cores. f32 plans may use them only with tf32,
// and then at least one must.
TEST(plans_use_tensor_cores)
{
    load_driver();
    PlanRules rules = { .profile = profile_new(&devices[H200]) };
    if (!EXPECT(rules.profile != NULL, "cuDNN refuses the description of an H200"))
        return;
    for (int t = 0; t < 3; t++) {
        int plans = 0;
        want_all(types[t], false);
        for (int w = 0; w < wanted_count; w++)
            plans += wanted[w].needs_dx ? 3 : 2;
        for (int i = 0; i < (t == 0 ? 4 : 2); i++) {
            rules.deterministic = i & 1;
            rules.tf32 = i & 2;
            int tensor_cores = plan_all(&devices[H200], &rules);
            int least = t == 0 ? rules.tf32 : plans * 9 / 10 + 1;
            printf("%s%s: %d of %d plans use tensor cores\n", type_name(types[t]),
                   rules.deterministic ? ", deterministic" : "", tensor_cores, plans);
            EXPECT(tensor_cores >= least, "%d of %d use tensor cores", tensor_cores, plans);
        }
    }
    cudnnBackendDestroyDescriptor(rules.profile);
}

// cuDNN needs about a second to compile each plan, so only the H200's are made in several sizes. ALL_SIZES=4090 makes
// them in 15 sizes for the GPUs with 4090 in their names, and ALL_SIZES= for all.
TEST(attention_has_plans_on_every_gpu_from_8_0)
{
    static const int sizes[][2] = {     // T, width of a head
        { 1024, 64 }, { 64, 32 }, { 256, 64 }, { 1024, 128 },
        { 64, 64 }, { 64, 128 }, { 128, 32 }, { 128, 64 }, { 128, 128 }, { 256, 32 }, { 256, 128 }, { 512, 32 },
        { 512, 64 }, { 512, 128 }, { 1024, 32 }
    };
    const char *all = getenv("ALL_SIZES");
    char nvrtc[32];
    snprintf(nvrtc, sizeof nvrtc, "libnvrtc.so.%d", CUDART_VERSION / 1000);
    if (!load_driver() || !dlopen(nvrtc, RTLD_NOW | RTLD_GLOBAL)) {
        printf("SKIPPED: ATTENTION: there is no tests/no_driver, or no %s\n", nvrtc);
        return;
    }
    for (size_t d = 0; d < sizeof devices / sizeof *devices; d++) {
        if (all && !strstr(devices[d].name, all))
            continue;
        PlanRules rules = { .profile = profile_new(&devices[d]) };
        int size_count = all ? sizeof sizes / sizeof *sizes : d == H200 ? 4 : 1, made_count = 0;
        for (int i = 0; i < 2 * 2 * size_count; i++) {
            const int *size = sizes[i / 4];
            FusedProblem f = { types[1 + i % 2], 16, 512 / size[1], size[0], size[1] };
            CudnnPlan plan;
            bool made = fused_plan_new(&plan, &f, i / 2 % 2, &rules);
            EXPECT(made == (devices[d].version >= 800), "%s, %s, T %d, d %d, %s", devices[d].name,
                   type_name(f.dtype), f.T, f.d, i / 2 % 2 ? "backward" : "forward");
            made_count += made;
            cudnn_plan_free(&plan);
        }
        printf("%s: %d of %d plans of attention\n", devices[d].name, made_count, 2 * 2 * size_count);
        cudnnBackendDestroyDescriptor(rules.profile);
    }
}

// A race in which the first plan fails and the third is the fastest.
typedef struct Race {
    int runs;
    cudnnBackendDescriptor_t third;
} Race;

static float time_of(const CudnnPlan *plan, void *arg)
{
    Race *race = arg;
    race->runs++;
    if (race->runs == 3)
        race->third = plan->plan;
    else if (race->third == plan->plan)
        race->third = NULL;             // it has lost, so a later plan may get its address
    return race->runs == 1 ? INFINITY : race->runs == 3 ? 1 : 1 + race->runs;
}

static float fails(const CudnnPlan *plan, void *arg) { return INFINITY; }

TEST(the_fastest_plan_wins)
{
    load_driver();
    CudnnPlan plan;
    Error err;
    Race race = { 0 };
    PlanRules rules = { .profile = profile_new(&devices[H200]), .time = time_of, .time_arg = &race };
    want_all(CUDNN_DATA_HALF, false);
    if (EXPECT(conv_plan_new(&plan, &wanted[0].problem, PASS_FORWARD, &rules, &err), "%s", err.text)) {
        EXPECT(race.runs > 3 && plan.plan == race.third, "of %d plans the third is the fastest", race.runs);
        cudnn_plan_free(&plan);
    }
    rules.time = fails;
    EXPECT(!conv_plan_new(&plan, &wanted[0].problem, PASS_FORWARD, &rules, &err), "all fail, and one wins");
    cudnnBackendDestroyDescriptor(rules.profile);
}

TEST_MAIN
