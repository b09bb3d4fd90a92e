/* Links: what the `in` keys say becomes edges, disabled nodes are bypassed, nodes are put in order.
 *
 * A link is written at its consumer, so every input is defined once; naming an output twice is a tee.
 * A disabled node with one input and one output of the same kind is passed through: its consumers are
 * linked to its own source. Feedback links do not count for the order; any other cycle is an error, and
 * one of its links is then ignored, so that the next cycle is found too. */
#include "core/flow/graph_private.h"
#include <string.h>

enum { MAX_BYPASS = 64 };

FlowPortState *flow__port_find(FlowPortState *ports, guint n, const char *name)
{
    for (guint i = 0; i < n; i++)
        if (g_str_equal(ports[i].port->name, name))
            return &ports[i];
    return NULL;
}

gboolean flow__port_feedback(const FlowPortState *port)
{
    return (port->port->flags & FLOW_PORT_FEEDBACK) != 0;
}

static char *port_names(const FlowPortState *ports, guint n, const char *node)
{
    GString *text = g_string_new(NULL);
    for (guint i = 0; i < n; i++)
        g_string_append_printf(text, "%s%s%s%s", i ? ", " : "", node ? node : "", node ? "." : "",
                               ports[i].port->name);
    return g_string_free(text, FALSE);
}

static void unknown_port(FlowMessages *messages, FlowWhere where, const char *prefix, const FlowNode *node,
                         FlowPortState *ports, guint n, const char *name, const char *what)
{
    g_autofree const char **names = g_new0(const char *, n + 1);
    for (guint i = 0; i < n; i++)
        names[i] = ports[i].port->name;
    const char *nearest = flow_nearest(name, names);
    g_autofree char *all = port_names(ports, n, NULL);
    if (nearest)
        flow_error(messages, where, "%s: [%s] has no %s '%s'; did you mean '%s'?", prefix, node->name, what,
                   name, nearest);
    else
        flow_error(messages, where, "%s: [%s] has no %s '%s' (%s%s)", prefix, node->name, what, name,
                   n ? "it has " : "it has none", all);
}

/* -- which output a word means -------------------------------------------------------- */

/* The output that a node name alone means: the only one, or the only one that must be linked. */
static FlowPortState *default_output(FlowNode *node)
{
    FlowPortState *found = NULL;
    if (node->n_out == 1)
        return &node->out[0];
    for (guint i = 0; i < node->n_out; i++) {
        if (node->out[i].port->flags & FLOW_PORT_OPTIONAL)
            continue;
        if (found)
            return NULL;
        found = &node->out[i];
    }
    return found;
}

/* The same for inputs and the key `in`. */
static FlowPortState *default_input(FlowNode *node)
{
    FlowPortState *found = NULL;
    if (node->n_in == 1)
        return &node->in[0];
    for (guint i = 0; i < node->n_in; i++) {
        if (node->in[i].port->flags & (FLOW_PORT_OPTIONAL | FLOW_PORT_FEEDBACK))
            continue;
        if (found)
            return NULL;
        found = &node->in[i];
    }
    return found;
}

static FlowPortState *resolve(FlowGraph *graph, const char *word, const FlowIniValue *value,
                              const char *prefix, guint depth, gboolean *known_fault, FlowMessages *messages);

/* The text of the only link into a node, or NULL if it has none or several. */
static const FlowIniValue *only_link(FlowNode *node)
{
    const FlowIniValue *found = NULL;
    for (guint i = 0; i < node->section->values->len; i++) {
        const FlowIniValue *value = g_ptr_array_index(node->section->values, i);
        if (!g_str_equal(value->key, "in") && !g_str_has_prefix(value->key, "in."))
            continue;
        if (found || strchr(value->value, ','))
            return NULL;
        found = value;
    }
    return found;
}

static FlowPortState *bypass(FlowNode *node, const FlowIniValue *user, const char *prefix, guint depth,
                             gboolean *known_fault, FlowMessages *messages)
{
    const FlowIniValue *link = only_link(node);
    FlowPortState *in = default_input(node), *out = node->n_out == 1 ? &node->out[0] : NULL;
    const char *why = NULL;
    if (!in || !link)
        why = "it does not have exactly one input";
    else if (!out)
        why = "it does not have exactly one output";
    else if (in->kind_known && out->kind_known && in->kind != out->kind)
        why = "it gives another kind of item than it takes";
    else if (depth > MAX_BYPASS)
        why = "disabled nodes form a cycle";
    if (!why)
        return resolve(node->graph, link->value, link, prefix, depth + 1, known_fault, messages);
    flow_error(messages, user->where, "%s: [%s] is disabled and cannot be left out: %s", prefix, node->name,
               why);
    flow_note(messages, node->where, "[%s] is defined here", node->name);
    return NULL;
}

/* "node" or "node.port". NULL after a message, or silently (*known_fault) when that node's stage is unknown.
 */
