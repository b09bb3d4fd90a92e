/* Hands batches to the device through a ring of `depth` staging slots.
 *
 * Slots are used strictly in turn: a slot is filled, its batch goes on, and it is filled again only when the
 * last value that shows its memory is gone. So at most `depth` batches are between here and the end of the
 * step that uses them, and no copy can overtake a reader.
 *
 * On the CPU backend the device is the host: f32 tensors are handed over where they lie; packed latents
 * (precision_encode) are unpacked into the slot, the inverse Haar transform included, so behind this node
 * they are f32 again. What moved is counted as it moved, packed.
 *
 * Held-back pictures stay with whoever takes them, for the whole run; they get memory of their own. */
#include "core/cache/pack.h"
#include "core/flow/graph.h"
#include "core/flow/plan.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { LOOK_AGAIN_MS = 20 };

typedef struct Staging Staging;

typedef struct {
    Staging *staging;
    guint users; /* values that show it; under the lock; 0 = free */
    float *memory;
    gsize room; /* floats */
} Slot;

/* Lives until the node is closed and the last value is gone. */
struct Staging {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    guint refs;
    guint depth, next;
    Slot slot[];
};

typedef struct {
    gint64 depth;

    FlowField packed_mean, packed_logvar;
    Staging *staging;
    CachePackScratch scratch;
} H2d;

static const FlowParam params[] = {
    FLOW_INT(H2d, depth, "2", 1, 64, "batches", "Staging slots: batches on their way to, or in, the step."),
    FLOW_END,
};

static const FlowPort inputs[] = {
    {.name = "in", .kind = FLOW_BATCH, .doc = "Batches in host memory.", .needs = "role?"},
    FLOW_END,
};

static const FlowPort outputs[] = {
    {.name = "out", .kind = FLOW_BATCH, .doc = "The same where the step can use them, latents in f32."},
    FLOW_END,
};

FLOW_STAGE_FIELDS(CACHE_PACK_FIELDS);

/* What is large enough to move. */
static const FlowField moved[] = {FLOW_F_LATENT_MEAN, FLOW_F_LATENT_LOGVAR, FLOW_F_LATENT,
                                  FLOW_F_NOISE,       FLOW_F_CONTEXT,       FLOW_F_POOLED};

static gboolean packed_before(FlowNode *node)
{
    FlowGraph *graph = flow_node_graph(node);
    for (guint i = 0; i < flow_graph_nodes(graph); i++) {
        FlowNode *other = flow_graph_node(graph, i);
        const FlowStage *stage = flow_node_stage(other);
        if (stage && g_str_equal(stage->name, "precision_encode") && flow_node_leads_to(other, node))
            return TRUE;
    }
    return FALSE;
}

static gboolean h2d_describe(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    if (packed_before(node)) {
        flow_node_needs(node, "in", "packed packed_mean packed_logvar role?");
        flow_node_gives(node, "out", "latent_mean latent_logvar");
        flow_node_drops(node, "out", "packed_mean packed_logvar");
    }
    return TRUE;
}

/* -- staging ------------------------------------------------------------------------ */

static Staging *staging_new(guint depth)
{
    Staging *t = g_malloc0(sizeof *t + depth * sizeof *t->slot);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->freed, NULL);
    t->refs = 1;
    t->depth = depth;
    for (guint i = 0; i < depth; i++)
        t->slot[i].staging = t;
    return t;
}

static void staging_unref(Staging *t)
{
    pthread_mutex_lock(&t->lock);
    gboolean last = --t->refs == 0;
    pthread_mutex_unlock(&t->lock);
    if (!last)
        return;
    for (guint i = 0; i < t->depth; i++)
        g_free(t->slot[i].memory);
    pthread_cond_destroy(&t->freed);
    pthread_mutex_destroy(&t->lock);
    g_free(t);
}

static void slot_use(Slot *slot)
{
    Staging *t = slot->staging;
    pthread_mutex_lock(&t->lock);
    slot->users++;
    t->refs++;
    pthread_mutex_unlock(&t->lock);
}

