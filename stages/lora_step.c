/* Latent draw, noising, forward, loss, backward of the adapters over a group of micro-batches.
 *
 * The node is the head of the training loop. What it emits goes through scaler, optimizer, savers and comes
 * back on `params`; only then does the next group start, so parameters never change under a step.
 *
 *   opening item  first of all: settled start values go round (start of the loss scale, "before" validation)
 *   step item     one a group, with loss and the shared model; gradients lie in the model
 *   closing item  last of all: everyone saves
 *
 * A group is whole or nothing: one that is cut by a stop leaves no trace. Weights are loaded when the caches
 * are filled (or with the first batch), so that encoders and U-Net need not be in memory together. */
#include "core/flow/stage.h"
#include "core/model/encoder.h"
#include "core/model/trainer_plan.h"
#include "kernels/optimizer.h"
#include <string.h>

enum { IN_BATCH, IN_PARAMS };
enum { MOVED_AFTER = 3 }; /* updates after which some B must differ from zero */

typedef struct {
    char *base, *from, **targets;
    gint64 rank;
    double alpha;
    int init, compute, weights, residency, recompute, latents;

    Trainer *trainer;
    gboolean begun, awaiting, ending, closed; /* awaiting: an item is on its way round the loop */
    gboolean checked_first, checked_moved;
    float scale; /* loss scale in force */
    gint64 group, epoch, next_micro, samples, total;
    gint64 groups; /* completed in the whole training */
    double loss;
    FlowCursor cursor; /* of the last completed group */
} LoraStep;

static const FlowParam params[] = {
    FLOW_PATH(LoraStep, base, NULL, "Base model: a diffusers folder."),
    FLOW_INT(LoraStep, rank, "16", 1, 1024, "", "Rank of the adapters.", | FLOW_P_FIXED),
    FLOW_FLOAT(LoraStep, alpha, "0", 0, 65536, "",
               "Adapters are scaled by alpha / rank; 0 means alpha = rank.", | FLOW_P_FIXED),
    FLOW_LIST(
        LoraStep, targets, "attention",
        "Adapted modules: attention, linear (every linear of the transformers), all (and the convolutions), "
        "or patterns over module paths; ! in front excludes.",
        | FLOW_P_FIXED),
    FLOW_ENUM(LoraStep, init, "kaiming", "kaiming|gaussian|scaled", "Start of A; B starts at zero."),
    FLOW_PATH(LoraStep, from, "", "LoRA file to go on from."),
    FLOW_ENUM(LoraStep, compute, "auto", "auto|f32|bf16",
              "Arithmetic of the U-Net; auto is bf16 where the processor has it, else f32."),
    FLOW_ENUM(LoraStep, weights, "auto", "auto", "Storage of the frozen weights; auto is the compute type."),
    FLOW_ENUM(LoraStep, residency, "auto", "auto|resident", "Where the frozen weights live."),
    FLOW_ENUM(LoraStep, recompute, "auto", "auto|none", "Which activations are computed again in backward."),
    FLOW_ENUM(LoraStep, latents, "encoded", "encoded|given",
              "Where x0 comes from: drawn from latent_mean and latent_logvar, or the field latent as it is."),
    FLOW_END,
};

#define OPTIONAL " noise? noise_offset? alpha_bar? prediction? role?"

static const FlowPort inputs[] = {
    {.name = "batch",
     .kind = FLOW_BATCH,
     .doc = "Micro-batches, and batches of held-back pictures before them.",
     .needs = "latent_mean latent_logvar context micro timestep noise_key weight pooled? time_ids?" OPTIONAL},
    {.name = "params",
     .kind = FLOW_STEP,
     .doc = "The step item, back with settled parameters.",
     .needs = "step flags scale?",
     .flags = FLOW_PORT_FEEDBACK},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out",
     .kind = FLOW_STEP,
     .doc = "One item a group, an opening one before and a closing one after them.",
     .gives = "step flags loss samples scale model",
     .flags = FLOW_PORT_NEW},
    FLOW_END,
};

/* Whether pooled text and time ids are needed only the model knows; a base that cannot be read is open's to
 * report. */
