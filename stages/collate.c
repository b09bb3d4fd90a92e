/* Samples to micro-batches of one shape.
 *
 * An accumulation group is batch x accumulate consecutive places of an epoch, decided by the cursor alone:
 * the number of a group, how many there are and who belongs to it do not depend on what was skipped, on
 * threads, or on where a resumed run began. A group is sent when it is known to be complete, so each
 * micro-batch says how many there are, and each sample weighs one over the samples that really arrived: the
 * gradient is the true mean, also of an epoch's tail and of a group that lost a bad picture.
 *
 * Samples of one shape go together, at most `batch` at a time; a portrait among squares is a micro-batch of
 * its own, never padded and never left out.
 *
 * Held-back pictures pass outside of all groups, in batches of one shape. */
#include "core/flow/plan.h"
#include "core/flow/stage.h"
#include <string.h>

/* What travels on, with a leading dimension for the batch. */
static const FlowField stacked[] = {
    FLOW_F_LATENT_MEAN, FLOW_F_LATENT_LOGVAR, FLOW_F_LATENT,    FLOW_F_NOISE,      FLOW_F_CONTEXT,
    FLOW_F_POOLED,      FLOW_F_TIME_IDS,      FLOW_F_PRECISION, FLOW_F_COMPLEXITY, FLOW_F_SAMPLE,
};

typedef struct {
    gint64 batch, accumulate;
    gboolean drop_last;
    int latents;

    FlowItem **group; /* samples of the group at work */
    gint64 size;      /* batch x accumulate */
    guint n;
    gint64 number;    /* of the group, over the run */
    FlowItem **micro; /* of one micro-batch */
    guint *first;     /* for each sample: the micro-batch it is in */
    FlowItem **held;  /* held-back samples of one shape that wait for company */
    guint n_held;
} Collate;

enum { AUTO, ENCODED, GIVEN };

static const FlowParam params[] = {
    FLOW_INT(Collate, batch, "1", 1, 65536, "samples", "Samples in a batch, and the most in a micro-batch."),
    FLOW_INT(Collate, accumulate, "1", 1, 65536, "batches", "Batches whose gradients make one update."),
    FLOW_ENUM(Collate, latents, "auto", "auto|encoded|given",
              "What samples bring: latent_mean and latent_logvar, or latent as it is to be noised; auto asks "
              "lora_step."),
    FLOW_BOOL(Collate, drop_last, "no", "Leave out the samples of an epoch that do not fill a group."),
    FLOW_END,
};

#define OPTIONAL "noise? pooled? time_ids? source_size? geometry? precision? complexity? sample? role?"

#define PASSED "noise? pooled? precision? complexity? role?"

static const FlowPort inputs[] = {
    {.name = "in",
     .kind = FLOW_SAMPLE,
     .doc = "Encoded samples.",
     .needs = "context latent_mean latent_logvar " OPTIONAL},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out",
     .kind = FLOW_BATCH,
     .doc = "Micro-batches.",
     .gives = "micro weight sample context time_ids latent_mean latent_logvar " PASSED,
     .flags = FLOW_PORT_NEW},
    FLOW_END,
};

/* lora_step's parameter has the choices encoded and given. */
static gboolean latents_given(FlowNode *node, const Collate *s)
{
    FlowNode *step = flow_node_find(node, "lora_step");
    const int *asked = step ? flow_node_param(step, "latents") : NULL;
    return s->latents == AUTO ? asked && *asked == 1 : s->latents == GIVEN;
}

static gboolean collate_describe(FlowNode *node, GError **error)
{
    Collate *s = flow_node_state(node);
    if (latents_given(node, s)) {
        flow_node_needs(node, "in", "context latent " OPTIONAL);
        flow_node_gives(node, "out", "micro weight sample context time_ids latent " PASSED);
    }
    FlowNode *sparse = flow_node_find(node, "sparse_batch");
    const gint64 *batch =
        sparse && flow_node_leads_to(sparse, node) ? flow_node_param(sparse, "batch") : NULL;
    if (batch && *batch != s->batch) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "batch = %" G_GINT64_FORMAT ", but [%s] assembles batches of %" G_GINT64_FORMAT
                    ": the two must be the same",
                    s->batch, flow_node_name(sparse), *batch);
        return FALSE;
    }
    return TRUE;
}

static gboolean collate_open(FlowNode *node, GError **error)
{
    Collate *s = flow_node_state(node);
    const gint64 most = 1 << 20;
    if (s->batch * s->accumulate > most) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "batch x accumulate = %" G_GINT64_FORMAT " samples is above %" G_GINT64_FORMAT,
                    s->batch * s->accumulate, most);
        return FALSE;
    }
    s->size = s->batch * s->accumulate;
    s->group = g_new0(FlowItem *, (gsize)s->size);
    s->micro = g_new(FlowItem *, (gsize)s->batch);
    s->first = g_new(guint, (gsize)s->size);
    s->held = g_new0(FlowItem *, (gsize)s->batch);
    return TRUE;
}

