/* Loss scale, finite check over all gradients, unscaling and clipping.
 *
 * Half precision loses gradients below 6e-8; multiplying the loss by a power of two saves them. The scale
 * grows while all is well and halves when a gradient overflows; such a step changes nothing. Order matters:
 * check, unscale, clip. Unscaling and clipping are one factor that the optimizer applies as it reads the
 * gradients, so they cost no pass over memory of their own.
 *
 * @link m
 */
#include "core/flow/stage.h"
#include "core/model/trainer.h"
#include "kernels/optimizer.h"
#include <math.h>

enum { MODE_AUTO, MODE_DYNAMIC, MODE_STATIC, MODE_OFF };

typedef struct {
    int mode;
    double init, min, max, growth, backoff, clip;
    gint64 growth_interval, max_skips;

    double scale;
    gint64 good, bad; /* steps in a row */
    gboolean settled; /* mode is final and scale is valid */
} Scaler;

static const FlowParam params[] = {
    FLOW_ENUM(Scaler, mode, "auto", "auto|dynamic|static|off",
              "dynamic adapts the scale, static keeps init, off is 1; auto is dynamic for f16 arithmetic, "
              "else off."),
    FLOW_FLOAT(Scaler, init, "65536", 1e-30, 3e38, "", "Scale at the start."),
    FLOW_FLOAT(Scaler, min, "1", 1e-30, 3e38, "", "The scale never falls below."),
    FLOW_FLOAT(Scaler, max, "16777216", 1e-30, 3e38, "", "The scale never grows above."),
    FLOW_INT(Scaler, growth_interval, "2000", 1, 1e9, "steps", "Good steps in a row before the scale grows."),
    FLOW_FLOAT(Scaler, growth, "2", 1, 1024, "", "Factor of growth."),
    FLOW_FLOAT(Scaler, backoff, "0.5", 0.0009765625, 1, "", "Factor after a gradient that is not finite."),
    FLOW_FLOAT(Scaler, clip, "1", 0, 1e30, "",
               "Largest norm over all gradients together; 0 leaves them as they are."),
    FLOW_INT(Scaler, max_skips, "50", 1, 1e9, "steps", "Skipped steps in a row that end the run."),
    FLOW_END,
};

static const FlowPort inputs[] = {
    {.name = "in", .kind = FLOW_STEP, .doc = "Items of lora_step.", .needs = "step flags model loss?"},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out",
     .kind = FLOW_STEP,
     .doc = "The same with the norm and the next scale.",
     .gives = "scale grad_norm"},
    FLOW_END,
};

static gboolean scaler_open(FlowNode *node, GError **error)
{
    Scaler *s = flow_node_state(node);
    if (s->mode != MODE_OFF && (s->init < s->min || s->init > s->max)) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "init = %g is outside min..max (%g..%g)",
                    s->init, s->min, s->max);
        return FALSE;
    }
    return TRUE;
}

/* The first item tells the arithmetic, and so what `auto` means. */
static void settle(FlowNode *node, Scaler *s, const Trainer *t)
{
    if (s->mode == MODE_AUTO) {
        s->mode = t->compute == NET_F16 ? MODE_DYNAMIC : MODE_OFF;
        if (s->mode == MODE_OFF)
            flow_node_info(node, "loss scaling is off: %s arithmetic does not need it",
                           net_type_name(t->compute));
    }
    if (s->mode == MODE_OFF)
        s->scale = 1;
    else if (s->scale == 0)
        s->scale = s->init;
    s->settled = TRUE;
}

typedef struct {
    const NetAdapters *adapters;
    gsize bad, first;
    double sum;
} Scan;

static void scan(gpointer data)
{
    Scan *scan = data;
    const NetAdapters *a = scan->adapters;
    scan->bad = kernel_count_nonfinite(NET_F32, a->gradient, a->n, &scan->first);
    scan->sum = scan->bad ? 0 : kernel_sum_squares(a->gradient, a->n);
}

