// kernels_step.cu - loss, optimizer, and all work on gradients between them, in f32.
#include "cuda/kernels.cuh"

namespace {

// --- learning rate, loss scale, skip flag --------------------------------------------------------

__global__ void scalars_set_kernel(Scalars *scalars, StepSettings settings)
{
    if (threadIdx.x > 0)
        return;
    double updates = (double)(settings.step - scalars->scale.skipped);
    scalars->set = settings;
    scalars->done = scalars->skip = 0;
    scalars->norm = 0;
    for (int i = 0; i < 2; i++)
        scalars->parts[i] = 1 - pow(settings.betas[i], updates);
}

__global__ void loss_scale_adapt_kernel(Scalars *scalars, int interval)
{
    LossScale *scale = &scalars->scale;
    if (threadIdx.x > 0)
        return;
    if (scalars->skip) {
        scale->value = fmaxf(scale->value / 2, LOSS_SCALE_LEAST);
        scale->clean = 0;
        scale->skipped++;
    } else if (++scale->clean >= interval) {
        scale->value *= isfinite(2 * scale->value) ? 2 : 1;
        scale->clean = 0;
    }
}

// --- loss ----------------------------------------------------------------------------------------

struct RowLoss {
    double loss;
    int before;     // classes that rank before the label; INT32_MAX: the loss is not finite
};

// What a row, a block and finally the batch add to the statistics.
struct LossPart {
    double loss;
    int correct1, correct5, not_finite;

    __device__ void add(const LossPart &o)
    {
        loss += o.loss;
        correct1 += o.correct1;
        correct5 += o.correct5;
        not_finite += o.not_finite;
    }
    __device__ void add(const RowLoss &row)
    {
        add(LossPart{ row.loss, row.before < 1, row.before < 5, !isfinite(row.loss) });
    }
};

__device__ float warp_max(float value)
{
    return warp_merge(value, [](float a, float b) { return a > b ? a : b; });
}

// One warp, one row: loss = log(sum(exp(z))) - sum(target * z), and dz = scale * (softmax(z) -
// target). The target is onehot(label), with the part `smooth` of it spread over all classes. A row
// is in the top k if fewer than k classes rank before its label; of equal ones, the lower index
// ranks first. The loss of a label that is not a class is NaN.
__device__ RowLoss row_loss(const float *z, int classes, int label, double smooth, double scale,
                            float *dz)
{
    int lane = threadIdx.x % WARP, before = 0;
    float top = -INFINITY, mine = label < classes ? z[label] : NAN;
    double sum = 0, own = 1 - smooth, share = smooth / classes, target = 0;
    for (int j = lane; j < classes; j += WARP)
        top = z[j] > top ? z[j] : top;
    top = warp_max(top);
    for (int j = lane; j < classes; j += WARP) {
        sum += exp((double)z[j] - top);
        before += j != label && !(z[j] < mine || (z[j] == mine && j > label));
        target += share > 0 ? share * z[j] : 0;     // z may be infinite
    }
    sum = warp_sum(sum);
    target = warp_sum(target) + own * mine;
    before = warp_sum(before);
    for (int j = lane; dz && j < classes; j += WARP)
        dz[j] = scale * (exp((double)z[j] - top) / sum - own * (j == label) - share);
    double loss = log(sum) + top - target;
    return RowLoss{ loss, isfinite(loss) ? before : INT32_MAX };
}

// Adds the results of `count` rows to the statistics, and to the window, if there is one.
__device__ void count_rows(const LossPart &all, int count, bool part, Scalars *scalars,
                           Stats *stats)
{
    bool goes_on = part && scalars->done > 0;
    stats->batch_loss_sum = (goes_on ? stats->batch_loss_sum : 0) + all.loss;
    stats->batch_count = (goes_on ? stats->batch_count : 0) + count;
    stats->batch_correct1 = (goes_on ? stats->batch_correct1 : 0) + all.correct1;
    stats->loss_sum += isfinite(all.loss) ? all.loss : 0;
    stats->count += count;
    stats->correct1 += all.correct1;
    stats->correct5 += all.correct5;
    stats->not_finite += all.not_finite;
    if (part)
        scalars->done += count;
}

__global__ void __launch_bounds__(THREADS)
cross_entropy_kernel(Partials partials, int rows, int classes, const float *__restrict__ logits,
                     const int32_t *__restrict__ labels, Scalars *scalars, Stats *stats,
                     float *dlogits)
{
    constexpr int WARPS = THREADS / WARP;
    __shared__ LossPart parts[WARPS];
    LossPart *results = static_cast<LossPart *>(partials.results);
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, count = 0;
    for (int i = 0; i < rows; i += THREADS)
        count += __syncthreads_count(i + (int)threadIdx.x < rows && labels[i + threadIdx.x] >= 0);
    bool part = dlogits && scalars->set.window > 0;
    int over = part ? scalars->set.window : count;
    double scale = over ? (double)scalars->scale.value / over : 0;

    LossPart own = {};
    for (int row = blockIdx.x * WARPS + warp; row < rows; row += gridDim.x * WARPS) {
        const float *z = logits + (size_t)row * classes;
        float *dz = dlogits ? dlogits + (size_t)row * classes : NULL;
        if (labels[row] >= 0)
            own.add(row_loss(z, classes, labels[row], dz ? scalars->set.smoothing : 0, scale, dz));
        else
            for (int j = lane; dz && j < classes; j += WARP)
                dz[j] = 0;
    }
    if (lane == 0)
        parts[warp] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < WARPS; i++)
            own.add(parts[i]);
        results[blockIdx.x] = own;
    }
    if (!last_block(&partials.tickets[0], gridDim.x) || warp > 0)
        return;

    LossPart all = {};
    for (unsigned b = lane; b < gridDim.x; b += WARP)
        all.add(results[b]);
    all.loss = warp_sum(all.loss);
    all.correct1 = warp_sum(all.correct1);
    all.correct5 = warp_sum(all.correct5);
    all.not_finite = warp_sum(all.not_finite);
    if (lane == 0)
        count_rows(all, count, part, scalars, stats);
}

