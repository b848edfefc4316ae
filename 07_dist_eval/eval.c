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
// share, more weight than the others (see naive() below). Counts are integers, so the order of
// addition does not matter. For losses it would. So each loss is rounded to a multiple of 2^-32,
// and the whole and the fractional parts are added up as two integers (result_count).
//
// With any number of ranks an image has the same neighbours in its batch. So the same weights and
// thread counts (or GPUs with --deterministic) give the same printed result.
#include "eval.h"
#include "check.h"

#include <stdlib.h>
#include <string.h>

struct Eval {
    EvalConfig config;
    const Dataset *test;
    Model *model;
    Comm *comm;                 // separate, so that its calls do not wait for gradients
    Stream *stream;             // on which sums are sent
    Verdict *verdicts;          // of this rank's batches, one after the other; device
    Verdict *gathered;          // rank 0, device: all ranks' verdicts, in rank order; or NULL
    Result result;              // this rank's counts; after the sum, those of all ranks
    double *numbers, *sums;     // that the ranks add up: in host and in device memory
    Log *log;
    LogStep line;               // to be printed when its sums are there; step 0: no line
};

void eval_options(Args *args, EvalConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "show-naive", 0, ARG_FLAG, &config->show_naive, NULL,
          "also print the mean of means that many scripts print" }));
    result_options(args, &config->result);
}

// ==== Sums over ranks ============================================================================

enum { STATS = 8 };     // numbers in Stats, without bad_gradients, which is equal on all ranks

// A double holds integers up to 2^53 exactly, so one all-reduce can add up counts and losses.
static void stats_to_numbers(const Stats *s, double *n)
{
    const double all[STATS] = { s->loss_sum, (double)s->count, (double)s->correct1,
                                (double)s->correct5, s->batch_loss_sum, (double)s->batch_count,
                                (double)s->batch_correct1, (double)s->not_finite };
    memcpy(n, all, sizeof all);
}

static Stats stats_from_numbers(const double *n)
{
    return (Stats){ .loss_sum = n[0], .count = (int64_t)n[1], .correct1 = (int64_t)n[2],
                    .correct5 = (int64_t)n[3], .batch_loss_sum = n[4],
                    .batch_count = (int64_t)n[5], .batch_correct1 = (int64_t)n[6],
                    .not_finite = (int64_t)n[7] };
}

// Starts the sum of Stats and of the `more` numbers after them, on eval's own stream.
static void sum_begin(Eval *eval, const Stats *mine, size_t more)
{
    stats_to_numbers(mine, eval->numbers);
    copy_to_device(eval->stream, eval->sums, eval->numbers, (STATS + more) * sizeof(double));
    comm_all_reduce(eval->comm, eval->stream, eval->sums, STATS + more, COMM_F64);
    copy_to_host(eval->stream, eval->numbers, eval->sums, (STATS + more) * sizeof(double));
}

static Stats sum_end(Eval *eval)
{
    stream_sync(eval->stream);
    return stats_from_numbers(eval->numbers);
}

Stats eval_sum(Eval *eval, const Stats *mine)
{
    eval_catch_up(eval);
    sum_begin(eval, mine, 0);
    return sum_end(eval);
}

void eval_log_step(Eval *eval, const LogStep *line)
{
    eval->line = *line;
    eval->line.all_ranks = true;
    sum_begin(eval, &line->stats, 0);
    if (line->final || line->step == line->steps)
        eval_catch_up(eval);
}

void eval_catch_up(Eval *eval)
{
    if (eval->line.step == 0)
        return;
    eval->line.stats = sum_end(eval);
    log_step(eval->log, &eval->line);
    eval->line.step = 0;
}

// ==== Shares of the test set =====================================================================

static int rows_of(const Eval *eval) { return eval->model->input.n; }
// The number of labels, and of verdicts, in a full batch.
static int labels_of(const Eval *eval) { return rows_of(eval) * eval->model->per_row; }
static int batch_count(const Eval *eval)
{
    int count = eval->test->count, rows = rows_of(eval);
    return count / rows + (count % rows > 0);
}

// The number of a rank's batches. The rank's i-th is batch i * size + rank of the test set.
static int share_of(const Eval *eval, int rank)
{
    int batches = batch_count(eval), size = comm_size(eval->comm);
    return batches / size + (rank < batches % size);
}

static void start_share(Eval *eval, Loader *loader)
{
    int rank = comm_rank(eval->comm), size = comm_size(eval->comm), rows = rows_of(eval), count = 0;
    int share = share_of(eval, rank);
    int32_t *ids = xmalloc(((size_t)share * (size_t)rows + 1) * sizeof *ids);
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
    Model *model = eval->model;
    comm_broadcast(eval->comm, device_stream(model->device), model->buffers, model->buffer_count,
                   COMM_F32, 0);
    stream_sync(device_stream(model->device));  // the watchdog then sees a wait, not a slow step
    start_share(eval, loader);
}

void eval_batch(Eval *eval, const Batch *batch)
{
    judge_rows(eval->model->ops, batch->targets, eval->test->classes, eval->model->logits,
               batch->labels, eval->verdicts + (size_t)batch->index * (size_t)labels_of(eval));
}

// ==== The result =================================================================================

static Verdict *on_host(Eval *eval, const Verdict *verdicts, size_t count)
{
    Stream *stream = device_stream(eval->model->device);
    Verdict *copy = xmalloc((count + 1) * sizeof *copy);
    copy_to_host(stream, copy, verdicts, count * sizeof *copy);
    stream_sync(stream);
    return copy;
}