static gboolean lora_step_describe(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    LoraStep *s = flow_node_state(node);
    Model *model = s->base ? model_open(s->base, NULL) : NULL;
    gboolean sdxl = model && model->unet.text_time;
    if (model)
        model_free(model);
    g_autofree char *needs = g_strdup_printf("%s context micro timestep noise_key weight %s" OPTIONAL,
                                             s->latents ? "latent" : "latent_mean latent_logvar",
                                             sdxl ? "pooled time_ids" : "pooled? time_ids?");
    flow_node_needs(node, "batch", needs);
    return TRUE;
}

static gboolean lora_step_open(FlowNode *node, GError **error)
{
    LoraStep *s = flow_node_state(node);
    TrainerOptions options = {
        .targets = s->targets,
        .rank = s->rank,
        .alpha = s->alpha,
        .init = (LoraInit)s->init,
        .from = s->from && *s->from ? s->from : NULL,
        .compute = model_compute_choice(s->compute),
        .seed = flow_node_seed(node),
    };
    s->scale = 1;
    return (s->trainer = trainer_new(s->base, &options, error)) != NULL;
}

static void lora_step_close(FlowNode *node)
{
    LoraStep *s = flow_node_state(node);
    trainer_free(s->trainer);
}

static gpointer lora_step_share(FlowNode *node, const char *type)
{
    LoraStep *s = flow_node_state(node);
    return strcmp(type, TRAINER_TYPE) == 0 ? s->trainer : NULL;
}

/* -- the loop ---------------------------------------------------------------------------- */

static FlowStatus emit(FlowCtx *ctx, LoraStep *s, gint32 flags)
{
    FlowItem *item = flow_item_new(FLOW_STEP);
    item->cursor = s->cursor;
    flow_item_set_i64(item, FLOW_F_STEP, (gint64[]){s->trainer->updates, s->total, s->group, s->epoch}, 4);
    flow_item_set_i32(item, FLOW_F_FLAGS, &flags, 1);
    flow_item_set_f32(item, FLOW_F_SCALE, &s->scale, 1);
    flow_item_set_i64(item, FLOW_F_SAMPLES, &s->samples, 1);
    if (!(flags & (FLOW_STEP_OPENING | FLOW_STEP_LAST)))
        flow_item_set_f32(item, FLOW_F_LOSS, (float[]){(float)s->loss}, 1);
    flow_item_set(item, FLOW_F_MODEL, flow_value_object(TRAINER_TYPE, s->trainer, NULL));
    s->trainer->factor = 1;
    s->awaiting = TRUE;
    return flow_emit(ctx, 0, item);
}

/* The parameters must have moved: an adapter that is not connected would train for hours in vain. */
static gboolean check_moved(FlowNode *node, LoraStep *s, GError **error)
{
    const char *first = NULL;
    s->checked_moved = TRUE;
    guint unmoved = s->trainer->fresh ? trainer_unmoved(s->trainer, &first) : 0;
    if (unmoved == s->trainer->adapters->list->len) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                    "no parameter has moved after %" G_GINT64_FORMAT " updates", s->trainer->updates);
        return FALSE;
    }
    if (unmoved > 0)
        flow_node_warn(node,
                       "%u of %u modules have not moved after %" G_GINT64_FORMAT " updates, '%s' is one",
                       unmoved, s->trainer->adapters->list->len, s->trainer->updates, first);
    return TRUE;
}

/* Waits until what was emitted last is back: parameters are settled then. */
static FlowStatus settle(FlowCtx *ctx, LoraStep *s, GError **error)
{
    if (!s->awaiting)
        return FLOW_OK;
    g_autoptr(FlowItem) item = NULL;
    FlowStatus status = flow_pop(ctx, IN_PARAMS, &item, error);
    if (status != FLOW_OK)
        return status;
    s->awaiting = FALSE;
    gint32 flags = flow_item_i32(item, FLOW_F_FLAGS)[0];
    if (flags & FLOW_STEP_FAILED) {
        const char *why = s->trainer->failure;
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "%s",
                    why ? why : "training cannot go on");
        return FLOW_ERROR;
    }
    s->ending = (flags & FLOW_STEP_ENDING) != 0;
    const float *scale = flow_item_f32(item, FLOW_F_SCALE);
    if (scale)
        s->scale = *scale;
    if (!s->checked_moved && s->trainer->updates >= MOVED_AFTER && !check_moved(flow_ctx_node(ctx), s, error))
        return FLOW_ERROR;
    return FLOW_OK;
}

/* FLOW_DEBUG=base hashes the frozen weights before and after. */
static gboolean base_is_watched(void)
{
    const char *debug = g_getenv("FLOW_DEBUG");
    return debug && strstr(debug, "base") != NULL;
}

