// eval.c - each rank evaluates a share of the test set, and all ranks get the result.
//
// The test set is cut into the batches that one process would use, and rank r takes every size-th
// of them, starting with batch r:
//
//   10 images, batches of 4    0 1 2 3 | 4 5 6 7 | 8 9 . .     (. is padding, which does not count)
//   2 ranks                    rank 0    rank 1    rank 0
//
// Shares may differ: no batch is repeated to make them equal. So the loop over batches must not
// contain a collective, which a rank with fewer batches would call less often. After the loop, all
// ranks wait for each other and add up their counts:
//
//   rank 0   | batch 0 | batch 2 |         | all-reduce |
//   rank 1   | batch 1 | barrier           | all-reduce |
//
// Add counts, never percentages: a mean of means gives the images of a short batch, or of a small
// share, more weight than the others (see naive() below). All counts are integers, even the sums of
// losses (eval_result.h), so the order of addition does not matter.
//
// With any number of ranks, each batch has the same images. So the same weights and
// thread counts (or GPUs with --deterministic) give the same printed result.
#include "eval.h"
#include "check.h"
#include "output.h"

#include <stdlib.h>
#include <string.h>

struct Eval {
    EvalConfig config;
    const Dataset *test;
    Model *model;
    Device *device;
    Comm *comm;
    Verdict *verdicts;          // device: the verdicts of this rank's batches, in their order
    Stats *stats;               // device memory for eval_sum
    Result result;              // this rank's counts; after the sum, those of all ranks
};

void eval_options(Args *args, EvalConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "show-naive", 0, ARG_FLAG, &config->show_naive, NULL,
          "also print the naive result: a mean of means, with repeated samples" }));
    result_options(args, &config->result);
}

// --- shares of the test set ----------------------------------------------------------------------

static int rows_of(const Eval *eval) { return eval->model->input.n; }
// The number of labels, and of verdicts, in a full batch.
static int labels_of(const Eval *eval) { return rows_of(eval) * eval->model->per_row; }

// How many batches the rank has. Its i-th batch is batch i * size + rank of the test set.
static int share_of(const Eval *eval, int rank)
{
    int rows = rows_of(eval), size = comm_size(eval->comm);
    int batches = (eval->test->count + rows - 1) / rows;
    return batches / size + (rank < batches % size);
}

static void start_share(Eval *eval, Loader *loader)
{
    int rank = comm_rank(eval->comm), size = comm_size(eval->comm), rows = rows_of(eval), count = 0;
    int share = share_of(eval, rank);
    int32_t *ids = xmalloc((size_t)share * (size_t)rows * sizeof *ids);
    for (int i = 0; i < share; i++) {
        int first = (i * size + rank) * rows, left = eval->test->count - first;
        for (int k = 0; k < rows && k < left; k++)
            ids[count++] = first + k;
    }
    loader_start(loader, ids, count, 0, 0);
    free(ids);
}

// Without --sync-bn, BatchNorm's running statistics come from each rank's own images, so each rank
// would get different results. All use rank 0's, which are also the ones that are saved.
void eval_begin(Eval *eval, Loader *loader)
{
    comm_broadcast(eval->comm, device_stream(eval->device), eval->model->buffers,
                   eval->model->buffer_count, COMM_F32, 0);
    start_share(eval, loader);
}

void eval_batch(Eval *eval, const Batch *batch)
{
    judge_rows(eval->model->ops, batch->label_count, eval->test->classes, eval->model->logits,
               batch->labels, eval->verdicts + (size_t)batch->index * (size_t)labels_of(eval));
}

// --- the result of all ranks ---------------------------------------------------------------------

static Verdict *on_host(Eval *eval, const Verdict *verdicts, size_t count)
{
    Stream *stream = device_stream(eval->device);
    Verdict *copy = xmalloc(count * sizeof *copy);
    copy_to_host(stream, copy, verdicts, count * sizeof *copy);
    stream_sync(stream);
    return copy;
}

static void sum_counts(Eval *eval)
{
    Result *r = &eval->result;
    Stream *stream = device_stream(eval->device);
    int64_t *counts = device_alloc(eval->device, r->counted * sizeof *counts);
    copy_to_device(stream, counts, r->counts, r->counted * sizeof *counts);
    comm_all_reduce(eval->comm, stream, counts, r->counted, COMM_I64);
    copy_to_host(stream, r->counts, counts, r->counted * sizeof *counts);
    stream_sync(stream);
    device_free(eval->device, counts);
}

