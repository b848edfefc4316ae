// gloo_reduce.h - how values of two ranks become one.
#pragma once
#include "comm/gloo/gloo_shim.h"

GlooReduce *gloo_reduce_function(CommType type, CommOp op);