// One warp, one row.
__device__ Verdict judge(const float *z, int classes, int label)
{
    auto better = [z](int a, int b) {
        if (z[a] == z[b] || (isnan(z[a]) && isnan(z[b])))
            return a < b ? a : b;
        return isnan(z[a]) || z[a] > z[b] ? a : b;
    };
    int lane = threadIdx.x % WARP, best = lane < classes ? lane : 0;
    for (int j = lane + WARP; j < classes; j += WARP)
        best = better(best, j);
    best = warp_merge(best, better);
    RowLoss row = row_loss(z, classes, label, 0, 0, NULL);
    return Verdict{ label, best, row.before, (float)row.loss };
}

__global__ void __launch_bounds__(THREADS)
judge_rows_kernel(int rows, int classes, const float *__restrict__ logits,
                  const int32_t *__restrict__ labels, Verdict *verdicts)
{
    constexpr int WARPS = THREADS / WARP;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (int row = blockIdx.x * WARPS + warp; row < rows; row += gridDim.x * WARPS) {
        Verdict verdict = {};
        verdict.label = labels[row];
        if (verdict.label >= 0)
            verdict = judge(logits + (size_t)row * classes, classes, verdict.label);
        if (lane == 0)
            verdicts[row] = verdict;
    }
}

// --- optimizer -----------------------------------------------------------------------------------

__device__ float clip_factor(const Scalars *scalars)
{
    float limit = scalars->set.clip_norm;
    return limit > 0 ? (float)fmin(1.0, limit / (scalars->norm + 1e-6)) : 1;
}

