/* A graph from a merged graph file: the [graph] keys, one node a section, links between them.
 *
 * Nothing stops at the first fault: all of them are collected. The work is shared out: section.c makes
 * a node of a section, link.c the edges, check.c follows fields, open.c and run.c bring it to life. */
#include "core/flow/graph_private.h"
#include <string.h>

static const char *const graph_keys[] = {"name",     "seed",   "include", "ring",   "bytes", "stall",
                                         "on_stall", "stages", "device",  "memory", NULL};
enum { DEFAULT_RING = 16, DEFAULT_STALL_S = 60 };

/* -- [graph] ------------------------------------------------------------------------ */

static void take_stages(FlowIniSection *section, FlowMessages *messages)
{
    FlowIniValue *value = flow__take(section, "stages");
    g_auto(GStrv) parts = g_strsplit(value ? value->value : "", ",", -1);
    for (char **part = parts; *part; part++) {
        g_strstrip(*part);
        if (!**part)
            continue;
        g_autofree char *folder = g_canonicalize_filename(*part, value->base);
        if (g_file_test(folder, G_FILE_TEST_IS_DIR))
            flow_plugins_add_folder(folder);
        else
            flow_error(messages, value->where, "[graph] stages: there is no folder '%s'", *part);
    }
}

static void take_stall(FlowGraph *graph, FlowIniSection *section, FlowMessages *messages)
{
    static const char *const choices[] = {"abort", "grow", NULL};
    g_autoptr(GError) error = NULL;
    FlowIniValue *value = flow__take(section, "stall");
    if (value && !flow_parse_duration(value->value, &graph->stall, &error))
        flow_error(messages, value->where, "[graph] stall = %s", error->message);
    guint choice = 0;
    if ((value = flow__take(section, "on_stall")) &&
        flow__take_choice(value, "graph", choices, &choice, messages))
        graph->grow = choice == 1;
}

static void take_device(FlowGraph *graph, FlowIniSection *section, FlowMessages *messages)
{
    static const char *const choices[] = {"auto", "cpu", "cuda", NULL};
    FlowIniValue *value = flow__take(section, "device");
    guint choice = 0;
    if (value && flow__take_choice(value, "graph", choices, &choice, messages))
        graph->device = choices[choice];
}

static void unused_values(FlowIniSection *section, FlowMessages *messages)
{
    for (guint i = 0; section && i < section->values->len; i++) {
        FlowIniValue *value = g_ptr_array_index(section->values, i);
        if (value->used)
            continue;
        g_autofree char *text = g_strdup_printf("[graph] has no key '%s'", value->key);
        flow__unknown(messages, value->where, text, flow_nearest(value->key, graph_keys));
    }
}

static void take_graph_section(FlowGraph *graph, FlowMessages *messages)
{
    FlowIniSection *section = flow_ini_section(graph->ini, "graph");
    FlowIniValue *value = flow__take(section, "name");
    gint64 seed = 0;
    graph->name = value ? g_strdup(value->value) : NULL;
    if ((value = flow__take(section, "seed")) &&
        flow__take_int(value, "graph", 0, G_MAXINT64, &seed, messages))
        graph->seed = (guint64)seed;
    flow__take(section, "include");
    flow__take_ring(flow__take(section, "ring"), "graph", &graph->ring, messages);
    flow__take_size(flow__take(section, "bytes"), "graph", &graph->max_bytes, messages);
    flow__take_size(flow__take(section, "memory"), "graph", &graph->memory, messages);
    take_stall(graph, section, messages);
    take_stages(section, messages);
    take_device(graph, section, messages);
    unused_values(section, messages);
    if (!graph->name) {
        g_autofree char *base = g_path_get_basename(graph->ini->path);
        graph->name = g_str_has_suffix(base, ".ini") ? g_strndup(base, strlen(base) - 4) : g_strdup(base);
    }
}

