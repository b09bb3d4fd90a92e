/* Looks up encoded samples. What is found goes into the item, and the nodes up to the store pass it by.
 *
 * A key is content and recipe (keys.c): an edited caption misses its text and hits its picture, and the two
 * sizes of a picture are two entries.
 *
 * A key that is being made is promised (core/cache/flight.h), never waited for. The store finds the keys of
 * an item in the field "cache_keys", because some of what they were made of may be gone by then.
 *
 * With `policy = foresight` the items that wait in the input ring tell what will be needed: a ring as deep
 * as an epoch shows a whole epoch. */
#include "core/flow/plan.h"
#include "core/model/model.h"
#include "stages/fp16_cache/keys.h"
#include <string.h>

enum { VERIFY_STAT, VERIFY_HASH };
enum { HALF, FULL };
enum {
    REPORT_EVERY = 64,  /* items between two updates of the counters */
    READ_AHEAD = 32,    /* items whose entries are asked from the disk in advance */
    PEEK_MOST = 1 << 17 /* items of the ring that are looked at */
};

typedef struct {
    char *ram, *disk, *admit;
    int policy, verify, precision;

    Cache *cache;
    FlowField keys_field;

    /* of the one worker */
    Keys *keys;
    guint64 asked, found;
    gboolean announced;
    FlowItem **peeked; /* items of the ring, borrowed */
    gsize peek_room;
    guint64 known;            /* items with a lower number are expected */
    gsize window, since_peek; /* items of the last look, items since */
} Fp16Cache;

static const FlowParam params[] = {
    FLOW_STRING(Fp16Cache, ram, "1GiB",
                "Memory for encoded samples: bytes, or a share such as 25% of what may be used; 0 = none.",
                | FLOW_P_NORESULT),
    FLOW_PATH(Fp16Cache, disk, "", "Folder of the disk tier, which several runs may share.",
              | FLOW_P_NORESULT),
    FLOW_ENUM(
        Fp16Cache, policy, "static", "static|lru|lru_k|foresight",
        "What goes when memory is full: nothing, the longest unused, the largest age / (uses + 1), what "
        "is needed last.",
        | FLOW_P_NORESULT),
    FLOW_STRING(Fp16Cache, admit, "all",
                "What may stay in memory: all, complex:THRESHOLD:CHANCE (complex samples, others by chance), "
                "frequent:COUNT (from that request on).",
                | FLOW_P_NORESULT),
    FLOW_ENUM(Fp16Cache, verify, "stat", "stat|hash",
              "A picture is known by device, inode, size and times of its file, or by a hash of its bytes.",
              | FLOW_P_NORESULT),
    FLOW_ENUM(Fp16Cache, precision, "half", "half|full",
              "How latents and text are kept: half (f16) or full (f32, twice the memory)."),
    FLOW_END,
};

#define OPTIONAL " path? file_id? caption? geometry? sample?"

static const FlowPort inputs[] = {
    {.name = "in", .kind = FLOW_SAMPLE, .doc = "References to samples.", .needs = "complexity?" OPTIONAL},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out",
     .kind = FLOW_SAMPLE,
     .doc = "The same, with what was found filled in; leads to the store.",
     .gives = "cache_keys"},
    FLOW_END,
};

FLOW_STAGE_FIELDS(CACHE_KEYS_FIELD);

static gboolean fp16_cache_describe(FlowNode *node, GError **error)
{
    Fp16Cache *s = flow_node_state(node);
    guint64 bytes;
    if (!cache_parse_size(s->ram, &bytes, error)) {
        g_prefix_error(error, "ram = %s: ", s->ram);
        return FALSE;
    }
    if (g_str_has_prefix(s->admit, "complex"))
        flow_node_needs(node, "in", "complexity" OPTIONAL);
    return TRUE;
}

static gboolean fp16_cache_open(FlowNode *node, GError **error)
{
    Fp16Cache *s = flow_node_state(node);
    CacheOptions options = {
        .policy = (CachePolicy)s->policy,
        .admit = s->admit,
        .disk = s->disk && *s->disk ? s->disk : NULL,
        .full = s->precision == FULL,
    };
    s->keys_field = (FlowField)flow_field_find("cache_keys");
    if (!cache_parse_size(s->ram, &options.ram, error))
        return FALSE;
    s->cache = cache_new(&options, error);
    return s->cache != NULL;
}

static void fp16_cache_close(FlowNode *node)
{
    Fp16Cache *s = flow_node_state(node);
    cache_free(s->cache);
}

static gpointer fp16_cache_share(FlowNode *node, const char *type)
{
    Fp16Cache *s = flow_node_state(node);
    return strcmp(type, "cache") == 0 ? s->cache : NULL;
}