// N gradients; they are 0 from grad_count on.
template <int N> __device__ Pack<float, N> gradients_at(const float *grads, size_t grad_count,
                                                        size_t at)
{
    Pack<float, N> g = {};
    if (at + N <= grad_count)
        return load<N>(grads + at);
    for (int k = 0; at + k < grad_count; k++)
        g.v[k] = grads[at + k];
    return g;
}

template <int V> __global__ void __launch_bounds__(THREADS)
sgd_kernel(size_t count, size_t grad_count, float *__restrict__ params,
           const float *__restrict__ grads, float *__restrict__ velocity,
           const Scalars *__restrict__ scalars)
{
    const StepSettings s = scalars->set;
    if (scalars->skip)
        return;
    float shrink = clip_factor(scalars);
    for_each_pack<V>(count, [&](auto width, size_t at) {
        constexpr int N = decltype(width)::value;
        Pack<float, N> p = load<N>(params + at), v = load<N>(velocity + at);
        Pack<float, N> g = gradients_at<N>(grads, grad_count, at);
        for (int k = 0; k < N; k++) {
            float gradient = shrink * g.v[k] + s.weight_decay * p.v[k];
            v.v[k] = s.momentum * v.v[k] + gradient;
            p.v[k] -= s.lr * (s.nesterov ? gradient + s.momentum * v.v[k] : v.v[k]);
        }
        store<N>(velocity + at, v);
        store<N>(params + at, p);
    });
}

__global__ void __launch_bounds__(THREADS)
adamw_kernel(size_t count, size_t grad_count, float *__restrict__ params,
             const float *__restrict__ grads, float *__restrict__ mean, float *__restrict__ square,
             const uint8_t *__restrict__ decays, const Scalars *__restrict__ scalars)
{
    const StepSettings s = scalars->set;
    float take1 = 1 - s.betas[0], keep2 = s.betas[1], take2 = 1 - s.betas[1];
    float rate = s.lr / scalars->parts[0], root = sqrt(scalars->parts[1]);
    float shrink = clip_factor(scalars), decayed = 1 - (double)s.lr * s.weight_decay;
    if (scalars->skip)
        return;
    for_each_pack<4>(count, [&](auto width, size_t at) {
        constexpr int N = decltype(width)::value;
        Pack<float, N> p = load<N>(params + at), m = load<N>(mean + at), v = load<N>(square + at);
        Pack<float, N> g = gradients_at<N>(grads, grad_count, at);
        float keep = decays[at / PARAM_ALIGN] ? decayed : 1;
        for (int k = 0; k < N; k++) {
            float gradient = shrink * g.v[k];
            m.v[k] += take1 * (gradient - m.v[k]);
            v.v[k] = keep2 * v.v[k] + take2 * gradient * gradient;
            p.v[k] = keep * p.v[k] - rate * m.v[k] / (sqrtf(v.v[k]) / root + 1e-8f);
        }
        store<N>(mean + at, m);
        store<N>(square + at, v);
        store<N>(params + at, p);
    });
}

__global__ void __launch_bounds__(THREADS)
add_into_kernel(size_t count, float *__restrict__ values, const float *__restrict__ more)
{
    for_each_pack<4>(count, [&](auto width, size_t at) {
        constexpr int N = decltype(width)::value;
        Pack<float, N> sum = load<N>(values + at), add = load<N>(more + at);
        for (int k = 0; k < N; k++)
            sum.v[k] += add.v[k];
        store<N>(values + at, sum);
    });
}

// --- gradients -----------------------------------------------------------------------------------

// The thread that finds a step's first bad gradient counts it; later ones see that skip is set.
__global__ void __launch_bounds__(THREADS)
gradients_check_kernel(size_t count, const float *__restrict__ grads, Scalars *scalars,
                       Stats *stats)
{
    bool bad = false;
    for_each_pack<4>(count, [&](auto width, size_t at) {
        constexpr int N = decltype(width)::value;
        Pack<float, N> g = load<N>(grads + at);
        for (int k = 0; k < N; k++)
            bad |= !isfinite(g.v[k]);
    });
    bool found = __syncthreads_or(bad) && threadIdx.x == 0;
    if (found && atomicExch(&scalars->skip, 1) == 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(&stats->bad_gradients), 1ull);
}

