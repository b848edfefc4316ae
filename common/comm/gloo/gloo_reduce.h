// gloo_reduce.h - adds two arrays of values.
#pragma once
#include "comm.h"

// By CommType: to[i] = a[i] + b[i]; to may be a or b.
typedef void GlooSum(void *to, const void *a, const void *b, size_t count);
extern GlooSum *const gloo_sums[];