static gboolean fp16_cache_worker_start(FlowCtx *ctx, GError **error)
{
    Fp16Cache *s = flow_ctx_state(ctx);
    flow_node_count(flow_ctx_node(ctx), "hits", 0); /* shown also when there are none */
    flow_node_count(flow_ctx_node(ctx), "misses", 0);
    s->keys = keys_new(s->verify == VERIFY_HASH, s->precision == FULL);
    s->peek_room = 64;
    s->peeked = g_new(FlowItem *, s->peek_room);
    return cache_start(s->cache, error);
}

static void fp16_cache_worker_stop(FlowCtx *ctx)
{
    Fp16Cache *s = flow_ctx_state(ctx);
    g_clear_pointer(&s->keys, keys_free);
    g_clear_pointer(&s->peeked, g_free);
    cache_report(s->cache, flow_ctx_node(ctx));
}

/* -- looking ahead ------------------------------------------------------------------ */

/* Takes note of what has come into the ring since the last look. Looking costs a pass over the ring, so it is
 * done when an eighth of what was seen has been used. */
static void look_ahead(FlowCtx *ctx, Fp16Cache *s)
{
    CacheKey keys[CACHE_FIELDS];
    guint nfields;
    cache_fields(s->cache, &nfields);
    if (s->since_peek++ < s->window / 8)
        return;
    s->since_peek = 0;
    s->window = flow_peek(ctx, s->peeked, s->peek_room);
    for (gsize i = 0; i < s->window; i++) {
        const FlowItem *item = s->peeked[i];
        if (item->seq < s->known)
            continue;
        /* a picture that cannot be hashed is reported when its turn comes */
        if (!keys_of_item(s->keys, s->cache, item, keys, NULL) || !cache_expect(s->cache, keys, nfields))
            break;
        s->known = item->seq + 1;
        if (i < READ_AHEAD)
            cache_read_ahead(s->cache, keys, nfields);
    }
    if (s->window == s->peek_room && s->peek_room < PEEK_MOST) {
        s->peek_room *= 2;
        s->peeked = g_renew(FlowItem *, s->peeked, s->peek_room);
    }
}

/* -- items ------------------------------------------------------------------------ */

/* Sets what is found, and the field for the store. */
static void fill(Fp16Cache *s, FlowItem *item, const CacheKey *keys)
{
    guint n, found = 0, promised = 0;
    const CacheField *fields = cache_fields(s->cache, &n);
    const gint64 *sample = flow_item_i64(item, FLOW_F_SAMPLE);
    const float *complexity = flow_item_f32(item, FLOW_F_COMPLEXITY);
    guint64 owner = sample ? (guint64)*sample : keys[0].lo;
    cache_ask(s->cache, keys[0]);
    gboolean admitted = cache_admits(s->cache, keys[0], complexity ? *complexity : 1);
    item->filled = 0;
    FlowValue *note = flow_value_new(NET_I64, 2, (gint64[]){n, 3});
    for (guint i = 0; i < n; i++) {
        FlowValue *value = NULL;
        CacheOutcome outcome = cache_find(s->cache, keys[i], owner, admitted, &value);
        const gint64 row[3] = {(gint64)keys[i].hi, (gint64)keys[i].lo, outcome};
        memcpy((gint64 *)note->data + 3 * i, row, sizeof row);
        if (outcome == CACHE_MISSING)
            continue;
        item->filled |= FLOW_FIELD_BIT(fields[i].field);
        if (outcome == CACHE_FOUND)
            flow_item_set(item, fields[i].field, value);
        *(outcome == CACHE_FOUND ? &found : &promised) += 1;
    }
    item->pending = found + promised == n && promised > 0;
    flow_item_set(item, s->keys_field, note);
    s->asked++;
    s->found += found + promised == n;
}

static FlowStatus fp16_cache_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    Fp16Cache *s = flow_ctx_state(ctx);
    FlowNode *node = flow_ctx_node(ctx);
    CacheKey keys[CACHE_FIELDS];
    guint n;
    cache_fields(s->cache, &n);
    if (!keys_of_item(s->keys, s->cache, in[0], keys, error))
        return FLOW_SKIP;
    if (cache_looks_ahead(s->cache)) {
        if (in[0]->seq < s->known)
            cache_pass(s->cache, keys, n);
        look_ahead(ctx, s);
    }
    FlowItem *item = flow_item_writable(&in[0]);
    guint64 hits = s->found;
    fill(s, item, keys);
    flow_node_count(node, s->found > hits ? "hits" : "misses", 1);
    if (s->asked % REPORT_EVERY == 0)
        cache_report(s->cache, node);
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

