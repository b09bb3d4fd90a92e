/* Batches around a complex sample.
 *
 * An epoch's references are collected (they are small: no picture is decoded yet) and put into a new order
 * (assemble.c): each batch starts with the most complex sample that is left, and the others are chosen for
 * what they add to it. Simple samples may go smaller and in half precision: `low_scale` a side, open to those
 * below `min_complexity`.
 *
 * Every sample is used once an epoch, times its repeats: taking the most complex of all for every batch would
 * put one picture into all of them. Epochs differ by a keyed jitter of the complexity and by the order in
 * which candidates come up.
 *
 * While caches are filled, every configuration that may be asked for goes out once.
 *
 * @link m
 */
#include "core/flow/plan.h"
#include "core/flow/stage.h"
#include "core/image/geometry.h"
#include "stages/sparse_batch/assemble.h"
#include <math.h>

enum { FULL = 0, HALF = 2 /* numbers of the field "precision" */ };
enum { REFERENCE_BYTES = 2048 /* an item with its small fields */ };

typedef struct {
    gint64 batch, window, step;
    double min_complexity, low_scale, jitter;

    gint64 side; /* step in use, px */
    AssembleRules rules;
    GPtrArray *held;  /* FlowItem *, of one epoch */
    gint64 prefilled; /* items sent before the first epoch */
} SparseBatch;

static const FlowParam params[] = {
    FLOW_INT(SparseBatch, batch, "1", 1, 65536, "samples", "Samples in a batch; the same as collate's."),
    FLOW_INT(SparseBatch, window, "64", 1, 1048576, "samples", "Candidates for each place in a batch."),
    FLOW_FLOAT(SparseBatch, min_complexity, "0.4", 0, 1, "",
               "Samples below this complexity may go smaller and in half precision; 0 = none."),
    FLOW_FLOAT(SparseBatch, low_scale, "0.5", 0.1, 1, "", "Side of smaller samples relative to full ones."),
    FLOW_FLOAT(SparseBatch, jitter, "0.05", 0, 1, "",
               "Random change of the complexity that chooses anchors."),
    FLOW_INT(SparseBatch, step, "0", 0, 1024, "px",
             "Sides are multiples of this; 0 = as bucket has it, or 64."),
    FLOW_END,
};

static const FlowPort inputs[] = {
    {.name = "in",
     .kind = FLOW_SAMPLE,
     .doc = "References with size and scores.",
     .needs = "geometry source_size complexity scores role?"},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out",
     .kind = FLOW_SAMPLE,
     .doc = "The same in batches, each with its size and the highest precision it may have.",
     .gives = "geometry precision"},
    FLOW_END,
};

static gboolean sparse_batch_open(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    SparseBatch *s = flow_node_state(node);
    FlowNode *bucket = flow_node_find(node, "bucket");
    const gint64 *step = bucket ? flow_node_param(bucket, "step") : NULL;
    s->side = s->step > 0 ? s->step : step && *step > 0 ? *step : 64;
    s->rules = (AssembleRules){(guint)s->batch, (guint)s->window, s->min_complexity};
    s->held = g_ptr_array_new_with_free_func((GDestroyNotify)flow_item_unref);
    return TRUE;
}

static void sparse_batch_close(FlowNode *node)
{
    SparseBatch *s = flow_node_state(node);
    g_clear_pointer(&s->held, g_ptr_array_unref);
}

/* -- configurations ----------------------------------------------------------------- */

static ImageSize low_target(const SparseBatch *s, ImageSize full)
{
    return image_geometry_scaled(full, s->low_scale, s->side);
}

/* Where a crop of `size` out of `whole` begins, as a share of what is left over. */
static double crop_share(gint32 begin, gint32 whole, gint32 size)
{
    return whole > size ? (double)begin / (whole - size) : 0.5;
}

/* The same cut of the same picture, smaller; with the function that bucket uses. */
static void make_low(const SparseBatch *s, FlowItem *item)
{
    const gint32 *g = flow_item_i32(item, FLOW_F_GEOMETRY), *source = flow_item_i32(item, FLOW_F_SOURCE_SIZE);
    ImageGeometry low;
    image_geometry_fit((ImageSize){source[0], source[1]}, low_target(s, (ImageSize){g[0], g[1]}),
                       crop_share(g[4], g[2], g[0]), crop_share(g[5], g[3], g[1]), &low);
    const gint32 field[7] = {
        low.target_height, low.target_width, low.resized_height, low.resized_width, low.top, low.left, g[6]};
    flow_item_set_i32(item, FLOW_F_GEOMETRY, field, 7);
}

