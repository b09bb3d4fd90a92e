/* AdamW with a learning-rate schedule: the optimizer of the training loop.
 *
 * Masters are f32 and belong to lora_step's model; the moments belong to this node. Update u (from 0) of a
 * run of `total` uses
 *
 *   u < warmup   lr (u + 1) / warmup
 *   constant     lr
 *   linear       lr (total - u) / (total - warmup)
 *   cosine       lr (1 + cos(pi (u - warmup) / (total - warmup))) / 2
 *
 * so the rate is never 0 before the end. Steps that the scaler skipped are no updates: neither the bias
 * correction nor the schedule moves. total = min(steps, updates in all epochs).
 *
 * @link m
 */
#include "core/flow/param.h"
#include "core/flow/plan.h"
#include "core/flow/stage.h"
#include "core/model/trainer.h"
#include "kernels/optimizer.h"
#include <math.h>
#include <string.h>

enum { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE };

typedef struct {
    double lr, beta1, beta2, eps, weight_decay;
    int schedule;
    char *warmup;
    gint64 steps;

    gint64 warmup_updates; /* or ... */
    double warmup_share;   /* ... of the total, when > 0 */
    gint64 total;          /* 0 = unknown */
    gboolean announced;
    float *m, *v;
    gsize n;
} Adamw;

static const FlowParam params[] = {
    FLOW_FLOAT(Adamw, lr, "1e-4", 1e-12, 10, "", "Learning rate."),
    FLOW_FLOAT(Adamw, beta1, "0.9", 0, 0.999999, "", "Decay of the mean gradient."),
    FLOW_FLOAT(Adamw, beta2, "0.999", 0, 0.9999999, "", "Decay of the mean square."),
    FLOW_FLOAT(Adamw, eps, "1e-8", 1e-16, 1, "", "Added to the root of the mean square."),
    FLOW_FLOAT(Adamw, weight_decay, "0.01", 0, 1, "", "Decoupled decay, times the learning rate."),
    FLOW_ENUM(Adamw, schedule, "constant", "constant|linear|cosine", "Course of the learning rate."),
    FLOW_STRING(Adamw, warmup, "0", "Updates with a rising rate: a count, or a share such as 5%."),
    FLOW_INT(Adamw, steps, "0", 0, 1e9, "updates",
             "Ends the run after so many updates; 0 = after the epochs.", | FLOW_P_NORESULT),
    FLOW_END,
};

static const FlowPort inputs[] = {
    {.name = "in",
     .kind = FLOW_STEP,
     .doc = "Items with gradients in the model.",
     .needs = "step flags model loss? grad_norm?"},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out", .kind = FLOW_STEP, .doc = "The same with updated parameters.", .gives = "step flags lr"},
    FLOW_END,
};

/* -- parameters --------------------------------------------------------------------- */

static gboolean parse_warmup(Adamw *s, GError **error)
{
    g_autofree char *text = g_strdup(s->warmup);
    gsize n = strlen(g_strstrip(text));
    if (n > 0 && text[n - 1] == '%') {
        text[n - 1] = 0;
        double percent;
        if (flow_parse_float(g_strstrip(text), &percent, NULL) && percent >= 0 && percent <= 100) {
            s->warmup_share = percent / 100;
            return TRUE;
        }
    } else if (flow_parse_int(text, &s->warmup_updates, NULL) && s->warmup_updates >= 0) {
        return TRUE;
    }
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                "warmup = %s is neither a count of updates nor a share of 0%% to 100%%", s->warmup);
    return FALSE;
}

static gboolean adamw_describe(FlowNode *node, GError **error)
{
    Adamw *s = flow_node_state(node);
    FlowNode *source = flow_node_find(node, "image_folder");
    const gint64 *epochs = source ? flow_node_param(source, "epochs") : NULL;
    if (!parse_warmup(s, error))
        return FALSE;
    if (s->steps > 0 || !epochs || *epochs > 0)
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                "the run would never end: set steps here or epochs in [%s]", flow_node_name(source));
    return FALSE;
}

static gboolean adamw_open(FlowNode *node, GError **error)
{
    return parse_warmup(flow_node_state(node), error);
}

static void adamw_close(FlowNode *node)
{
    Adamw *s = flow_node_state(node);
    g_aligned_free(s->m);
    g_aligned_free(s->v);
}

/* -- updates ------------------------------------------------------------------------ */

