// step.c - the loss, the optimizer, and what happens to gradients between backward and the
// optimizer.
#include "ops/loops.h"

#include <float.h>

// --- learning rate, loss scale, skip flag --------------------------------------------------------

typedef struct ScalarsJob {
    Scalars *scalars;
    StepSettings settings;
    int interval;
} ScalarsJob;

INLINE void set_scalars(const ScalarsJob *j, size_t i)
{
    Scalars *s = j->scalars;
    double updates = (double)(j->settings.step - s->scale.skipped);
    s->set = j->settings;
    s->rows_done = s->skip = 0;
    s->norm = 0;
    for (int k = 0; k < 2; k++)
        s->bias_corrections[k] = 1 - pow(j->settings.betas[k], updates);
}
ITEMS(set_scalars, ScalarsJob)

INLINE void adapt_scale(const ScalarsJob *j, size_t i)
{
    LossScale *scale = &j->scalars->scale;
    if (j->scalars->skip) {
        scale->value = fmaxf(scale->value / 2, LOSS_SCALE_LEAST);
        scale->clean = 0;
        scale->skipped++;
    } else if (++scale->clean >= j->interval) {
        scale->value *= isfinite(2 * scale->value) ? 2 : 1;
        scale->clean = 0;
    }
}
ITEMS(adapt_scale, ScalarsJob)

void scalars_set(Ops *ops, Scalars *scalars, StepSettings settings)
{
    ScalarsJob job = { .scalars = scalars, .settings = settings };
    RUN_ITEMS(set_scalars, compute(ops), 1, &job);
}

void loss_scale_adapt(Ops *ops, Scalars *scalars, int interval)
{
    ScalarsJob job = { .scalars = scalars, .interval = interval };
    RUN_ITEMS(adapt_scale, compute(ops), 1, &job);
}

// --- loss ----------------------------------------------------------------------------------------

typedef struct LossJob {
    int classes;
    const float *logits;
    const int32_t *labels;
    Scalars *scalars;
    Stats *stats;
    float *dlogits;
    Verdict *verdicts;
} LossJob;

// For a row of logits: the parts of its softmax, its loss, and its label's place among the classes.
typedef struct RowSums {
    float most;             // the largest logit z
    double sum;             // the sum of exp(z - most)
    double loss;
    int before;             // classes ranked above the label; INT32_MAX: the loss is not finite
} RowSums;

// loss = log(sum(exp(z))) - z[label]. A row counts as correct in the top k if fewer than k
// classes rank above its label; of equal logits the one with the lower index ranks higher. A label
// that is not a class gives a loss of NaN.
INLINE RowSums row_sums(const float *z, int classes, int label)
{
    float top[TEAM], mine = label < classes ? z[label] : NAN;
    double sum[TEAM] = { 0 };
    int before[TEAM] = { 0 };
    for (int k = 0; k < TEAM; k++)
        top[k] = -INFINITY;
    FOR_ROW(i, k, classes)
        top[k] = z[i] > top[k] ? z[i] : top[k];
    float most = team_max(top);
    FOR_ROW(i, k, classes) {
        sum[k] += exp((double)z[i] - most);
        before[k] += i != label && !(z[i] < mine || (z[i] == mine && i > label));
    }
    RowSums r = { .most = most, .sum = team_sum(sum), .before = team_sum(before) };
    r.loss = log(r.sum) + most - mine;
    r.before = isfinite(r.loss) ? r.before : INT32_MAX;
    return r;
}

// Is the loss a mean over all rows of a batch, and not only over this call's rows?
INLINE bool is_part(const LossJob *j) { return j->dlogits && j->scalars->set.rows_of_batch > 0; }

INLINE void count_row(const LossJob *j, size_t row, double *one) { one[0] = j->labels[row] >= 0; }

INLINE void count_end(const LossJob *j, const double *totals)
{
    if (!is_part(j) || j->scalars->rows_done == 0)
        j->stats->batch_loss_sum = j->stats->batch_count = j->stats->batch_correct1 = 0;
    j->scalars->over = is_part(j) ? j->scalars->set.rows_of_batch : totals[0];
    j->stats->batch_count += (int64_t)totals[0];
    j->stats->count += (int64_t)totals[0];
    j->scalars->rows_done += is_part(j) ? (int)totals[0] : 0;
}
TOTALS(count_row, count_end, LossJob, 1)

enum { LOSS, CORRECT1, CORRECT5, NOT_FINITE, LOSS_TOTALS };

// The gradient is (softmax(z) - target) * loss scale / rows in the mean. For a row without a label
// it is 0.
INLINE void loss_row(const LossJob *j, size_t row, double *one)
{
    const float *z = j->logits + row * j->classes;
    float *dz = j->dlogits ? j->dlogits + row * j->classes : NULL;
    int label = j->labels[row];
    double scale = j->scalars->scale.value / j->scalars->over;
    RowSums r = { .before = INT32_MAX };
    if (label >= 0)
        r = row_sums(z, j->classes, label);
    one[LOSS] = r.loss;
    one[CORRECT1] = r.before < 1;
    one[CORRECT5] = r.before < 5;
    one[NOT_FINITE] = !isfinite(r.loss);
    if (dz)
        FOR_ROW(i, k, j->classes) {
            double softmax = label < 0 ? 0 : exp((double)z[i] - r.most) / r.sum;
            dz[i] = label < 0 ? 0 : scale * (softmax - (i == label));
        }
}