static void collate_close(FlowNode *node)
{
    Collate *s = flow_node_state(node);
    for (guint i = 0; i < s->n; i++)
        flow_item_unref(s->group[i]);
    for (guint i = 0; i < s->n_held; i++)
        flow_item_unref(s->held[i]);
    g_free(s->held);
    g_free(s->group);
    g_free(s->micro);
    g_free(s->first);
}

/* -- groups ------------------------------------------------------------------------ */

static gint64 groups_in_epoch(const Collate *s, const FlowCursor *cursor)
{
    return s->drop_last ? cursor->size / s->size : (cursor->size + s->size - 1) / s->size;
}

/* Sources that do not know their length count on without end. */
static gint64 group_number(const Collate *s, const FlowCursor *cursor)
{
    gint64 within = cursor->position / s->size;
    return cursor->size > 0 ? cursor->epoch * groups_in_epoch(s, cursor) + within : within;
}

static gint64 groups_in_all(const Collate *s, const FlowCursor *cursor)
{
    return cursor->size > 0 ? cursor->epochs * groups_in_epoch(s, cursor) : 0;
}

static gboolean left_out(const Collate *s, const FlowCursor *cursor)
{
    return s->drop_last && cursor->size > 0 && cursor->position / s->size >= groups_in_epoch(s, cursor);
}

/* Where the epoch stands when the group is done: at its last place, whether or not that one arrived. */
static FlowCursor group_end(const Collate *s, const FlowCursor *cursor)
{
    FlowCursor end = *cursor;
    end.position = (cursor->position / s->size + 1) * s->size - 1;
    if (cursor->size > 0)
        end.position = MIN(end.position, cursor->size - 1);
    return end;
}

/* -- stacking ---------------------------------------------------------------------- */

static gboolean same_shape(const FlowItem *a, const FlowItem *b)
{
    for (guint i = 0; i < G_N_ELEMENTS(stacked); i++) {
        const FlowValue *v = flow_item_get(a, stacked[i]), *w = flow_item_get(b, stacked[i]);
        if (!v != !w || (v && (v->ndim != w->ndim || memcmp(v->shape, w->shape, v->ndim * sizeof *v->shape))))
            return FALSE;
    }
    return TRUE;
}

static gboolean is_float(NetType type)
{
    return type == NET_F32 || type == NET_F16 || type == NET_BF16;
}

/* (B, ...) in the type that the field is declared with: caches hand over half precision. */
static FlowValue *stack(FlowItem *const *items, guint n, FlowField field)
{
    const FlowFieldInfo *info = flow_field_info(field);
    const FlowValue *first = flow_item_get(items[0], field);
    gint64 shape[FLOW_MAX_DIMS] = {n};
    gsize count = flow_value_count(first);
    gboolean scalar = g_str_equal(info->shape, "1"); /* becomes "B" */
    memcpy(shape + 1, first->shape, first->ndim * sizeof *shape);
    FlowValue *out = flow_value_new(info->type, scalar ? 1 : first->ndim + 1, shape);
    gsize one = net_type_bytes(info->type, count);
    for (guint i = 0; i < n; i++) {
        const FlowValue *v = flow_item_get(items[i], field);
        char *to = (char *)out->data + i * one;
        if (v->type == info->type)
            memcpy(to, v->data, one);
        else
            net_convert(to, info->type, v->data, v->type, count);
    }
    return out;
}

/* SDXL: original size, crop, target size, height before width. Latents that came without their picture pass
 * for an uncropped one, eight times as large. */
static FlowValue *time_ids(FlowItem *const *items, guint n)
{
    enum { FACTOR = 8 };
    FlowValue *out = flow_value_new(NET_F32, 2, (gint64[]){n, 6});
    float *v = out->data;
    for (guint i = 0; i < n; i++, v += 6) {
        const gint32 *source = flow_item_i32(items[i], FLOW_F_SOURCE_SIZE);
        const gint32 *g = flow_item_i32(items[i], FLOW_F_GEOMETRY);
        const FlowValue *latent = flow_item_get(items[i], FLOW_F_LATENT_MEAN);
        if (!latent)
            latent = flow_item_get(items[i], FLOW_F_LATENT);
        gint32 h = g ? g[0] : (gint32)latent->shape[0] * FACTOR,
               w = g ? g[1] : (gint32)latent->shape[1] * FACTOR;
        const gint32 ids[6] = {
            source ? source[0] : h, source ? source[1] : w, g ? g[4] : 0, g ? g[5] : 0, h, w};
        for (guint j = 0; j < 6; j++)
            v[j] = (float)ids[j];
    }
    return out;
}