/* A step that must not change anything. Gives the flags it adds. */
static gint32 skip(FlowNode *node, Scaler *s, Trainer *t, const Scan *found, gint64 step)
{
    g_autofree char *where = found->bad ? trainer_element(t, found->first) : g_strdup("the loss");
    s->good = 0;
    s->bad++;
    flow_node_count(node, "skips", 1);
    if (s->mode == MODE_OFF) {
        trainer_fail(t,
                     "step %" G_GINT64_FORMAT
                     ": the gradient is not finite (first in %s, %zu of %zu values), and the "
                     "loss is not scaled",
                     step, where, found->bad, t->adapters->n);
        return FLOW_STEP_SKIPPED | FLOW_STEP_FAILED;
    }
    double was = s->scale;
    if (s->mode == MODE_DYNAMIC)
        s->scale = MAX(s->scale * s->backoff, s->min);
    flow_node_warn(node, "step %" G_GINT64_FORMAT " is skipped: not finite in %s at scale %g", step, where,
                   was);
    if (s->bad < s->max_skips)
        return FLOW_STEP_SKIPPED;
    trainer_fail(t, "no finite gradients for %" G_GINT64_FORMAT " steps, the scale fell to %g (first in %s)",
                 s->bad, s->scale, where);
    return FLOW_STEP_SKIPPED | FLOW_STEP_FAILED;
}

static void good(Scaler *s, Trainer *t, double norm)
{
    s->bad = 0;
    t->factor = 1 / s->scale;
    if (s->clip > 0)
        t->factor *= MIN(1, s->clip / (norm + 1e-6));
    if (s->mode == MODE_DYNAMIC && ++s->good >= s->growth_interval) {
        s->scale = MIN(s->scale * s->growth, s->max);
        s->good = 0;
    }
}

static FlowStatus scaler_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    Scaler *s = flow_ctx_state(ctx);
    FlowNode *node = flow_ctx_node(ctx);
    FlowItem *item = flow_take(&in[0]);
    Trainer *t = trainer_of(item, error);
    if (!t) {
        flow_item_unref(item);
        return FLOW_ERROR;
    }
    if (!s->settled)
        settle(node, s, t);
    flow_item_writable(&item);
    gint32 flags = flow_item_i32(item, FLOW_F_FLAGS)[0];
    if (!(flags & (FLOW_STEP_OPENING | FLOW_STEP_LAST))) {
        const float *loss = flow_item_f32(item, FLOW_F_LOSS);
        Scan found = {t->adapters, 0, 0, 0};
        net_on_compute_thread(scan, &found);
        double norm = sqrt(found.sum) / s->scale;
        if (found.bad || (loss && !isfinite(*loss)))
            flags |= skip(node, s, t, &found, flow_item_i64(item, FLOW_F_STEP)[0] + 1);
        else
            good(s, t, norm);
        flow_item_set_i32(item, FLOW_F_FLAGS, &flags, 1);
        flow_item_set_f32(item, FLOW_F_GRAD_NORM, (float[]){found.bad ? NAN : (float)norm}, 1);
    }
    flow_item_set_f32(item, FLOW_F_SCALE, (float[]){(float)s->scale}, 1);
    flow_node_gauge(node, "scale", s->scale);
    return flow_emit(ctx, 0, item);
}

static GBytes *scaler_save(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    Scaler *s = flow_node_state(node);
    g_autoptr(GVariant) state = g_variant_ref_sink(g_variant_new("(dxx)", s->scale, s->good, s->bad));
    return g_variant_get_data_as_bytes(state);
}

static gboolean scaler_load(FlowNode *node, GBytes *bytes, GError **error G_GNUC_UNUSED)
{
    Scaler *s = flow_node_state(node);
    g_autoptr(GVariant) state =
        g_variant_ref_sink(g_variant_new_from_bytes(G_VARIANT_TYPE("(dxx)"), bytes, FALSE));
    g_variant_get(state, "(dxx)", &s->scale, &s->good, &s->bad);
    return TRUE;
}

FLOW_STAGE(.name = "scaler", .summary = "Loss scale, finite check over all gradients, clipping.",
           .flags = FLOW_STATEFUL | FLOW_NEEDS_OUT, .version = 1, .state_size = sizeof(Scaler),
           .params = params, .inputs = inputs, .outputs = outputs, .open = scaler_open,
           .process = scaler_process, .save = scaler_save, .load = scaler_load);
