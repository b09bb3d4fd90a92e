/* Captions to what the U-Net reads: text encoder states, for SDXL of both encoders side by side, and the
 * pooled vector.
 *
 * What is encoded is a sequence of tokens; the latest few are remembered, so that a caption in use by many
 * pictures, or the empty one of caption dropout, is not computed again. Weights come with the first caption
 * that needs them and go when the caches are filled, as in vae_encode.
 *
 * @link m
 */
#include "core/flow/plan.h"
#include "core/flow/stage.h"
#include "core/model/texts.h"
#include <math.h>
#include <string.h>

enum { REMEMBERED = 16 };

typedef struct {
    TextTokens tokens;
    FlowValue *context, *pooled; /* NULL: empty, or due */
    gboolean due;
    guint64 used;
} Known;

typedef struct {
    FlowItem *item;
    Known *known; /* NULL: needs nothing */
} Waiting;

typedef struct {
    char *base;
    int compute;
    gint64 batch;

    Model *model;
    Texts *texts;
    gboolean stays, gone, warned; /* stays: beyond prefill; gone: freed at its end */
    Known *known;                 /* more than can wait, so that the oldest slot is never waited for */
    guint slots, due;
    guint64 clock;
    GQueue waiting; /* Waiting *, in order */
} TextEncode;

static const FlowParam params[] = {
    FLOW_PATH(TextEncode, base, NULL, "Base model: a diffusers folder."),
    FLOW_ENUM(TextEncode, compute, "auto", "auto|f32|bf16",
              "Arithmetic; auto is bf16 where the processor has it, else f32."),
    FLOW_INT(TextEncode, batch, "1", 1, 64, "captions",
             "Captions that are encoded together; the result is the same.", | FLOW_P_NORESULT),
    FLOW_END,
};

static const FlowPort inputs[] = {
    {.name = "in", .kind = FLOW_SAMPLE, .doc = "Samples with a caption.", .needs = "caption"},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out", .kind = FLOW_SAMPLE, .doc = "The same with text states.", .gives = "context"},
    FLOW_END,
};

/* Only the model knows whether there is a pooled vector; a base that cannot be read is open's to report. */
static gboolean text_encode_describe(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    TextEncode *s = flow_node_state(node);
    Model *model = s->base ? model_open(s->base, NULL) : NULL;
    if (model && model->texts == 2)
        flow_node_gives(node, "out", "context pooled");
    model_free(model);
    return TRUE;
}

static gboolean text_encode_open(FlowNode *node, GError **error)
{
    TextEncode *s = flow_node_state(node);
    FlowNode *store = flow_node_find(node, "fp16_cache_store");
    g_queue_init(&s->waiting);
    if (!(s->model = model_open(s->base, error)))
        return FALSE;
    s->stays = !store || !flow_node_leads_to(node, store);
    s->slots = REMEMBERED + 4 * (guint)s->batch;
    s->known = g_new0(Known, s->slots);
    s->texts = texts_new(s->model, model_compute_choice(s->compute), (guint)s->batch, error);
    return s->texts != NULL;
}

static void waiting_free(gpointer data)
{
    Waiting *w = data;
    flow_item_unref(w->item);
    g_free(w);
}

static void text_encode_close(FlowNode *node)
{
    TextEncode *s = flow_node_state(node);
    g_queue_clear_full(&s->waiting, waiting_free);
    for (guint i = 0; i < s->slots; i++) {
        flow_value_unref(s->known[i].context);
        flow_value_unref(s->known[i].pooled);
    }
    g_free(s->known);
    texts_free(s->texts);
    model_free(s->model);
}

static char *text_encode_recipe(FlowNode *node, GError **error)
{
    TextEncode *s = flow_node_state(node);
    Model *model = model_open(s->base, error);
    g_autofree char *hash = model ? model_part_hash(model, "text", error) : NULL;
    model_free(model);
    return hash ? g_strdup_printf("%s %s", hash, net_type_name(model_compute_choice(s->compute))) : NULL;
}

