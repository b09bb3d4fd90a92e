/* What a stage may ask the host about its node: state, ports, other nodes, counters, messages. */
#include "core/flow/graph_private.h"
#include "core/flow/say.h"
#include <stdio.h>
#include <string.h>

gpointer flow_node_state(FlowNode *node)
{
    return node->state;
}

const char *flow_node_name(const FlowNode *node)
{
    return node->name;
}

const FlowStage *flow_node_stage(const FlowNode *node)
{
    return node->stage;
}

FlowGraph *flow_node_graph(FlowNode *node)
{
    return node->graph;
}

guint64 flow_node_seed(const FlowNode *node)
{
    return node->graph->seed;
}

guint flow_node_workers(const FlowNode *node)
{
    return node->workers;
}

gboolean flow_node_is_set(FlowNode *node, const char *param)
{
    return flow_ini_value(node->section, param) != NULL;
}

FlowWhere flow__node_key_where(const FlowNode *node, const char *key)
{
    const FlowIniValue *value = flow_ini_value(node->section, key);
    return value ? value->where : node->where;
}

/* -- other nodes -------------------------------------------------------------------- */

gpointer flow_node_shared(FlowNode *other, const char *type, GError **error)
{
    gpointer object = other->stage->share && other->opened ? other->stage->share(other, type) : NULL;
    if (!object)
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "[%s] (%s) has no '%s' to share",
                    other->name, other->stage->name, type);
    return object;
}

FlowNode *flow_node_find(FlowNode *node, const char *stage)
{
    FlowNode *found = NULL;
    for (guint i = 0; i < node->graph->nodes->len; i++) {
        FlowNode *other = g_ptr_array_index(node->graph->nodes, i);
        if (!other->stage || !g_str_equal(other->stage->name, stage))
            continue;
        if (found)
            return NULL;
        found = other;
    }
    return found;
}

gboolean flow_node_leads_to(FlowNode *a, FlowNode *b)
{
    g_autoptr(GHashTable) seen = g_hash_table_new(NULL, NULL);
    g_autoptr(GPtrArray) todo = g_ptr_array_new();
    g_ptr_array_add(todo, a);
    while (todo->len) {
        FlowNode *node = g_ptr_array_steal_index_fast(todo, todo->len - 1);
        for (guint p = 0; p < node->n_out; p++)
            for (guint l = 0; l < node->out[p].links->len; l++) {
                const FlowEdge *edge = g_ptr_array_index(node->out[p].links, l);
                if (edge->feedback)
                    continue;
                if (edge->to == b)
                    return TRUE;
                if (g_hash_table_add(seen, edge->to))
                    g_ptr_array_add(todo, edge->to);
            }
    }
    return FALSE;
}

/* -- describe() --------------------------------------------------------------------- */

static void unknown_field(FlowNode *node, const char *field)
{
    const char *nearest = flow_field_nearest(field);
    g_ptr_array_add(node->faults,
                    g_strdup_printf("there is no field '%s'%s%s%s", field, nearest ? "; did you mean '" : "",
                                    nearest ? nearest : "", nearest ? "'?" : ""));
}

static void replace_list(FlowNode *node, FlowPortState *port, char **slot, const char *list)
{
    const char *unknown = flow_field_parse(list, NULL, NULL);
    g_assert(port); /* a stage names its own ports */
    if (unknown) {
        unknown_field(node, unknown);
        return;
    }
    g_free(*slot);
    *slot = g_strdup(list ? list : "");
}

void flow_node_needs(FlowNode *node, const char *port, const char *list)
{
    FlowPortState *in = flow__port_find(node->in, node->n_in, port);
    replace_list(node, in, &in->needs, list);
}

void flow_node_gives(FlowNode *node, const char *port, const char *list)
{
    FlowPortState *out = flow__port_find(node->out, node->n_out, port);
    replace_list(node, out, &out->gives, list);
}

void flow_node_drops(FlowNode *node, const char *port, const char *list)
{
    FlowPortState *out = flow__port_find(node->out, node->n_out, port);
    replace_list(node, out, &out->drops, list);
}