// Collects all ranks' verdicts, in the order of the test set: label s is at index s % labels of
// batch s / labels.
static void gather(Eval *eval)
{
    int labels = labels_of(eval), size = comm_size(eval->comm), most = share_of(eval, 0);
    size_t each = (size_t)most * (size_t)labels, count = (size_t)size * each;
    Verdict *gathered = device_alloc(eval->device, count * sizeof *gathered);
    comm_all_gather(eval->comm, device_stream(eval->device), eval->verdicts, gathered,
                    each * sizeof *gathered, COMM_U8);
    Verdict *all = on_host(eval, gathered, count);
    for (int s = 0; s < eval->test->count * eval->model->per_row; s++) {
        int batch = s / labels;
        eval->result.verdicts[s] =
            all[((batch % size) * most + batch / size) * labels + s % labels];
    }
    free(all);
    device_free(eval->device, gathered);
}

Stats eval_end(Eval *eval, Stats *mine)
{
    size_t labels = (size_t)share_of(eval, comm_rank(eval->comm)) * (size_t)labels_of(eval);
    Verdict *verdicts = on_host(eval, eval->verdicts, labels);
    result_count(&eval->result, verdicts, labels);
    free(verdicts);
    *mine = result_stats(&eval->result);
    comm_barrier(eval->comm);
    sum_counts(eval);
    if (eval->result.verdicts)
        gather(eval);
    return result_stats(&eval->result);
}

Stats eval_sum(Eval *eval, Stats mine)
{
    Stream *stream = device_stream(eval->device);
    copy_to_device(stream, eval->stats, &mine, sizeof mine);
    comm_all_reduce(eval->comm, stream, &eval->stats->loss_sum, STATS_SUMS, COMM_F64);
    comm_all_reduce(eval->comm, stream, &eval->stats->count, STATS_COUNTS, COMM_I64);
    copy_to_host(stream, &mine, eval->stats, sizeof mine);
    stream_sync(stream);
    return mine;
}

// --- the wrong way: adding percentages -----------------------------------------------------------

// What many programs print: they repeat samples so that all shares are equally large, then average
// over each batch, over each rank's batches and over the ranks.
static void naive(const Eval *eval, int share, double means[3])
{
    int count = eval->test->count, size = comm_size(eval->comm), rows = rows_of(eval);
    int labels = eval->model->per_row, batches = (share + rows - 1) / rows;
    for (int rank = 0; rank < size; rank++)
        for (int i = 0; i < share * labels; i++) {
            int sample = (int)(((int64_t)(i / labels) * size + rank) % count);
            const Verdict *v = &eval->result.verdicts[sample * labels + i % labels];
            int in_batch = i / labels / rows < batches - 1 ? rows : share - (batches - 1) * rows;
            double weight = 1.0 / in_batch / batches / size / labels;
            means[0] += weight * v->loss;
            means[1] += weight * 100 * (v->before < 1);
            means[2] += weight * 100 * (v->before < 5);
        }
}

static void print_naive(const Eval *eval, Log *log)
{
    double m[3] = { 0 };
    int size = comm_size(eval->comm), share = (eval->test->count + size - 1) / size;
    int padded = share * size * eval->model->per_row;
    naive(eval, share, m);
    log_say(log, "   == naive: loss: %.3f | top1: %6.3f%% | top5: %6.3f%% | %d %s, mean of means",
            m[0], m[1], m[2], padded, eval->result.data->unit);
    log_event(log, "naive",
              json_pack("{s:o, s:o, s:o, s:i}", "test_loss", log_number(m[0]), "top1",
                        log_number(m[1]), "top5", log_number(m[2]), "n", padded));
}

void eval_print(Eval *eval, Log *log)
{
    if (comm_rank(eval->comm) > 0)
        return;
    if (eval->config.show_naive)
        print_naive(eval, log);
    result_print(&eval->result, &eval->config.result, log);
}

// --- new and free --------------------------------------------------------------------------------

Eval *eval_new(const EvalConfig *config, Comm *comm, Model *model, const Data *data)
{
    Eval *eval = xcalloc(1, sizeof *eval);
    *eval = (Eval){ .config = *config, .test = &data->test, .model = model,
                    .device = model->device, .comm = comm };
    const char *path = comm_rank(comm) == 0 ? config->result.predictions : NULL;
    Error err;
    if (path && !replace_can(path, &err))       // fails now, not after training
        FAIL_ERROR(&err);
    result_init(&eval->result, data, config->show_naive || config->result.predictions);
    size_t most = (size_t)share_of(eval, 0) * (size_t)labels_of(eval);
    eval->verdicts = device_alloc(eval->device, most * sizeof *eval->verdicts);
    eval->stats = device_alloc(eval->device, sizeof *eval->stats);
    return eval;
}

void eval_free(Eval *eval)
{
    device_free(eval->device, eval->stats);
    device_free(eval->device, eval->verdicts);
    result_free(&eval->result);
    free(eval);
}
