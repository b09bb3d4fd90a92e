/* Dynamic precision: latents in full, mixed or half precision, by step and complexity.
 *
 * Early in the training, and for simple samples, latents can do with fewer bits on their way to the device.
 * The class is chosen by the planned number of the update (a skipped step shifts nothing), the sample's
 * complexity, and the ceiling that sparse_batch has set. Mixed keeps one frequency band of an orthonormal
 * Haar transform in half precision and the rest in full (core/cache/pack.h).
 *
 * With an h2d node behind, the bytes travel packed and h2d unpacks them where they arrive. Without one
 * the same rounding is applied here and the latents go on as f32: the values are the same either way.
 *
 * Values that half precision cannot hold keep the sample in full precision.
 *
 * @link m
 */
#include "core/cache/pack.h"
#include "core/flow/graph.h"
#include "kernels/haar.h"
#include <math.h>
#include <string.h>

typedef struct {
    char *schedule;
    gint64 band;
    int mixed;

    CacheSchedule rules;
    FlowField packed_mean, packed_logvar;
    gboolean travels; /* an h2d node unpacks */

    /* of the one worker */
    CachePackScratch scratch;
    float *rounded; /* what comes out at the other end */
    gsize rounded_n;
    gboolean told;
    double error[CACHE_CLASSES], values[CACHE_CLASSES];
} Precision;

static const FlowParam params[] = {
    FLOW_STRING(Precision, schedule, "1000: 0.3 half, full; 5000: 0.2 half, 0.6 mixed, full; full",
                "Parts by update (the last has no number), each with complexities and their precision."),
    FLOW_INT(Precision, band, "1", 1, 8, "levels",
             "Levels of the Haar transform in mixed precision; fewer where the latents do not divide."),
    FLOW_ENUM(Precision, mixed, "low:half", "low:half|high:half",
              "The band that is in half precision in mixed samples."),
    FLOW_END,
};

#define OPTIONAL " complexity? precision? role?"

static const FlowPort inputs[] = {
    {.name = "in",
     .kind = FLOW_BATCH,
     .doc = "Micro-batches with latents.",
     .needs = "latent_mean latent_logvar micro" OPTIONAL},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out", .kind = FLOW_BATCH, .doc = "The same, rounded or packed.", .gives = "packed"},
    FLOW_END,
};

FLOW_STAGE_FIELDS(CACHE_PACK_FIELDS);

static gboolean h2d_behind(FlowNode *node)
{
    FlowGraph *graph = flow_node_graph(node);
    for (guint i = 0; i < flow_graph_nodes(graph); i++) {
        FlowNode *other = flow_graph_node(graph, i);
        const FlowStage *stage = flow_node_stage(other);
        if (stage && g_str_equal(stage->name, "h2d") && flow_node_leads_to(node, other))
            return TRUE;
    }
    return FALSE;
}

static gboolean precision_describe(FlowNode *node, GError **error)
{
    Precision *s = flow_node_state(node);
    CacheSchedule rules;
    if (h2d_behind(node)) {
        flow_node_gives(node, "out", "packed packed_mean packed_logvar");
        flow_node_drops(node, "out", "latent_mean latent_logvar");
    }
    return cache_schedule_parse(s->schedule, &rules, error);
}

static gboolean precision_open(FlowNode *node, GError **error)
{
    Precision *s = flow_node_state(node);
    s->travels = h2d_behind(node);
    s->packed_mean = (FlowField)flow_field_find("packed_mean");
    s->packed_logvar = (FlowField)flow_field_find("packed_logvar");
    return cache_schedule_parse(s->schedule, &s->rules, error);
}

static void precision_close(FlowNode *node)
{
    Precision *s = flow_node_state(node);
    cache_pack_clear(&s->scratch);
    g_free(s->rounded);
}

/* -- classes ------------------------------------------------------------------------ */

