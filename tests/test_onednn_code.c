// No training step in f32 or bf16 runs oneDNN's slow reference code. The same holds on a processor that has only some
// of this one's instructions. oneDNN itself reports which code each call ran.
// ctest: SANITIZERS none
#include "model.h"
#include "test_device.h"

#include <oneapi/dnnl/dnnl.h>

static void train(const char *arch, int channels, Type type)
{
    bool text = strcmp(arch, "gpt") == 0;
    ModelConfig config = { arch, channels, 32, 32, 10, .batch = 2, .type = type, .per_row = text ? 16 : 1,
                           .gpt = { .layers = 1, .heads = 2, .width = 32 } };
    Model *model = model_new(device, ops, &config);
    printf("network: %s, %d channels, %s\n", arch, channels, type_names[type]);
    void *images = device_alloc(device, shape_bytes(model->input));
    model_forward(model, images, config.batch, true);
    model_backward(model, NULL, NULL);
    stream_sync(device_stream(device));
    device_free(device, images);
    model_free(model);
}

typedef struct Limit {
    const char *name;
    int seen;               // the instruction set that oneDNN chose under the previous limit
} Limit;

static void train_all(const void *arg)
{
    static const char *const archs[] = { "lenet", "convnet", "resnet18", "resnet50", "gpt" };
    const Limit *limit = arg;
    setenv("DNNL_MAX_CPU_ISA", limit->name, 1);
    setenv("DNNL_VERBOSE", "1", 1);
    int isa = (int)dnnl_get_effective_cpu_isa();
    printf("instruction set: %d\n", isa);
    if (isa == limit->seen)
        exit(TEST_SKIPPED);
    test_open_device(1, (OpsConfig){ 0 });
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        for (int channels = 1; channels <= 3; channels += 2)
            for (Type type = TYPE_F32; type <= TYPE_BF16; type++)
                train(archs[i], channels, type);
    test_close_device();
}

static int check_report(const char *limit, char *report)
{
    int calls = 0;
    const char *network = "";
    for (char *line = strtok(report, "\n"); line; line = strtok(NULL, "\n")) {
        const char *call = strstr(line, ",exec,cpu,");
        char kind[32], code[64];
        if (strncmp(line, "network: ", 9) == 0)
            network = line + 9;
        if (!call || sscanf(call, ",exec,cpu,%31[^,],%63[^,]", kind, code) != 2)
            continue;
        calls++;
        EXPECT(strncmp(code, "ref", 3) != 0, "up to %s: %s: %s", limit, network, line);
    }
    return calls;
}

TEST(no_step_runs_reference_code)
{
    static const char *const limits[] = { "SSE41", "AVX", "AVX2", "AVX512_CORE", "AVX512_CORE_BF16", "ALL" };
    Limit limit = { .seen = -1 };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        limit.name = limits[i];
        int status = test_child(train_all, &limit);
        sscanf(test_said, "instruction set: %d", &limit.seen);
        if (status == TEST_SKIPPED)     // the same instructions as under the previous limit
            continue;
        EXPECT_EQ_INT(status, 0);
        int calls = check_report(limit.name, test_said);
        EXPECT(calls > 1000, "up to %s: oneDNN reported %d calls", limit.name, calls);
    }
}

TEST_MAIN
