// test_device.h - opens the first device and its operations, for the tests that need them.
#pragma once
#include "device.h"
#include "ops.h"
#include "test.h"

static Device *device;
static Ops *ops;
static const char *const type_names[] = { "f32", "bf16", "f16" };

static inline void test_needs_device(void)
{
    if (strcmp(device_backend, "cuda") == 0 && device_count() == 0)
        TEST_SKIP("no GPU");
}

static inline void test_open_device(int threads, OpsConfig config)
{
    test_needs_device();
    device = device_open(0, threads);
    ops = ops_new(device, &config);
}

static inline void test_close_device(void)
{
    ops_free(ops);
    device_close(device);
}

// main: runs all tests of the file on a device with `threads` threads. The other arguments are fields of an OpsConfig.
#define TEST_MAIN_ON_DEVICE(threads, ...)                                                          \
    int main(void)                                                                                 \
    {                                                                                              \
        test_open_device(threads, (OpsConfig){ __VA_ARGS__ });                                     \
        test_all();                                                                                \
        test_close_device();                                                                       \
        return test_done();                                                                        \
    }
