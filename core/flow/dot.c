/* The graph as Graphviz text, with the fill of every ring while it runs. With FLOW_DUMP_DOT_DIR set, the
 * state in which a run failed or stalled is left there as a file. */
#include "core/flow/graph_private.h"

static void append_edge(GString *text, const FlowEdge *edge)
{
    FlowRingStats stats = {.capacity = edge->capacity};
    if (edge->ring)
        flow_ring_stats(edge->ring, &stats);
    g_string_append_printf(text, "  \"%s\" -> \"%s\" [label=\"", edge->from->name, edge->to->name);
    if (edge->from->n_out > 1)
        g_string_append_printf(text, "%s ", edge->out_port);
    if (edge->to->n_in > 1)
        g_string_append_printf(text, "> %s ", edge->in_port);
    if (edge->ring)
        g_string_append_printf(text, "%u/", stats.fill);
    g_string_append_printf(text, "%u\"", stats.capacity);
    if (edge->feedback)
        g_string_append(text, " style=dashed constraint=false");
    if (edge->ring && stats.fill >= stats.capacity)
        g_string_append(text, " color=red penwidth=2");
    g_string_append(text, "];\n");
}

char *flow_graph_dot(const FlowGraph *graph)
{
    GString *text = g_string_new(NULL);
    g_autofree char *name = g_strescape(graph->name, NULL);
    g_string_append_printf(text, "digraph \"%s\" {\n  rankdir=LR;\n  node [shape=box fontname=\"sans\"];\n",
                           name);
    for (guint i = 0; i < graph->nodes->len; i++) {
        const FlowNode *node = g_ptr_array_index(graph->nodes, i);
        const char *stage = node->stage ? node->stage->name : "?";
        g_string_append_printf(text, "  \"%s\" [label=\"%s", node->name, node->name);
        if (!g_str_equal(stage, node->name))
            g_string_append_printf(text, "\\n(%s)", stage);
        if (node->workers > 1)
            g_string_append_printf(text, "\\n%u workers", node->workers);
        g_string_append(text, "\"];\n");
    }
    for (guint i = 0; i < graph->links->len; i++)
        append_edge(text, g_ptr_array_index(graph->links, i));
    g_string_append(text, "}\n");
    return g_string_free(text, FALSE);
}

void flow__dump_dot(const FlowGraph *graph, const char *why)
{
    const char *folder = g_getenv("FLOW_DUMP_DOT_DIR");
    g_autoptr(GError) error = NULL;
    if (!folder || !*folder)
        return;
    g_autofree char *name = g_strdup_printf("%s-%s.dot", graph->name, why);
    g_autofree char *path = g_build_filename(folder, g_strdelimit(name, "/", '_'), NULL);
    g_autofree char *text = flow_graph_dot(graph);
    if (!g_file_set_contents(path, text, -1, &error))
        g_printerr("warning: cannot write the state of the graph: %s\n", error->message);
}
