// inference.h - the forward pass of an evaluation, for model.c.
#pragma once
#include "model.h"

void infer_forward(Model *model, const void *images, int rows);
void infer_free(Model *model);