// The sum of all threads' values, in the block's first thread.
__device__ double block_sum(double value)
{
    __shared__ double warps[THREADS / WARP];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    value = warp_sum(value);
    __syncthreads();            // an earlier sum has been read
    if (lane == 0)
        warps[warp] = value;
    __syncthreads();
    if (warp == 0)
        value = warp_sum(lane < THREADS / WARP ? warps[lane] : 0);
    return value;
}

// Which thread adds which numbers depends on count alone.
__global__ void __launch_bounds__(THREADS)
gradients_norm_kernel(Partials partials, size_t count, const float *__restrict__ grads,
                      Scalars *scalars)
{
    double *results = static_cast<double *>(partials.results), own = 0;
    for_each_pack<4>(count, [&](auto width, size_t at) {
        constexpr int N = decltype(width)::value;
        Pack<float, N> g = load<N>(grads + at);
        for (int k = 0; k < N; k++)
            own += (double)g.v[k] * g.v[k];
    });
    own = block_sum(own);
    if (threadIdx.x == 0)
        results[blockIdx.x] = own;
    if (!last_block(&partials.tickets[0], gridDim.x))
        return;
    own = 0;
    for (unsigned b = threadIdx.x; b < gridDim.x; b += THREADS)
        own += results[b];
    own = block_sum(own);
    if (threadIdx.x == 0)
        scalars->norm = sqrt(own);
}

// --- gradients in another type, or scaled --------------------------------------------------------

// to = from * factor, divided by the loss scale if scalars is not NULL. to may be from.
template <class From, class To, int V> __global__ void __launch_bounds__(THREADS)
convert_kernel(size_t count, const From *from, float factor, const Scalars *scalars, To *to)
{
    factor /= scalars ? scalars->scale.value : 1;
    for_each_pack<V>(count, [&](auto width, size_t at) {
        constexpr int N = decltype(width)::value;
        Pack<From, N> in = load<N>(from + at);
        Pack<To, N> out;
        for (int k = 0; k < N; k++)
            out.set(k, in[k] * factor);
        store<N>(to + at, out);
    });
}

// --- gradients as integers -----------------------------------------------------------------------

__global__ void __launch_bounds__(THREADS)
fixed_add_kernel(size_t count, const float *__restrict__ values, float limit, bool add,
                 int64_t *__restrict__ sums, int64_t *overflow)
{
    for_each_pack<1>(count, [&](auto, size_t at) {
        bool fits = fabsf(values[at]) <= limit;     // NaN does not
        int64_t fixed = llrintf(fits ? values[at] * 0x1p40f : 0);
        sums[at] = fixed + (add ? sums[at] : 0);
        if (!fits)
            *overflow = 1;
    });
}

__global__ void __launch_bounds__(THREADS)
fixed_read_kernel(size_t count, const int64_t *__restrict__ sums, double factor,
                  const int64_t *overflow, float *__restrict__ values)
{
    for_each_pack<1>(count, [&](auto, size_t at) {
        bool bad = at == 0 && overflow && *overflow != 0;
        values[at] = bad ? INFINITY : (float)(sums[at] * 0x1p-40 * factor);
    });
}

} // namespace

cudaError_t kernels_present(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, scalars_set_kernel);
}

// --- ops.h ---------------------------------------------------------------------------------------

void scalars_set(Ops *ops, Scalars *scalars, StepSettings settings)
{
    launch(&ops->device->compute, 1, scalars_set_kernel, scalars, settings);
}