/* -- what is known -------------------------------------------------------------------- */

/* The slot of these tokens, known or due; NULL if there is none. */
static Known *find(TextEncode *s, const TextTokens *tokens)
{
    for (Known *k = s->known; k < s->known + s->slots; k++)
        if ((k->context || k->due) && memcmp(&k->tokens, tokens, sizeof *tokens) == 0)
            return k;
    return NULL;
}

static Known *add(TextEncode *s, const TextTokens *tokens)
{
    Known *slot = s->known;
    for (Known *k = s->known; k < s->known + s->slots; k++)
        if (k->used < slot->used)
            slot = k;
    flow_value_unref(g_steal_pointer(&slot->context));
    flow_value_unref(g_steal_pointer(&slot->pooled));
    slot->tokens = *tokens;
    slot->due = TRUE;
    s->due++;
    return slot;
}

static gboolean all_finite(const FlowValue *v)
{
    const float *x = v ? v->data : NULL;
    for (gsize i = 0, n = v ? flow_value_count(v) : 0; i < n; i++)
        if (!isfinite(x[i]))
            return FALSE;
    return TRUE;
}

static gboolean stopping(gpointer ctx)
{
    return flow_ctx_stopping(ctx) || flow_ctx_cancelled(ctx);
}

/* Encodes what is due. FLOW_CANCELLED: a stop came in between. */
static FlowStatus encode(FlowCtx *ctx, TextEncode *s, GError **error)
{
    g_autofree const TextTokens **tokens = g_new(const TextTokens *, s->due + 1);
    g_autofree FlowValue **context = g_new(FlowValue *, s->due + 1),
                         **pooled = g_new(FlowValue *, s->due + 1);
    g_autoptr(GError) why = NULL;
    guint n = 0;
    for (Known *k = s->known; k < s->known + s->slots; k++)
        if (k->due)
            tokens[n++] = &k->tokens;
    if (n == 0)
        return FLOW_OK;
    if (!texts_run(s->texts, n, tokens, context, pooled, stopping, ctx, &why)) {
        if (g_error_matches(why, NET_ERROR, NET_ERROR_STOPPED))
            return FLOW_CANCELLED;
        g_propagate_error(error, g_steal_pointer(&why));
        return FLOW_ERROR;
    }
    flow_node_count(flow_ctx_node(ctx), "encoded", n);
    n = 0;
    for (Known *k = s->known; k < s->known + s->slots; k++)
        if (k->due) {
            k->context = context[n];
            k->pooled = pooled[n++];
            k->due = FALSE;
        }
    s->due = 0;
    return FLOW_OK;
}

/* -- the queue -------------------------------------------------------------------------- */

static FlowStatus deliver(FlowCtx *ctx, Waiting *w, GError **error)
{
    FlowItem *item = g_steal_pointer(&w->item);
    if (!w->known)
        return flow_emit(ctx, 0, item);
    if (!all_finite(w->known->context) || !all_finite(w->known->pooled)) {
        g_autofree char *label = flow_item_label(item);
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                    "the text encoder gave values that are not finite for the caption of %s", label);
        flow_item_unref(item);
        return FLOW_ERROR;
    }
    flow_item_writable(&item);
    flow_item_set(item, FLOW_F_CONTEXT, flow_value_ref(w->known->context));
    if (w->known->pooled)
        flow_item_set(item, FLOW_F_POOLED, flow_value_ref(w->known->pooled));
    return flow_emit(ctx, 0, item);
}

/* Encodes what is due and sends everything on. */
static FlowStatus drain(FlowCtx *ctx, TextEncode *s, GError **error)
{
    FlowStatus status = encode(ctx, s, error);
    Waiting *w;
    while (status == FLOW_OK && (w = g_queue_pop_head(&s->waiting))) {
        status = deliver(ctx, w, error);
        waiting_free(w);
    }
    return status;
}