/* Does everything stay finite? A Haar level doubles the values of its low band at most. */
static gboolean fits_half(const float *x, gsize n, gint32 levels)
{
    const float most = 65504.0f / (float)(1 << levels);
    for (gsize i = 0; i < n; i++)
        if (!(fabsf(x[i]) <= most))
            return FALSE;
    return TRUE;
}

/* Shapes that cannot be split say so: mixed would be nothing of the kind. */
static void tell_levels(FlowNode *node, Precision *s, const FlowValue *mean, guint levels)
{
    if (levels >= s->band || s->told)
        return;
    s->told = TRUE;
    flow_node_info(
        node,
        "latents of %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT " divide %u times, not band = %" G_GINT64_FORMAT
        ": in mixed precision they have %u levels%s",
        mean->shape[2], mean->shape[1], levels, s->band, levels, levels ? "" : ", which means full");
}

static void choose(FlowNode *node, Precision *s, const FlowItem *item, gint32 *packed)
{
    const FlowValue *mean = flow_item_get(item, FLOW_F_LATENT_MEAN),
                    *logvar = flow_item_get(item, FLOW_F_LATENT_LOGVAR);
    const gint64 *micro = flow_item_i64(item, FLOW_F_MICRO);
    const float *complexity = flow_item_f32(item, FLOW_F_COMPLEXITY);
    const gint32 *ceiling = flow_item_i32(item, FLOW_F_PRECISION), *role = flow_item_i32(item, FLOW_F_ROLE);
    gsize one = flow_value_count(mean) / (gsize)mean->shape[0];
    guint levels = kernel_haar_levels((gsize)mean->shape[1], (gsize)mean->shape[2], (guint)s->band);
    for (gint64 i = 0; i < mean->shape[0]; i++) {
        /* held-back pictures are measured, not trained on: as they are */
        CachePrecision p = role && *role == 1
                               ? CACHE_FULL
                               : cache_schedule_choose(&s->rules, micro[0], complexity ? complexity[i] : NAN,
                                                       ceiling ? (CachePrecision)ceiling[i] : CACHE_FULL);
        if (p == CACHE_MIXED)
            tell_levels(node, s, mean, levels);
        gint32 depth = p == CACHE_MIXED ? (gint32)levels : 0;
        gsize at = (gsize)i * one;
        if (p == CACHE_MIXED && depth == 0)
            p = CACHE_FULL;
        if (p != CACHE_FULL && (!fits_half((const float *)mean->data + at, one, depth) ||
                                !fits_half((const float *)logvar->data + at, one, depth))) {
            flow_node_count(node, "overflows", 1);
            p = CACHE_FULL;
            depth = 0;
        }
        packed[2 * i] = (gint32)p;
        packed[2 * i + 1] = depth;
    }
}

/* -- items ------------------------------------------------------------------------ */

/* Counters of what the classes cost and save. */
static void count(FlowNode *node, Precision *s, const FlowValue *before, const float *after,
                  const gint32 *packed)
{
    static const char *const bytes[] = {"bytes_full", "bytes_mixed", "bytes_half"};
    static const char *const rms[] = {"error_full", "error_mixed", "error_half"};
    gsize one = flow_value_count(before) / (gsize)before->shape[0];
    for (gint64 i = 0; i < before->shape[0]; i++) {
        const float *x = (const float *)before->data + (gsize)i * one, *y = after + (gsize)i * one;
        gint32 p = packed[2 * i];
        for (gsize j = 0; j < one; j++)
            s->error[p] += ((double)x[j] - (double)y[j]) * ((double)x[j] - (double)y[j]);
        s->values[p] += (double)one;
        flow_node_count(node, bytes[p],
                        (double)cache_pack_bytes(before->shape[1], before->shape[2], before->shape[3],
                                                 (CachePrecision)p, packed[2 * i + 1], (CacheMixed)s->mixed));
        if (p != CACHE_FULL)
            flow_node_gauge(node, rms[p], sqrt(s->error[p] / s->values[p]));
    }
}

