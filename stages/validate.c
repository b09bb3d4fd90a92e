/* Loss on held-back pictures, with the same noise and the same timesteps every time.
 *
 * Training loss is a lottery of timesteps; this number is not: every picture is judged at every timestep of
 * the list, with noise keyed by (seed, picture, timestep). Measured before the first step, every N updates
 * and at the end, in the step's own arena. A measurement that a stop cuts is noted and made up for after
 * resume.
 *
 * @link m
 */
#include "core/flow/param.h"
#include "core/flow/stage.h"
#include "core/model/trainer.h"
#include <math.h>
#include <string.h>

typedef struct {
    FlowNode *of;
    gint64 every;
    char **timesteps;

    Trainer *trainer;
    gint32 *t;
    guint n_t;
    double before, last; /* NAN: not measured */
    gint64 last_at;      /* updates when measured last, -1 */
    gboolean due, warned;
} Validate;

static const FlowParam params[] = {
    FLOW_NODE(Validate, of, NULL, "The lora_step node."),
    FLOW_INT(Validate, every, "0", 0, 1e9, "updates",
             "Measures every so many updates; 0 = before and after only.", | FLOW_P_NORESULT),
    FLOW_LIST(Validate, timesteps, "50, 150, 300, 450, 600, 750, 900",
              "Timesteps at which each picture is judged."),
    FLOW_END,
};

static const FlowPort inputs[] = {
    {.name = "in", .kind = FLOW_STEP, .doc = "Items with settled parameters.", .needs = "step flags model"},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out",
     .kind = FLOW_STEP,
     .doc = "The same items, some with a measurement.",
     .gives = "validation"},
    FLOW_END,
};

static gboolean parse_timesteps(Validate *s, GError **error)
{
    s->n_t = s->timesteps ? g_strv_length(s->timesteps) : 0;
    s->t = g_new0(gint32, s->n_t + 1);
    for (guint i = 0; i < s->n_t; i++) {
        gint64 t;
        if (!flow_parse_int(s->timesteps[i], &t, NULL) || t < 0 || t > 999) {
            g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                        "timesteps: '%s' is not a number of 0..999", s->timesteps[i]);
            return FALSE;
        }
        s->t[i] = (gint32)t;
    }
    if (s->n_t > 0)
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "timesteps is empty");
    return FALSE;
}

static gboolean validate_open(FlowNode *node, GError **error)
{
    Validate *s = flow_node_state(node);
    s->before = s->last = NAN;
    s->last_at = -1;
    return parse_timesteps(s, error) && (s->trainer = flow_node_shared(s->of, TRAINER_TYPE, error));
}

static void validate_close(FlowNode *node)
{
    Validate *s = flow_node_state(node);
    g_free(s->t);
}

/* -- measuring -------------------------------------------------------------------------- */

static gboolean stopping(gpointer ctx)
{
    return flow_ctx_stopping(ctx) || flow_ctx_cancelled(ctx);
}

/* Sum of the losses of one batch at all timesteps, a picture and timestep each counting once. */
static gboolean measure_batch(FlowCtx *ctx, Validate *s, const FlowItem *item, double *sum, gint64 *n,
                              GError **error)
{
    TrainerBatch batch;
    gboolean given = flow_item_get(item, FLOW_F_LATENT_MEAN) == NULL;
    if (!trainer_batch_read(s->trainer, item, given, &batch, error))
        return FALSE;
    const gint64 *sample = flow_item_i64(item, FLOW_F_SAMPLE);
    guint64 seed = flow_node_seed(flow_ctx_node(ctx));
    g_autofree gint64 *key = g_new(gint64, batch.n);
    g_autofree gint32 *t = g_new(gint32, batch.n);
    batch.key = key, batch.timestep = t;
    batch.weight = batch.offset = batch.alpha_bar = NULL;
    batch.noise = NULL; /* ours, keyed below */
    for (guint i = 0; i < s->n_t; i++) {
        for (gint64 b = 0; b < batch.n; b++) {
            key[b] =
                (gint64)flow_random_key(seed, "validate", (gint64[]){sample ? sample[b] : b, s->t[i]}, 2);
            t[b] = s->t[i];
        }
        float loss;
        if (!trainer_loss(s->trainer, &batch, stopping, ctx, &loss, error))
            return FALSE;
        *sum += loss;
    }
    *n += batch.n * s->n_t;
    return TRUE;
}