static double rate(const Adamw *s, gint64 u)
{
    gint64 warmup =
        s->warmup_share > 0 ? (gint64)ceil(s->warmup_share * (double)s->total) : s->warmup_updates;
    if (u < warmup)
        return s->lr * (double)(u + 1) / (double)warmup;
    if (s->schedule == SCHEDULE_CONSTANT || s->total <= warmup)
        return s->lr;
    double gone = (double)(u - warmup) / (double)(s->total - warmup);
    return s->schedule == SCHEDULE_LINEAR ? s->lr * (1 - gone) : s->lr * 0.5 * (1 + cos(G_PI * gone));
}

/* The length of the run is known with the first batch. */
static gboolean set_total(FlowNode *node, Adamw *s, gint64 in_epochs, GError **error)
{
    gint64 was = s->total;
    s->total = s->steps && in_epochs ? MIN(s->steps, in_epochs) : s->steps ? s->steps : in_epochs;
    if (s->announced)
        return TRUE;
    s->announced = TRUE;
    if (!s->total && (s->schedule != SCHEDULE_CONSTANT || s->warmup_share > 0)) {
        g_set_error(
            error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
            "this schedule needs to know the length of the run: set steps here or epochs at the source");
        return FALSE;
    }
    if (was && was != s->total)
        flow_node_info(node,
                       "the run is now %" G_GINT64_FORMAT " updates long (was %" G_GINT64_FORMAT
                       "): the schedule follows the new length",
                       s->total, was);
    else if (s->total)
        flow_node_info(node, "%" G_GINT64_FORMAT " updates", s->total);
    return TRUE;
}

static gboolean moments(Adamw *s, gsize n)
{
    if (s->m)
        return s->n == n;
    gsize bytes = (n * sizeof(float) + 63) / 64 * 64;
    s->n = n;
    s->m = memset(g_aligned_alloc(1, bytes, 64), 0, bytes);
    s->v = memset(g_aligned_alloc(1, bytes, 64), 0, bytes);
    return TRUE;
}

typedef struct {
    Adamw *s;
    Trainer *t;
    double lr;
    gboolean checked; /* by a scaler before us */
    gsize bad, first;
} Job;

static void update(gpointer data)
{
    Job *job = data;
    Adamw *s = job->s;
    NetAdapters *a = job->t->adapters;
    if (!job->checked)
        job->bad = kernel_count_nonfinite(NET_F32, a->gradient, a->n, &job->first);
    if (job->bad)
        return;
    KernelAdamw p = {.lr = job->lr,
                     .beta1 = s->beta1,
                     .beta2 = s->beta2,
                     .eps = s->eps,
                     .weight_decay = s->weight_decay,
                     .step = (guint64)job->t->updates + 1,
                     .factor = job->t->factor};
    kernel_adamw(&p, a->master, s->m, s->v, a->gradient, a->n);
    net_adapters_refresh(a);
    job->t->updates++;
}

static FlowStatus step(FlowCtx *ctx, Adamw *s, Trainer *t, FlowItem *item, GError **error)
{
    gint32 flags = flow_item_i32(item, FLOW_F_FLAGS)[0];
    gint64 at[4];
    memcpy(at, flow_item_i64(item, FLOW_F_STEP), sizeof at);
    if (!set_total(flow_ctx_node(ctx), s, at[1], error))
        return FLOW_ERROR;
    if (!moments(s, t->adapters->n)) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                    "the moments are for %zu parameters, the model has %zu", s->n, t->adapters->n);
        return FLOW_ERROR;
    }
    Job job = {
        .s = s, .t = t, .lr = rate(s, t->updates), .checked = flow_item_f32(item, FLOW_F_GRAD_NORM) != NULL};
    if (!(flags & FLOW_STEP_SKIPPED))
        net_on_compute_thread(update, &job);
    if (job.bad) {
        g_autofree char *where = trainer_element(t, job.first);
        trainer_fail(t, "step %" G_GINT64_FORMAT ": the gradient is not finite (first in %s)", t->updates + 1,
                     where);
        flags |= FLOW_STEP_SKIPPED | FLOW_STEP_FAILED;
    }
    if (!(flags & FLOW_STEP_SKIPPED))
        flags |= FLOW_STEP_UPDATED;
    if (s->total && t->updates >= s->total)
        flags |= FLOW_STEP_ENDING;
    at[0] = t->updates, at[1] = s->total;
    flow_item_set_i64(item, FLOW_F_STEP, at, 4);
    flow_item_set_i32(item, FLOW_F_FLAGS, &flags, 1);
    flow_item_set_f32(item, FLOW_F_LR, (float[]){(float)job.lr}, 1);
    const float *loss = flow_item_f32(item, FLOW_F_LOSS);
    flow_progress(ctx, t->updates, s->total, loss ? (double)*loss : 0);
    return FLOW_OK;
}