static void slot_release(gpointer data)
{
    Slot *slot = data;
    Staging *t = slot->staging;
    pthread_mutex_lock(&t->lock);
    if (--slot->users == 0)
        pthread_cond_signal(&t->freed);
    pthread_mutex_unlock(&t->lock);
    staging_unref(t);
}

static gboolean slot_is_free(Staging *t)
{
    pthread_mutex_lock(&t->lock);
    gboolean is_free = t->slot[t->next].users == 0;
    pthread_mutex_unlock(&t->lock);
    return is_free;
}

/* Waits a moment for the next slot in turn. */
static gboolean slot_ready(gpointer data)
{
    Staging *t = data;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_AGAIN_MS * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&t->lock);
    int rc = 0;
    while (t->slot[t->next].users > 0 && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&t->freed, &t->lock, &until);
    pthread_mutex_unlock(&t->lock);
    return slot_is_free(t);
}

/* The next slot in turn, with one user: the caller. */
static FlowStatus slot_take(FlowCtx *ctx, Staging *t, Slot **slot)
{
    FlowStatus status = slot_is_free(t) ? FLOW_OK : flow_ctx_wait(ctx, slot_ready, t);
    if (status != FLOW_OK)
        return status;
    *slot = &t->slot[t->next];
    t->next = (t->next + 1) % t->depth; /* only this worker takes slots */
    slot_use(*slot);
    return FLOW_OK;
}

/* -- values ------------------------------------------------------------------------- */

/* Memory of somebody else, shown as a value that holds on to the slot. */
typedef struct {
    FlowValue *value;
    Slot *slot;
} View;

static void view_free(gpointer data)
{
    View *view = data;
    flow_value_unref(view->value);
    slot_release(view->slot);
    g_free(view);
}

/* Takes `value`; NULL slot: as it is. */
static FlowValue *hand_over(FlowValue *value, Slot *slot)
{
    if (!slot)
        return value;
    View *view = g_new(View, 1);
    *view = (View){value, slot};
    slot_use(slot);
    return flow_value_wrap(value->type, value->ndim, value->shape, value->data, view_free, view);
}

/* Unpacks to `memory`, or into memory of its own where that is NULL. */
static FlowValue *unpack(H2d *s, const FlowItem *item, FlowField field, const gint64 shape[4], float *memory)
{
    const gint32 *packed = flow_item_i32(item, FLOW_F_PACKED);
    FlowValue *out =
        memory ? flow_value_wrap(NET_F32, 4, shape, memory, NULL, NULL) : flow_value_new(NET_F32, 4, shape);
    cache_unpack(flow_item_get(item, field), packed, shape[0], out->data, &s->scratch);
    return out;
}

static gboolean packed_shape(const H2d *s, const FlowItem *item, gint64 shape[4], GError **error)
{
    const FlowValue *packed = flow_item_get(item, FLOW_F_PACKED);
    const FlowValue *mean = flow_item_get(item, s->packed_mean),
                    *logvar = flow_item_get(item, s->packed_logvar);
    gint64 other[4];
    if (!packed || packed->type != NET_I32 || packed->ndim != 2 || packed->shape[1] != 2) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "packed latents without the field 'packed'");
        return FALSE;
    }
    if (!cache_pack_shape(mean, packed->data, packed->shape[0], shape, error) ||
        !cache_pack_shape(logvar, packed->data, packed->shape[0], other, error))
        return FALSE;
    if (memcmp(shape, other, sizeof other) == 0)
        return TRUE;
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                "packed_mean and packed_logvar differ in shape");
    return FALSE;
}

/* Replaces the packed latents by f32 ones in the slot. */
static gboolean unpack_latents(H2d *s, FlowItem *item, Slot *slot, GError **error)
{
    gint64 shape[4];
    if (!packed_shape(s, item, shape, error))
        return FALSE;
    gsize n = (gsize)(shape[0] * shape[1] * shape[2] * shape[3]);
    if (slot && slot->room < 2 * n) {
        g_free(slot->memory);
        slot->memory = g_new(float, 2 * n);
        slot->room = 2 * n;
    }
    float *memory = slot ? slot->memory : NULL;
    flow_item_set(item, FLOW_F_LATENT_MEAN, unpack(s, item, s->packed_mean, shape, memory));
    flow_item_set(item, FLOW_F_LATENT_LOGVAR,
                  unpack(s, item, s->packed_logvar, shape, memory ? memory + n : NULL));
    flow_item_drop(item, s->packed_mean);
    flow_item_drop(item, s->packed_logvar);
    return TRUE;
}