static void count_mine(Eval *eval)
{
    size_t labels = (size_t)share_of(eval, comm_rank(eval->comm)) * (size_t)labels_of(eval);
    Verdict *verdicts = on_host(eval, eval->verdicts, labels);
    result_clear(&eval->result);
    for (size_t i = 0; i < labels; i++)
        result_count(&eval->result, &verdicts[i]);
    free(verdicts);
}

// Collects all verdicts on rank 0, in the order of the test set: label s is number s % labels of
// batch s / labels.
static void gather(Eval *eval)
{
    int labels = labels_of(eval), size = comm_size(eval->comm), most = share_of(eval, 0);
    size_t each = (size_t)most * (size_t)labels;
    comm_gather(eval->comm, device_stream(eval->model->device), eval->verdicts, eval->gathered,
                each * sizeof(Verdict), COMM_U8, 0);
    if (comm_rank(eval->comm) > 0)
        return;
    Verdict *all = on_host(eval, eval->gathered, (size_t)size * each);
    for (int s = 0; s < eval->test->count * eval->model->per_row; s++) {
        int batch = s / labels;
        Verdict v = all[((batch % size) * most + batch / size) * labels + s % labels];
        CHECK(v.label < 0 || v.label == dataset_label(eval->test, s), "this is a bug in eval.c",
              "test label %d has the verdict of another label", s);
        eval->result.verdicts[s] = v;   // label -1: a picture that was skipped
    }
    free(all);
}

Stats eval_end(Eval *eval, Stats *mine)
{
    Result *r = &eval->result;
    count_mine(eval);
    *mine = r->stats;
    comm_barrier(eval->comm);
    for (size_t i = 0; i < r->counted; i++)
        eval->numbers[STATS + i] = (double)r->counts[i];
    sum_begin(eval, mine, r->counted);
    r->stats = sum_end(eval);
    for (size_t i = 0; i < r->counted; i++)
        r->counts[i] = (int64_t)eval->numbers[STATS + i];
    result_sum(r);
    if (r->verdicts)
        gather(eval);
    return r->stats;
}

// ==== The wrong way: adding percentages ==========================================================

typedef struct Means {
    double loss, top1, top5;
} Means;

// What many programs print: they repeat samples until all ranks have the same number, then average
// over each batch, over each rank's batches and over the ranks.
static Means naive(const Eval *eval)
{
    Means all = { 0 };
    int count = eval->test->count, size = comm_size(eval->comm), rows = rows_of(eval);
    int share = count / size + (count % size > 0), batches = share / rows + (share % rows > 0);
    int labels = eval->model->per_row;
    for (int rank = 0; rank < size; rank++)
        for (int i = 0; i < share * labels; i++) {
            int sample = (int)(((int64_t)(i / labels) * size + rank) % count);
            const Verdict *v = &eval->result.verdicts[sample * labels + i % labels];
            int in_batch = i / labels / rows < batches - 1 ? rows : share - (batches - 1) * rows;
            double weight = v->label < 0 ? 0 : 1.0 / in_batch / batches / size / labels;
            all.loss += weight * v->loss;
            all.top1 += weight * 100 * (v->before < 1);
            all.top5 += weight * 100 * (v->before < 5);
        }
    return all;
}

static void print_naive(const Eval *eval)
{
    Means n = naive(eval);
    int count = eval->test->count, size = comm_size(eval->comm);
    int padded = (count / size + (count % size > 0)) * size * eval->model->per_row;
    log_say(eval->log, "   == naive: loss: %.3f | top1: %6.3f%% | top5: %6.3f%% | %d %s, mean of "
            "means", n.loss, n.top1, n.top5, padded, eval->result.data->unit);
    log_event(eval->log, "naive",
              json_pack("{s:o, s:o, s:o, s:i}", "test_loss", log_number(n.loss), "top1",
                        log_number(n.top1), "top5", log_number(n.top5), "n", padded));
}

void eval_print(Eval *eval)
{
    if (comm_rank(eval->comm) > 0)
        return;
    if (eval->config.show_naive)
        print_naive(eval);
    result_print(&eval->result, &eval->config.result, eval->log);
}

// ==== New and free ===============================================================================

void eval_probe(const EvalConfig *config, const World *world)
{
    Error error;
    if (world->rank == 0 && !result_claim(&config->result, &error))
        FAIL_ERROR(&error);
}

Eval *eval_new(const EvalConfig *config, const DdpConfig *ddp, const World *world, Model *model,
               const Data *data, Log *log)
{
    Device *device = model->device;
    Eval *eval = xcalloc(1, sizeof *eval);
    *eval = (Eval){ .config = *config, .test = &data->test, .model = model, .log = log };
    bool each = config->show_naive || config->result.predictions;
    result_init(&eval->result, data, each);
    eval->comm = comm_new(world, device, "metrics", &ddp->comm);
    eval->stream = stream_new_beside(device, "metrics");
    size_t bytes = (size_t)share_of(eval, 0) * (size_t)labels_of(eval) * sizeof(Verdict);
    size_t numbers = (STATS + eval->result.counted) * sizeof(double);
    eval->verdicts = device_alloc(device, bytes);
    if (each && world->rank == 0)
        eval->gathered = device_alloc(device, (size_t)world->size * bytes);
    eval->numbers = host_alloc(numbers);
    eval->sums = device_alloc(device, numbers);
    return eval;
}

void eval_free(Eval *eval)
{
    Device *device = eval->model->device;
    if (comm_rank(eval->comm) == 0)
        result_end(&eval->result, &eval->config.result, eval->log);
    comm_free(eval->comm);
    stream_free(eval->stream);
    device_free(device, eval->sums);
    host_free(eval->numbers);
    device_free(device, eval->gathered);
    device_free(device, eval->verdicts);
    result_free(&eval->result);
    free(eval);
}
