/* Batches around a complex sample.
 *
 * An epoch's references are collected (they are small: no picture is decoded yet) and put in a new order:
 * each batch starts with the most complex sample that is left, at full size and precision, its anchor; then,
 * until it is full, the pair of sample and configuration with the largest gain among `window` candidates:
 *
 *      gain = novelty x fidelity / cost^(1/4)
 *
 *   novelty   smallest distance to the members of the batch, over entropy, text length, log aspect and mean
 *             colour, each standardised over the epoch
 *   fidelity  1 in full, 1 - complexity when smaller
 *   cost      pixels relative to full
 *
 * Smaller means `low_scale` a side and half precision; it is open to samples below `min_complexity`. Every
 * sample is used once an epoch, times its repeats: taking the most complex of all for every batch would put
 * one picture into all of them. Epochs differ by a keyed jitter of the complexity and by the order in which
 * candidates come up. A choice costs O(window), an epoch of 100 000 references seconds.
 *
 * While caches are filled, every configuration that may be asked for goes out once.
 *
 * @link m
 */
#include "core/flow/plan.h"
#include "core/flow/stage.h"
#include "core/image/geometry.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FEATURES = 6, FULL = 0, HALF = 2 /* numbers of the field "precision" */ };
enum { REFERENCE_BYTES = 2048 /* an item with its small fields */ };

typedef struct {
    FlowItem *item;
    double anchor;           /* complexity with jitter */
    double complexity, cost; /* cost: of the smaller configuration; 1 = there is none */
    guint place;             /* in the order of candidates: ties go by it */
    gboolean used, low;
    double feature[FEATURES];
} Member;

typedef struct {
    guint member; /* index */
    guint seen;   /* members of the batch that novelty knows */
    double novelty;
} Candidate;