static FlowPortState *resolve(FlowGraph *graph, const char *word, const FlowIniValue *value,
                              const char *prefix, guint depth, gboolean *known_fault, FlowMessages *messages)
{
    const char *dot = strchr(word, '.');
    g_autofree char *name = dot ? g_strndup(word, (gsize)(dot - word)) : g_strdup(word);
    FlowNode *node = flow_graph_node_named(graph, name);
    if (!node) {
        g_autofree const char **names = (const char **)g_hash_table_get_keys_as_array(graph->by_name, NULL);
        const char *nearest = flow_nearest(name, names);
        flow_error(messages, value->where, "%s: there is no node '%s'%s%s%s", prefix, name,
                   nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
        return NULL;
    }
    if (!node->stage) {
        *known_fault = TRUE;
        return NULL;
    }
    FlowPortState *out = dot ? flow__port_find(node->out, node->n_out, dot + 1) : default_output(node);
    if (dot && !out) {
        unknown_port(messages, value->where, prefix, node, node->out, node->n_out, dot + 1, "output");
        return NULL;
    }
    if (!out && node->n_out == 0) {
        flow_error(messages, value->where, "%s: [%s] gives nothing (%s has no output)", prefix, name,
                   node->stage->name);
        return NULL;
    }
    if (!out) {
        g_autofree char *all = port_names(node->out, node->n_out, name);
        flow_error(messages, value->where, "%s: [%s] has several outputs: write one of %s", prefix, name,
                   all);
        return NULL;
    }
    return node->disabled ? bypass(node, value, prefix, depth, known_fault, messages) : out;
}

/* -- edges ---------------------------------------------------------------------------- */

static void add_link(FlowPortState *out, FlowPortState *in, FlowWhere where)
{
    FlowGraph *graph = in->node->graph;
    FlowLink *link = g_new0(FlowLink, 1);
    link->out = out;
    link->in = in;
    link->where = where;
    link->edge = (FlowEdge){.from = out->node,
                            .to = in->node,
                            .out_port = out->port->name,
                            .in_port = in->port->name,
                            .feedback = flow__port_feedback(in),
                            .capacity = in->capacity,
                            .max_bytes = in->max_bytes};
    g_ptr_array_add(out->links, link);
    g_ptr_array_add(in->links, link);
    g_ptr_array_add(graph->links, link);
}

static void link_value(FlowNode *node, FlowPortState *in, const FlowIniValue *value, FlowMessages *messages)
{
    g_autofree char *prefix = g_strdup_printf("[%s] %s", node->name, value->key);
    g_auto(GStrv) words = g_strsplit(value->value, ",", -1);
    guint n = g_strv_length(words);
    in->where = value->where;
    in->given = TRUE;
    if (n > 1 && !(in->port->flags & FLOW_PORT_MANY)) {
        flow_error(messages, value->where, "%s: the input '%s' takes one link, not %u", prefix,
                   in->port->name, n);
        node->broken = node->links_broken = TRUE;
        return;
    }
    for (guint i = 0; i < MAX(n, 1); i++) {
        gboolean known_fault = FALSE;
        FlowPortState *out = NULL;
        if (n == 0 || !*g_strstrip(words[i]))
            flow_error(messages, value->where, "%s: the name of a node is missing", prefix);
        else
            out = resolve(node->graph, words[i], value, prefix, 0, &known_fault, messages);
        if (!out)
            node->broken = node->links_broken = TRUE;
        else if (!node->disabled)
            add_link(out, in, value->where);
    }
}

static FlowPortState *named_input(FlowNode *node, const FlowIniValue *value, FlowMessages *messages)
{
    g_autofree char *prefix = g_strdup_printf("[%s] %s", node->name, value->key);
    if (value->key[2] == '.') {
        FlowPortState *in = flow__port_find(node->in, node->n_in, value->key + 3);
        if (!in)
            unknown_port(messages, value->where, prefix, node, node->in, node->n_in, value->key + 3, "input");
        return in;
    }
    FlowPortState *in = default_input(node);
    if (!in && node->n_in == 0) {
        flow_error(messages, value->where, "%s: %s is a source, it has no input", prefix, node->stage->name);
    } else if (!in) {
        g_autofree char *all = port_names(node->in, node->n_in, "in");
        flow_error(messages, value->where, "%s: %s has several inputs: write one of %s", prefix,
                   node->stage->name, all);
    }
    return in;
}

static void link_node(FlowNode *node, FlowMessages *messages)
{
    for (guint i = 0; i < node->section->values->len; i++) {
        FlowIniValue *value = g_ptr_array_index(node->section->values, i);
        if (!g_str_equal(value->key, "in") && !g_str_has_prefix(value->key, "in."))
            continue;
        value->used = TRUE;
        if (!node->stage)
            continue;
        FlowPortState *in = named_input(node, value, messages);
        if (in && in->given) {
            flow_error(messages, value->where, "[%s] %s: the input '%s' is linked twice", node->name,
                       value->key, in->port->name);
            flow_note(messages, in->where, "it is linked here");
        } else if (in) {
            link_value(node, in, value, messages);
        }
        if (!in)
            node->broken = node->links_broken = TRUE;
    }
}

static void remove_disabled(FlowGraph *graph)
{
    for (guint i = 0; i < graph->nodes->len;) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        if (node->disabled) {
            g_hash_table_remove(graph->by_name, node->name);
            g_ptr_array_add(graph->removed, g_ptr_array_steal_index(graph->nodes, i));
        } else {
            i++;
        }
    }
}

