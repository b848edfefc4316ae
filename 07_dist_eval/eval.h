// eval.h - each rank evaluates a share of the test set, and all ranks get the result for the
// whole set. Also adds up the ranks' training statistics.
#pragma once
#include "args.h"
#include "comm.h"
#include "eval_result.h"
#include "model.h"

typedef struct EvalConfig {
    bool show_naive;
    ResultConfig result;
} EvalConfig;
void eval_options(Args *args, EvalConfig *config);

typedef struct Eval Eval;
// Fails on rank 0 if the folder of the --predictions file is not writable.
Eval *eval_new(const EvalConfig *config, Comm *comm, Model *model, const Data *data);
void eval_free(Eval *eval);

// In each evaluation, all ranks call:
//
//   eval_begin(eval, loader);
//   while ((batch = loader_next(loader))) {
//       model_forward(model, batch->inputs, batch->rows, false);
//       eval_batch(eval, batch);
//   }
//   all = eval_end(eval, &mine);
//
// eval_begin gives all ranks rank 0's BatchNorm statistics, and starts loading this rank's share.
void eval_begin(Eval *eval, Loader *loader);
// Records the verdicts for the batch, from the model's logits.
void eval_batch(Eval *eval, const Batch *batch);
// Waits for all ranks. Returns the sum of their counts; *mine gets this rank's own counts.
Stats eval_end(Eval *eval, Stats *mine);
// On rank 0, prints or writes what --show-naive, --per-class and --predictions ask for.
void eval_print(Eval *eval, Log *log);

// Returns the sum of all ranks' training statistics. Waits for the other ranks.
Stats eval_sum(Eval *eval, Stats mine);
