/* Sending items and taking feedback.
 *
 * A node with one worker sends at once, so that back pressure reaches the stage and a loop may wait for
 * what it has just emitted. The workers of a parallel node collect what a call emits; the whole chain goes
 * into the ticket that was taken together with the input, so outputs keep the order of inputs. With
 * `order = any` they send at once too.
 *
 * A consumer that finished closes its link. When the last open link of a node closes, emitting says
 * FLOW_EOS, and the node has no reason to go on. */
#include "core/flow/graph_private.h"
#include <stdatomic.h>

static void close_link(FlowLink *link)
{
    if (!atomic_exchange(&link->closed, TRUE))
        atomic_fetch_sub(&link->edge.from->open_links, 1);
}

static FlowStatus any_left(const FlowNode *node)
{
    return node->n_links && !node->open_links ? FLOW_EOS : FLOW_OK;
}

FlowStatus flow__send(FlowNode *node, guint port, FlowItem *item)
{
    GPtrArray *links = node->out[port].links;
    FlowStatus status = FLOW_OK;
    for (guint i = 0; i < links->len && status != FLOW_CANCELLED; i++) {
        FlowLink *link = g_ptr_array_index(links, i);
        FlowItem *one = link->closed ? NULL : flow__route(link, flow_item_ref(item));
        if (!one)
            continue;
        status = flow_ring_push(link->in->ring, one, flow_item_nbytes(one));
        if (status == FLOW_EOS)
            close_link(link);
    }
    flow_item_unref(item);
    return status == FLOW_CANCELLED ? status : any_left(node);
}

FlowStatus flow__reserve(FlowCtx *ctx)
{
    FlowNode *node = ctx->node;
    guint k = 0;
    for (guint p = 0; p < node->n_out; p++)
        for (guint i = 0; i < node->out[p].links->len; i++, k++) {
            FlowLink *link = g_ptr_array_index(node->out[p].links, i);
            FlowStatus status = link->closed ? FLOW_EOS : flow_ring_reserve(link->in->ring, &ctx->ticket[k]);
            ctx->has_ticket[k] = status == FLOW_OK;
            if (status == FLOW_CANCELLED)
                return status;
            if (status == FLOW_EOS)
                close_link(link);
        }
    return any_left(node);
}

/* What of a chain passes the link; the items are still the chain's. */
static void commit_link(FlowLink *link, guint64 ticket, GPtrArray *chain, GPtrArray *scratch)
{
    gsize bytes = 0;
    g_ptr_array_set_size(scratch, 0);
    for (guint i = 0; i < chain->len; i++) {
        FlowItem *item = flow__route(link, flow_item_ref(g_ptr_array_index(chain, i)));
        if (!item)
            continue;
        bytes += flow_item_nbytes(item);
        g_ptr_array_add(scratch, item);
    }
    flow_ring_commit(link->in->ring, ticket, scratch->pdata, scratch->len, bytes);
}

void flow__commit(FlowCtx *ctx)
{
    FlowNode *node = ctx->node;
    guint k = 0;
    for (guint p = 0; p < node->n_out; p++) {
        GPtrArray *chain = ctx->chain[p];
        for (guint i = 0; i < node->out[p].links->len; i++, k++)
            if (ctx->has_ticket[k])
                commit_link(g_ptr_array_index(node->out[p].links, i), ctx->ticket[k], chain,
                            ctx->scratch_items);
        g_ptr_array_set_size(chain, 0);
    }
}

void flow__finish_links(FlowNode *node)
{
    for (guint p = 0; p < node->n_out; p++)
        for (guint i = 0; i < node->out[p].links->len; i++)
            flow_ring_producer_done(((FlowLink *)g_ptr_array_index(node->out[p].links, i))->in->ring);
    for (guint i = 0; i < node->n_in; i++)
        if (node->in[i].ring)
            flow_ring_consumer_done(node->in[i].ring);
}

/* -- what stages call --------------------------------------------------------------- */

static _Thread_local const FlowCtx *current;

void flow__ctx_enter(const FlowCtx *ctx)
{
    current = ctx;
}

/* A source numbers its items, and ends after `run --limit` of them. One that keeps its items must not have
 * them changed under the eyes of those who got them before. */
static gboolean source_has_enough(FlowNode *node, FlowItem **made)
{
    FlowItem *item = flow_item_writable(made);
    item->seq = node->seq++;
    if (item->cursor.epoch < 0 || !node->graph->limit)
        return FALSE;
    return node->made++ >= node->graph->limit;
}

FlowStatus flow_emit(FlowCtx *ctx, guint port, FlowItem *item)
{
    FlowNode *node = ctx->node;
    g_assert(ctx == current); /* [worker]: only on the thread of the call */
    g_assert(item && port < node->n_out);
    if (flow__fault("emit")) {
        ctx->injected = TRUE;
        flow_item_unref(item);
        return FLOW_ERROR;
    }
    if (item->kind != FLOW_MARK) {
        if (node->n_in == 0 && source_has_enough(node, &item)) {
            flow_item_unref(item);
            return FLOW_EOS;
        }
        atomic_fetch_add_explicit(&node->n_out_items, 1, memory_order_relaxed);
    }
    if (ctx->direct)
        return flow__send(node, port, item);
    g_ptr_array_add(ctx->chain[port], item);
    return FLOW_OK;
}

FlowStatus flow_pop(FlowCtx *ctx, guint port, FlowItem **item, GError **error G_GNUC_UNUSED)
{
    FlowPortState *in = &ctx->node->in[port];
    gpointer popped = NULL;
    g_assert(ctx == current && port < ctx->node->n_in && flow__port_feedback(in));
    FlowStatus status = in->ring ? flow_ring_pop(in->ring, &popped) : FLOW_EOS;
    *item = popped;
    return status;
}

/* With several workers another one could pop, and free, what was seen. */
gsize flow_peek(FlowCtx *ctx, FlowItem **items, gsize max)
{
    FlowNode *node = ctx->node;
    g_assert(ctx == current);
    if (node->workers > 1 || !node->n_in || !node->in[0].ring || !max)
        return 0;
    gsize n = flow_ring_peek(node->in[0].ring, (gpointer *)items, max), kept = 0;
    for (gsize i = 0; i < n; i++)
        if (items[i]->kind != FLOW_MARK)
            items[kept++] = items[i];
    return kept;
}