/* Takes `item`. */
static FlowStatus send(FlowCtx *ctx, const SparseBatch *s, FlowItem *item, gint64 position, gboolean low)
{
    flow_item_writable(&item);
    item->cursor.position = position;
    if (low)
        make_low(s, item);
    flow_item_set_i32(item, FLOW_F_PRECISION, (gint32[]){low ? HALF : FULL}, 1);
    return flow_emit(ctx, 0, item);
}

static double low_cost(const SparseBatch *s, const FlowItem *item)
{
    const gint32 *g = flow_item_i32(item, FLOW_F_GEOMETRY);
    ImageSize low = low_target(s, (ImageSize){g[0], g[1]});
    return (double)low.height * low.width / ((double)g[0] * g[1]);
}

/* -- an epoch ----------------------------------------------------------------------- */

static void read_sample(FlowCtx *ctx, const SparseBatch *s, const FlowItem *item, AssembleSample *out)
{
    const float *score = flow_item_f32(item, FLOW_F_SCORES);
    const gint32 *size = flow_item_i32(item, FLOW_F_SOURCE_SIZE);
    double u = flow_random_uniform(flow_ctx_key(ctx, item), 0);
    *out = (AssembleSample){
        .complexity = *flow_item_f32(item, FLOW_F_COMPLEXITY),
        .cost = low_cost(s, item),
        .feature = {score[0], score[1], log((double)size[1] / size[0]), score[2], score[3], score[4]},
    };
    out->anchor = out->complexity + s->jitter * (2 * u - 1);
}

/* Sends what is held, in batches. */
static FlowStatus send_epoch(FlowCtx *ctx, SparseBatch *s)
{
    guint n = s->held->len, lows = 0;
    FlowNode *node = flow_ctx_node(ctx);
    FlowStatus status = FLOW_OK;
    if (n == 0)
        return FLOW_OK;
    g_autofree AssembleSample *samples = g_new(AssembleSample, n);
    g_autofree gint64 *shuffled = g_new(gint64, n);
    g_autofree guint *order = g_new(guint, n);
    const FlowItem *first = g_ptr_array_index(s->held, 0);
    const gint64 v[] = {first->cursor.epoch, -1};
    for (guint i = 0; i < n; i++)
        read_sample(ctx, s, g_ptr_array_index(s->held, i), &samples[i]);
    flow_random_shuffle(flow_random_key(flow_node_seed(node), flow_node_name(node), v, 2), shuffled, n);
    assemble_epoch(&s->rules, samples, n, shuffled, order);
    for (guint i = 0; i < n && status == FLOW_OK; i++) {
        gboolean low = samples[order[i]].low;
        lows += low;
        status = send(ctx, s, flow_item_ref(g_ptr_array_index(s->held, order[i])), i, low);
    }
    g_ptr_array_set_size(s->held, 0);
    flow_node_count(node, "smaller", lows);
    return status;
}

/* -- items ------------------------------------------------------------------------ */

static gboolean has(const FlowItem *item, FlowField field, gsize n)
{
    const FlowValue *v = flow_item_get(item, field);
    return v->type == flow_field_info(field)->type && flow_value_count(v) == n;
}

static gboolean valid(const FlowItem *item, GError **error)
{
    const gint32 *g = flow_item_i32(item, FLOW_F_GEOMETRY), *size = flow_item_i32(item, FLOW_F_SOURCE_SIZE);
    const float *c = flow_item_f32(item, FLOW_F_COMPLEXITY), *score = flow_item_f32(item, FLOW_F_SCORES);
    gboolean good = has(item, FLOW_F_GEOMETRY, 7) && has(item, FLOW_F_SOURCE_SIZE, 2) &&
                    has(item, FLOW_F_COMPLEXITY, 1) && has(item, FLOW_F_SCORES, 5) && isfinite(*c) &&
                    g[0] > 0 && g[1] > 0 && size[0] > 0 && size[1] > 0;
    for (int i = 0; good && i < 5; i++)
        good = isfinite(score[i]);
    if (!good)
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "sizes are not positive, or complexity and scores are not 1 and 5 finite numbers");
    return good;
}

