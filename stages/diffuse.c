/* Chooses for each sample what the step needs to make its noised latent: timestep, noise key, loss weight.
 *
 * Only numbers are chosen. The step draws latent and noise from the key where it runs, so encoded latents
 * are all that travels, and a draw does not depend on batch, thread or device. Everything is keyed by
 * (seed, group, sample): a resumed run draws what the first one would have drawn. A picture that is in a
 * group twice draws twice.
 *
 * Held-back pictures get numbers too, so that their batches look like the others; validate chooses its own.
 */
#include "core/flow/stage.h"
#include "core/model/model.h"
#include <string.h>

enum { AUTO, EPSILON, V };
enum { STEPS = 1000 };

typedef struct {
    char *base;
    int prediction;
    double min_snr_gamma, noise_offset;
    gboolean zero_terminal_snr;
    gint64 timestep_min, timestep_max;

    gboolean v;
    double alpha_bar[STEPS];
} Diffuse;

static const FlowParam params[] = {
    FLOW_PATH(Diffuse, base, "", "Base model with the noise schedule; by default that of lora_step."),
    FLOW_ENUM(Diffuse, prediction, "auto", "auto|epsilon|v", "What the model predicts; auto asks the base."),
    FLOW_FLOAT(Diffuse, min_snr_gamma, "0", 0, 1000, "",
               "Weight losses by min(SNR, gamma) / SNR (/ (SNR + 1) for v); 0 = not."),
    FLOW_FLOAT(Diffuse, noise_offset, "0", 0, 1, "", "Strength of noise that is constant over a channel."),
    FLOW_BOOL(Diffuse, zero_terminal_snr, "no",
              "Rescale the schedule so that the last timestep is pure noise; needs v prediction."),
    FLOW_INT(Diffuse, timestep_min, "0", 0, 999, "", "Lowest timestep."),
    FLOW_INT(Diffuse, timestep_max, "999", 0, 999, "", "Highest timestep."),
    FLOW_END,
};

#define OPTIONAL "role? timestep? noise_key?"

static const FlowPort inputs[] = {
    {.name = "in", .kind = FLOW_BATCH, .doc = "Micro-batches.", .needs = "micro sample weight " OPTIONAL},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out",
     .kind = FLOW_BATCH,
     .doc = "The same with what each sample's noise is made of.",
     .gives = "timestep noise_key weight prediction"},
    FLOW_END,
};

static gboolean diffuse_describe(FlowNode *node, GError **error)
{
    Diffuse *s = flow_node_state(node);
    if (s->timestep_min > s->timestep_max) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "timestep_min = %" G_GINT64_FORMAT " is above timestep_max = %" G_GINT64_FORMAT,
                    s->timestep_min, s->timestep_max);
        return FALSE;
    }
    g_autofree char *gives =
        g_strdup_printf("timestep noise_key weight prediction%s%s",
                        s->noise_offset > 0 ? " noise_offset" : "", s->zero_terminal_snr ? " alpha_bar" : "");
    flow_node_gives(node, "out", gives);
    return TRUE;
}

/* The schedule of the base that is trained; without any, the one that SD1.5, SD2 and SDXL share. */
static gboolean read_schedule(FlowNode *node, Diffuse *s, GError **error)
{
    FlowNode *step = flow_node_find(node, "lora_step");
    char *const *of_step = step ? flow_node_param(step, "base") : NULL;
    const char *base = s->base && *s->base ? s->base : of_step ? *of_step : NULL;
    if (!base || !*base) {
        schedule_alpha_bar(0.00085, 0.012, s->alpha_bar);
        return TRUE;
    }
    Model *model = model_open(base, error);
    if (!model)
        return FALSE;
    memcpy(s->alpha_bar, model->alpha_bar, sizeof s->alpha_bar);
    s->v = model->v_prediction;
    model_free(model);
    return TRUE;
}

static gboolean diffuse_open(FlowNode *node, GError **error)
{
    Diffuse *s = flow_node_state(node);
    if (!read_schedule(node, s, error))
        return FALSE;
    if (s->prediction != AUTO)
        s->v = s->prediction == V;
    if (s->zero_terminal_snr && !s->v) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "zero_terminal_snr needs prediction = v: at the last timestep there is nothing left that "
                    "noise could be told from");
        return FALSE;
    }
    if (s->zero_terminal_snr)
        schedule_zero_terminal(s->alpha_bar);
    return TRUE;
}

/* -- draws ------------------------------------------------------------------------- */

/* How often the sample came before place i of this batch. */
static gint64 occurrence(const gint64 *sample, gsize i)
{
    gint64 n = 0;
    for (gsize j = 0; j < i; j++)
        n += sample[j] == sample[i];
    return n;
}

static guint64 sample_key(FlowNode *node, const gint64 *micro, const gint64 *sample, gsize i)
{
    const gint64 v[] = {micro[0], sample[i], occurrence(sample, i)};
    return flow_random_key(flow_node_seed(node), flow_node_name(node), v, 3);
}

