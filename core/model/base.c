/* Nodes that only want to know the model (its resolution, its tokenizer) need not repeat its path. */
#include "core/model/base.h"

#include "core/flow/graph.h"

const char *model_base_of_graph(FlowNode *node, GError **error)
{
    FlowGraph *graph = flow_node_graph(node);
    const char *found = NULL;

    for (guint i = 0; i < flow_graph_nodes(graph); i++) {
        char *const *base = flow_node_param(flow_graph_node(graph, i), "base");
        if (!base || !*base)
            continue;
        if (found && !g_str_equal(found, *base)) {
            g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "nodes name two models, %s and %s",
                        found, *base);
            return NULL;
        }
        found = *base;
    }
    return found;
}