static FlowStatus transfer(FlowCtx *ctx, H2d *s, FlowItem *item, Slot *slot, GError **error)
{
    gsize nbytes = flow_item_nbytes(item); /* as it travels: packed */
    if (flow_item_get(item, s->packed_mean) && flow_item_get(item, s->packed_logvar) &&
        !unpack_latents(s, item, slot, error))
        return FLOW_SKIP;
    for (guint i = 0; i < G_N_ELEMENTS(moved); i++) {
        FlowValue *value = flow_item_get(item, moved[i]);
        if (value)
            flow_item_set(item, moved[i], hand_over(flow_value_ref(value), slot));
    }
    flow_node_count(flow_ctx_node(ctx), "transfers", 1);
    flow_node_count(flow_ctx_node(ctx), "bytes", (double)nbytes);
    return FLOW_OK;
}

static FlowStatus h2d_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    H2d *s = flow_ctx_state(ctx);
    const gint32 *role = flow_item_i32(in[0], FLOW_F_ROLE);
    Slot *slot = NULL;
    FlowStatus status = role && *role == 1 ? FLOW_OK : slot_take(ctx, s->staging, &slot);
    if (status != FLOW_OK)
        return status;
    status = transfer(ctx, s, flow_item_writable(&in[0]), slot, error);
    if (slot) /* from here on the values hold it */
        slot_release(slot);
    return status == FLOW_OK ? flow_emit(ctx, 0, flow_take(&in[0])) : status;
}

/* -- node ------------------------------------------------------------------------- */

/* A node behind us that collects more batches than there are slots would wait for us, and we for it. */
static gboolean slots_suffice(FlowNode *node, gint64 depth, GError **error)
{
    FlowGraph *graph = flow_node_graph(node);
    for (guint i = 0; i < flow_graph_nodes(graph); i++) {
        FlowNode *other = flow_graph_node(graph, i);
        const FlowStage *stage = flow_node_stage(other);
        gint64 hold = stage->hold && flow_node_leads_to(node, other) ? stage->hold(other) : 0;
        if (hold < depth)
            continue;
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "depth = %" G_GINT64_FORMAT " is too small: [%s] behind it holds up to %" G_GINT64_FORMAT
                    " items",
                    depth, flow_node_name(other), hold);
        return FALSE;
    }
    return TRUE;
}

static gboolean h2d_open(FlowNode *node, GError **error)
{
    H2d *s = flow_node_state(node);
    s->packed_mean = (FlowField)flow_field_find("packed_mean");
    s->packed_logvar = (FlowField)flow_field_find("packed_logvar");
    s->staging = staging_new((guint)s->depth);
    return slots_suffice(node, s->depth, error);
}

static void h2d_close(FlowNode *node)
{
    H2d *s = flow_node_state(node);
    g_clear_pointer(&s->staging, staging_unref);
    cache_pack_clear(&s->scratch);
}

static gboolean h2d_plan(FlowNode *node, FlowPlan *plan, GError **error G_GNUC_UNUSED)
{
    H2d *s = flow_node_state(node);
    for (FlowPhase phase = FLOW_PHASE_TRAIN; phase < FLOW_PHASE_COUNT; phase++)
        flow_plan_add(plan, node, phase, FLOW_HOST, "staging", (gsize)s->depth * plan->item_bytes);
    return TRUE;
}

FLOW_STAGE(.name = "h2d", .summary = "Hands batches to the device through a ring of staging slots.",
           .details = "On the CPU backend memory is handed over, and packed latents are unpacked.",
           .flags = FLOW_STATEFUL, .version = 1, .state_size = sizeof(H2d), .params = params,
           .inputs = inputs, .outputs = outputs, .describe = h2d_describe, .open = h2d_open,
           .close = h2d_close, .process = h2d_process, .plan = h2d_plan);