static void set_draws(FlowNode *node, const Diffuse *s, FlowItem *item, gint64 n)
{
    const gint64 *micro = flow_item_i64(item, FLOW_F_MICRO), *sample = flow_item_i64(item, FLOW_F_SAMPLE);
    FlowValue *timestep = flow_value_new(NET_I32, 1, &n), *key = flow_value_new(NET_I64, 1, &n);
    for (gint64 i = 0; i < n; i++) {
        guint64 k = sample_key(node, micro, sample, (gsize)i);
        guint64 range = (guint64)(s->timestep_max - s->timestep_min + 1);
        ((gint32 *)timestep->data)[i] = (gint32)(s->timestep_min + (gint64)flow_random_below(k, 0, range));
        ((gint64 *)key->data)[i] = (gint64)flow_random_key(k, "noise", NULL, 0);
    }
    /* what a replayed batch brings along stays */
    if (flow_item_get(item, FLOW_F_TIMESTEP))
        flow_value_unref(timestep);
    else
        flow_item_set(item, FLOW_F_TIMESTEP, timestep);
    if (flow_item_get(item, FLOW_F_NOISE_KEY))
        flow_value_unref(key);
    else
        flow_item_set(item, FLOW_F_NOISE_KEY, key);
}

static void set_weights(const Diffuse *s, FlowItem *item, gint64 n)
{
    const gint32 *timestep = flow_item_i32(item, FLOW_F_TIMESTEP);
    const float *before = flow_item_f32(item, FLOW_F_WEIGHT);
    FlowValue *weight = flow_value_new(NET_F32, 1, &n);
    for (gint64 i = 0; i < n; i++)
        ((float *)weight->data)[i] =
            (float)(before[i] * schedule_min_snr(s->alpha_bar, timestep[i], s->min_snr_gamma, s->v));
    flow_item_set(item, FLOW_F_WEIGHT, weight);
}

static void set_alpha_bar(const Diffuse *s, FlowItem *item, gint64 n)
{
    const gint32 *timestep = flow_item_i32(item, FLOW_F_TIMESTEP);
    FlowValue *alpha_bar = flow_value_new(NET_F32, 1, &n);
    for (gint64 i = 0; i < n; i++)
        ((float *)alpha_bar->data)[i] = (float)s->alpha_bar[timestep[i]];
    flow_item_set(item, FLOW_F_ALPHA_BAR, alpha_bar);
}

static void set_offset(const Diffuse *s, FlowItem *item, gint64 n)
{
    FlowValue *offset = flow_value_new(NET_F32, 1, &n);
    for (gint64 i = 0; i < n; i++)
        ((float *)offset->data)[i] = (float)s->noise_offset;
    flow_item_set(item, FLOW_F_NOISE_OFFSET, offset);
}

static gboolean count_is(const FlowItem *item, FlowField field, NetType type, gint64 n)
{
    const FlowValue *v = flow_item_get(item, field);
    return !v || (v->type == type && flow_value_count(v) == (gsize)n);
}

static gboolean valid(const FlowItem *item, gint64 n, GError **error)
{
    const gint32 *timestep = flow_item_i32(item, FLOW_F_TIMESTEP);
    gboolean good = n > 0 && count_is(item, FLOW_F_SAMPLE, NET_I64, n) &&
                    count_is(item, FLOW_F_WEIGHT, NET_F32, n) &&
                    count_is(item, FLOW_F_TIMESTEP, NET_I32, n) &&
                    count_is(item, FLOW_F_NOISE_KEY, NET_I64, n) && count_is(item, FLOW_F_MICRO, NET_I64, 6);
    for (gint64 i = 0; good && timestep && i < n; i++)
        good = timestep[i] >= 0 && timestep[i] < STEPS;
    if (!good)
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "sample, weight, timestep and noise_key are not %" G_GINT64_FORMAT " numbers each, or a "
                    "timestep is outside 0..%d",
                    n, STEPS - 1);
    return good;
}

static FlowStatus diffuse_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    const Diffuse *s = flow_ctx_state(ctx);
    const gint32 *role = flow_item_i32(in[0], FLOW_F_ROLE);
    gint64 n = (gint64)flow_value_count(flow_item_get(in[0], FLOW_F_WEIGHT));
    if (!valid(in[0], n, error))
        return FLOW_SKIP;
    gboolean trains = !role || *role == 0;
    FlowItem *item = flow_item_writable(&in[0]);
    set_draws(flow_ctx_node(ctx), s, item, n);
    if (trains && s->min_snr_gamma > 0)
        set_weights(s, item, n);
    if (s->noise_offset > 0)
        set_offset(s, item, n);
    if (s->zero_terminal_snr)
        set_alpha_bar(s, item, n);
    flow_item_set_i32(item, FLOW_F_PREDICTION, (gint32[]){s->v}, 1);
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

FLOW_STAGE(.name = "diffuse", .summary = "Chooses timestep, noise key and loss weight of each sample.",
           .flags = FLOW_PARALLEL, .version = 1, .state_size = sizeof(Diffuse), .params = params,
           .inputs = inputs, .outputs = outputs, .describe = diffuse_describe, .open = diffuse_open,
           .process = diffuse_process);