/* Replaces a latent field by its packed form, or by the rounded values. */
static void encode(FlowNode *node, Precision *s, FlowItem *item, FlowField field, FlowField packed_field,
                   const gint32 *packed)
{
    const FlowValue *before = flow_item_get(item, field);
    gsize n = flow_value_count(before);
    FlowValue *after = cache_pack(before, packed, (CacheMixed)s->mixed, &s->scratch, NULL);
    if (s->rounded_n < n) {
        g_free(s->rounded);
        s->rounded = g_new(float, n);
        s->rounded_n = n;
    }
    cache_unpack(after, packed, before->shape[0], s->rounded, &s->scratch);
    count(node, s, before, s->rounded, packed);
    if (s->travels) {
        flow_item_set(item, packed_field, after);
        flow_item_drop(item, field);
        return;
    }
    flow_value_unref(after);
    after = flow_value_new(NET_F32, 4, before->shape);
    memcpy(after->data, s->rounded, n * sizeof *s->rounded);
    flow_item_set(item, field, after);
}

static gboolean valid(const FlowItem *item, GError **error)
{
    const FlowValue *mean = flow_item_get(item, FLOW_F_LATENT_MEAN),
                    *logvar = flow_item_get(item, FLOW_F_LATENT_LOGVAR);
    const FlowValue *complexity = flow_item_get(item, FLOW_F_COMPLEXITY),
                    *ceiling = flow_item_get(item, FLOW_F_PRECISION);
    gboolean good = mean->type == NET_F32 && logvar->type == NET_F32 && mean->ndim == 4 &&
                    logvar->ndim == 4 && mean->nbytes > 0;
    for (guint i = 0; good && i < 4; i++)
        good = mean->shape[i] == logvar->shape[i] && mean->shape[i] <= G_MAXUINT16;
    if (!good) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "latent_mean and latent_logvar are not two f32 tensors of one shape (n, h, w, c)");
        return FALSE;
    }
    good = (!complexity || flow_value_count(complexity) == (gsize)mean->shape[0]) &&
           (!ceiling || flow_value_count(ceiling) == (gsize)mean->shape[0]);
    for (gint64 i = 0; good && ceiling && i < mean->shape[0]; i++)
        good = (guint32)((const gint32 *)ceiling->data)[i] < CACHE_CLASSES;
    if (!good)
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "complexity and precision are not one number a sample, or a precision is outside 0..2");
    return good;
}

static FlowStatus precision_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    Precision *s = flow_ctx_state(ctx);
    FlowNode *node = flow_ctx_node(ctx);
    if (!valid(in[0], error))
        return FLOW_SKIP;
    FlowItem *item = flow_item_writable(&in[0]);
    gint64 n = flow_item_get(item, FLOW_F_LATENT_MEAN)->shape[0];
    FlowValue *packed = flow_value_new(NET_I32, 2, (gint64[]){n, 2});
    choose(node, s, item, packed->data);
    encode(node, s, item, FLOW_F_LATENT_MEAN, s->packed_mean, packed->data);
    encode(node, s, item, FLOW_F_LATENT_LOGVAR, s->packed_logvar, packed->data);
    flow_item_set(item, FLOW_F_PACKED, packed);
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

FLOW_STAGE(.name = "precision_encode",
           .summary = "Latents in full, mixed or half precision, by step and complexity.",
           .details = "Mixed keeps one band of a Haar transform in half precision: with low:half one level "
                      "saves 12.5 % "
                      "of the bytes, two save 3 %; with high:half 37.5 % and 47 %; half saves 50 %.",
           .flags = FLOW_STATEFUL, .version = 1, .state_size = sizeof(Precision), .params = params,
           .inputs = inputs, .outputs = outputs, .describe = precision_describe, .open = precision_open,
           .close = precision_close, .process = precision_process);
