/* Files what was encoded, and completes what the lookup found or promised.
 *
 * Items come in the order of the lookup, so whoever was promised a value finds that it has been made, or
 * that its maker failed. Values are rounded to half precision here whether or not they are kept: a run
 * whose cache is cold, warm or holds nothing gives the same bytes.
 *
 * Items that only fill the cache end behind this node (FLOW_PREFILL); what waits for the disk is written
 * before a mark goes on, because at the end of prefill the encoders go. */
#include "core/cache/cache.h"
#include "core/flow/plan.h"
#include <string.h>

typedef struct {
    FlowNode *cache; /* the lookup */

    Cache *shared;
    FlowField keys_field;
    gboolean warned; /* of the one worker: about overflow */
} Store;

static const FlowParam params[] = {
    FLOW_NODE(Store, cache, NULL, "The fp16_cache node before the encoders."),
    FLOW_END,
};

static const FlowPort inputs[] = {
    {.name = "in",
     .kind = FLOW_SAMPLE,
     .doc = "Samples that were found or encoded.",
     .needs = "cache_keys complexity?"},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out",
     .kind = FLOW_SAMPLE,
     .doc = "The same, complete, in the cache's precision.",
     .drops = "cache_keys"},
    FLOW_END,
};

FLOW_STAGE_FIELDS(CACHE_KEYS_FIELD);

static const FlowField stored[] = {FLOW_F_LATENT_MEAN, FLOW_F_LATENT_LOGVAR, FLOW_F_CONTEXT, FLOW_F_POOLED};

static gboolean store_describe(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    Store *s = flow_node_state(node);
    FlowFieldSet fields = 0;
    for (guint i = 0; i < G_N_ELEMENTS(stored); i++)
        fields |= FLOW_FIELD_BIT(stored[i]);
    flow_node_stores(s->cache, node, fields);
    return TRUE;
}

/* An entry must be known by its picture; with nothing of it at the lookup, all pictures would share one. */
static gboolean names_picture(FlowNode *lookup, const CacheField *field, GError **error)
{
    const FlowFieldSet picture = FLOW_FIELD_BIT(FLOW_F_FILE_ID) | FLOW_FIELD_BIT(FLOW_F_BYTES) |
                                 FLOW_FIELD_BIT(FLOW_F_IMAGE) | FLOW_FIELD_BIT(FLOW_F_PIXELS);
    gboolean latent = field->field == FLOW_F_LATENT_MEAN || field->field == FLOW_F_LATENT_LOGVAR;
    if (field->by_value & (latent ? picture : ~(FlowFieldSet)0))
        return TRUE;
    g_set_error(
        error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
        "'%s' cannot be cached: nothing that it is made of is known at [%s] (the nodes between need no "
        "%s)",
        flow_field_info(field->field)->name, flow_node_name(lookup), latent ? "file_id" : "field");
    return FALSE;
}

static gboolean store_open(FlowNode *node, GError **error)
{
    Store *s = flow_node_state(node);
    CacheField fields[G_N_ELEMENTS(stored)];
    guint n = 0;
    s->keys_field = (FlowField)flow_field_find("cache_keys");
    s->shared = flow_node_shared(s->cache, "cache", error);
    if (!s->shared)
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(stored); i++) {
        g_autoptr(GError) why = NULL;
        CacheField *f = &fields[n];
        f->field = stored[i];
        if (flow_node_recipe(s->cache, node, f->field, f->recipe, &f->by_value, &why)) {
            if (!names_picture(s->cache, f, error))
                return FALSE;
            n++;
        } else if (why) {
            g_propagate_error(error, g_steal_pointer(&why));
            return FALSE;
        }
    }
    if (n == 0) {
        g_set_error(
            error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
            "no node between [%s] and here gives latent_mean, latent_logvar, context or pooled: there is "
            "nothing to cache",
            flow_node_name(s->cache));
        return FALSE;
    }
    cache_set_fields(s->shared, fields, n);
    return TRUE;
}

static gboolean store_worker_start(FlowCtx *ctx, GError **error)
{
    Store *s = flow_ctx_state(ctx);
    return cache_start(s->shared, error);
}

static void store_worker_stop(FlowCtx *ctx)
{
    Store *s = flow_ctx_state(ctx);
    cache_sync(s->shared);
    cache_report(s->shared, s->cache);
}

/* -- items ------------------------------------------------------------------------ */

static void note_overflows(FlowNode *node, Store *s, const FlowFieldInfo *info, gsize overflows)
{
    flow_node_count(node, "overflows", (double)overflows);
    if (!s->warned)
        flow_node_warn(node,
                       "%" G_GSIZE_FORMAT " values of '%s' are beyond 65504 and do not fit half precision; "
                       "they are kept in full (more of this kind is counted only)",
                       overflows, info->name);
    s->warned = TRUE;
}

