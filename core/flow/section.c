/* One section of a graph file becomes a node: stage, parameters, and the keys that every node has.
 *
 * A section that names an unknown stage still becomes a node, so that links to it are not reported as
 * unknown too; it is marked broken and later checks step over it. Every value that nobody takes is an
 * error: a mistyped key must not be read as silence. */
#include "core/flow/graph_private.h"
#include <string.h>

const char *const flow__node_keys[] = {"stage", "in",       "ring",    "bytes", "workers",
                                       "order", "on_error", "enabled", NULL};
enum { MAX_RING = 1 << 20, MAX_WORKERS = 256 };

FlowIniValue *flow__take(FlowIniSection *section, const char *key)
{
    FlowIniValue *value = section ? flow_ini_value(section, key) : NULL;
    if (value)
        value->used = TRUE;
    return value;
}

void flow__unknown(FlowMessages *messages, FlowWhere where, const char *text, const char *nearest)
{
    if (nearest)
        flow_error(messages, where, "%s; did you mean '%s'?", text, nearest);
    else
        flow_error(messages, where, "%s", text);
}

gboolean flow__take_int(const FlowIniValue *value, const char *prefix, gint64 min, gint64 max, gint64 *out,
                        FlowMessages *messages)
{
    g_autoptr(GError) error = NULL;
    gint64 n = 0;
    if (!flow_parse_int(value->value, &n, &error)) {
        flow_error(messages, value->where, "[%s] %s = %s", prefix, value->key, error->message);
        return FALSE;
    }
    if (n < min || n > max) {
        flow_error(messages, value->where,
                   "[%s] %s = %" G_GINT64_FORMAT " is outside %" G_GINT64_FORMAT "..%" G_GINT64_FORMAT,
                   prefix, value->key, n, min, max);
        return FALSE;
    }
    *out = n;
    return TRUE;
}

void flow__take_ring(const FlowIniValue *value, const char *prefix, guint32 *out, FlowMessages *messages)
{
    gint64 n;
    if (value && flow__take_int(value, prefix, 1, MAX_RING, &n, messages))
        *out = (guint32)n;
}

void flow__take_size(const FlowIniValue *value, const char *prefix, guint64 *out, FlowMessages *messages)
{
    g_autoptr(GError) error = NULL;
    if (value && !flow_parse_size(value->value, out, &error))
        flow_error(messages, value->where, "[%s] %s = %s", prefix, value->key, error->message);
}

gboolean flow__take_choice(const FlowIniValue *value, const char *prefix, const char *const *choices,
                           guint *out, FlowMessages *messages)
{
    for (guint i = 0; choices[i]; i++)
        if (g_str_equal(choices[i], value->value)) {
            *out = i;
            return TRUE;
        }
    g_autofree char *list = g_strjoinv(", ", (char **)choices);
    g_autofree char *text =
        g_strdup_printf("[%s] %s = '%s' is not one of %s", prefix, value->key, value->value, list);
    flow__unknown(messages, value->where, text, flow_nearest(value->value, choices));
    return FALSE;
}

static FlowPortState *make_ports(FlowNode *node, const FlowPort *table, guint *n)
{
    for (*n = 0; table && table[*n].name;)
        ++*n;
    FlowPortState *ports = g_new0(FlowPortState, MAX(*n, 1));
    for (guint i = 0; i < *n; i++) {
        ports[i].port = &table[i];
        ports[i].node = node;
        ports[i].index = i;
        ports[i].kind = table[i].kind;
        ports[i].kind_known = !(table[i].flags & FLOW_PORT_ANY);
        ports[i].capacity = node->graph->ring;
        ports[i].max_bytes = node->graph->max_bytes;
        ports[i].where = node->where;
        ports[i].links = g_ptr_array_new();
    }
    return ports;
}

static void find_stage(FlowNode *node, FlowMessages *messages)
{
    g_autoptr(GError) error = NULL;
    FlowIniValue *value = flow__take(node->section, "stage");
    if (!value) {
        flow_error(messages, node->where, "[%s] has no 'stage'", node->name);
        node->broken = TRUE;
        return;
    }
    const FlowPlugin *plugin = flow_plugin_find(value->value, &error);
    if (!plugin) {
        flow_error(messages, value->where, "[%s] %s", node->name, error->message);
        node->broken = TRUE;
        return;
    }
    node->stage = plugin->stage;
    node->state = g_malloc0(MAX(node->stage->state_size, 1));
    flow_param_defaults(node->stage->params, node->state);
    node->in = make_ports(node, node->stage->inputs, &node->n_in);
    node->out = make_ports(node, node->stage->outputs, &node->n_out);
}

/* A default path is relative to the graph file, as one that is written in it is. */
static void default_path(FlowNode *node, const FlowParam *param)
{
    g_autofree char *base = g_path_get_dirname(node->graph->ini->path);
    if (param->type == FLOW_P_PATH && param->def && *param->def)
        flow_param_set(param, node->state, param->def, base, NULL);
}

