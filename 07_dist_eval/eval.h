// eval.h - every rank evaluates its share of the test set, and all know the result; which is the
// same for any number of ranks. And what training has counted, over all ranks.
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

// If this is rank 0: fails if the files cannot be written.
void eval_probe(const EvalConfig *config, const World *world);

typedef struct Eval Eval;
// Meets the other ranks.
Eval *eval_new(const EvalConfig *config, const DdpConfig *ddp, const World *world, Model *model,
               const Data *data);
void eval_free(Eval *eval);

// Every rank calls these, but eval_batch, which it calls for each batch of its share:
//
//   eval_begin(eval, loader);
//   while ((batch = loader_next(loader))) {
//       model_forward(model, batch->images, batch->rows, false);
//       eval_batch(eval, batch);
//   }
//   all = eval_end(eval, &mine);
//
// Begins: all have rank 0's BatchNorm statistics then, and the loader has this rank's share.
void eval_begin(Eval *eval, Loader *loader);
// Notes what the model's logits say of the batch.
void eval_batch(Eval *eval, const Batch *batch);
// Waits for all ranks. Returns what all have counted; mine: what this rank has.
Stats eval_end(Eval *eval, Stats *mine);
// What else was asked for about the last evaluation: lines and files, by rank 0.
void eval_tell(Eval *eval, Log *log);

// All ranks' sum of what each has counted. Waits for it.
Stats eval_sum(Eval *eval, const Stats *mine);
// log_step, with all ranks' sums for this rank's: at the next call here, or when no step follows, so
// that nobody waits for them. eval_catch_up: after each step.
void eval_log_step(Eval *eval, Log *log, const LogStep *line);
void eval_catch_up(Eval *eval);
