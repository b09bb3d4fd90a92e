/* Opening and closing the nodes of a graph.
 *
 * Nodes are opened in topological order, except that a node which another one names in a parameter
 * (`of = step`) comes before it, because it is asked for a shared object. They are closed in reverse, and
 * also when their open() failed. */
#include "core/flow/graph_private.h"

static gboolean open_node(FlowNode *node, GError **error)
{
    if (node->opened)
        return TRUE;
    for (guint i = 0; i < node->refs->len; i++)
        if (!open_node(g_ptr_array_index(node->refs, i), error))
            return FALSE;
    node->opened = TRUE;
    g_ptr_array_add(node->graph->open_order, node);
    GError *why = NULL;
    if (!node->stage->open || node->stage->open(node, &why))
        return TRUE;
    if (!why)
        why = g_error_new(FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "open() failed without saying why");
    g_prefix_error(&why, "%s:%d: [%s] ", node->where.file, node->where.line, node->name);
    g_propagate_error(error, why);
    return FALSE;
}

gboolean flow_graph_open(FlowGraph *graph, GError **error)
{
    g_return_val_if_fail(graph->checked && !graph->opened, FALSE);
    graph->opened = TRUE;
    for (guint i = 0; i < graph->nodes->len; i++)
        if (!open_node(g_ptr_array_index(graph->nodes, i), error))
            return FALSE;
    return TRUE;
}

void flow__graph_close(FlowGraph *graph)
{
    for (guint i = graph->open_order->len; i-- > 0;) {
        FlowNode *node = g_ptr_array_index(graph->open_order, i);
        if (node->stage->close)
            node->stage->close(node);
        node->opened = FALSE;
    }
    g_ptr_array_set_size(graph->open_order, 0);
}