static void take_params(FlowNode *node, FlowMessages *messages)
{
    for (guint i = 0; i < flow_param_count(node->stage->params); i++) {
        const FlowParam *param = &node->stage->params[i];
        g_autoptr(GError) error = NULL;
        FlowIniValue *value = flow__take(node->section, param->name);
        if (!value && param->def) {
            default_path(node, param);
        } else if (!value) {
            flow_error(messages, node->where, "[%s] needs '%s': %s", node->name, param->name, param->doc);
            node->broken = TRUE;
        } else if (!flow_param_set(param, node->state, value->value, value->base, &error)) {
            flow_error(messages, value->where, "[%s] %s", node->name, error->message);
            node->broken = TRUE;
        }
    }
}

static void take_rings(FlowNode *node, FlowMessages *messages)
{
    FlowIniValue *ring = flow__take(node->section, "ring"), *bytes = flow__take(node->section, "bytes");
    for (guint i = 0; i < node->n_in; i++) {
        FlowPortState *port = &node->in[i];
        g_autofree char *ring_key = g_strconcat("ring.", port->port->name, NULL);
        g_autofree char *bytes_key = g_strconcat("bytes.", port->port->name, NULL);
        FlowIniValue *own_ring = flow__take(node->section, ring_key),
                     *own_bytes = flow__take(node->section, bytes_key);
        flow__take_ring(own_ring ? own_ring : ring, node->name, &port->capacity, messages);
        flow__take_size(own_bytes ? own_bytes : bytes, node->name, &port->max_bytes, messages);
    }
    if (ring && node->n_in == 0)
        flow_error(messages, ring->where, "[%s] ring: a source has no ring in front of it", node->name);
    if (bytes && node->n_in == 0)
        flow_error(messages, bytes->where, "[%s] bytes: a source has no ring in front of it", node->name);
}

static void take_workers(FlowNode *node, FlowMessages *messages)
{
    static const char *const orders[] = {"input", "any", NULL};
    FlowIniValue *value = flow__take(node->section, "workers");
    gint64 n = 1;
    if (value && flow__take_int(value, node->name, 1, MAX_WORKERS, &n, messages)) {
        if (n > 1 && !(node->stage->flags & FLOW_PARALLEL))
            flow_error(messages, value->where, "[%s] workers = %d: the stage %s runs on one worker only",
                       node->name, (int)n, node->stage->name);
        else
            node->workers = (guint)n;
    }
    guint order = 0;
    if ((value = flow__take(node->section, "order")) &&
        flow__take_choice(value, node->name, orders, &order, messages))
        node->any_order = order == 1;
}

static void take_on_error(FlowNode *node, FlowMessages *messages)
{
    FlowIniValue *value = flow__take(node->section, "on_error");
    g_autoptr(GError) error = NULL;
    gint64 n = 0;
    if (!value || g_str_equal(value->value, "stop"))
        return;
    node->on_error = FLOW_ON_ERROR_SKIP;
    node->max_skips = G_MAXUINT64;
    if (g_str_equal(value->value, "skip"))
        return;
    if (g_str_has_prefix(value->value, "skip:") && flow_parse_int(value->value + 5, &n, &error) && n >= 0)
        node->max_skips = (guint64)n;
    else
        flow_error(messages, value->where, "[%s] on_error = '%s' is not one of stop, skip, skip:N",
                   node->name, value->value);
}

static void take_enabled(FlowNode *node, FlowMessages *messages)
{
    FlowIniValue *value = flow__take(node->section, "enabled");
    g_autoptr(GError) error = NULL;
    gboolean on = TRUE;
    if (value && !flow_parse_bool(value->value, &on, &error))
        flow_error(messages, value->where, "[%s] enabled = %s", node->name, error->message);
    node->disabled = !on;
}

/* Keys that belong to no parameter: "in" and "in.PORT" are linked later, the rest are mistakes. */
static void unknown_keys(FlowNode *node, FlowMessages *messages)
{
    g_autoptr(GPtrArray) known = g_ptr_array_new_with_free_func(g_free);
    for (guint i = 0; flow__node_keys[i]; i++)
        g_ptr_array_add(known, g_strdup(flow__node_keys[i]));
    for (guint i = 0; i < flow_param_count(node->stage->params); i++)
        g_ptr_array_add(known, g_strdup(node->stage->params[i].name));
    for (guint i = 0; i < node->n_in; i++)
        for (guint k = 1; k <= 3; k++)
            g_ptr_array_add(known, g_strconcat(flow__node_keys[k], ".", node->in[i].port->name, NULL));
    g_ptr_array_add(known, NULL);
    for (guint i = 0; i < node->section->values->len; i++) {
        FlowIniValue *value = g_ptr_array_index(node->section->values, i);
        if (value->used || g_str_equal(value->key, "in") || g_str_has_prefix(value->key, "in."))
            continue;
        g_autofree char *text = strchr(value->key, '.')
                                    ? g_strdup_printf("[%s] stage '%s' has no key '%s'", node->name,
                                                      node->stage->name, value->key)
                                    : g_strdup_printf("[%s] stage '%s' has no parameter '%s'", node->name,
                                                      node->stage->name, value->key);
        flow__unknown(messages, value->where, text,
                      flow_nearest(value->key, (const char *const *)known->pdata));
        node->broken = TRUE;
    }
}

