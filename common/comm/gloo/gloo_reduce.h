// gloo_reduce.h - the sums of Gloo's all-reduce.
#pragma once
#include "comm.h"

// to[i] = a[i] + b[i]; to may be a or b. gloo_sums has such a function for each CommType.
typedef void GlooSum(void *to, const void *a, const void *b, size_t count);
extern GlooSum *const gloo_sums[];
