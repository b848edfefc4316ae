// inference.c - evaluates a network: model_fold, and forward when nothing is learnt from it.
//
// A convolution, the normalisation that alone reads it, and the ReLU are one step (Fused in ops.h),
// and an activation is gone when its last reader has read it, so that all of them together take a
// small part of what training keeps: the part that they have in the arena of activations.
#include "model/inference.h"
#include "alive.h"
#include "check.h"
#include "model/plan.h"

#include <math.h>
#include <stdlib.h>

// What is one operation; `layer` is the convolution or the pooling.
typedef struct Step {
    const Layer *layer, *norm;  // norm: NULL if there is none
    bool relu;
    int residual, out;          // values; residual: -1 if there is none
    size_t folded_at;           // bytes into Infer's `folded`
} Step;

typedef struct FusedPlan {
    const Plan *plan;           // of as many rows
    Fused *fused[NET_MAX_LAYERS];   // by step, NULL for pooling
    struct FusedPlan *next;
} FusedPlan;

typedef struct Infer {
    Step steps[NET_MAX_LAYERS];
    int step_count;
    FusedPlan *plans;           // the first is the full batch's
    char *folded;               // all steps' weights; NULL where nothing is folded
    bool finite;                // all of them
    void *data[NET_MAX_VALUES]; // where each value stands; NULL for those inside a step
} Infer;

// --- which layers are one step -------------------------------------------------------------------

static const Layer *only_reader(const Net *net, int value)
{
    const Layer *reader = NULL;
    for (int i = 0; i < net->layer_count; i++) {
        const Layer *l = &net->layers[i];
        if (l->in != value && l->residual != value)
            continue;
        if (reader)
            return NULL;
        reader = l;
    }
    return reader;
}

static Step step_of(const Net *net, const Layer *layer)
{
    Step s = { .layer = layer, .residual = -1, .out = layer->out };
    const Layer *after = layer->type == LAYER_CONV ? only_reader(net, layer->out) : NULL;
    if (after && after->type == LAYER_NORM && after->in == layer->out) {
        s.norm = after;
        s.residual = after->residual;
        s.relu = after->relu;
        s.out = after->out;
    } else if (after && after->type == LAYER_RELU) {
        s.relu = true;
        s.out = after->out;
    }
    return s;
}

// In the order of what they write: then everything that they read has been written.
static void add_step(Infer *infer, Step step)
{
    int at = infer->step_count++;
    for (; at > 0 && infer->steps[at - 1].out > step.out; at--)
        infer->steps[at] = infer->steps[at - 1];
    infer->steps[at] = step;
}

static void make_steps(const Net *net, Infer *infer)
{
    bool made[NET_MAX_VALUES] = { false };
    for (int i = 0; i < net->layer_count; i++) {
        const Layer *l = &net->layers[i];
        if (made[l->out])
            continue;
        CHECK(l->type != LAYER_NORM && l->type != LAYER_RELU, "",
              "layer %d of the network does not follow a convolution that it alone reads", i);
        Step step = step_of(net, l);
        made[step.out] = true;
        add_step(infer, step);
    }
}

// --- plans ---------------------------------------------------------------------------------------

static int number_of(const Net *net, const Layer *layer) { return (int)(layer - net->layers); }

static Fused *fused_for(const Model *model, const Plan *plan, const Step *s, const Fused *like)
{
    if (s->layer->type != LAYER_CONV)
        return NULL;
    FusedSpec spec = { plan->convs[number_of(model->net, s->layer)],
                       s->norm ? plan->norms[number_of(model->net, s->norm)] : NULL,
                       s->residual >= 0, s->relu };
    return fused_new(model->ops, &spec, like);
}

static const FusedPlan *fused_plan_for(const Model *model, const Plan *plan)
{
    Infer *infer = model->net->infer;
    FusedPlan **end = &infer->plans;
    for (; *end; end = &(*end)->next)
        if ((*end)->plan == plan)
            return *end;
    FusedPlan *made = *end = xcalloc(1, sizeof *made);
    made->plan = plan;
    for (int i = 0; i < infer->step_count; i++) {
        alive_beat();
        const Fused *like = made == infer->plans ? NULL : infer->plans->fused[i];
        made->fused[i] = fused_for(model, plan, &infer->steps[i], like);
    }
    return made;
}

// --- memory --------------------------------------------------------------------------------------

static void lay_out_folded(const Model *model, Infer *infer)
{
    size_t bytes = 0;
    for (int i = 0; i < infer->step_count; i++) {
        infer->steps[i].folded_at = bytes;
        if (infer->plans->fused[i])
            bytes += aligned_bytes(fused_bytes(infer->plans->fused[i]));
    }
    if (bytes > 0)
        infer->folded = device_alloc(model->device, bytes);
}

static bool is_in_place(const Infer *infer, int i)
{
    return infer->steps[i].residual >= 0 && fused_in_place(infer->plans->fused[i]);
}

// The last step that reads value v; the one that writes it if nobody does.
static int last_reader(const Infer *infer, int v)
{
    int last = 0;
    for (int i = 0; i < infer->step_count; i++) {
        const Step *s = &infer->steps[i];
        if (s->layer->in == v || s->residual == v || s->out == v)
            last = i;
    }
    return last;
}