void loss_scale_adapt(Ops *ops, Scalars *scalars, int interval)
{
    launch(&ops->device->compute, 1, loss_scale_adapt_kernel, scalars, interval);
}

void loss_cross_entropy(Ops *ops, int rows, int classes, const float *logits, const int32_t *labels,
                        Scalars *scalars, Stats *stats, float *dlogits)
{
    launch(&ops->device->compute, blocks_for((size_t)rows * WARP, MAX_BLOCKS), cross_entropy_kernel,
           ops->partials, rows, classes, logits, labels, scalars, stats, dlogits);
}

void judge_rows(Ops *ops, int rows, int classes, const float *logits, const int32_t *labels,
                Verdict *verdicts)
{
    launch(&ops->device->compute, blocks_for((size_t)rows * WARP), judge_rows_kernel, rows, classes,
           logits, labels, verdicts);
}

void sgd_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                float *velocity, const Scalars *scalars)
{
    auto kernel = aligned(params, grads, velocity) ? sgd_kernel<4> : sgd_kernel<1>;
    launch(&ops->device->compute, blocks_for(count / 4), kernel, count, grad_count, params, grads,
           velocity, scalars);
}

void adamw_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                  float *mean, float *square, const uint8_t *decays, const Scalars *scalars)
{
    launch(&ops->device->compute, blocks_for(count / 4), adamw_kernel, count, grad_count, params,
           grads, mean, square, decays, scalars);
}

void add_into(Ops *ops, size_t count, float *values, const float *more)
{
    launch(&ops->device->compute, blocks_for(count / 4), add_into_kernel, count, values, more);
}

void gradients_check(Ops *ops, size_t count, const float *grads, Scalars *scalars, Stats *stats)
{
    launch(&ops->device->compute, blocks_for(count / 4), gradients_check_kernel, count, grads,
           scalars, stats);
}

void gradients_norm(Ops *ops, size_t count, const float *grads, Scalars *scalars)
{
    launch(&ops->device->compute, blocks_for(count / 4, MAX_BLOCKS), gradients_norm_kernel,
           ops->partials, count, grads, scalars);
}

static void narrow_scaled(Stream *stream, Type type, size_t count, const float *values,
                          float factor, const Scalars *scalars, void *narrow)
{
    by_type(type, aligned(values, narrow), [&](auto number, auto width) {
        launch(stream, blocks_for(count / width.value),
               convert_kernel<float, decltype(number), width.value>, count, values, factor, scalars,
               narrow);
    });
}

void values_narrow(Ops *ops, Stream *stream, Type type, size_t count, const float *values,
                   float factor, void *narrow)
{
    narrow_scaled(stream, type, count, values, factor, nullptr, narrow);
}

void values_scale(Ops *ops, Stream *stream, size_t count, float *values, float factor)
{
    narrow_scaled(stream, TYPE_F32, count, values, factor, nullptr, values);
}

void gradients_unscale(Ops *ops, size_t count, float *grads, const Scalars *scalars)
{
    narrow_scaled(&ops->device->compute, TYPE_F32, count, grads, 1, scalars, grads);
}

void values_widen(Ops *ops, Stream *stream, Type type, size_t count, const void *narrow,
                  float *values)
{
    by_type(type, aligned(narrow, values), [&](auto number, auto width) {
        launch(stream, blocks_for(count / width.value),
               convert_kernel<decltype(number), float, width.value>, count, narrow, 1, nullptr,
               values);
    });
}

void fixed_add(Ops *ops, Stream *stream, size_t count, const float *values, float limit, bool add,
               int64_t *sums, int64_t *overflow)
{
    launch(stream, blocks_for(count), fixed_add_kernel, count, values, limit, add, sums, overflow);
}

void fixed_read(Ops *ops, Stream *stream, size_t count, const int64_t *sums, double factor,
                const int64_t *overflow, float *values)
{
    launch(stream, blocks_for(count), fixed_read_kernel, count, sums, factor, overflow, values);
}