INLINE void loss_end(const LossJob *j, const double *totals)
{
    Stats *s = j->stats;
    s->batch_loss_sum += totals[LOSS];
    s->batch_correct1 += (int64_t)totals[CORRECT1];
    s->loss_sum += isfinite(totals[LOSS]) ? totals[LOSS] : 0;
    s->correct1 += (int64_t)totals[CORRECT1];
    s->correct5 += (int64_t)totals[CORRECT5];
    s->not_finite += (int64_t)totals[NOT_FINITE];
}
ROW_TOTALS(loss_row, loss_end, LossJob, LOSS_TOTALS)

void loss_cross_entropy(Ops *ops, int rows, int classes, const float *logits, const int32_t *labels,
                        Scalars *scalars, Stats *stats, float *dlogits)
{
    LossJob job = { .classes = classes, .logits = logits, .labels = labels, .scalars = scalars,
                    .stats = stats, .dlogits = dlogits };
    trace_begin("loss");
    RUN_TOTALS(count_row, compute(ops), rows, &job);
    RUN_ROW_TOTALS(loss_row, compute(ops), matrix_of(TYPE_F32, rows, classes), &job);
    trace_end();
}

INLINE void judge_row(const LossJob *j, Type type, size_t row)
{
    const float *z = j->logits + row * j->classes;
    Verdict verdict = { .label = j->labels[row] };
    if (verdict.label >= 0) {
        RowSums r = row_sums(z, j->classes, verdict.label);
        for (int i = 1; i < j->classes; i++)
            if (!isnan(z[verdict.prediction]) && !(z[i] <= z[verdict.prediction]))
                verdict.prediction = i;
        verdict.before = r.before;
        verdict.loss = (float)r.loss;
    }
    if (FIRST_OF_TEAM)
        j->verdicts[row] = verdict;
}
ROWS_F32(judge_row, LossJob)

void judge_rows(Ops *ops, int rows, int classes, const float *logits, const int32_t *labels,
                Verdict *verdicts)
{
    LossJob job = { .classes = classes, .logits = logits, .labels = labels,
                    .verdicts = verdicts };
    RUN_ROWS(judge_row, compute(ops), matrix_of(TYPE_F32, rows, classes), &job);
}

// --- optimizer -----------------------------------------------------------------------------------

typedef struct UpdateJob {
    size_t grad_count;
    float *params, *first, *second;     // SGD: velocity; AdamW: mean and square
    const float *grads;
    const uint8_t *decays;              // a byte for PARAM_ALIGN parameters, hence for a whole pack
    const Scalars *scalars;
} UpdateJob;

INLINE float clip_factor(const Scalars *scalars)
{
    float limit = scalars->set.clip_norm;
    return limit > 0 ? (float)fmin(1.0, limit / (scalars->norm + 1e-6)) : 1;
}

// The gradient of parameters from grad_count on is 0, and is not stored.
INLINE void load_gradients(const UpdateJob *j, At at, Pack *g)
{
    if (at.i + at.count > j->grad_count)
        at.count = at.i < j->grad_count ? (int)(j->grad_count - at.i) : 0;
    load_at(TYPE_F32, j->grads, at, g);
}

INLINE void sgd(const UpdateJob *j, Type type, At at)
{
    const StepSettings s = j->scalars->set;
    const float shrink = clip_factor(j->scalars);
    if (j->scalars->skip)
        return;
    Pack p, v, g;
    load_at(TYPE_F32, j->params, at, &p);
    load_at(TYPE_F32, j->first, at, &v);
    load_gradients(j, at, &g);
    FOR_LANES(k) {
        float d = s.weight_decay * p.v[k] + shrink * g.v[k];
        v.v[k] = s.momentum * v.v[k] + d;
        p.v[k] -= s.lr * (s.nesterov ? d + s.momentum * v.v[k] : v.v[k]);
    }
    store_at(TYPE_F32, j->first, at, &v);
    store_at(TYPE_F32, j->params, at, &p);
}
CELLS_F32(sgd, UpdateJob)

INLINE void adamw(const UpdateJob *j, Type type, At at)
{
    const StepSettings s = j->scalars->set;
    const float take1 = 1 - s.betas[0], keep2 = s.betas[1], take2 = 1 - s.betas[1];
    const double *corrections = j->scalars->bias_corrections;
    const float rate = s.lr / corrections[0], root = sqrt(corrections[1]);
    const float shrink = clip_factor(j->scalars);
    const float keep = j->decays[at.i / PARAM_ALIGN] ? 1 - (double)s.lr * s.weight_decay : 1;
    if (j->scalars->skip)
        return;
    Pack p, g, m, v;
    load_at(TYPE_F32, j->params, at, &p);
    load_gradients(j, at, &g);
    load_at(TYPE_F32, j->first, at, &m);
    load_at(TYPE_F32, j->second, at, &v);
    FOR_LANES(k) {
        float d = shrink * g.v[k];
        m.v[k] += take1 * (d - m.v[k]);
        v.v[k] = keep2 * v.v[k] + take2 * d * d;
        p.v[k] = keep * p.v[k] - rate * m.v[k] / (sqrtf(v.v[k]) / root + 1e-8f);
    }
    store_at(TYPE_F32, j->first, at, &m);
    store_at(TYPE_F32, j->second, at, &v);
    store_at(TYPE_F32, j->params, at, &p);
}
CELLS_F32(adamw, UpdateJob)