static FlowStatus begin(FlowCtx *ctx, LoraStep *s, GError **error)
{
    FlowNode *node = flow_ctx_node(ctx);
    gboolean resumed = flow_graph_resumed(flow_node_graph(node));
    if (!trainer_load(s->trainer, base_is_watched(), error))
        return FLOW_ERROR;
    s->begun = TRUE;
    flow_node_gauge(node, "modules", s->trainer->adapters->list->len);
    return emit(ctx, s, FLOW_STEP_OPENING | (resumed ? FLOW_STEP_RESUMED : 0));
}

/* The closing round. */
static FlowStatus finish(FlowCtx *ctx, LoraStep *s, GError **error)
{
    s->closed = TRUE;
    if (s->trainer->updates > 0 && !s->checked_moved && !check_moved(flow_ctx_node(ctx), s, error))
        return FLOW_ERROR;
    FlowStatus status =
        emit(ctx, s, FLOW_STEP_LAST | (flow_ctx_stopping(ctx) && !s->ending ? FLOW_STEP_STOP : 0));
    if (status == FLOW_OK)
        status = settle(ctx, s, error);
    if (status == FLOW_OK && !trainer_check_base(s->trainer, error))
        return FLOW_ERROR;
    return status;
}

static FlowStatus lora_step_mark(FlowCtx *ctx, FlowMark mark, GError **error)
{
    LoraStep *s = flow_ctx_state(ctx);
    return mark == FLOW_MARK_PREFILL_DONE && !s->begun ? begin(ctx, s, error) : FLOW_OK;
}

static FlowStatus lora_step_flush(FlowCtx *ctx, GError **error)
{
    LoraStep *s = flow_ctx_state(ctx);
    FlowStatus status = FLOW_OK;
    if (s->closed)
        return FLOW_OK;
    if (s->groups == 0 && flow_ctx_stopping(ctx)) {
        flow_node_info(flow_ctx_node(ctx), "stopped before the first step: there is nothing to save");
        return s->begun ? settle(ctx, s, error) : FLOW_OK;
    }
    if (!s->begun)
        status = begin(ctx, s, error);
    if (status == FLOW_OK)
        status = settle(ctx, s, error);
    if (status != FLOW_OK)
        return status;
    if (s->groups == 0) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                    "no batch arrived: nothing was trained (are there enough pictures for one batch?)");
        return FLOW_ERROR;
    }
    return finish(ctx, s, error);
}

/* -- groups -------------------------------------------------------------------------------- */

static FlowStatus start_group(FlowCtx *ctx, LoraStep *s, const gint64 *micro, GError **error)
{
    FlowStatus status = settle(ctx, s, error);
    if (status != FLOW_OK)
        return status;
    if (s->ending) { /* the last update is done; this batch is not needed */
        status = finish(ctx, s, error);
        return status == FLOW_OK ? FLOW_EOS : status;
    }
    trainer_clear_gradient(s->trainer);
    s->group = micro[0], s->total = micro[4], s->epoch = micro[5];
    s->loss = 0, s->samples = 0, s->next_micro = 0;
    return FLOW_OK;
}

/* With B = 0 the gradient of A is exactly zero; judged once, on the first finite gradient. */
static gboolean check_first(LoraStep *s, GError **error)
{
    const NetAdapters *a = s->trainer->adapters;
    if (s->checked_first || !s->trainer->fresh || s->trainer->updates > 0)
        return TRUE;
    if (kernel_count_nonfinite(NET_F32, a->gradient, a->n, NULL) > 0)
        return TRUE; /* the scaler's business */
    s->checked_first = TRUE;
    return trainer_check_first(s->trainer, error);
}

static gboolean check_order(const LoraStep *s, const gint64 *micro, GError **error)
{
    if (micro[0] == s->group && micro[1] == s->next_micro && micro[1] < micro[2] && micro[3] > 0)
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                "micro-batch %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT " of group %" G_GINT64_FORMAT
                " arrived where %" G_GINT64_FORMAT " of group %" G_GINT64_FORMAT " was due",
                micro[1], micro[2], micro[0], s->next_micro, s->group);
    return FALSE;
}