static gboolean needs_work(const TextEncode *s, const FlowItem *item)
{
    FlowFieldSet all = FLOW_FIELD_BIT(FLOW_F_CONTEXT);
    if (texts_has_pooled(s->texts))
        all |= FLOW_FIELD_BIT(FLOW_F_POOLED);
    return !item->pending && (item->filled & all) != all;
}

static void warn_cut(FlowCtx *ctx, TextEncode *s, const FlowItem *item, gint tokens)
{
    flow_node_count(flow_ctx_node(ctx), "cut", 1);
    if (!s->warned) {
        g_autofree char *label = flow_item_label(item);
        flow_node_warn(flow_ctx_node(ctx),
                       "the caption of %s has %d tokens; what is beyond %d is not read (said once)", label,
                       tokens, TOKENIZER_LENGTH - 2);
    }
    s->warned = TRUE;
}

/* The slot of an item's caption, new where nobody has asked for it yet. */
static Known *slot_of(FlowCtx *ctx, TextEncode *s, const FlowItem *item, GError **error)
{
    TextTokens tokens;
    gint n = texts_tokens(s->texts, flow_item_string(item, FLOW_F_CAPTION), &tokens);
    Known *known = find(s, &tokens);
    if (!known && s->gone) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                    "the caption is not in the cache, and the encoder was freed when the cache was filled");
        return NULL;
    }
    if (n > TOKENIZER_LENGTH - 2)
        warn_cut(ctx, s, item, n);
    if (!known)
        known = add(s, &tokens);
    known->used = ++s->clock;
    return known;
}

static FlowStatus text_encode_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    TextEncode *s = flow_ctx_state(ctx);
    Known *known = NULL;
    if (needs_work(s, in[0]) && !(known = slot_of(ctx, s, in[0], error)))
        return FLOW_ERROR;
    Waiting *w = g_new(Waiting, 1);
    *w = (Waiting){flow_take(&in[0]), known};
    g_queue_push_tail(&s->waiting, w);
    if (s->due > 0 && s->due < s->batch && s->waiting.length < 4 * s->batch)
        return FLOW_OK;
    return drain(ctx, s, error);
}

static FlowStatus text_encode_flush(FlowCtx *ctx, GError **error)
{
    TextEncode *s = flow_ctx_state(ctx);
    return flow_ctx_stopping(ctx) ? FLOW_OK : drain(ctx, s, error);
}

static FlowStatus text_encode_mark(FlowCtx *ctx, FlowMark mark, GError **error)
{
    TextEncode *s = flow_ctx_state(ctx);
    FlowStatus status = drain(ctx, s, error);
    if (mark == FLOW_MARK_PREFILL_DONE && !s->stays) {
        texts_unload(s->texts);
        s->gone = TRUE;
    }
    return status;
}

static gint64 text_encode_hold(FlowNode *node)
{
    TextEncode *s = flow_node_state(node);
    return s->batch > 1 ? 4 * s->batch : 0;
}

static gboolean text_encode_plan(FlowNode *node, FlowPlan *plan, GError **error)
{
    TextEncode *s = flow_node_state(node);
    s->stays = s->stays || plan->encoders_stay;
    flow_plan_add_always(plan, node, FLOW_HOST, "scratch",
                         s->slots * (texts_result_bytes(s->texts) + sizeof(Known)));
    return texts_plan(s->texts, node, plan, s->stays ? FLOW_PHASE_COUNT : FLOW_PHASE_TRAIN, error);
}

FLOW_STAGE(.name = "text_encode",
           .summary = "Captions to text encoder states (and the pooled vector of SDXL).",
           .flags = FLOW_STATEFUL | FLOW_PENDING, .version = 1, .state_size = sizeof(TextEncode),
           .params = params, .inputs = inputs, .outputs = outputs, .open = text_encode_open,
           .process = text_encode_process, .flush = text_encode_flush, .mark = text_encode_mark,
           .close = text_encode_close, .describe = text_encode_describe, .plan = text_encode_plan,
           .recipe = text_encode_recipe, .hold = text_encode_hold);