/* Takes nothing; `micro` is the field of that name, `weight` that of each sample. */
static FlowItem *make_batch(FlowItem *const *items, guint n, const gint64 micro[6], float weight)
{
    FlowItem *batch = flow_item_new(FLOW_BATCH);
    for (guint i = 0; i < G_N_ELEMENTS(stacked); i++)
        if (flow_item_get(items[0], stacked[i]))
            flow_item_set(batch, stacked[i], stack(items, n, stacked[i]));
    if (!flow_item_get(batch, FLOW_F_TIME_IDS))
        flow_item_set(batch, FLOW_F_TIME_IDS, time_ids(items, n));
    if (!flow_item_get(batch, FLOW_F_SAMPLE)) {
        FlowValue *sample = flow_value_new(NET_I64, 1, (gint64[]){n});
        for (guint i = 0; i < n; i++)
            ((gint64 *)sample->data)[i] = items[i]->cursor.position;
        flow_item_set(batch, FLOW_F_SAMPLE, sample);
    }
    FlowValue *weights = flow_value_new(NET_F32, 1, (gint64[]){n});
    for (guint i = 0; i < n; i++)
        ((float *)weights->data)[i] = weight;
    flow_item_set(batch, FLOW_F_WEIGHT, weights);
    flow_item_set_i64(batch, FLOW_F_MICRO, micro, 6);
    return batch;
}

/* Numbers the micro-batches in order of their first samples. Returns how many there are. */
static guint divide(const Collate *s)
{
    guint micros = 0;
    for (guint i = 0; i < s->n; i++)
        s->first[i] = G_MAXUINT;
    for (guint i = 0; i < s->n; i++) {
        if (s->first[i] != G_MAXUINT)
            continue;
        guint in = 0;
        for (guint j = i; j < s->n && in < s->batch; j++)
            if (s->first[j] == G_MAXUINT && same_shape(s->group[i], s->group[j])) {
                s->first[j] = micros;
                in++;
            }
        micros++;
    }
    return micros;
}

static FlowStatus send_group(FlowCtx *ctx, Collate *s)
{
    FlowStatus status = FLOW_OK;
    if (s->n == 0)
        return FLOW_OK;
    const FlowCursor end = group_end(s, &s->group[0]->cursor);
    guint micros = divide(s);
    for (guint m = 0; m < micros && status == FLOW_OK; m++) {
        guint n = 0;
        for (guint i = 0; i < s->n; i++)
            if (s->first[i] == m)
                s->micro[n++] = s->group[i];
        const gint64 micro[6] = {s->number, m, micros, s->n, groups_in_all(s, &end), end.epoch};
        FlowItem *batch = make_batch(s->micro, n, micro, 1.0f / (float)s->n);
        batch->cursor = end;
        flow_node_count(flow_ctx_node(ctx), "micro_batches", 1);
        status = flow_emit(ctx, 0, batch);
    }
    for (guint i = 0; i < s->n; i++)
        flow_item_unref(s->group[i]);
    s->n = 0;
    return status;
}

/* -- items ------------------------------------------------------------------------ */

/* A field that is there has its declared type (caches may have made it half) and its number of dimensions. */
static gboolean fits(const FlowItem *item, FlowField field, guint ndim, gint64 count, GError **error)
{
    const FlowValue *v = flow_item_get(item, field);
    const FlowFieldInfo *info = flow_field_info(field);
    if (!v || ((v->type == info->type || (is_float(v->type) && is_float(info->type))) && v->ndim == ndim &&
               flow_value_count(v) > 0 && (count == 0 || v->shape[0] == count)))
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                "'%s' is %s with %u dimensions and %" G_GSIZE_FORMAT " elements, not %s [%s]", info->name,
                net_type_name(v->type), v->ndim, flow_value_count(v), net_type_name(info->type), info->shape);
    return FALSE;
}

static gboolean valid(const FlowItem *item, GError **error)
{
    return fits(item, FLOW_F_LATENT_MEAN, 3, 0, error) && fits(item, FLOW_F_LATENT_LOGVAR, 3, 0, error) &&
           fits(item, FLOW_F_LATENT, 3, 0, error) && fits(item, FLOW_F_NOISE, 3, 0, error) &&
           fits(item, FLOW_F_CONTEXT, 2, 0, error) && fits(item, FLOW_F_POOLED, 1, 0, error) &&
           fits(item, FLOW_F_TIME_IDS, 1, 6, error) && fits(item, FLOW_F_PRECISION, 1, 1, error) &&
           fits(item, FLOW_F_COMPLEXITY, 1, 1, error) && fits(item, FLOW_F_SAMPLE, 1, 1, error) &&
           fits(item, FLOW_F_SOURCE_SIZE, 1, 2, error) && fits(item, FLOW_F_GEOMETRY, 1, 7, error);
}