/* A new reference to the value as it is kept. What half precision cannot hold stays as it is: an infinity
 * would spoil the training, and the header of an entry says what it has. */
static FlowValue *round_value(const Store *s, const FlowFieldInfo *info, FlowValue *value, gsize *overflows)
{
    *overflows = 0;
    if (value->type != NET_F32 || !(info->flags & FLOW_FIELD_HALF) || cache_keeps_full(s->shared))
        return flow_value_ref(value);
    FlowValue *half = flow_value_new(NET_F16, value->ndim, value->shape);
    *overflows = net_convert(half->data, NET_F16, value->data, NET_F32, flow_value_count(value));
    if (*overflows == 0)
        return half;
    flow_value_unref(half);
    return flow_value_ref(value);
}

/* One stored field of an item. A field that was found or promised may have been made again beside one that
 * was missing; it is the same but for the rounding. FLOW_SKIP if the use that was to make it has failed. */
static FlowStatus complete(FlowNode *node, Store *s, FlowItem *item, FlowField field, CacheKey key,
                           CacheOutcome outcome, gboolean admitted, GError **error)
{
    const FlowFieldInfo *info = flow_field_info(field);
    FlowValue *made = flow_item_get(item, field);
    FlowValue *value = outcome == CACHE_PROMISED ? cache_await(s->shared, key) : NULL;
    gsize overflows = 0;
    if (!value && made)
        value = round_value(s, info, made, &overflows);
    if (value) {
        if (outcome == CACHE_MISSING) {
            cache_store(s->shared, key, value, admitted);
            flow_node_count(node, "stored", 1);
            if (overflows > 0)
                note_overflows(node, s, info, overflows);
        }
        flow_item_set(item, field, value);
        return FLOW_OK;
    }
    if (!*error && outcome == CACHE_PROMISED)
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "an earlier use of the same picture, which was to give '%s', has failed", info->name);
    else if (!*error)
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "'%s' was not in the cache and no node has made it", info->name);
    return outcome == CACHE_PROMISED ? FLOW_SKIP : FLOW_ERROR;
}

static FlowStatus store_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    Store *s = flow_ctx_state(ctx);
    FlowItem *item = flow_item_writable(&in[0]);
    FlowStatus status = FLOW_OK;
    guint n;
    const CacheField *fields = cache_fields(s->shared, &n);
    const FlowValue *note = flow_item_get(item, s->keys_field);
    if (!note || note->nbytes != n * sizeof(gint64[3])) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "the item comes from another lookup than [%s]", flow_node_name(s->cache));
        return FLOW_ERROR;
    }
    const gint64(*row)[3] = note->data;
    const CacheKey named = {(guint64)row[0][0], (guint64)row[0][1]};
    const float *complexity = flow_item_f32(item, FLOW_F_COMPLEXITY);
    gboolean admitted = cache_admits(s->shared, named, complexity ? *complexity : 1);
    /* every field, also after a failure: what was promised must be taken */
    for (guint i = 0; i < n; i++) {
        const CacheKey key = {(guint64)row[i][0], (guint64)row[i][1]};
        FlowStatus one = complete(flow_ctx_node(ctx), s, item, fields[i].field, key, (CacheOutcome)row[i][2],
                                  admitted, error);
        status = MAX(status, one);
    }
    if (status != FLOW_OK)
        return status;
    flow_item_drop(item, s->keys_field);
    item->filled = 0;
    item->pending = FALSE;
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static FlowStatus store_mark(FlowCtx *ctx, FlowMark mark G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    Store *s = flow_ctx_state(ctx);
    cache_sync(s->shared);
    cache_report(s->shared, s->cache);
    return FLOW_OK;
}

static gboolean store_plan(FlowNode *node, FlowPlan *plan, GError **error G_GNUC_UNUSED)
{
    Store *s = flow_node_state(node);
    if (cache_item_bytes(s->shared) > 0)
        plan->item_bytes = cache_item_bytes(s->shared);
    return TRUE;
}

FLOW_STAGE(.name = "fp16_cache_store",
           .summary = "Files encoded samples for the fp16_cache before the encoders.",
           .flags = FLOW_STATEFUL | FLOW_PREFILL, .version = 1, .state_size = sizeof(Store), .params = params,
           .inputs = inputs, .outputs = outputs, .describe = store_describe, .open = store_open,
           .worker_start = store_worker_start, .worker_stop = store_worker_stop, .process = store_process,
           .mark = store_mark, .plan = store_plan);
