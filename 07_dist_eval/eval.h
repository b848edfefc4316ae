// eval.h - each rank evaluates a share of the test set, and all ranks get the result for the
// whole set. Also adds up the ranks' training statistics.
#pragma once
#include "args.h"
#include "comm.h"
#include "data.h"
#include "ddp.h"
#include "log.h"
#include "model.h"
#include "eval_result.h"

typedef struct EvalConfig {
    bool show_naive;
    ResultConfig result;
} EvalConfig;
void eval_options(Args *args, EvalConfig *config);

// On rank 0: claims the file of --predictions, or fails (output_lock).
void eval_probe(const EvalConfig *config, const World *world);

typedef struct Eval Eval;
// Connects to the other ranks: all of them must call it.
Eval *eval_new(const EvalConfig *config, const DdpConfig *ddp, const World *world, Model *model,
               const Data *data, Log *log);
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
// eval_begin copies rank 0's BatchNorm statistics to all ranks, and gives the loader its share.
void eval_begin(Eval *eval, Loader *loader);
// Records the verdicts for the batch, from the model's logits.
void eval_batch(Eval *eval, const Batch *batch);
// Waits for all ranks. Returns the sum of their counts; mine: this rank's own.
Stats eval_end(Eval *eval, Stats *mine);
// On rank 0: does for the last evaluation what --show-naive, --per-class and --predictions ask.
void eval_print(Eval *eval);

// The sum of all ranks' counts. Waits for the other ranks.
Stats eval_sum(Eval *eval, const Stats *mine);
// log_step with the sums of all ranks. Starts the sums but waits for them only at the end of an
// epoch or a run: otherwise eval_catch_up, called after the next step, prints the line.
void eval_log_step(Eval *eval, const LogStep *line);
void eval_catch_up(Eval *eval);