FlowGraph *flow_graph_load(FlowIni *ini, FlowMessages *messages)
{
    FlowGraph *graph = g_new0(FlowGraph, 1);
    graph->ini = ini;
    graph->device = "auto";
    graph->ring = DEFAULT_RING;
    graph->stall = DEFAULT_STALL_S;
    graph->nodes = g_ptr_array_new_with_free_func(flow__node_free);
    graph->removed = g_ptr_array_new_with_free_func(flow__node_free);
    graph->links = g_ptr_array_new_with_free_func(g_free);
    graph->open_order = g_ptr_array_new();
    graph->by_name = g_hash_table_new(g_str_hash, g_str_equal);
    graph->caches = g_array_new(FALSE, FALSE, sizeof(FlowCachePair));
    pthread_mutex_init(&graph->lock, NULL);
    pthread_cond_init(&graph->gate, NULL);
    sem_init(&graph->wake, 0, 0);
    take_graph_section(graph, messages);
    for (guint i = 0; i < ini->sections->len; i++) {
        FlowIniSection *section = g_ptr_array_index(ini->sections, i);
        if (g_str_equal(section->name, "graph"))
            continue;
        FlowNode *node = flow__node_new(graph, section, messages);
        g_ptr_array_add(graph->nodes, node);
        g_hash_table_insert(graph->by_name, node->name, node);
    }
    if (!graph->nodes->len && !messages->errors)
        flow_error(messages, (FlowWhere){ini->path, 0},
                   "no nodes found: a node is a section [name] with a 'stage'");
    for (guint i = 0; i < graph->nodes->len; i++)
        flow__node_resolve(g_ptr_array_index(graph->nodes, i), messages);
    for (guint i = 0; i < graph->nodes->len; i++)
        flow__node_check_refs(g_ptr_array_index(graph->nodes, i), messages);
    flow__graph_link(graph, messages);
    return graph;
}

void flow_graph_free(FlowGraph *graph)
{
    if (!graph)
        return;
    flow__graph_close(graph);
    g_clear_error(&graph->error);
    g_ptr_array_unref(graph->links);
    g_ptr_array_unref(graph->nodes);
    g_ptr_array_unref(graph->removed);
    g_ptr_array_unref(graph->open_order);
    g_hash_table_unref(graph->by_name);
    g_array_unref(graph->caches);
    pthread_mutex_destroy(&graph->lock);
    pthread_cond_destroy(&graph->gate);
    sem_destroy(&graph->wake);
    g_free(graph->name);
    flow_ini_free(graph->ini);
    g_free(graph);
}

/* -- accessors ---------------------------------------------------------------------- */

const char *flow_graph_name(const FlowGraph *graph)
{
    return graph->name;
}

guint64 flow_graph_seed(const FlowGraph *graph)
{
    return graph->seed;
}

guint64 flow_graph_memory(const FlowGraph *graph)
{
    return graph->memory;
}

const char *flow_graph_device(const FlowGraph *graph)
{
    return graph->device;
}

FlowIni *flow_graph_ini(FlowGraph *graph)
{
    return graph->ini;
}

guint flow_graph_nodes(const FlowGraph *graph)
{
    return graph->nodes->len;
}

FlowNode *flow_graph_node(const FlowGraph *graph, guint i)
{
    return g_ptr_array_index(graph->nodes, i);
}

FlowNode *flow_graph_node_named(const FlowGraph *graph, const char *name)
{
    return g_hash_table_lookup(graph->by_name, name);
}

guint flow_graph_edges(const FlowGraph *graph)
{
    return graph->links->len;
}

const FlowEdge *flow_graph_edge(const FlowGraph *graph, guint i)
{
    return g_ptr_array_index(graph->links, i);
}

FlowCursor flow_graph_start(FlowGraph *graph)
{
    return graph->start;
}

gboolean flow_graph_resumed(FlowGraph *graph)
{
    return graph->resumed;
}