// A sum that is formed where the residual stands is the residual's value, living on.
static int lives_of_values(const Model *model, const Infer *infer, Life *lives)
{
    int count = 0, life_of[NET_MAX_VALUES];
    for (int i = 0; i < infer->step_count - 1; i++) {
        const Step *s = &infer->steps[i];
        int last = last_reader(infer, s->out);
        if (is_in_place(infer, i)) {
            CHECK(s->residual != s->layer->in && last_reader(infer, s->residual) == i, "",
                  "value %d of the network is a residual, and read again", s->residual);
            life_of[s->out] = life_of[s->residual];
            lives[life_of[s->out]].to = last;
            continue;
        }
        life_of[s->out] = count;
        lives[count++] = (Life){ .value = s->out, .from = i, .to = last,
                                 .size = value_bytes(model->net, s->out, model->config.type) };
    }
    return count;
}

static void place_values(const Model *model, Infer *infer)
{
    const Net *net = model->net;
    Life lives[NET_MAX_VALUES];
    int count = lives_of_values(model, infer, lives), last = net->value_count - 1;
    char *memory = net->activations, *logits = net->values[last].data;
    size_t bytes = place(lives, count);
    CHECK(memory + bytes <= logits, "", "%zu bytes of activations to evaluate, %zu to train", bytes,
          (size_t)(logits - memory));
    for (int i = 0; i < count; i++)
        infer->data[lives[i].value] = memory + lives[i].at;
    infer->data[last] = logits;
    for (int i = 0; i < infer->step_count; i++)
        if (!infer->data[infer->steps[i].out])
            infer->data[infer->steps[i].out] = infer->data[infer->steps[i].residual];
}

static void infer_new(Model *model)
{
    Infer *infer = model->net->infer = xcalloc(1, sizeof *infer);
    make_steps(model->net, infer);
    fused_plan_for(model, model->net->plans);
    lay_out_folded(model, infer);
    place_values(model, infer);
}

void infer_free(Model *model)
{
    Infer *infer = model->net->infer;
    if (!infer)
        return;
    for (FusedPlan *plan = infer->plans, *next; plan; plan = next) {
        next = plan->next;
        for (int i = 0; i < infer->step_count; i++)
            fused_free(plan->fused[i]);
        free(plan);
    }
    device_free(model->device, infer->folded);
    free(infer);
}

// --- folding and running -------------------------------------------------------------------------

static FusedTensors tensors_of(const Model *model, const Step *s)
{
    FusedTensors t = {
        .params = model->params + s->layer->begin,
        .w = weights_of(model, s->layer),
        .bias = model->params + s->layer->bias_at,
    };
    if (model->net->infer->folded)
        t.folded = model->net->infer->folded + s->folded_at;
    if (s->norm)
        t.norm = norm_tensors(model, s->norm);
    return t;
}

void model_fold(Model *model)
{
    if (!model->net->infer)
        infer_new(model);
    Infer *infer = model->net->infer;
    infer->finite = true;
    for (int i = 0; i < infer->step_count; i++) {
        alive_beat();
        if (!infer->plans->fused[i])
            continue;
        FusedTensors t = tensors_of(model, &infer->steps[i]);
        infer->finite = fused_fold(infer->plans->fused[i], &t) && infer->finite;
    }
}

// What broken weights say must not look whole.
static void break_logits(const Model *model, int rows)
{
    float row[model->config.classes];
    for (int i = 0; i < model->config.classes; i++)
        row[i] = NAN;
    for (int i = 0; i < rows; i++)
        copy_to_device(device_stream(model->device), model->logits + i * model->config.classes, row,
                       sizeof row);
}

static void run_step(const Model *model, const FusedPlan *fused, int i)
{
    const Infer *infer = model->net->infer;
    const Step *s = &infer->steps[i];
    const void *x = infer->data[s->layer->in];
    Shape shape = fused->plan->shapes[s->layer->in];
    alive_beat();
    if (s->layer->type == LAYER_MAXPOOL) {
        PoolSpec pool = pool_spec(s->layer, shape);
        maxpool_forward(model->ops, &pool, x, infer->data[s->out], NULL);
    } else if (s->layer->type == LAYER_AVGPOOL) {
        avgpool_forward(model->ops, shape, x, infer->data[s->out]);
    } else {
        FusedTensors t = tensors_of(model, s);
        fused_forward(fused->fused[i], &t, x,
                      s->residual < 0 ? NULL : infer->data[s->residual], infer->data[s->out]);
    }
}

void infer_forward(Model *model, const void *images, int rows)
{
    Infer *infer = model->net->infer;
    CHECK(infer, "", "the model was never folded: model_fold comes before model_forward evaluates");
    const FusedPlan *fused = fused_plan_for(model, plan_for(model, rows));
    infer->data[0] = (void *)images;
    for (int i = 0; i < infer->step_count; i++)
        run_step(model, fused, i);
    infer->data[0] = NULL;
    if (!infer->finite)
        break_logits(model, rows);
}
