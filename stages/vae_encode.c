/* Pictures to latents: mean and log variance of the VAE's posterior, f32, not scaled.
 *
 * Weights come with the first picture that needs them and go when the caches are filled, so that VAE and
 * U-Net are not in memory together; a picture that needs encoding after that is an error unless the plan has
 * kept the encoder. Pictures of one size may be encoded together; they stay in order, so what needs no
 * encoding waits behind what does.
 *
 * @link m
 */
#include "core/flow/plan.h"
#include "core/flow/stage.h"
#include "core/model/encoder.h"
#include <math.h>
#include <string.h>

typedef struct {
    char *base;
    int compute;
    gint64 batch;

    Model *model;
    Encoder *encoder;
    gboolean stays; /* beyond prefill */
    gboolean gone;  /* freed at the end of prefill */
    GQueue waiting; /* FlowItem * */
    guint due;      /* of them to be encoded */
    float *pixels, *moments;
    gsize pixels_n, moments_n;
} VaeEncode;

static const FlowParam params[] = {
    FLOW_PATH(VaeEncode, base, NULL, "Base model: a diffusers folder."),
    FLOW_ENUM(VaeEncode, compute, "auto", "auto|f32|bf16",
              "Arithmetic; auto is bf16 where the processor has it, else f32."),
    FLOW_INT(VaeEncode, batch, "1", 1, 64, "pictures",
             "Pictures of one size that are encoded together; the result is the same.", | FLOW_P_NORESULT),
    FLOW_END,
};

static const FlowPort inputs[] = {
    {.name = "in", .kind = FLOW_SAMPLE, .doc = "Pictures at their target size.", .needs = "pixels"},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out",
     .kind = FLOW_SAMPLE,
     .doc = "The same with latents instead of pixels.",
     .gives = "latent_mean latent_logvar",
     .drops = "pixels"},
    FLOW_END,
};

/* -- the network ----------------------------------------------------------------------- */

static NetWeights *load(const Model *model, NetType type, GError **error)
{
    return model_load_vae(model, type, TRUE, FALSE, error);
}

static void build(const Model *model, Net *net, const NetWeights *weights, const gint64 *shape)
{
    NetVal *image = net_input(net, "image", NET_F32, shape[0], shape[1], shape[2], model->vae.in_channels);
    net_output(net, "moments", vae_encode_build(net, &model->vae, weights, image));
}

static const EncoderKind kind = {.part = "vae.encoder", .load = load, .build = build};

static gboolean vae_encode_open(FlowNode *node, GError **error)
{
    VaeEncode *s = flow_node_state(node);
    FlowNode *store = flow_node_find(node, "fp16_cache_store");
    g_queue_init(&s->waiting);
    if (!(s->model = model_open(s->base, error)))
        return FALSE;
    s->stays = !store || !flow_node_leads_to(node, store);
    s->encoder = encoder_new(&kind, s->model, model_compute_choice(s->compute));
    return TRUE;
}

static void vae_encode_close(FlowNode *node)
{
    VaeEncode *s = flow_node_state(node);
    g_queue_clear_full(&s->waiting, (GDestroyNotify)flow_item_unref);
    encoder_free(s->encoder);
    model_free(s->model);
    g_free(s->pixels);
    g_free(s->moments);
}

static char *vae_encode_recipe(FlowNode *node, GError **error)
{
    VaeEncode *s = flow_node_state(node);
    Model *model = model_open(s->base, error);
    g_autofree char *hash = model ? model_part_hash(model, "vae.encoder", error) : NULL;
    model_free(model);
    return hash ? g_strdup_printf("%s %s", hash, net_type_name(model_compute_choice(s->compute))) : NULL;
}

/* -- one batch -------------------------------------------------------------------------- */

/* Hits pass, and so does what has no pixels: nobody before us found it in need of them. */
static gboolean needs_work(const FlowItem *item)
{
    FlowFieldSet both = FLOW_FIELD_BIT(FLOW_F_LATENT_MEAN) | FLOW_FIELD_BIT(FLOW_F_LATENT_LOGVAR);
    return !item->pending && (item->filled & both) != both && flow_item_get(item, FLOW_F_PIXELS);
}

static gboolean stopping(gpointer ctx)
{
    return flow_ctx_stopping(ctx) || flow_ctx_cancelled(ctx);
}

static void room(float **buffer, gsize *have, gsize n)
{
    if (*have >= n)
        return;
    g_free(*buffer);
    *buffer = g_new(float, n);
    *have = n;
}