/* Every configuration that may be asked for later. Held-back pictures have one. */
static FlowStatus prefill(FlowCtx *ctx, SparseBatch *s, FlowItem *item)
{
    const gint32 *role = flow_item_i32(item, FLOW_F_ROLE);
    gboolean low = !(role && *role == 1) &&
                   assemble_may_be_low(&s->rules, *flow_item_f32(item, FLOW_F_COMPLEXITY), low_cost(s, item));
    FlowStatus status = send(ctx, s, flow_item_ref(item), s->prefilled++, FALSE);
    return status == FLOW_OK && low ? send(ctx, s, flow_item_ref(item), s->prefilled++, TRUE) : status;
}

static FlowStatus sparse_batch_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    SparseBatch *s = flow_ctx_state(ctx);
    if (in[0]->kind == FLOW_MARK) {
        FlowStatus status = send_epoch(ctx, s);
        return status == FLOW_OK ? flow_emit(ctx, 0, flow_take(&in[0])) : status;
    }
    if (!valid(in[0], error))
        return FLOW_SKIP;
    if (in[0]->cursor.epoch < 0)
        return prefill(ctx, s, in[0]);
    FlowItem *first = s->held->len ? g_ptr_array_index(s->held, 0) : NULL;
    FlowStatus status = FLOW_OK;
    if (first && first->cursor.epoch != in[0]->cursor.epoch)
        status = send_epoch(ctx, s);
    g_ptr_array_add(s->held, flow_take(&in[0]));
    return status;
}

static FlowStatus sparse_batch_flush(FlowCtx *ctx, GError **error G_GNUC_UNUSED)
{
    SparseBatch *s = flow_ctx_state(ctx);
    return flow_ctx_stopping(ctx) ? FLOW_OK : send_epoch(ctx, s);
}

/* How many samples an epoch has is known only to the source: more than any ring holds. */
static gint64 sparse_batch_hold(FlowNode *node G_GNUC_UNUSED)
{
    return G_MAXINT32;
}

/* -- plan ------------------------------------------------------------------------- */

static void add_size(GArray *sizes, ImageSize size, gint64 count)
{
    for (guint i = 0; i < sizes->len; i++) {
        FlowPlanSize *have = &g_array_index(sizes, FlowPlanSize, i);
        if (have->height == size.height && have->width == size.width) {
            have->count += count;
            return;
        }
    }
    FlowPlanSize added = {size.height, size.width, count};
    g_array_append_val(sizes, added);
}

/* Any sample may turn out to be simple. */
static gboolean sparse_batch_plan(FlowNode *node, FlowPlan *plan, GError **error G_GNUC_UNUSED)
{
    SparseBatch *s = flow_node_state(node);
    guint n = plan->sizes->len;
    flow_plan_add_always(plan, node, FLOW_HOST, "references", (gsize)plan->samples * REFERENCE_BYTES);
    for (guint i = 0; i < n && s->min_complexity > 0; i++) {
        FlowPlanSize full = g_array_index(plan->sizes, FlowPlanSize, i);
        ImageSize low = low_target(s, (ImageSize){full.height, full.width});
        if (low.height < full.height || low.width < full.width)
            add_size(plan->sizes, low, full.count);
    }
    return TRUE;
}

FLOW_STAGE(.name = "sparse_batch",
           .summary = "Assembles batches around complex samples; simple ones go smaller.",
           .details =
               "Collects an epoch of references and orders them into batches: the most complex sample left, "
               "then those that add most to it. Simple samples may go at a smaller size and in half "
               "precision. Every sample is used once an epoch.",
           .flags = FLOW_STATEFUL | FLOW_REORDERS | FLOW_MARKS | FLOW_NEEDS_OUT, .version = 1,
           .state_size = sizeof(SparseBatch), .params = params, .inputs = inputs, .outputs = outputs,
           .open = sparse_batch_open, .close = sparse_batch_close, .process = sparse_batch_process,
           .flush = sparse_batch_flush, .hold = sparse_batch_hold, .plan = sparse_batch_plan);