/* FLOW_EOS: a stop came in between. */
static FlowStatus measure(FlowCtx *ctx, Validate *s, double *loss, GError **error)
{
    double sum = 0;
    gint64 n = 0;
    for (guint i = 0; i < s->trainer->held->len; i++) {
        g_autoptr(GError) why = NULL;
        if (measure_batch(ctx, s, s->trainer->held->pdata[i], &sum, &n, &why))
            continue;
        if (g_error_matches(why, NET_ERROR, NET_ERROR_STOPPED))
            return FLOW_EOS;
        g_propagate_error(error, g_steal_pointer(&why));
        return FLOW_ERROR;
    }
    *loss = sum / (double)n;
    if (isfinite(*loss))
        return FLOW_OK;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                "the loss on held-back pictures is not finite");
    return FLOW_ERROR;
}

static void report(FlowNode *node, Validate *s, double loss, gint64 updates)
{
    s->last = loss;
    s->last_at = updates;
    if (updates == 0) {
        s->before = loss;
        flow_node_info(node, "validation loss before: %.5f", loss);
        flow_node_gauge(node, "before", loss);
    } else if (isfinite(s->before)) {
        flow_node_info(node,
                       "validation loss after %" G_GINT64_FORMAT " updates: %.5f (before: %.5f, %+.1f %%)",
                       updates, loss, s->before, 100 * (loss / s->before - 1));
    } else {
        flow_node_info(node, "validation loss after %" G_GINT64_FORMAT " updates: %.5f", updates, loss);
    }
    flow_node_gauge(node, "after", loss);
}

/* Is it time? */
static gboolean wanted(const Validate *s, gint32 flags, gint64 updates)
{
    if (flags & (FLOW_STEP_STOP | FLOW_STEP_FAILED))
        return FALSE;
    if (flags & FLOW_STEP_OPENING)
        return s->due || updates == 0;
    if (flags & FLOW_STEP_LAST)
        return s->last_at != updates;
    return (flags & FLOW_STEP_UPDATED) && s->every && updates % s->every == 0;
}

static FlowStatus validate_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    Validate *s = flow_ctx_state(ctx);
    FlowNode *node = flow_ctx_node(ctx);
    FlowItem *item = flow_take(&in[0]);
    gint32 flags = flow_item_i32(item, FLOW_F_FLAGS)[0];
    gint64 updates = s->trainer->updates;
    gboolean run = wanted(s, flags, updates);
    if (run && s->trainer->held->len == 0) {
        if (!s->warned)
            flow_node_warn(
                node, "there are no held-back pictures (set validation at the source): nothing to measure");
        s->warned = TRUE;
        run = FALSE;
    }
    if (run) {
        double loss;
        FlowStatus status = measure(ctx, s, &loss, error);
        s->due = status == FLOW_EOS;
        if (status == FLOW_ERROR) {
            flow_item_unref(item);
            return FLOW_ERROR;
        }
        if (status == FLOW_OK) {
            report(node, s, loss, updates);
            flow_item_set_f32(flow_item_writable(&item), FLOW_F_VALIDATION, (float[]){(float)loss}, 1);
        }
    }
    return flow_emit(ctx, 0, item);
}

/* -- resume --------------------------------------------------------------------------------- */

static GBytes *validate_save(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    Validate *s = flow_node_state(node);
    g_autoptr(GVariant) state =
        g_variant_ref_sink(g_variant_new("(ddxb)", s->before, s->last, s->last_at, s->due));
    return g_variant_get_data_as_bytes(state);
}

static gboolean validate_load(FlowNode *node, GBytes *bytes, GError **error G_GNUC_UNUSED)
{
    Validate *s = flow_node_state(node);
    g_autoptr(GVariant) state =
        g_variant_ref_sink(g_variant_new_from_bytes(G_VARIANT_TYPE("(ddxb)"), bytes, FALSE));
    g_variant_get(state, "(ddxb)", &s->before, &s->last, &s->last_at, &s->due);
    if (isfinite(s->before))
        flow_node_gauge(node, "before", s->before);
    if (isfinite(s->last))
        flow_node_gauge(node, "after", s->last);
    return TRUE;
}

FLOW_STAGE(.name = "validate", .summary = "Loss on held-back pictures at fixed noise and timesteps.",
           .flags = FLOW_STATEFUL | FLOW_NEEDS_OUT, .version = 1, .state_size = sizeof(Validate),
           .params = params, .inputs = inputs, .outputs = outputs, .open = validate_open,
           .process = validate_process, .close = validate_close, .save = validate_save,
           .load = validate_load);