static void parse_ports(FlowNode *node)
{
    for (guint i = 0; i < node->n_in; i++) {
        FlowPortState *in = &node->in[i];
        flow_field_parse(in->needs ? in->needs : in->port->needs, &in->required, &in->optional);
    }
    for (guint i = 0; i < node->n_out; i++) {
        FlowPortState *out = &node->out[i];
        FlowFieldSet also;
        flow_field_parse(out->gives ? out->gives : out->port->gives, &out->required, &out->optional);
        flow_field_parse(out->drops ? out->drops : out->port->drops, &out->dropped, &also);
        out->dropped |= also;
    }
}

void flow__node_describe(FlowNode *node, FlowMessages *messages)
{
    g_autoptr(GError) error = NULL;
    if (!node->stage)
        return;
    if (!node->broken && node->stage->describe && !node->stage->describe(node, &error)) {
        flow_error(messages, node->where, "[%s] %s", node->name,
                   error ? error->message : "describe() failed without saying why");
        node->broken = TRUE;
    }
    for (guint i = 0; i < node->faults->len; i++) {
        flow_error(messages, node->where, "[%s] %s", node->name, (char *)g_ptr_array_index(node->faults, i));
        node->broken = TRUE;
    }
    parse_ports(node);
    if (!node->broken && node->stage->hold)
        node->hold = MAX(node->stage->hold(node), 0);
}

FlowFieldSet flow_node_arriving(FlowNode *node, const char *port)
{
    FlowPortState *in = flow__port_find(node->in, node->n_in, port);
    return in ? in->fields : 0;
}

/* -- messages ----------------------------------------------------------------------- */

static void say(const FlowNode *node, const char *kind, const char *format, va_list args)
{
    g_autofree char *text = g_strdup_vprintf(format, args);
    g_autofree char *line =
        g_strdup_printf("%s:%d: %s[%s] %s\n", node->where.file ? node->where.file : "graph", node->where.line,
                        kind, node->name, text);
    flow_say(line);
}

void flow_node_warn(FlowNode *node, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(node, "warning: ", format, args);
    va_end(args);
}

void flow_node_info(FlowNode *node, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(node, "", format, args);
    va_end(args);
}

/* -- counters ----------------------------------------------------------------------- */

static double *counter_locked(FlowNode *node, const char *name)
{
    double *value = g_hash_table_lookup(node->counters, name);
    if (!value) {
        value = g_new0(double, 1);
        g_hash_table_insert(node->counters, g_strdup(name), value);
    }
    return value;
}

void flow_node_count(FlowNode *node, const char *counter, double add)
{
    pthread_mutex_lock(&node->lock);
    *counter_locked(node, counter) += add;
    pthread_mutex_unlock(&node->lock);
}

void flow_node_gauge(FlowNode *node, const char *counter, double value)
{
    pthread_mutex_lock(&node->lock);
    *counter_locked(node, counter) = value;
    pthread_mutex_unlock(&node->lock);
}

double flow_node_counter(FlowNode *node, const char *counter)
{
    pthread_mutex_lock(&node->lock);
    const double *found = g_hash_table_lookup(node->counters, counter);
    double value = found ? *found : 0;
    pthread_mutex_unlock(&node->lock);
    return value;
}

static int by_name(gconstpointer a, gconstpointer b)
{
    return strcmp(a, b);
}

void flow_node_counters(FlowNode *node, void (*fn)(const char *name, double value, gpointer data),
                        gpointer data)
{
    pthread_mutex_lock(&node->lock);
    GList *names = g_list_sort(g_hash_table_get_keys(node->counters), by_name);
    for (GList *name = names; name; name = name->next)
        fn(name->data, *(double *)g_hash_table_lookup(node->counters, name->data), data);
    g_list_free(names);
    pthread_mutex_unlock(&node->lock);
}

void flow_node_stats(FlowNode *node, FlowNodeStats *stats)
{
    *stats = (FlowNodeStats){.in = node->n_in_items, .out = node->n_out_items, .skipped = node->n_skipped};
    for (guint i = 0; i < node->n_ctx; i++) {
        FlowCtx *ctx = &node->ctx[i];
        stats->busy_s += (double)ctx->busy_ns / 1e9;
        stats->wait_in_s += (double)ctx->wait.wait_empty_ns / 1e9;
        stats->wait_out_s += (double)ctx->wait.wait_full_ns / 1e9;
    }
}
