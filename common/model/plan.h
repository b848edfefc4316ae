// plan.h - what a network needs for batches of one size: shapes and operations.
#pragma once
#include "model/net_builder.h"

typedef struct Plan {
    int rows;
    Shape shapes[NET_MAX_VALUES];
    Op *ops[NET_MAX_LAYERS];
    struct Plan *next;
} Plan;

// Returns the plan for this number of rows. The first call makes the plan.
Plan *plan_for(Model *model, int rows);
void plan_free(Plan *plan);
