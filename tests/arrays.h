// arrays.h - arrays on the host and on the device, for tests of the operations.
#pragma once
#include "check.h"
#include "ops/numbers.h"
#include "rng.h"
#include "test_device.h"

#include <math.h>

static const double roundoffs[] = { 0x1p-24, 0x1p-8, 0x1p-11 };

// The memory that a check has allocated; check_ends frees it.
enum { MOST = 4096 };
static void *on_host[MOST], *on_device[MOST];
static int host_count, device_used;

static inline void *host_memory(size_t bytes)
{
    CHECK(host_count < MOST, "", "a check of more than %d arrays", MOST);
    return on_host[host_count++] = xcalloc(bytes, 1);
}

static inline void *memory(size_t bytes)
{
    CHECK(device_used < MOST, "", "a check of more than %d arrays", MOST);
    return on_device[device_used++] = device_alloc(device, bytes);
}

static inline void check_ends(void)
{
    while (host_count > 0)
        free(on_host[--host_count]);
    while (device_used > 0)
        device_free(device, on_device[--device_used]);
}

static inline void *to_device(const void *host, size_t bytes)
{
    void *there = memory(bytes);
    copy_to_device(device_stream(device), there, host, bytes);
    stream_sync(device_stream(device));
    return there;
}

static inline void *to_host(const void *there, size_t bytes)
{
    void *host = host_memory(bytes);
    copy_to_host(device_stream(device), host, there, bytes);
    stream_sync(device_stream(device));
    return host;
}

static inline double *zeros(size_t count) { return host_memory(count * sizeof(double)); }

static inline void run_op(const OpSpec *spec, const OpArgs *args)
{
    Op *op = op_new(ops, spec);
    op_forward(op, args);
    op_backward(op, args);
    op_free(op);
}

// Uniform in [-1, 1), then rounded to the type; different for each key.
static inline double *random_numbers(Type of, size_t count, int key)
{
    double *v = zeros(count);
    for (size_t i = 0; i < count; i++)
        v[i] = rounded(of, 2 * uniform_of(philox(7, (uint64_t)key, i).v[0]) - 1);
    return v;
}

static inline Shape row(size_t count) { return (Shape){ 1, (int)count, 1, 1 }; }

// The index, in an activation of this shape, of the element that is number i in torch's order.
static inline size_t place(Shape s, size_t i)
{
    size_t plane = (size_t)s.h * s.w, c = i / plane % s.c, n = i / plane / s.c;
    return (n * plane + i % plane) * s.c + c;
}

static inline void *activation(Shape s, const double *v)
{
    char *host = host_memory(shape_bytes(s));
    for (size_t i = 0; i < shape_count(s); i++)
        store_one(s.type, host, place(s, i), (float)v[i]);
    return to_device(host, shape_bytes(s));
}

static inline void *empty(Shape s) { return memory(shape_bytes(s)); }

static uint64_t result_bits;

static inline void add_bits(const void *results, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        result_bits = (result_bits ^ ((const uint8_t *)results)[i]) * 0x100000001b3u;
}

// Each number may be off by of_itself * |wanted number| + of_largest * the largest |wanted number|. The largest
// counts as at least 1e-6.
static inline void expect_near(const char *what, Shape s, const void *there, const double *wanted,
                        double of_itself, double of_largest)
{
    const char *got = to_host(there, shape_bytes(s));
    double largest = 1e-6, worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < shape_count(s); i++) {
        add_bits(got + place(s, i) * type_size(s.type), type_size(s.type));
        largest = fmax(largest, fabs(wanted[i]));
    }
    for (size_t i = 0; i < shape_count(s); i++) {
        double off = fabs(load_one(s.type, got, place(s, i)) - wanted[i]);
        double allowed = of_itself * fabs(wanted[i]) + of_largest * largest;
        double excess = off > 0 ? off / fmax(allowed, 1e-30) : off;
        if (!isnan(worst) && !(excess <= worst)) {     // a NaN stays
            worst = excess;
            at = i;
        }
    }
    EXPECT(worst <= 1, "%s, %s: number %zu is %g, wanted %g: off by %.2g times the tolerance",
           what, type_names[s.type], at, load_one(s.type, got, place(s, at)), wanted[at], worst);
}