/* Says once, when the first round is over, how much was there already. */
static FlowStatus fp16_cache_mark(FlowCtx *ctx, FlowMark mark G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    Fp16Cache *s = flow_ctx_state(ctx);
    FlowNode *node = flow_ctx_node(ctx);
    cache_report(s->cache, node);
    if (!s->announced && s->asked > 0)
        flow_node_info(node,
                       "cache: %" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT " found, %" G_GUINT64_FORMAT
                       " to encode",
                       s->found, s->asked, s->asked - s->found);
    s->announced = TRUE;
    return FLOW_OK;
}

/* -- plan ------------------------------------------------------------------------- */

/* Elements of what the encoders behind us give for a picture of this size; 0 if they are not ours. */
static gsize sample_elements(FlowNode *node, const Model *model, gint64 height, gint64 width)
{
    gint64 factor = model_vae_factor(model), n = 0;
    FlowNode *vae = flow_node_find(node, "vae_encode"), *text = flow_node_find(node, "text_encode");
    if (vae && flow_node_leads_to(node, vae))
        n += 2 * (height / factor) * (width / factor) * model->vae.latent;
    if (text && flow_node_leads_to(node, text))
        n += TOKENIZER_LENGTH * model->unet.context +
             (model->unet.text_time ? model->unet.class_dim - 6 * model->unet.time_dim : 0);
    return (gsize)n;
}

static Model *encoders_model(FlowNode *node, GError **error)
{
    FlowNode *encoder = flow_node_find(node, "vae_encode");
    if (!encoder)
        encoder = flow_node_find(node, "text_encode");
    char *const *base = encoder ? flow_node_param(encoder, "base") : NULL;
    return base && *base ? model_open(*base, error) : NULL;
}

/* All entries of the data set in all configurations, and the largest sample; 0 if unknown. */
static gsize set_bytes(FlowNode *node, const Fp16Cache *s, const FlowPlan *plan, gsize *largest,
                       GError **error)
{
    enum { FIELDS = 4 };
    gsize total = 0, element = s->precision == FULL ? 4 : 2;
    Model *model = encoders_model(node, error);
    *largest = 0;
    if (!model)
        return 0;
    for (guint i = 0; i < plan->sizes->len; i++) {
        const FlowPlanSize *size = &g_array_index(plan->sizes, FlowPlanSize, i);
        gsize one = sample_elements(node, model, size->height, size->width) * element;
        total += (gsize)size->count * (one + FIELDS * cache_ram_cost(0));
        *largest = MAX(*largest, one);
    }
    model_free(model);
    return total + (gsize)plan->validation * (*largest + FIELDS * cache_ram_cost(0));
}

static gboolean fp16_cache_plan(FlowNode *node, FlowPlan *plan, GError **error)
{
    Fp16Cache *s = flow_node_state(node);
    g_autoptr(GError) why = NULL;
    guint64 ram = 0;
    gsize largest;
    if (!cache_parse_size(s->ram, &ram, error))
        return FALSE;
    gsize need = set_bytes(node, s, plan, &largest, &why);
    if (why) {
        g_propagate_error(error, g_steal_pointer(&why));
        return FALSE;
    }
    cache_set_item_bytes(s->cache, largest);
    flow_plan_add_always(plan, node, FLOW_HOST, "cache", need ? MIN(need, ram) : ram);
    if (s->disk && *s->disk) {
        flow_plan_add_always(plan, node, FLOW_HOST, "scratch", cache_buffer_bytes());
        return TRUE;
    }
    /* looking ahead has an eighth of it */
    gsize room = s->policy == CACHE_FORESIGHT ? ram / 8 * 7 : ram;
    if (need > room || !g_str_equal(s->admit, "all")) {
        plan->encoders_stay = TRUE;
        flow_plan_note(plan,
                       "[%s] ram = %s does not hold all of the set (%" G_GSIZE_FORMAT
                       " bytes) and there is no disk tier: the encoders stay in memory beside the U-Net",
                       flow_node_name(node), s->ram, need);
    }
    return TRUE;
}

FLOW_STAGE(.name = "fp16_cache", .summary = "Looks up encoded samples; what is found is not encoded again.",
           .details =
               "Stands before the reader and works with fp16_cache_store behind the encoders. Entries are "
               "found by the picture's file and by how they are made, so a changed parameter, file or "
               "model misses, and hits again when it is changed back.",
           .flags = FLOW_STATEFUL | FLOW_NEEDS_OUT, .version = 1, .state_size = sizeof(Fp16Cache),
           .params = params, .inputs = inputs, .outputs = outputs, .describe = fp16_cache_describe,
           .open = fp16_cache_open, .close = fp16_cache_close, .share = fp16_cache_share,
           .worker_start = fp16_cache_worker_start, .worker_stop = fp16_cache_worker_stop,
           .process = fp16_cache_process, .mark = fp16_cache_mark, .plan = fp16_cache_plan);