/* -- order ---------------------------------------------------------------------------- */

typedef struct {
    FlowGraph *graph;
    guint *waiting; /* links into each node that are not done */
    gboolean *placed;
    GHashTable *ignored; /* links of cycles already reported */
    GPtrArray *order;
    guint next; /* first in `order` whose links are not done */
} Sort;

static void place(Sort *sort, FlowNode *node)
{
    sort->placed[node->index] = TRUE;
    g_ptr_array_add(sort->order, node);
}

static void place_ready(Sort *sort)
{
    for (; sort->next < sort->order->len; sort->next++) {
        FlowNode *node = g_ptr_array_index(sort->order, sort->next);
        for (guint p = 0; p < node->n_out; p++)
            for (guint l = 0; l < node->out[p].links->len; l++) {
                FlowLink *link = g_ptr_array_index(node->out[p].links, l);
                FlowNode *to = link->edge.to;
                if (link->edge.feedback || g_hash_table_contains(sort->ignored, link))
                    continue;
                if (--sort->waiting[to->index] == 0)
                    place(sort, to);
            }
    }
}

/* A link into `node` that still waits: it comes from a cycle or from behind one. */
static FlowLink *waiting_link(Sort *sort, FlowNode *node)
{
    for (guint p = 0; p < node->n_in; p++)
        for (guint l = 0; l < node->in[p].links->len; l++) {
            FlowLink *link = g_ptr_array_index(node->in[p].links, l);
            if (!link->edge.feedback && !g_hash_table_contains(sort->ignored, link) &&
                !sort->placed[link->edge.from->index])
                return link;
        }
    return NULL;
}

/* Walks against the links from a node that waits until a node comes twice; reports that cycle and ignores
 * the link that closes it. */
static void report_cycle(Sort *sort, FlowNode *node, FlowMessages *messages)
{
    enum { SHOWN = 12 };
    g_autoptr(GPtrArray) path = g_ptr_array_new();
    g_autoptr(GHashTable) seen = g_hash_table_new(NULL, NULL);
    FlowLink *link = NULL;
    while (g_hash_table_add(seen, node)) {
        g_ptr_array_add(path, node);
        link = waiting_link(sort, node);
        node = link->edge.from;
    }
    g_autoptr(GString) text = g_string_new(node->name);
    guint shown = 0, i = path->len;
    do {
        if (++shown <= SHOWN || g_ptr_array_index(path, i - 1) == node)
            g_string_append_printf(text, " -> %s", ((FlowNode *)g_ptr_array_index(path, i - 1))->name);
        else if (shown == SHOWN + 1)
            g_string_append(text, " -> ...");
    } while (g_ptr_array_index(path, --i) != node);
    flow_error(messages, link->where, "cycle: %s (a cycle needs a stage that declares feedback)", text->str);
    sort->graph->cyclic = TRUE;
    g_hash_table_add(sort->ignored, link);
    if (--sort->waiting[link->edge.to->index] == 0)
        place(sort, link->edge.to);
}

static void sort_nodes(FlowGraph *graph, FlowMessages *messages)
{
    guint n = graph->nodes->len;
    Sort sort = {.graph = graph,
                 .waiting = g_new0(guint, n + 1),
                 .placed = g_new0(gboolean, n + 1),
                 .ignored = g_hash_table_new(NULL, NULL),
                 .order = g_ptr_array_new()};
    for (guint i = 0; i < n; i++)
        ((FlowNode *)g_ptr_array_index(graph->nodes, i))->index = i;
    for (guint i = 0; i < graph->links->len; i++) {
        FlowLink *link = g_ptr_array_index(graph->links, i);
        sort.waiting[link->edge.to->index] += !link->edge.feedback;
    }
    for (guint i = 0; i < n; i++)
        if (!sort.waiting[i])
            place(&sort, g_ptr_array_index(graph->nodes, i));
    place_ready(&sort);
    for (guint i = 0; i < n; i++)
        while (!sort.placed[i]) {
            report_cycle(&sort, g_ptr_array_index(graph->nodes, i), messages);
            place_ready(&sort);
        }
    for (guint i = 0; i < n; i++) {
        graph->nodes->pdata[i] = sort.order->pdata[i];
        ((FlowNode *)graph->nodes->pdata[i])->index = i;
    }
    g_ptr_array_unref(sort.order);
    g_hash_table_unref(sort.ignored);
    g_free(sort.placed);
    g_free(sort.waiting);
}

void flow__graph_link(FlowGraph *graph, FlowMessages *messages)
{
    for (guint i = 0; i < graph->nodes->len; i++)
        link_node(g_ptr_array_index(graph->nodes, i), messages);
    remove_disabled(graph);
    sort_nodes(graph, messages);
}