static FlowStatus adamw_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    Adamw *s = flow_ctx_state(ctx);
    g_autoptr(FlowItem) item = flow_take(&in[0]);
    Trainer *t = trainer_of(item, error);
    if (!t)
        return FLOW_ERROR;
    flow_item_writable(&item);
    gint32 flags = flow_item_i32(item, FLOW_F_FLAGS)[0];
    if (!(flags & (FLOW_STEP_OPENING | FLOW_STEP_LAST)) && step(ctx, s, t, item, error) != FLOW_OK)
        return FLOW_ERROR;
    if ((flags & FLOW_STEP_OPENING) && s->steps && t->updates >= s->steps) { /* resumed at its end */
        flags |= FLOW_STEP_ENDING;
        flow_item_set_i32(item, FLOW_F_FLAGS, &flags, 1);
    }
    if (flags & FLOW_STEP_LAST) { /* the length of the run as it is known here */
        gint64 at[4];
        memcpy(at, flow_item_i64(item, FLOW_F_STEP), sizeof at);
        at[1] = s->total;
        flow_item_set_i64(item, FLOW_F_STEP, at, 4);
    }
    return flow_emit(ctx, 0, g_steal_pointer(&item));
}

/* -- resume and plan ---------------------------------------------------------------- */

static GVariant *floats(const float *x, gsize n)
{
    return g_variant_new_fixed_array(G_VARIANT_TYPE_BYTE, x, x ? n * sizeof(float) : 0, 1);
}

static GBytes *adamw_save(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    Adamw *s = flow_node_state(node);
    g_autoptr(GVariant) state =
        g_variant_ref_sink(g_variant_new("(x@ay@ay)", s->total, floats(s->m, s->n), floats(s->v, s->n)));
    return g_variant_get_data_as_bytes(state);
}

static gboolean adamw_load(FlowNode *node, GBytes *bytes, GError **error)
{
    Adamw *s = flow_node_state(node);
    g_autoptr(GVariant) state =
        g_variant_ref_sink(g_variant_new_from_bytes(G_VARIANT_TYPE("(xayay)"), bytes, FALSE));
    g_autoptr(GVariant) m = g_variant_get_child_value(state, 1), v = g_variant_get_child_value(state, 2);
    gsize size_m, size_v;
    gconstpointer data_m = g_variant_get_fixed_array(m, &size_m, 1),
                  data_v = g_variant_get_fixed_array(v, &size_v, 1);
    g_variant_get_child(state, 0, "x", &s->total);
    if (size_m != size_v || size_m % sizeof(float)) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                    "the checkpoint's moments have %zu and %zu bytes", size_m, size_v);
        return FALSE;
    }
    if (size_m == 0)
        return TRUE;
    moments(s, size_m / sizeof(float));
    memcpy(s->m, data_m, size_m);
    memcpy(s->v, data_v, size_v);
    return TRUE;
}

static gboolean adamw_plan(FlowNode *node, FlowPlan *plan, GError **error)
{
    FlowNode *step_node = flow_node_find(node, "lora_step");
    if (!step_node)
        return TRUE;
    const Trainer *t = flow_node_shared(step_node, TRAINER_TYPE, error);
    if (!t)
        return FALSE;
    gsize bytes = 2 * t->adapters->n * sizeof(float);
    for (FlowPhase phase = FLOW_PHASE_TRAIN; phase < FLOW_PHASE_COUNT; phase++)
        flow_plan_add(plan, node, phase, FLOW_HOST, "optimizer", bytes);
    flow_plan_add(plan, node, FLOW_PHASE_SAVE, FLOW_HOST, "checkpoint", 2 * bytes); /* as it is made */
    flow_plan_fact(plan, "optimizer", (double)bytes);
    return TRUE;
}

FLOW_STAGE(.name = "adamw", .summary = "AdamW with f32 masters and a learning-rate schedule.",
           .flags = FLOW_STATEFUL | FLOW_NEEDS_OUT, .version = 1, .state_size = sizeof(Adamw),
           .params = params, .inputs = inputs, .outputs = outputs, .open = adamw_open,
           .process = adamw_process, .close = adamw_close, .describe = adamw_describe, .plan = adamw_plan,
           .save = adamw_save, .load = adamw_load);