static gboolean check(const VaeEncode *s, const FlowItem *item, GError **error)
{
    const FlowValue *v = flow_item_get(item, FLOW_F_PIXELS);
    gint64 step = model_latent_step(s->model) * model_vae_factor(s->model);
    if (v->type != NET_U8 || v->ndim != 3 || v->shape[2] != 3 || s->model->vae.in_channels != 3) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, "the picture is not RGB with 8 bits");
        return FALSE;
    }
    if (v->shape[0] % step || v->shape[1] % step || v->shape[0] < step || v->shape[1] < step) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "the picture is %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT
                    " px; this model needs multiples of %" G_GINT64_FORMAT " (set step in bucket)",
                    v->shape[1], v->shape[0], step);
        return FALSE;
    }
    return TRUE;
}

/* Halves of the moments of picture i, log variance clamped, into its item. */
static gboolean deliver(const VaeEncode *s, FlowItem *item, const float *moments, gint64 h, gint64 w,
                        GError **error)
{
    gint64 c = s->model->vae.latent;
    FlowValue *mean = flow_value_new(NET_F32, 3, (gint64[]){h, w, c});
    FlowValue *logvar = flow_value_new(NET_F32, 3, (gint64[]){h, w, c});
    float *m = mean->data, *v = logvar->data;
    gboolean finite = TRUE;
    for (gint64 i = 0; i < h * w; i++) {
        for (gint64 j = 0; j < c; j++) {
            float a = moments[i * 2 * c + j], b = moments[i * 2 * c + c + j];
            m[i * c + j] = a;
            v[i * c + j] = CLAMP(b, -30.0f, 20.0f);
            finite &= isfinite(a) && isfinite(b);
        }
    }
    flow_item_set(item, FLOW_F_LATENT_MEAN, mean);
    flow_item_set(item, FLOW_F_LATENT_LOGVAR, logvar);
    flow_item_drop(item, FLOW_F_PIXELS);
    if (finite)
        return TRUE;
    g_autofree char *label = flow_item_label(item);
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                "the VAE gave values that are not finite for %s", label);
    return FALSE;
}

/* Encodes the `n` items (all of one size). */
static FlowStatus encode(FlowCtx *ctx, VaeEncode *s, FlowItem **items, guint n, GError **error)
{
    const FlowValue *first = flow_item_get(items[0], FLOW_F_PIXELS);
    gint64 f = model_vae_factor(s->model), h = first->shape[0], w = first->shape[1];
    gsize in = (gsize)(h * w * 3), out = (gsize)(h / f * (w / f) * 2 * s->model->vae.latent);
    room(&s->pixels, &s->pixels_n, n * in);
    room(&s->moments, &s->moments_n, n * out);
    for (guint i = 0; i < n; i++) {
        const guint8 *src = flow_item_get(items[i], FLOW_F_PIXELS)->data;
        for (gsize j = 0; j < in; j++)
            s->pixels[i * in + j] = (float)src[j] / 255.0f * 2.0f - 1.0f;
    }
    const NetBinding ins[] = {{"image", s->pixels}, {0}}, outs[] = {{"moments", s->moments}, {0}};
    g_autoptr(GError) why = NULL;
    if (!encoder_run(s->encoder, (gint64[]){n, h, w}, ins, outs, stopping, ctx, &why)) {
        if (g_error_matches(why, NET_ERROR, NET_ERROR_STOPPED))
            return FLOW_CANCELLED;
        g_propagate_error(error, g_steal_pointer(&why));
        return FLOW_ERROR;
    }
    flow_node_count(flow_ctx_node(ctx), "encoded", n);
    for (guint i = 0; i < n; i++)
        if (!deliver(s, items[i], s->moments + i * out, h / f, w / f, error))
            return FLOW_ERROR;
    return FLOW_OK;
}

/* -- the queue -------------------------------------------------------------------------- */

/* Encodes what is due and sends everything on. */
static FlowStatus drain(FlowCtx *ctx, VaeEncode *s, GError **error)
{
    g_autofree FlowItem **due = g_new(FlowItem *, s->due + 1);
    guint n = 0;
    FlowStatus status = FLOW_OK;
    for (GList *l = s->waiting.head; l; l = l->next)
        if (needs_work(l->data))
            due[n++] = flow_item_writable((FlowItem **)&l->data);
    if (n > 0)
        status = encode(ctx, s, due, n, error);
    while (status == FLOW_OK && !g_queue_is_empty(&s->waiting))
        status = flow_emit(ctx, 0, g_queue_pop_head(&s->waiting));
    s->due = 0;
    return status;
}

