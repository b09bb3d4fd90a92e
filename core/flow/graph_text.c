/* The graph as it is, as one graph file: variables and includes resolved, disabled nodes gone, paths
 * absolute, values in one spelling. It is what a checkpoint keeps: it can be run, and two of them can be
 * compared key by key. Parameters that were left to their default stay out, so that whoever reads it
 * sees what was chosen. */
#include "core/flow/graph_private.h"
#include <string.h>

static void append(GString *text, const char *key, const char *value)
{
    g_auto(GStrv) parts = g_strsplit(value, "$", -1);
    g_autofree char *escaped = g_strjoinv("$$", parts);
    g_string_append_printf(text, "%s = %s\n", key, escaped);
}

static void append_graph(GString *text, const FlowGraph *graph)
{
    const FlowIniSection *section = flow_ini_section(graph->ini, "graph");
    g_string_append(text, "[graph]\n");
    append(text, "name", graph->name);
    for (guint i = 0; section && i < section->values->len; i++) {
        const FlowIniValue *value = g_ptr_array_index(section->values, i);
        if (g_str_equal(value->key, "name") || g_str_equal(value->key, "include"))
            continue;
        if (!g_str_equal(value->key, "stages")) {
            append(text, value->key, value->value);
            continue;
        }
        g_auto(GStrv) folders = g_strsplit(value->value, ",", -1);
        for (char **folder = folders; *folder; folder++) {
            char *absolute = g_canonicalize_filename(g_strstrip(*folder), value->base);
            g_free(*folder);
            *folder = absolute;
        }
        g_autofree char *joined = g_strjoinv(", ", folders);
        append(text, "stages", joined);
    }
}

static void append_links(GString *text, const FlowNode *node)
{
    for (guint i = 0; i < node->n_in; i++) {
        const FlowPortState *in = &node->in[i];
        g_autoptr(GString) links = g_string_new(NULL);
        g_autofree char *key = g_strconcat("in.", in->port->name, NULL);
        for (guint l = 0; l < in->links->len; l++) {
            const FlowEdge *edge = g_ptr_array_index(in->links, l);
            g_string_append_printf(links, "%s%s.%s", l ? ", " : "", edge->from->name, edge->out_port);
        }
        if (links->len)
            append(text, key, links->str);
    }
}

static const FlowParam *param_named(const FlowStage *stage, const char *name)
{
    for (const FlowParam *param = stage->params; param && param->name; param++)
        if (g_str_equal(param->name, name))
            return param;
    return NULL;
}

static void append_node(GString *text, const FlowNode *node)
{
    g_string_append_printf(text, "\n[%s]\nstage = %s\n", node->name, node->stage->name);
    append_links(text, node);
    for (guint i = 0; i < node->section->values->len; i++) {
        const FlowIniValue *value = g_ptr_array_index(node->section->values, i);
        const FlowParam *param = param_named(node->stage, value->key);
        if (param && param->type != FLOW_P_NODE) {
            g_autofree char *canonical = flow_param_text(param, node->state);
            append(text, value->key, canonical);
        } else if (param || (!g_str_equal(value->key, "stage") && !g_str_equal(value->key, "in") &&
                             !g_str_has_prefix(value->key, "in.") && !g_str_equal(value->key, "enabled"))) {
            append(text, value->key, value->value);
        }
    }
}

char *flow_graph_text(const FlowGraph *graph)
{
    GString *text = g_string_new(NULL);
    append_graph(text, graph);
    for (guint i = 0; i < graph->nodes->len; i++)
        append_node(text, g_ptr_array_index(graph->nodes, i));
    return g_string_free(text, FALSE);
}
