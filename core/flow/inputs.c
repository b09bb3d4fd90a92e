/* Taking what a node works on next: one item from each linked input, in the order of the ports.
 *
 * Marks (end of an epoch, end of prefill) come in the same rings. Before one goes on, every worker of the
 * node must be done with what came before it; then mark() is called and the mark is sent. A join meets the
 * same mark once on each input and passes it once.
 *
 * The inputs of a join that come from one node must carry the same items. Cursors are compared, because a
 * branch that lost an item would pair every later picture with the wrong caption. */
#include "core/flow/graph_private.h"
#include <stdatomic.h>

gboolean flow__flows(const FlowPortState *in)
{
    return in->ring && !flow__port_feedback(in);
}

void flow__drop_inputs(FlowCtx *ctx)
{
    for (guint i = 0; i < ctx->node->n_in; i++)
        g_clear_pointer(&ctx->in[i], flow_item_unref);
}

static FlowStatus fail(FlowCtx *ctx, const char *format, ...) G_GNUC_PRINTF(2, 3);
static FlowStatus fail(FlowCtx *ctx, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    flow__fail(ctx, g_error_new_valist(FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, format, args));
    va_end(args);
    return FLOW_CANCELLED;
}

/* -- marks -------------------------------------------------------------------------- */

static void wait_until_idle(FlowCtx *ctx)
{
    FlowNode *node = ctx->node;
    ctx->hold = FLOW_HOLD_IDLE;
    pthread_mutex_lock(&node->lock);
    while (node->inflight)
        pthread_cond_wait(&node->idle, &node->lock);
    pthread_mutex_unlock(&node->lock);
    ctx->hold = FLOW_HOLD_NONE;
}

static FlowStatus pass_mark(FlowCtx *ctx, guint first)
{
    FlowNode *node = ctx->node;
    g_autoptr(FlowItem) mark = g_steal_pointer(&ctx->in[first]);
    for (guint i = first + 1; i < node->n_in; i++)
        if (ctx->in[i] && ctx->in[i]->kind == FLOW_MARK && ctx->in[i]->mark == mark->mark)
            g_clear_pointer(&ctx->in[i], flow_item_unref);
    wait_until_idle(ctx);
    FlowStatus status = flow__call_mark(ctx, mark);
    for (guint p = 0; p < node->n_out && status == FLOW_OK; p++)
        status = flow__send(node, p, flow_item_ref(mark));
    return status;
}

static int first_mark(const FlowCtx *ctx)
{
    for (guint i = 0; i < ctx->node->n_in; i++)
        if (ctx->in[i] && ctx->in[i]->kind == FLOW_MARK)
            return (int)i;
    return -1;
}

/* -- joins -------------------------------------------------------------------------- */

static FlowStatus compare_cursors(FlowCtx *ctx)
{
    FlowNode *node = ctx->node;
    const FlowItem *first = NULL;
    guint port = 0;
    for (guint i = 0; node->in_step && i < node->n_in; i++) {
        const FlowItem *item = ctx->in[i];
        if (!item || (node->in[i].port->flags & FLOW_PORT_MANY))
            continue;
        if (first && item->kind == first->kind &&
            (item->cursor.epoch != first->cursor.epoch || item->cursor.position != first->cursor.position)) {
            g_autofree char *a = flow_item_label(first), *b = flow_item_label(item);
            return fail(ctx,
                        "the inputs are out of step: '%s' brings %s where '%s' brings %s; a node on the way "
                        "leaves items out",
                        node->in[port].port->name, a, node->in[i].port->name, b);
        }
        if (!first) {
            first = item;
            port = i;
        }
    }
    return FLOW_OK;
}

/* An input of a join ended. If the others, which come from the same node, go on, something is lost. */
static FlowStatus ended(FlowCtx *ctx, guint which)
{
    FlowNode *node = ctx->node;
    for (guint i = 0; node->in_step && i < node->n_in; i++) {
        gpointer item = NULL;
        if (node->graph->stopping || node->graph->cancelled || i == which || !flow__flows(&node->in[i]))
            continue;
        while (!ctx->in[i] && flow_ring_pop(node->in[i].ring, &item) == FLOW_OK)
            if (((FlowItem *)item)->kind == FLOW_MARK)
                flow_item_unref(item);
            else
                ctx->in[i] = item;
        if (!ctx->in[i] || node->graph->cancelled)
            continue;
        g_autofree char *label = flow_item_label(ctx->in[i]);
        flow_node_warn(node, "the input '%s' ended before '%s': %s and what follows it is not used",
                       node->in[which].port->name, node->in[i].port->name, label);
    }
    return FLOW_EOS;
}

/* -- items -------------------------------------------------------------------------- */

/* check knows what arrives, but a stage may not give what it declares, and a dead pointer says nothing. */
static FlowStatus check_needs(FlowCtx *ctx)
{
    FlowNode *node = ctx->node;
    for (guint i = 0; i < node->n_in; i++) {
        const FlowItem *item = ctx->in[i];
        FlowFieldSet missing = item && item->kind != FLOW_MARK ? node->in[i].required & ~item->has : 0;
        if (!missing || ((node->stage->flags & FLOW_PENDING) && (item->pending || item->filled)))
            continue;
        if (flow__cache_skips(node, item))
            continue;
        guint f = 0;
        while (!(missing >> f & 1))
            f++;
        g_autofree char *label = flow_item_label(item);
        return fail(ctx, "%s arrived without '%s', which a node before it declares to give", label,
                    flow_field_info((FlowField)f)->name);
    }
    return FLOW_OK;
}

FlowStatus flow__take_inputs(FlowCtx *ctx)
{
    FlowNode *node = ctx->node;
    for (;;) {
        for (guint i = 0; i < node->n_in; i++) {
            gpointer item = NULL;
            if (ctx->in[i] || !flow__flows(&node->in[i]))
                continue;
            FlowStatus status = flow_ring_pop(node->in[i].ring, &item);
            if (status == FLOW_EOS)
                return ended(ctx, i);
            if (status != FLOW_OK)
                return status;
            ctx->in[i] = item;
        }
        int mark = (node->stage->flags & FLOW_MARKS) ? -1 : first_mark(ctx);
        if (mark < 0)
            break;
        FlowStatus status = pass_mark(ctx, (guint)mark);
        if (status != FLOW_OK)
            return status;
    }
    FlowStatus status = compare_cursors(ctx);
    return status == FLOW_OK ? check_needs(ctx) : status;
}