static gboolean same_size(const VaeEncode *s, const FlowItem *item)
{
    const FlowValue *a = flow_item_get(item, FLOW_F_PIXELS);
    for (GList *l = s->waiting.head; l; l = l->next) {
        if (needs_work(l->data)) {
            const FlowValue *b = flow_item_get(l->data, FLOW_F_PIXELS);
            return a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1];
        }
    }
    return TRUE;
}

static FlowStatus vae_encode_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    VaeEncode *s = flow_ctx_state(ctx);
    FlowStatus status = FLOW_OK;
    if (!needs_work(in[0])) {
        g_queue_push_tail(&s->waiting, flow_take(&in[0]));
        return s->due > 0 && s->waiting.length < 4 * s->batch ? FLOW_OK : drain(ctx, s, error);
    }
    if (s->gone) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                    "the picture is not in the cache, and the encoder was freed when the cache was filled");
        return FLOW_ERROR;
    }
    if (!check(s, in[0], error))
        return FLOW_SKIP;
    if (!same_size(s, in[0]))
        status = drain(ctx, s, error);
    if (status != FLOW_OK)
        return status;
    g_queue_push_tail(&s->waiting, flow_take(&in[0]));
    return ++s->due >= s->batch ? drain(ctx, s, error) : FLOW_OK;
}

static FlowStatus vae_encode_flush(FlowCtx *ctx, GError **error)
{
    VaeEncode *s = flow_ctx_state(ctx);
    return flow_ctx_stopping(ctx) ? FLOW_OK : drain(ctx, s, error);
}

static FlowStatus vae_encode_mark(FlowCtx *ctx, FlowMark mark, GError **error)
{
    VaeEncode *s = flow_ctx_state(ctx);
    FlowStatus status = drain(ctx, s, error);
    if (mark == FLOW_MARK_PREFILL_DONE && !s->stays) {
        encoder_unload(s->encoder);
        s->gone = TRUE;
    }
    return status;
}

static gint64 vae_encode_hold(FlowNode *node)
{
    VaeEncode *s = flow_node_state(node);
    return s->batch > 1 ? 4 * s->batch : 0;
}

static gboolean vae_encode_plan(FlowNode *node, FlowPlan *plan, GError **error)
{
    VaeEncode *s = flow_node_state(node);
    NetPlanInfo most = {0};
    gsize pixels = 0;
    s->stays = s->stays || plan->encoders_stay;
    for (guint i = 0; i < plan->sizes->len; i++) {
        const FlowPlanSize *size = &g_array_index(plan->sizes, FlowPlanSize, i);
        NetPlanInfo info;
        if (!encoder_plan(s->encoder, (gint64[]){s->batch, size->height, size->width}, &info, error))
            return FALSE;
        if (info.arena > most.arena)
            most = info;
        pixels = MAX(pixels, (gsize)(s->batch * size->height * size->width * 3) * sizeof(float));
    }
    gsize weights = model_part_bytes(s->model, "vae.encoder", model_compute_choice(s->compute), error);
    if (weights == 0)
        return FALSE;
    for (FlowPhase phase = 0; phase < (s->stays ? FLOW_PHASE_COUNT : FLOW_PHASE_TRAIN); phase++) {
        flow_plan_add(plan, node, phase, FLOW_HOST, "weights", weights + most.packed);
        flow_plan_add(plan, node, phase, FLOW_HOST, "arena", most.arena);
        flow_plan_add(plan, node, phase, FLOW_HOST, "primitives", most.primitives);
    }
    flow_plan_add_always(plan, node, FLOW_HOST, "scratch", pixels);
    return TRUE;
}

FLOW_STAGE(.name = "vae_encode", .summary = "Pictures to latents (mean and log variance).",
           .flags = FLOW_STATEFUL | FLOW_PENDING, .version = 1, .state_size = sizeof(VaeEncode),
           .params = params, .inputs = inputs, .outputs = outputs, .open = vae_encode_open,
           .process = vae_encode_process, .flush = vae_encode_flush, .mark = vae_encode_mark,
           .close = vae_encode_close, .plan = vae_encode_plan, .recipe = vae_encode_recipe,
           .hold = vae_encode_hold);
