/* Which workers wait for one another, exactly.
 *
 * Every worker publishes what it waits for. One that does not wait is alive; one that waits is alive if it
 * could already go on (it only has not been scheduled yet), or if somebody who can end its wait is alive or
 * gone: the consumer of a full ring, a producer of an empty one, the worker that holds the dispatch lock.
 * Repeated until nothing changes; who is left can never go on. That finds deadlocks of a part of the
 * graph while the rest works, which a test for "nothing moves" cannot. */
#include "core/flow/graph_private.h"

typedef struct {
    FlowCtx *ctx;
    int kind, hold;
    FlowPortState *port; /* of the ring waited for */
    gboolean live, gone;
} Waiter;

typedef struct {
    FlowGraph *graph;
    GArray *waiters; /* Waiter, nodes in order */
    guint *first;    /* per node: its first waiter */
} Sample;

static FlowPortState *port_of_ring(FlowGraph *graph, const FlowRing *ring)
{
    for (guint i = 0; ring && i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        for (guint p = 0; p < node->n_in; p++)
            if (node->in[p].ring == ring)
                return &node->in[p];
    }
    return NULL;
}

static void take_sample(Sample *sample, FlowGraph *graph)
{
    sample->graph = graph;
    sample->waiters = g_array_new(FALSE, TRUE, sizeof(Waiter));
    sample->first = g_new0(guint, graph->nodes->len + 1);
    for (guint i = 0; i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        sample->first[i] = sample->waiters->len;
        for (guint w = 0; w < node->n_ctx; w++) {
            FlowCtx *ctx = &node->ctx[w];
            Waiter waiter = {.ctx = ctx, .kind = ctx->wait.kind, .hold = ctx->hold};
            waiter.gone = waiter.kind == FLOW_WAIT_EXITED;
            waiter.port = port_of_ring(graph, ctx->wait.ring);
            waiter.live = waiter.kind == FLOW_WAIT_NONE && waiter.hold == FLOW_HOLD_NONE;
            g_array_append_val(sample->waiters, waiter);
        }
    }
    sample->first[graph->nodes->len] = sample->waiters->len;
}

static gboolean any_live(const Sample *sample, const FlowNode *node)
{
    for (guint i = sample->first[node->index]; i < sample->first[node->index + 1]; i++)
        if (g_array_index(sample->waiters, Waiter, i).live)
            return TRUE;
    return FALSE;
}

static gboolean all_gone(const Sample *sample, const FlowNode *node)
{
    for (guint i = sample->first[node->index]; i < sample->first[node->index + 1]; i++)
        if (!g_array_index(sample->waiters, Waiter, i).gone)
            return FALSE;
    return TRUE;
}

static gboolean fed(const Sample *sample, FlowPortState *port)
{
    gpointer item;
    gboolean all = TRUE;
    if (flow_ring_peek(port->ring, &item, 1))
        return TRUE; /* it only has not been woken yet */
    for (guint l = 0; l < port->links->len; l++) {
        const FlowNode *from = ((FlowLink *)g_ptr_array_index(port->links, l))->edge.from;
        if (any_live(sample, from))
            return TRUE;
        all = all && all_gone(sample, from);
    }
    return all;
}

/* Waits for another worker of the same node. */
static gboolean released(const Sample *sample, const Waiter *waiter)
{
    FlowNode *node = waiter->ctx->node;
    if (waiter->hold == FLOW_HOLD_LOCK) {
        int holder = node->holder;
        return holder < 0 ||
               g_array_index(sample->waiters, Waiter, sample->first[node->index] + (guint)holder).live;
    }
    pthread_mutex_lock(&node->lock);
    gboolean idle = node->inflight == 0;
    pthread_mutex_unlock(&node->lock);
    return idle || any_live(sample, node);
}

static gboolean can_go_on(const Sample *sample, const Waiter *waiter)
{
    if (waiter->hold != FLOW_HOLD_NONE)
        return released(sample, waiter);
    if (!waiter->port)
        return TRUE;
    if (waiter->kind == FLOW_WAIT_FULL)
        return !flow_ring_full(waiter->port->ring, waiter->ctx->wait.nbytes) ||
               any_live(sample, waiter->port->node) || all_gone(sample, waiter->port->node);
    return fed(sample, waiter->port);
}

