/* Encoders on demand: see encoder.h. */
#include "core/model/encoder.h"
#include <string.h>

enum { MOST_PLANS = 8 }; /* buckets come in runs, so few are in use at a time */

typedef struct {
    gint64 shape[ENCODER_DIMS];
    NetPlan *plan;
    guint64 used;
} Plan;

struct Encoder {
    const EncoderKind *kind;
    const Model *model;
    NetType compute;
    NetWeights *weights; /* NULL: not loaded */
    NetArena *arena;
    Plan plans[MOST_PLANS];
    guint64 clock;
};

NetType model_compute_choice(int choice)
{
    static const NetType types[] = {[1] = NET_F32, [2] = NET_BF16};
    return choice == 0 ? net_best_compute() : types[choice];
}

gboolean model_check_finite(void)
{
    return g_getenv("FLOW_CHECK_FINITE") != NULL;
}

Encoder *encoder_new(const EncoderKind *kind, const Model *model, NetType compute)
{
    Encoder *e = g_new0(Encoder, 1);
    e->kind = kind;
    e->model = model;
    e->compute = compute;
    return e;
}

gboolean encoder_loaded(const Encoder *e)
{
    return e->weights != NULL;
}

void encoder_unload(Encoder *e)
{
    for (guint i = 0; i < MOST_PLANS; i++)
        if (e->plans[i].plan)
            net_plan_free(e->plans[i].plan);
    memset(e->plans, 0, sizeof e->plans);
    net_weights_free(g_steal_pointer(&e->weights));
    if (e->arena)
        net_arena_free(g_steal_pointer(&e->arena));
}

void encoder_free(Encoder *e)
{
    if (!e)
        return;
    encoder_unload(e);
    g_free(e);
}

static NetPlan *build(const Encoder *e, const NetWeights *weights, const gint64 *shape, GError **error)
{
    Net *net = net_new(e->compute, NULL);
    e->kind->build(e->model, net, weights, shape);
    if (net_finish_errors(net, error))
        return net_plan_build(net, error);
    net_free(net);
    return NULL;
}

static NetPlan *plan_for(Encoder *e, const gint64 *shape, GError **error)
{
    Plan *oldest = &e->plans[0];
    for (Plan *p = e->plans; p < e->plans + MOST_PLANS; p++) {
        if (p->plan && memcmp(p->shape, shape, sizeof p->shape) == 0) {
            p->used = ++e->clock;
            return p->plan;
        }
        if (p->used < oldest->used)
            oldest = p;
    }
    NetPlan *made = build(e, e->weights, shape, error);
    if (!made)
        return NULL;
    if (oldest->plan)
        net_plan_free(oldest->plan);
    memcpy(oldest->shape, shape, sizeof oldest->shape);
    oldest->plan = made;
    oldest->used = ++e->clock;
    net_arena_fit(e->arena, made);
    return made;
}

typedef struct {
    Encoder *e;
    const gint64 *shape;
    NetRunArgs args;
    GError **error;
    gboolean ok;
} Job;

static void run(gpointer data)
{
    Job *job = data;
    Encoder *e = job->e;
    if (!e->weights && !(e->weights = e->kind->load(e->model, e->compute, job->error)))
        return;
    if (!e->arena)
        e->arena = net_arena_new();
    NetPlan *plan = plan_for(e, job->shape, job->error);
    job->ok = plan && net_run(plan, e->arena, &job->args, job->error);
}

gboolean encoder_run(Encoder *e, const gint64 *shape, const NetBinding *inputs, const NetBinding *outputs,
                     gboolean (*stop)(gpointer), gpointer stop_data, GError **error)
{
    Job job = {.e = e,
               .shape = shape,
               .args = {.inputs = inputs,
                        .outputs = outputs,
                        .stop = stop,
                        .stop_data = stop_data,
                        .check_finite = model_check_finite()},
               .error = error};
    net_on_compute_thread(run, &job);
    return job.ok;
}

gboolean encoder_plan(const Encoder *e, const gint64 *shape, NetPlanInfo *info, GError **error)
{
    NetWeights *outline = model_outline(e->model, e->kind->part, e->compute, error);
    NetPlan *plan = outline ? build(e, outline, shape, error) : NULL;
    if (plan) {
        *info = *net_plan_info(plan);
        net_plan_free(plan);
    }
    net_weights_free(outline);
    return plan != NULL;
}
