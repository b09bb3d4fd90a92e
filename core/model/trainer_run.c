/* Building and running a training step: one plan a shape, kept while it is used, all in one arena.
 *
 * A plan is small beside the arena, but the vendor library keeps primitives for each, so the least recently
 * used ones go when there are more than MOST_PLANS: buckets and sparse batches have a handful of shapes. */
#include "core/model/trainer_run.h"
#include <string.h>

enum { MOST_PLANS = 24 };

typedef struct {
    gint64 n, height, width, tokens;
    gboolean latent, noise, v, backward;
} Shape;

/* Inputs of a run that are not tensors of the item, and conversions of those that are. */
typedef struct {
    float *alpha_bar, *timestep, *offset, *weight, scale[1];
    gint64 *key;
    float *converted[7]; /* per tensor input, NULL until an item comes in half precision */
} Staging;

typedef struct {
    Shape shape;
    NetPlan *plan;
    Staging staging;
    guint64 used;
} Plan;

struct TrainerPlans {
    GPtrArray *list; /* Plan * */
    guint64 clock;
};

static void plan_free(gpointer p)
{
    Plan *plan = p;
    net_plan_free(plan->plan);
    g_free(plan->staging.alpha_bar);
    g_free(plan->staging.key);
    for (guint i = 0; i < G_N_ELEMENTS(plan->staging.converted); i++)
        g_free(plan->staging.converted[i]);
    g_free(plan);
}

TrainerPlans *trainer_plans_new(void)
{
    TrainerPlans *plans = g_new0(TrainerPlans, 1);
    plans->list = g_ptr_array_new_with_free_func(plan_free);
    return plans;
}

void trainer_plans_free(TrainerPlans *plans)
{
    g_ptr_array_unref(plans->list);
    g_free(plans);
}

/* -- building ----------------------------------------------------------------------- */

static NetVal *vector(Net *net, const char *name, const Shape *s)
{
    return net_input(net, name, NET_F32, s->n, 1, 1, 1);
}

static void build_draw(const Trainer *t, Net *net, const Shape *s, NetVal **x, NetVal **target)
{
    gint64 c = t->model->unet.in_channels;
    NetDraw draw = {.scaling = t->model->vae.scaling, .v = s->v};
    if (s->latent) {
        draw.latent = net_input(net, "latent", NET_F32, s->n, s->height, s->width, c);
    } else {
        draw.mean = net_input(net, "mean", NET_F32, s->n, s->height, s->width, c);
        draw.logvar = net_input(net, "logvar", NET_F32, s->n, s->height, s->width, c);
    }
    if (s->noise)
        draw.noise = net_input(net, "noise", NET_F32, s->n, s->height, s->width, c);
    draw.key = net_input(net, "key", NET_I64, s->n, 1, 1, 1);
    draw.offset = vector(net, "offset", s);
    draw.alpha_bar = vector(net, "alpha_bar", s);
    net_draw(net, &draw, x, target);
}

/* The whole step of one shape. Takes nothing; returns new. */
static NetPlan *build(const Trainer *t, const NetWeights *weights, const Shape *s, GError **error)
{
    const UnetConfig *u = &t->model->unet;
    Net *net = net_new(t->compute, t->adapters);
    NetVal *x, *target, *pooled = NULL, *ids = NULL;
    build_draw(t, net, s, &x, &target);
    NetVal *context = net_input(net, "context", NET_F32, s->n, 1, s->tokens, u->context);
    if (u->text_time) {
        pooled = net_input(net, "pooled", NET_F32, s->n, 1, 1, u->class_dim - 6 * u->time_dim);
        ids = net_input(net, "time_ids", NET_F32, s->n, 1, 1, 6);
    }
    NetVal *pred = unet_build(net, u, weights, x, vector(net, "timestep", s), context, pooled, ids);
    NetVal *weight = vector(net, "weight", s), *scale = net_input(net, "scale", NET_F32, 1, 1, 1, 1);
    NetVal *loss = net_mse(net, pred, target, weight, scale);
    net_output(net, "loss", loss);
    if (!net_finish_errors(net, error) || (s->backward && !net_differentiate(net, loss, error))) {
        net_free(net);
        return NULL;
    }
    return net_plan_build(net, error);
}

static void staging_init(Staging *s, gint64 n)
{
    s->alpha_bar = g_new0(float, 4 * n);
    s->timestep = s->alpha_bar + n;
    s->offset = s->timestep + n;
    s->weight = s->offset + n;
    s->key = g_new0(gint64, n);
}

static void drop_oldest(TrainerPlans *plans)
{
    guint oldest = 0;
    for (guint i = 1; i < plans->list->len; i++)
        if (((Plan *)plans->list->pdata[i])->used < ((Plan *)plans->list->pdata[oldest])->used)
            oldest = i;
    g_ptr_array_remove_index_fast(plans->list, oldest);
}

static gboolean same_shape(const Shape *a, const Shape *b)
{
    return a->n == b->n && a->height == b->height && a->width == b->width && a->tokens == b->tokens &&
           a->latent == b->latent && a->noise == b->noise && a->v == b->v && a->backward == b->backward;
}