typedef struct {
    gint64 batch, window, step;
    double min_complexity, low_scale, jitter;

    gint64 side;      /* step in use, px */
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

/* May this sample go smaller? */
static gboolean may_be_low(const SparseBatch *s, double complexity, double cost)
{
    return complexity < s->min_complexity && cost < 1;
}

/* -- an epoch ----------------------------------------------------------------------- */

static void read_member(FlowCtx *ctx, const SparseBatch *s, FlowItem *item, Member *m)
{
    const float *score = flow_item_f32(item, FLOW_F_SCORES);
    const gint32 *size = flow_item_i32(item, FLOW_F_SOURCE_SIZE);
    m->item = item;
    m->complexity = *flow_item_f32(item, FLOW_F_COMPLEXITY);
    m->anchor = m->complexity + s->jitter * (2 * flow_random_uniform(flow_ctx_key(ctx, item), 0) - 1);
    m->cost = low_cost(s, item);
    m->feature[0] = score[0];
    m->feature[1] = score[1];
    m->feature[2] = log((double)size[1] / size[0]);
    for (int i = 0; i < 3; i++)
        m->feature[3 + i] = score[2 + i];
}

/* To mean 0 and deviation 1; a feature that is the same for all says nothing and becomes 0. */
static void standardise(Member *members, guint n)
{
    for (int f = 0; f < FEATURES; f++) {
        double mean = 0, square = 0;
        for (guint i = 0; i < n; i++)
            mean += members[i].feature[f] / n;
        for (guint i = 0; i < n; i++)
            square += (members[i].feature[f] - mean) * (members[i].feature[f] - mean) / n;
        double scale = square > 1e-12 ? 1 / sqrt(square) : 0;
        for (guint i = 0; i < n; i++)
            members[i].feature[f] = (members[i].feature[f] - mean) * scale;
    }
}

static int by_anchor(gconstpointer a, gconstpointer b)
{
    const Member *m = *(Member *const *)a, *n = *(Member *const *)b;
    if (m->anchor != n->anchor)
        return m->anchor > n->anchor ? -1 : 1;
    return m->place < n->place ? -1 : 1;
}

static double distance(const Member *a, const Member *b)
{
    double sum = 0;
    for (int f = 0; f < FEATURES; f++)
        sum += (a->feature[f] - b->feature[f]) * (a->feature[f] - b->feature[f]);
    return sqrt(sum);
}

typedef struct {
    Member *members;
    guint n;
    gint64 *shuffled; /* order in which candidates come up */
    guint next;       /* place in it */
    Member **anchors; /* most complex first */
    Candidate *window;
    guint in_window;
    Member **batch;
    guint in_batch;
} Epoch;

static void epoch_open(FlowCtx *ctx, const SparseBatch *s, Epoch *e)
{
    FlowNode *node = flow_ctx_node(ctx);
    guint n = s->held->len;
    FlowItem *first = g_ptr_array_index(s->held, 0);
    const gint64 v[] = {first->cursor.epoch, -1};
    *e = (Epoch){
        .members = g_new0(Member, n),
        .n = n,
        .shuffled = g_new(gint64, n),
        .anchors = g_new(Member *, n),
        .window = g_new(Candidate, MIN((guint64)s->window, n)),
        .batch = g_new(Member *, MIN((guint64)s->batch, n)),
    };
    for (guint i = 0; i < n; i++)
        read_member(ctx, s, g_ptr_array_index(s->held, i), &e->members[i]);
    standardise(e->members, n);
    flow_random_shuffle(flow_random_key(flow_node_seed(node), flow_node_name(node), v, 2), e->shuffled, n);
    for (guint i = 0; i < n; i++)
        e->members[e->shuffled[i]].place = i;
    for (guint i = 0; i < n; i++)
        e->anchors[i] = &e->members[i];
    qsort(e->anchors, n, sizeof *e->anchors, by_anchor);
}

static void epoch_close(Epoch *e)
{
    g_free(e->members);
    g_free(e->shuffled);
    g_free(e->anchors);
    g_free(e->window);
    g_free(e->batch);
}

static void join_batch(Epoch *e, Member *m, gboolean low)
{
    m->used = TRUE;
    m->low = low;
    e->batch[e->in_batch++] = m;
}

/* Drops what has been used since and takes in the next candidates. */
static void refill(Epoch *e, guint window)
{
    guint kept = 0;
    for (guint i = 0; i < e->in_window; i++)
        if (!e->members[e->window[i].member].used)
            e->window[kept++] = e->window[i];
    for (; kept < window && e->next < e->n; e->next++) {
        guint index = (guint)e->shuffled[e->next];
        if (!e->members[index].used)
            e->window[kept++] = (Candidate){index, 0, INFINITY};
    }
    e->in_window = kept;
}

/* The pair of candidate and configuration with the largest gain joins. */
static void choose(const SparseBatch *s, Epoch *e)
{
    double best = -1;
    Member *chosen = NULL;
    gboolean low = FALSE;
    for (guint i = 0; i < e->in_window; i++) {
        Candidate *c = &e->window[i];
        Member *m = &e->members[c->member];
        for (; c->seen < e->in_batch; c->seen++)
            c->novelty = MIN(c->novelty, distance(m, e->batch[c->seen]));
        if (c->novelty > best)
            best = c->novelty, chosen = m, low = FALSE;
        if (!may_be_low(s, m->complexity, m->cost))
            continue;
        double gain = c->novelty * (1 - m->complexity) / pow(m->cost, 0.25);
        if (gain > best)
            best = gain, chosen = m, low = TRUE;
    }
    join_batch(e, chosen, low);
}

static void assemble(const SparseBatch *s, Epoch *e, Member *anchor)
{
    e->in_batch = 0;
    join_batch(e, anchor, FALSE);
    for (guint i = 0; i < e->in_window; i++) {
        e->window[i].seen = 0;
        e->window[i].novelty = INFINITY;
    }
    while (e->in_batch < s->batch) {
        refill(e, (guint)MIN((guint64)s->window, e->n));
        if (e->in_window == 0)
            break;
        choose(s, e);
    }
}

/* Sends what is held, in batches. */
static FlowStatus send_epoch(FlowCtx *ctx, SparseBatch *s)
{
    Epoch e;
    FlowStatus status = FLOW_OK;
    gint64 position = 0, lows = 0;
    if (s->held->len == 0)
        return FLOW_OK;
    epoch_open(ctx, s, &e);
    for (guint i = 0; i < e.n && status == FLOW_OK; i++) {
        if (e.anchors[i]->used)
            continue;
        assemble(s, &e, e.anchors[i]);
        for (guint j = 0; j < e.in_batch && status == FLOW_OK; j++) {
            lows += e.batch[j]->low;
            status = send(ctx, s, flow_item_ref(e.batch[j]->item), position++, e.batch[j]->low);
        }
    }
    epoch_close(&e);
    g_ptr_array_set_size(s->held, 0);
    flow_node_count(flow_ctx_node(ctx), "smaller", (double)lows);
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
    gboolean low =
        !(role && *role == 1) && may_be_low(s, *flow_item_f32(item, FLOW_F_COMPLEXITY), low_cost(s, item));
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
