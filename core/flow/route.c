/* What the host does to items on a link, so that no stage has to:
 *
 *   strip          fields of the training loop where the link leaves it, and what a port drops
 *   drop_prefill   items that only fill caches end behind the last node that wants them
 *   drop_replayed  after a resume, items before the cursor end behind the last node that orders items
 *
 * Held-back pictures (role 1) and marks always pass, and step items are never counted by a cursor. All of
 * it is decided per link when the graph is checked; an item that nothing applies to costs two tests. */
#include "core/flow/graph_private.h"

static FlowFieldSet loop_fields(void)
{
    FlowFieldSet set = 0;
    const FlowFieldInfo *info;
    for (guint f = 0; f < FLOW_FIELD_MAX && (info = flow_field_info((FlowField)f)); f++)
        if (info->flags & FLOW_FIELD_LOOP)
            set |= FLOW_FIELD_BIT(f);
    return set;
}

typedef struct {
    gboolean prefill, orders;  /* a node at or behind this one wants prefill items, orders items */
    gboolean feedback, enters; /* a feedback edge leaves, enters a node at or behind this one */
} Reach;

static Reach reach_of(const FlowNode *node, const Reach *reach)
{
    Reach here = {0};
    if (node->stage) {
        here.prefill = (node->stage->flags & FLOW_PREFILL) != 0;
        here.orders = (node->stage->flags & FLOW_REORDERS) != 0;
    }
    for (guint p = 0; p < node->n_in; p++)
        here.enters |= flow__port_feedback(&node->in[p]) && node->in[p].links->len;
    for (guint p = 0; p < node->n_out; p++)
        for (guint l = 0; l < node->out[p].links->len; l++) {
            const FlowEdge *edge = g_ptr_array_index(node->out[p].links, l);
            const Reach *next = &reach[edge->to->index];
            here.feedback |= edge->feedback || next->feedback;
            here.prefill |= !edge->feedback && next->prefill;
            here.orders |= !edge->feedback && next->orders;
            here.enters |= !edge->feedback && next->enters;
        }
    return here;
}

/* A node is in the loop if a feedback edge enters it or a node before it, and one leaves it or a node behind.
 */
static gboolean behind_feedback(const FlowNode *node)
{
    for (guint p = 0; p < node->n_in; p++)
        for (guint l = 0; l < node->in[p].links->len; l++) {
            const FlowEdge *edge = g_ptr_array_index(node->in[p].links, l);
            if (edge->feedback || edge->from->behind_feedback)
                return TRUE;
        }
    return FALSE;
}

void flow__routes_prepare(FlowGraph *graph)
{
    g_autofree Reach *reach = g_new0(Reach, graph->nodes->len + 1);
    FlowFieldSet loop = loop_fields();
    for (guint i = graph->nodes->len; i-- > 0;)
        reach[i] = reach_of(g_ptr_array_index(graph->nodes, i), reach);
    for (guint i = 0; i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        node->behind_feedback = behind_feedback(node);
        node->looped = node->behind_feedback && reach[i].feedback;
        node->before_loop = !node->behind_feedback && reach[i].enters;
    }
    for (guint i = 0; i < graph->links->len; i++) {
        FlowLink *link = g_ptr_array_index(graph->links, i);
        const Reach *next = &reach[link->edge.to->index];
        link->in_loop = link->edge.feedback || next->feedback;
        link->strip = link->out->dropped | (link->in_loop ? 0 : loop);
        link->drop_prefill = !next->prefill && !link->edge.feedback;
        link->drop_replayed = !next->orders && !link->edge.feedback;
        graph->has_loop |= link->edge.feedback;
    }
}

static gboolean held_back(const FlowItem *item)
{
    const gint32 *role = flow_item_i32(item, FLOW_F_ROLE);
    return role && *role == 1;
}

static gboolean before_start(const FlowItem *item, const FlowCursor *start)
{
    return item->cursor.epoch < start->epoch ||
           (item->cursor.epoch == start->epoch && item->cursor.position < start->position);
}

static gboolean ends_here(const FlowLink *link, const FlowItem *item)
{
    const FlowGraph *graph = link->edge.from->graph;
    if (item->kind == FLOW_MARK)
        return link->edge.feedback;
    if (item->kind == FLOW_STEP)
        return FALSE;
    if (item->cursor.epoch < 0)
        return link->drop_prefill && !held_back(item);
    return link->drop_replayed && graph->resumed && before_start(item, &graph->start) && !held_back(item);
}

FlowItem *flow__route(FlowLink *link, FlowItem *item)
{
    if (ends_here(link, item)) {
        flow_item_unref(item);
        return NULL;
    }
    FlowFieldSet strip = item->has & link->strip;
    if (strip) {
        flow_item_writable(&item);
        for (guint f = 0; strip; f++, strip >>= 1)
            if (strip & 1)
                flow_item_drop(item, (FlowField)f);
    }
    return item;
}