void sgd_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                float *velocity, const Scalars *scalars)
{
    UpdateJob job = { .grad_count = grad_count, .params = params, .first = velocity,
                      .grads = grads, .scalars = scalars };
    RUN_CELLS(sgd, compute(ops), array_of(TYPE_F32, count), &job);
}

void adamw_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                  float *mean, float *square, const uint8_t *decays, const Scalars *scalars)
{
    UpdateJob job = { .grad_count = grad_count, .params = params, .first = mean, .second = square,
                      .grads = grads, .decays = decays, .scalars = scalars };
    RUN_CELLS(adamw, compute(ops), array_of(TYPE_F32, count), &job);
}

// --- gradients -----------------------------------------------------------------------------------

typedef struct GradientsJob {
    const float *grads;
    Scalars *scalars;
    Stats *stats;
} GradientsJob;

INLINE void check_one(const GradientsJob *j, size_t i, double *one)
{
    one[0] = !(fabsf(j->grads[i]) <= FLT_MAX);      // infinite, or NaN
}

INLINE void check_end(const GradientsJob *j, const double *totals)
{
    if (totals[0] > 0) {
        j->scalars->skip = 1;
        j->stats->bad_gradients++;
    }
}
TOTALS(check_one, check_end, GradientsJob, 1)

// The square of an f32 is exact in f64.
INLINE void square_one(const GradientsJob *j, size_t i, double *one)
{
    one[0] = (double)j->grads[i] * j->grads[i];
}

INLINE void norm_end(const GradientsJob *j, const double *totals)
{
    j->scalars->norm = sqrt(totals[0]);
}
TOTALS(square_one, norm_end, GradientsJob, 1)

void gradients_check(Ops *ops, size_t count, const float *grads, Scalars *scalars, Stats *stats)
{
    GradientsJob job = { .grads = grads, .scalars = scalars, .stats = stats };
    RUN_TOTALS(check_one, compute(ops), count, &job);
}

void gradients_norm(Ops *ops, size_t count, const float *grads, Scalars *scalars)
{
    GradientsJob job = { .grads = grads, .scalars = scalars };
    RUN_TOTALS(square_one, compute(ops), count, &job);
}

// --- arrays --------------------------------------------------------------------------------------

typedef struct ArrayJob {
    const void *from;
    void *to;
    float factor;
    const Scalars *scalars;     // if not NULL, also divide by the loss scale in it
} ArrayJob;

INLINE void narrow(const ArrayJob *j, Type type, At at)
{
    const float factor = j->scalars ? j->factor / j->scalars->scale.value : j->factor;
    Pack values;
    load_at(TYPE_F32, j->from, at, &values);
    FOR_LANES(k)
        values.v[k] *= factor;
    store_at(type, j->to, at, &values);
}
CELLS(narrow, ArrayJob)

INLINE void widen(const ArrayJob *j, Type type, At at)
{
    Pack values;
    load_at(type, j->from, at, &values);
    store_at(TYPE_F32, j->to, at, &values);
}
CELLS(widen, ArrayJob)

INLINE void add_more(const ArrayJob *j, Type type, At at)
{
    Pack sum;
    load_at(TYPE_F32, j->to, at, &sum);
    add_at(TYPE_F32, j->from, at, &sum);
    store_at(TYPE_F32, j->to, at, &sum);
}
CELLS_F32(add_more, ArrayJob)

void values_narrow(Stream *stream, Type type, size_t count, const float *values, float factor,
                   void *out)
{
    ArrayJob job = { .from = values, .to = out, .factor = factor };
    RUN_CELLS(narrow, stream, array_of(type, count), &job);
}

void values_widen(Stream *stream, Type type, size_t count, const void *narrow, float *values)
{
    ArrayJob job = { .from = narrow, .to = values };
    RUN_CELLS(widen, stream, array_of(type, count), &job);
}

void values_scale(Stream *stream, float *values, size_t count, float factor)
{
    values_narrow(stream, TYPE_F32, count, values, factor, values);
}

void gradients_unscale(Ops *ops, size_t count, float *grads, const Scalars *scalars)
{
    ArrayJob job = { .from = grads, .to = grads, .factor = 1, .scalars = scalars };
    RUN_CELLS(narrow, compute(ops), array_of(TYPE_F32, count), &job);
}

void add_into(Ops *ops, size_t count, float *values, const float *more)
{
    ArrayJob job = { .from = more, .to = values };
    RUN_CELLS(add_more, compute(ops), array_of(TYPE_F32, count), &job);
}