GPtrArray *flow__dead_workers(FlowGraph *graph)
{
    Sample sample;
    take_sample(&sample, graph);
    for (gboolean changed = TRUE; changed;) {
        changed = FALSE;
        for (guint i = 0; i < sample.waiters->len; i++) {
            Waiter *waiter = &g_array_index(sample.waiters, Waiter, i);
            if (!waiter->live && !waiter->gone && can_go_on(&sample, waiter))
                waiter->live = changed = TRUE;
        }
    }
    GPtrArray *dead = g_ptr_array_new();
    for (guint i = 0; i < sample.waiters->len; i++) {
        const Waiter *waiter = &g_array_index(sample.waiters, Waiter, i);
        if (!waiter->live && !waiter->gone)
            g_ptr_array_add(dead, waiter->ctx);
    }
    g_array_unref(sample.waiters);
    g_free(sample.first);
    if (!dead->len)
        g_clear_pointer(&dead, g_ptr_array_unref);
    return dead;
}

/* -- what to say --------------------------------------------------------------------- */

/* What a dead worker waits for; NULL if that is another worker of its node. */
static FlowPortState *waited_for(const FlowCtx *ctx)
{
    return ctx->hold == FLOW_HOLD_NONE ? port_of_ring(ctx->node->graph, ctx->wait.ring) : NULL;
}

static gboolean waits_for_node(const FlowCtx *ctx, const FlowNode *node)
{
    const FlowPortState *port = waited_for(ctx);
    if (!port)
        return FALSE;
    if (ctx->wait.kind == FLOW_WAIT_FULL)
        return port->node == node;
    for (guint l = 0; l < port->links->len; l++)
        if (((FlowLink *)g_ptr_array_index(port->links, l))->edge.from == node)
            return TRUE;
    return FALSE;
}

/* Leaves the cycle: takes out, again and again, those that nobody else waits for. */
static GPtrArray *cycle_of(GPtrArray *dead)
{
    GPtrArray *cycle = g_ptr_array_new();
    for (guint i = 0; i < dead->len; i++)
        if (waited_for(g_ptr_array_index(dead, i)))
            g_ptr_array_add(cycle, g_ptr_array_index(dead, i));
    for (guint i = 0; i < cycle->len;) {
        const FlowNode *node = ((FlowCtx *)g_ptr_array_index(cycle, i))->node;
        gboolean wanted = FALSE;
        for (guint k = 0; k < cycle->len && !wanted; k++)
            wanted = waits_for_node(g_ptr_array_index(cycle, k), node);
        if (wanted) {
            i++;
        } else {
            g_ptr_array_remove_index(cycle, i);
            i = 0;
        }
    }
    return cycle;
}

static void append_waiter(GString *text, const FlowCtx *ctx)
{
    const FlowPortState *port = waited_for(ctx);
    gboolean full = ctx->wait.kind == FLOW_WAIT_FULL;
    FlowRingStats stats;
    flow_ring_stats(port->ring, &stats);
    g_string_append_printf(text, " [%s] waits for %s on %s (%u of %u", ctx->node->name,
                           full                        ? "space"
                           : flow__port_feedback(port) ? "feedback"
                                                       : "items",
                           flow_ring_name(port->ring), stats.fill, stats.capacity);
    if (full && stats.fill < stats.capacity)
        g_string_append_printf(text, ", %" G_GUINT64_FORMAT " bytes", stats.bytes);
    g_string_append(text, ");");
}

char *flow__dead_text(GPtrArray *dead)
{
    g_autoptr(GPtrArray) cycle = cycle_of(dead);
    GString *text = g_string_new("deadlock:");
    for (guint i = 0; i < cycle->len; i++)
        append_waiter(text, g_ptr_array_index(cycle, i));
    g_string_truncate(text, text->len - 1);
    return g_string_free(text, FALSE);
}

FlowPortState *flow__dead_ring(GPtrArray *dead)
{
    g_autoptr(GPtrArray) cycle = cycle_of(dead);
    FlowPortState *smallest = NULL;
    guint32 least = G_MAXUINT32;
    for (guint i = 0; i < cycle->len; i++) {
        const FlowCtx *ctx = g_ptr_array_index(cycle, i);
        FlowRingStats stats;
        if (ctx->wait.kind != FLOW_WAIT_FULL)
            continue;
        flow_ring_stats(waited_for(ctx)->ring, &stats);
        if (stats.fill < least) {
            least = stats.fill;
            smallest = waited_for(ctx);
        }
    }
    return smallest;
}