static FlowStatus train(FlowCtx *ctx, LoraStep *s, const FlowItem *item, GError **error)
{
    const gint64 *micro = flow_item_i64(item, FLOW_F_MICRO);
    FlowStatus status = micro[1] == 0 ? start_group(ctx, s, micro, error) : FLOW_OK;
    if (status != FLOW_OK)
        return status;
    TrainerBatch batch;
    float loss;
    if (!check_order(s, micro, error) ||
        !trainer_batch_read(s->trainer, item, s->latents != 0, &batch, error))
        return FLOW_ERROR;
    if (!trainer_gradient(s->trainer, &batch, s->scale, &loss, error))
        return FLOW_ERROR;
    s->loss += loss;
    s->samples += batch.n;
    if (++s->next_micro < micro[2])
        return FLOW_OK;
    s->cursor = item->cursor;
    s->groups++;
    return check_first(s, error) ? emit(ctx, s, 0) : FLOW_ERROR;
}

/* Held-back pictures stay with the model; what validate will read is checked where the picture is known. */
static FlowStatus keep(FlowCtx *ctx, LoraStep *s, FlowItem **slot, GError **error)
{
    TrainerBatch batch;
    if (!trainer_batch_read(s->trainer, *slot, s->latents != 0, &batch, error))
        return FLOW_ERROR;
    g_ptr_array_add(s->trainer->held, flow_take(slot));
    flow_node_count(flow_ctx_node(ctx), "held_back", (double)batch.n);
    return FLOW_OK;
}

static FlowStatus lora_step_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    LoraStep *s = flow_ctx_state(ctx);
    const gint32 *role = flow_item_i32(in[IN_BATCH], FLOW_F_ROLE);
    if (role && *role == 1)
        return keep(ctx, s, &in[IN_BATCH], error);
    FlowStatus status = s->begun ? FLOW_OK : begin(ctx, s, error);
    return status == FLOW_OK ? train(ctx, s, in[IN_BATCH], error) : status;
}

/* -- resume and plan --------------------------------------------------------------------------- */

#define STATE "(xxxxxxxxdbb@ay)"

static GBytes *lora_step_save(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    LoraStep *s = flow_node_state(node);
    g_autoptr(GBytes) trainer = trainer_save_state(s->trainer);
    GVariant *inner = g_variant_new_from_bytes(G_VARIANT_TYPE_BYTESTRING, trainer, TRUE);
    g_autoptr(GVariant) state = g_variant_ref_sink(g_variant_new(
        STATE, s->group, s->groups, s->epoch, s->total, s->cursor.epoch, s->cursor.position, s->cursor.size,
        s->cursor.epochs, (double)s->scale, s->checked_first, s->checked_moved, inner));
    return g_variant_get_data_as_bytes(state);
}

static gboolean lora_step_load(FlowNode *node, GBytes *bytes, GError **error)
{
    LoraStep *s = flow_node_state(node);
    g_autoptr(GVariant)
        inner = NULL,
        state = g_variant_ref_sink(g_variant_new_from_bytes(G_VARIANT_TYPE("(xxxxxxxxdbbay)"), bytes, FALSE));
    double scale;
    g_variant_get(state, STATE, &s->group, &s->groups, &s->epoch, &s->total, &s->cursor.epoch,
                  &s->cursor.position, &s->cursor.size, &s->cursor.epochs, &scale, &s->checked_first,
                  &s->checked_moved, &inner);
    s->scale = (float)scale;
    g_autoptr(GBytes) trainer = g_variant_get_data_as_bytes(inner);
    return trainer_load_state(s->trainer, trainer, error);
}

static gboolean lora_step_plan(FlowNode *node, FlowPlan *plan, GError **error)
{
    LoraStep *s = flow_node_state(node);
    return trainer_plan_report(s->trainer, node, plan, error);
}

FLOW_STAGE(.name = "lora_step",
           .summary = "Trains the adapters: forward, loss and backward of a group of batches.",
           .details = "Head of the training loop: its items pass scaler, optimizer, validate, save_lora and "
                      "checkpoint and come back on `params`.",
           .flags = FLOW_STATEFUL | FLOW_NEEDS_OUT, .version = 1, .state_size = sizeof(LoraStep),
           .params = params, .inputs = inputs, .outputs = outputs, .open = lora_step_open,
           .process = lora_step_process, .flush = lora_step_flush, .mark = lora_step_mark,
           .close = lora_step_close, .describe = lora_step_describe, .plan = lora_step_plan,
           .share = lora_step_share, .save = lora_step_save, .load = lora_step_load);