static Plan *plan_for(Trainer *t, const Shape *shape, GError **error)
{
    TrainerPlans *plans = t->plans;
    for (guint i = 0; i < plans->list->len; i++) {
        Plan *plan = plans->list->pdata[i];
        if (same_shape(&plan->shape, shape)) {
            plan->used = ++plans->clock;
            return plan;
        }
    }
    NetPlan *made = build(t, t->unet, shape, error);
    if (!made)
        return NULL;
    if (plans->list->len >= MOST_PLANS)
        drop_oldest(plans);
    Plan *plan = g_new0(Plan, 1);
    plan->shape = *shape;
    plan->plan = made;
    plan->used = ++plans->clock;
    staging_init(&plan->staging, shape->n);
    g_ptr_array_add(plans->list, plan);
    net_arena_fit(t->arena, made);
    return plan;
}

/* -- running -------------------------------------------------------------------------- */

/* The tensor as f32: itself, or converted. */
static gconstpointer as_f32(const FlowValue *v, float **converted)
{
    if (v->type == NET_F32)
        return v->data;
    gsize n = flow_value_count(v);
    if (!*converted)
        *converted = g_new(float, n);
    net_convert(*converted, NET_F32, v->data, v->type, n);
    return *converted;
}

static guint bind_tensors(const TrainerBatch *b, Staging *s, NetBinding *out)
{
    const struct {
        const char *name;
        const FlowValue *value;
    } all[] = {{"mean", b->mean},       {"logvar", b->logvar}, {"latent", b->latent},    {"noise", b->noise},
               {"context", b->context}, {"pooled", b->pooled}, {"time_ids", b->time_ids}};
    G_STATIC_ASSERT(G_N_ELEMENTS(all) == G_N_ELEMENTS(s->converted));
    guint n = 0;
    for (guint i = 0; i < G_N_ELEMENTS(all); i++)
        if (all[i].value)
            out[n++] = (NetBinding){all[i].name, as_f32(all[i].value, &s->converted[i])};
    return n;
}

static guint bind_numbers(const Trainer *t, const TrainerBatch *b, float scale, Staging *s, NetBinding *out)
{
    for (gint64 i = 0; i < b->n; i++) {
        gint32 step = b->timestep ? b->timestep[i] : 0;
        s->timestep[i] = (float)step;
        s->alpha_bar[i] = b->alpha_bar ? b->alpha_bar[i] : (float)t->model->alpha_bar[step];
        s->offset[i] = b->offset ? b->offset[i] : 0;
        s->weight[i] = (float)((b->weight ? b->weight[i] : 1) / b->samples);
        s->key[i] = b->key ? b->key[i] : 0;
    }
    s->scale[0] = scale;
    const NetBinding all[] = {{"timestep", s->timestep}, {"alpha_bar", s->alpha_bar},
                              {"offset", s->offset},     {"weight", s->weight},
                              {"key", s->key},           {"scale", s->scale}};
    memcpy(out, all, sizeof all);
    return G_N_ELEMENTS(all);
}

typedef struct {
    Trainer *t;
    const TrainerBatch *batch;
    gboolean backward;
    float scale, *loss;
    gboolean (*stop)(gpointer);
    gpointer stop_data;
    GError **error;
    gboolean ok;
} Job;

static void run(gpointer data)
{
    Job *job = data;
    const TrainerBatch *b = job->batch;
    Shape shape = {b->n, b->height,    b->width, b->tokens, b->latent != NULL, b->noise != NULL,
                   b->v, job->backward};
    Plan *plan = plan_for(job->t, &shape, job->error);
    if (!plan)
        return;
    NetBinding inputs[16] = {{0}}, outputs[] = {{"loss", job->loss}, {0}};
    guint n = bind_tensors(b, &plan->staging, inputs);
    bind_numbers(job->t, b, job->scale, &plan->staging, inputs + n);
    NetRunArgs args = {.inputs = inputs,
                       .outputs = outputs,
                       .stop = job->stop,
                       .stop_data = job->stop_data,
                       .check_finite = job->t->check_finite};
    job->ok = net_run(plan->plan, job->t->arena, &args, job->error);
}

gboolean trainer_gradient(Trainer *t, const TrainerBatch *batch, float scale, float *loss, GError **error)
{
    Job job = {.t = t, .batch = batch, .backward = TRUE, .scale = scale, .loss = loss, .error = error};
    net_on_compute_thread(run, &job);
    return job.ok;
}

gboolean trainer_loss(Trainer *t, const TrainerBatch *batch, gboolean (*stop)(gpointer), gpointer stop_data,
                      float *loss, GError **error)
{
    Job job = {.t = t,
               .batch = batch,
               .scale = 1,
               .loss = loss,
               .stop = stop,
               .stop_data = stop_data,
               .error = error};
    net_on_compute_thread(run, &job);
    return job.ok;
}

void trainer_clear_gradient(Trainer *t)
{
    memset(t->adapters->gradient, 0, t->adapters->n * sizeof(float));
}

gboolean trainer_plan(const Trainer *t, gint64 n, gint64 height, gint64 width, gint64 tokens,
                      gboolean backward, NetPlanInfo *info, TrainerTexts *texts, GError **error)
{
    NetWeights *outline = model_outline(t->model, "unet", t->compute, error);
    if (!outline)
        return FALSE;
    Shape shape = {n, height, width, tokens, FALSE, FALSE, t->model->v_prediction, backward};
    NetPlan *plan = build(t, outline, &shape, error);
    if (plan) {
        *info = *net_plan_info(plan);
        texts->ops = net_plan_ops(plan);
        texts->intervals = net_plan_intervals(plan);
        net_plan_free(plan);
    }
    net_weights_free(outline);
    return plan != NULL;
}