static FlowStatus send_held_back(FlowCtx *ctx, Collate *s)
{
    const gint64 micro[6] = {-1, 0, 1, s->n_held, 0, -1};
    if (s->n_held == 0)
        return FLOW_OK;
    FlowItem *batch = make_batch(s->held, s->n_held, micro, 1);
    batch->cursor = s->held[0]->cursor;
    flow_item_set_i32(batch, FLOW_F_ROLE, (gint32[]){1}, 1);
    for (guint i = 0; i < s->n_held; i++)
        flow_item_unref(s->held[i]);
    s->n_held = 0;
    return flow_emit(ctx, 0, batch);
}

/* Held-back samples go in batches of one shape, in the order they come: measuring one at a time would cost
 * the machine most of its speed. */
static FlowStatus hold_back(FlowCtx *ctx, Collate *s, FlowItem **slot)
{
    FlowStatus status = FLOW_OK;
    if (s->n_held > 0 && !same_shape(s->held[0], *slot))
        status = send_held_back(ctx, s);
    s->held[s->n_held++] = flow_take(slot);
    if (status == FLOW_OK && s->n_held == s->batch)
        status = send_held_back(ctx, s);
    return status;
}

static FlowStatus collate_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    Collate *s = flow_ctx_state(ctx);
    const gint32 *role = flow_item_i32(in[0], FLOW_F_ROLE);
    const FlowCursor cursor = in[0]->cursor;
    if (!valid(in[0], error))
        return FLOW_SKIP;
    if (role && *role == 1)
        return hold_back(ctx, s, &in[0]);
    FlowStatus status = send_held_back(ctx, s);
    if (status != FLOW_OK)
        return status;
    if (s->drop_last && cursor.size > 0 && groups_in_epoch(s, &cursor) == 0) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "an epoch of %" G_GINT64_FORMAT " samples is below batch x accumulate = %" G_GINT64_FORMAT
                    ": set drop_last = no, or batch at most %" G_GINT64_FORMAT,
                    cursor.size, s->size, cursor.size);
        return FLOW_ERROR;
    }
    if (s->n > 0 && (s->n == s->size || group_number(s, &cursor) != s->number))
        status = send_group(ctx, s);
    if (status != FLOW_OK || left_out(s, &cursor))
        return status;
    s->number = group_number(s, &cursor);
    s->group[s->n++] = flow_take(&in[0]);
    return cursor.position == group_end(s, &cursor).position ? send_group(ctx, s) : FLOW_OK;
}

static FlowStatus collate_mark(FlowCtx *ctx, FlowMark mark G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    Collate *s = flow_ctx_state(ctx);
    FlowStatus status = send_held_back(ctx, s);
    return status == FLOW_OK ? send_group(ctx, s) : status;
}

/* A group that a stop has cut is worth nothing: it is whole or not at all. */
static FlowStatus collate_flush(FlowCtx *ctx, GError **error G_GNUC_UNUSED)
{
    if (flow_ctx_stopping(ctx))
        return FLOW_OK;
    return collate_mark(ctx, FLOW_MARK_EPOCH, error);
}

static gint64 collate_hold(FlowNode *node)
{
    Collate *s = flow_node_state(node);
    return s->batch * s->accumulate;
}

/* Do samples come in half precision? Batches are f32. */
static gboolean half_before(FlowNode *node)
{
    FlowNode *store = flow_node_find(node, "fp16_cache_store"), *lookup = flow_node_find(node, "fp16_cache");
    const int *full = lookup ? flow_node_param(lookup, "precision") : NULL;
    return store && flow_node_leads_to(store, node) && full && !*full;
}

static gboolean collate_plan(FlowNode *node, FlowPlan *plan, GError **error G_GNUC_UNUSED)
{
    Collate *s = flow_node_state(node);
    plan->batch = s->batch;
    plan->accumulate = s->accumulate;
    flow_plan_add_always(plan, node, FLOW_HOST, "scratch",
                         plan->item_bytes * (gsize)(s->batch * s->accumulate));
    plan->item_bytes *= (gsize)s->batch * (half_before(node) ? 2 : 1);
    return TRUE;
}

FLOW_STAGE(
        .name = "collate", .summary = "Samples to micro-batches of one shape, in groups for one update.",
        .details =
            "A group is batch x accumulate places of an epoch. Samples of one shape go together; the weights "
            "make the gradient of a group the mean over its samples.",
        .flags = FLOW_STATEFUL, .version = 1, .state_size = sizeof(Collate), .params = params,
        .inputs = inputs, .outputs = outputs, .describe = collate_describe, .open = collate_open,
        .close = collate_close, .process = collate_process, .mark = collate_mark, .flush = collate_flush,
        .hold = collate_hold, .plan = collate_plan);
