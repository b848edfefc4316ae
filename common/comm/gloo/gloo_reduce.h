// gloo_reduce.h - how values of two ranks become one.
#pragma once
#include "comm.h"

// By CommType: to[i] = a[i] + b[i]; to may be a or b.
typedef void GlooSum(void *to, const void *a, const void *b, size_t count);
extern GlooSum *const gloo_sums[];