FlowNode *flow__node_new(FlowGraph *graph, FlowIniSection *section, FlowMessages *messages)
{
    FlowNode *node = g_new0(FlowNode, 1);
    node->graph = graph;
    node->name = g_strdup(section->name);
    node->where = section->where;
    node->section = section;
    node->workers = 1;
    node->holder = -1;
    node->refs = g_ptr_array_new();
    node->faults = g_ptr_array_new_with_free_func(g_free);
    node->counters = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    pthread_mutex_init(&node->dispatch, NULL);
    pthread_mutex_init(&node->lock, NULL);
    pthread_cond_init(&node->idle, NULL);
    if (!flow__name_valid(node->name))
        flow_error(messages, node->where, "[%s] is not a node name: [a-z][a-z0-9_]*, at most 31 letters",
                   node->name);
    find_stage(node, messages);
    take_enabled(node, messages);
    if (!node->stage)
        return node;
    take_params(node, messages);
    take_rings(node, messages);
    take_workers(node, messages);
    take_on_error(node, messages);
    unknown_keys(node, messages);
    return node;
}

/* Parameters that name nodes become pointers once all nodes exist. */
void flow__node_resolve(FlowNode *node, FlowMessages *messages)
{
    for (guint i = 0; node->stage && i < flow_param_count(node->stage->params); i++) {
        const FlowParam *param = &node->stage->params[i];
        FlowIniValue *value = flow_ini_value(node->section, param->name);
        if (param->type != FLOW_P_NODE || !value || !*value->value)
            continue;
        FlowNode *other = flow_graph_node_named(node->graph, value->value);
        g_autofree char *text = NULL;
        if (!other) {
            g_autofree const char **names =
                (const char **)g_hash_table_get_keys_as_array(node->graph->by_name, NULL);
            text = g_strdup_printf("[%s] %s: there is no node '%s'", node->name, param->name, value->value);
            flow__unknown(messages, value->where, text, flow_nearest(value->value, names));
        } else if (other == node) {
            flow_error(messages, value->where, "[%s] %s names the node itself", node->name, param->name);
        } else if (other->disabled && node->disabled) {
            continue; /* a pair, such as a cache and its store, left out together */
        } else if (other->disabled) {
            flow_error(messages, value->where, "[%s] %s: [%s] is disabled", node->name, param->name,
                       other->name);
        } else {
            *(FlowNode **)((char *)node->state + param->offset) = other;
            g_ptr_array_add(node->refs, other);
            continue;
        }
        node->broken = TRUE;
    }
}

static gboolean refers_to(const FlowNode *node, const FlowNode *target, GHashTable *seen)
{
    for (guint i = 0; i < node->refs->len; i++) {
        FlowNode *other = g_ptr_array_index(node->refs, i);
        if (other == target || (g_hash_table_add(seen, other) && refers_to(other, target, seen)))
            return TRUE;
    }
    return FALSE;
}

void flow__node_check_refs(FlowNode *node, FlowMessages *messages)
{
    g_autoptr(GHashTable) seen = g_hash_table_new(NULL, NULL);
    if (!refers_to(node, node, seen))
        return;
    flow_error(messages, node->where,
               "[%s] names, by way of its parameters, itself: neither can be opened first", node->name);
    g_ptr_array_set_size(node->refs, 0);
    node->broken = TRUE;
}

void flow__node_free(gpointer p)
{
    FlowNode *node = p;
    for (guint i = 0; i < node->n_in + node->n_out; i++) {
        FlowPortState *port = i < node->n_in ? &node->in[i] : &node->out[i - node->n_in];
        g_free(port->needs);
        g_free(port->gives);
        g_free(port->drops);
        g_ptr_array_unref(port->links);
    }
    for (guint i = 0; i < node->n_ctx; i++)
        pthread_mutex_destroy(&node->ctx[i].lock);
    if (node->stage)
        flow_param_clear(node->stage->params, node->state);
    g_hash_table_unref(node->counters);
    g_ptr_array_unref(node->refs);
    g_ptr_array_unref(node->faults);
    pthread_mutex_destroy(&node->dispatch);
    pthread_mutex_destroy(&node->lock);
    pthread_cond_destroy(&node->idle);
    g_free(node->ctx);
    g_free(node->in);
    g_free(node->out);
    g_free(node->state);
    g_free(node->recipe);
    g_free(node->name);
    g_free(node);
}
