/* What can be known before anything is opened: fields and kinds along every path, inputs that are
 * missing, outputs that lead nowhere, and settings that cannot work together.
 *
 * Nodes are visited in topological order, so what arrives at a node is known when it is looked at: an
 * output passes on what arrived, plus what it gives, minus what it drops. A broken node gives everything
 * and needs nothing, so one mistake is reported once. */
#include "core/flow/graph_private.h"

static const char *const kind_names[] = {"sample", "batch", "step"};

static FlowFieldSet arriving(const FlowNode *node)
{
    FlowFieldSet all = 0;
    for (guint i = 0; i < node->n_in; i++)
        if (!flow__port_feedback(&node->in[i]))
            all |= node->in[i].fields;
    return all;
}

/* -- kinds -------------------------------------------------------------------------- */

static void check_kind(FlowLink *link, FlowMessages *messages)
{
    FlowPortState *out = link->out, *in = link->in;
    if (!out->kind_known)
        return;
    if (!in->kind_known) {
        in->kind = out->kind;
        in->kind_known = TRUE;
    } else if (in->kind != out->kind) {
        flow_error(messages, link->where, "[%s] %s: '%s.%s' gives a %s, '%s' takes a %s", in->node->name,
                   in->port->name, out->node->name, out->port->name, kind_names[out->kind], in->port->name,
                   kind_names[in->kind]);
        flow_note(messages, out->node->where, "[%s] is defined here", out->node->name);
    }
}

/* Outputs of any kind pass the kind of the first input. */
static void pass_kind(FlowNode *node)
{
    const FlowPortState *first = NULL;
    for (guint i = 0; i < node->n_in && !first; i++)
        if (!flow__port_feedback(&node->in[i]) && node->in[i].links->len)
            first = &node->in[i];
    for (guint i = 0; first && i < node->n_out; i++)
        if ((node->out[i].port->flags & FLOW_PORT_ANY) && first->kind_known) {
            node->out[i].kind = first->kind;
            node->out[i].kind_known = TRUE;
        }
}

/* -- fields ------------------------------------------------------------------------- */

/* Why a field that some node before gives does not arrive; NULL if none gives it. Returns new. */
static char *lost_on_the_way(FlowPortState *in, FlowField field)
{
    g_autoptr(GPtrArray) todo = g_ptr_array_new();
    g_autoptr(GHashTable) seen = g_hash_table_new(NULL, NULL);
    FlowFieldSet bit = FLOW_FIELD_BIT(field);
    g_ptr_array_add(todo, in);
    for (guint next = 0; next < todo->len; next++) {
        FlowPortState *port = g_ptr_array_index(todo, next);
        for (guint l = 0; l < port->links->len; l++) {
            FlowLink *link = g_ptr_array_index(port->links, l);
            FlowNode *node = link->edge.from;
            if ((link->out->fields & bit) && (link->strip & bit))
                return g_strdup("which does not leave the loop");
            if (node->lost & bit)
                return g_strdup_printf("which behind [%s] exists only when the cache has no hit", node->name);
            gboolean had = ((arriving(node) | link->out->required) & bit) != 0;
            if (had && (link->out->dropped & bit))
                return g_strdup_printf("which [%s] drops", node->name);
            if (had && (link->out->port->flags & FLOW_PORT_NEW))
                return g_strdup_printf("which [%s] does not pass on", node->name);
            for (guint i = 0; g_hash_table_add(seen, node) && i < node->n_in; i++)
                if (!flow__port_feedback(&node->in[i]))
                    g_ptr_array_add(todo, &node->in[i]);
        }
    }
    return NULL;
}

static char *givers_text(FlowField field)
{
    g_auto(GStrv) names = flow__plugins_giving(field);
    guint n = g_strv_length(names);
    if (n == 0)
        return g_strdup("no stage gives it");
    GString *text = g_string_new(names[0]);
    for (guint i = 1; i < n; i++)
        g_string_append_printf(text, "%s%s", i + 1 < n ? ", " : " and ", names[i]);
    g_string_append(text, n > 1 ? " give it" : " gives it");
    return g_string_free(text, FALSE);
}

static void report_missing(FlowPortState *in, FlowFieldSet missing, FlowMessages *messages)
{
    for (guint f = 0; f < FLOW_FIELD_MAX; f++) {
        if (!(missing & FLOW_FIELD_BIT(f)))
            continue;
        g_autofree char *lost = lost_on_the_way(in, (FlowField)f);
        g_autofree char *givers = lost ? NULL : givers_text((FlowField)f);
        flow_error(messages, in->where, "[%s] needs '%s', %s%s", in->node->name,
                   flow_field_info((FlowField)f)->name, lost ? lost : "which no node before it gives; ",
                   lost ? "" : givers);
    }
}

/* A port that merges several links gets an item from any one of them: only what all give is sure. */
static void follow_input(FlowPortState *in, FlowMessages *messages)
{
    in->fields = in->links->len ? ~(FlowFieldSet)0 : 0;
    for (guint l = 0; l < in->links->len; l++) {
        FlowLink *link = g_ptr_array_index(in->links, l);
        link->edge.fields = link->out->fields & ~link->strip;
        in->fields &= link->edge.fields;
        check_kind(link, messages);
    }
    if (!in->given && !in->node->links_broken && !(in->port->flags & FLOW_PORT_OPTIONAL))
        flow_error(messages, in->node->where, "[%s] the input '%s' is not linked: write %s%s = NODE",
                   in->node->name, in->port->name, in->node->n_in > 1 ? "in." : "in",
                   in->node->n_in > 1 ? in->port->name : "");
    else if (in->links->len && !in->node->broken)
        report_missing(in, in->required & ~in->fields, messages);
}

static void follow_output(FlowNode *node, FlowPortState *out)
{
    FlowFieldSet before = arriving(node);
    out->fields = (out->port->flags & FLOW_PORT_NEW) ? out->optional & before : before;
    out->fields |= out->required;
    out->fields &= ~out->dropped & ~node->lost;
    if (node->broken)
        out->fields = ~(FlowFieldSet)0;
}

/* A node whose inputs may all be left out must still have one: it would be called for ever. */
static void check_has_input(FlowNode *node, FlowMessages *messages)
{
    guint given = 0, flowing = 0, optional = 0;
    for (guint i = 0; i < node->n_in; i++) {
        gboolean feedback = flow__port_feedback(&node->in[i]);
        flowing += !feedback;
        given += !feedback && node->in[i].given;
        optional += !feedback && (node->in[i].port->flags & FLOW_PORT_OPTIONAL);
    }
    if (flowing && !given && optional == flowing)
        flow_error(messages, node->where, "[%s] no input is linked", node->name);
}

static void follow(FlowNode *node, FlowMessages *messages)
{
    check_has_input(node, messages);
    for (guint i = 0; i < node->n_in; i++)
        if (!flow__port_feedback(&node->in[i]))
            follow_input(&node->in[i], messages);
    pass_kind(node);
    flow__cache_follow(node, messages);
    for (guint i = 0; i < node->n_out; i++)
        follow_output(node, &node->out[i]);
}

static void check_outputs(FlowNode *node, FlowMessages *messages)
{
    guint linked = 0;
    for (guint i = 0; i < node->n_out; i++)
        linked += node->out[i].links->len > 0;
    if (!linked && (node->stage->flags & FLOW_NEEDS_OUT)) {
        flow_error(messages, node->where, "[%s] leads nowhere: %s needs a node behind it", node->name,
                   node->stage->name);
        return;
    }
    /* where links are wrong, an output without one says nothing */
    for (guint i = 0; i < node->n_out && !messages->errors; i++)
        if (!node->out[i].links->len && !(node->out[i].port->flags & FLOW_PORT_OPTIONAL))
            flow_warning(messages, node->where, "[%s] nothing takes its output '%s': those items are dropped",
                         node->name, node->out[i].port->name);
}

/* -- joins -------------------------------------------------------------------------- */

static void ancestors(FlowPortState *in, guint8 mark, guint8 *marks)
{
    g_autoptr(GPtrArray) todo = g_ptr_array_new();
    g_ptr_array_add(todo, in);
    while (todo->len) {
        FlowPortState *port = g_ptr_array_steal_index_fast(todo, todo->len - 1);
        for (guint l = 0; l < port->links->len; l++) {
            FlowNode *node = ((FlowLink *)g_ptr_array_index(port->links, l))->edge.from;
            if (marks[node->index] & mark)
                continue;
            marks[node->index] |= mark;
            for (guint i = 0; i < node->n_in; i++)
                if (!flow__port_feedback(&node->in[i]))
                    g_ptr_array_add(todo, &node->in[i]);
        }
    }
}

/* Two inputs fed from one node must keep in step: whatever may lose or overtake items on one way only is
 * refused. Remembers whether cursors can be compared while running. */
static void check_pair(FlowNode *join, FlowPortState *a, FlowPortState *b, FlowMessages *messages)
{
    FlowGraph *graph = join->graph;
    g_autofree guint8 *marks = g_new0(guint8, graph->nodes->len);
    gboolean common = FALSE, reordered = FALSE;
    ancestors(a, 1, marks);
    ancestors(b, 2, marks);
    for (guint i = 0; i < graph->nodes->len; i++)
        common |= marks[i] == 3;
    for (guint i = 0; common && i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        if ((marks[i] != 1 && marks[i] != 2) || !node->stage)
            continue;
        reordered |= (node->stage->flags & FLOW_REORDERS) != 0;
        if (node->on_error == FLOW_ON_ERROR_SKIP)
            flow_error(messages, flow__node_key_where(node, "on_error"),
                       "[%s] on_error: a skipped item would put the inputs '%s' and '%s' of [%s] out of step",
                       node->name, a->port->name, b->port->name, join->name);
        if (node->any_order)
            flow_error(messages, flow__node_key_where(node, "order"),
                       "[%s] order = any would put the inputs '%s' and '%s' of [%s] out of step", node->name,
                       a->port->name, b->port->name, join->name);
    }
    join->in_step = common && !reordered;
}

static void check_join(FlowNode *node, FlowMessages *messages)
{
    FlowPortState *first = NULL;
    for (guint i = 0; i < node->n_in; i++) {
        FlowPortState *in = &node->in[i];
        if (flow__port_feedback(in) || (in->port->flags & FLOW_PORT_MANY) || !in->links->len)
            continue;
        if (first)
            check_pair(node, first, in, messages);
        else
            first = in;
    }
}

/* -- settings ----------------------------------------------------------------------- */

static void check_workers(FlowNode *node, FlowMessages *messages)
{
    for (guint p = 0; node->workers > 1 && p < node->n_out; p++)
        for (guint l = 0; l < node->out[p].links->len; l++) {
            const FlowLink *link = g_ptr_array_index(node->out[p].links, l);
            if (link->in->capacity < 2 * node->workers)
                flow_warning(
                    messages, link->where,
                    "[%s] has %u workers, but the ring to [%s] holds %u items: with fewer than %u they "
                    "wait for one another",
                    node->name, node->workers, link->edge.to->name, link->in->capacity, 2 * node->workers);
        }
}

static void check_loop(FlowGraph *graph, FlowMessages *messages)
{
    FlowNode *checkpoint = NULL;
    for (guint i = 0; i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        if (node->stage && g_str_equal(node->stage->name, "checkpoint"))
            checkpoint = node;
        if (node->on_error == FLOW_ON_ERROR_SKIP && node->looped)
            flow_error(messages, flow__node_key_where(node, "on_error"),
                       "[%s] on_error: a node of the training loop cannot skip items", node->name);
    }
    if (graph->has_loop && !checkpoint)
        flow_warning(messages, (FlowWhere){graph->ini->path, 0},
                     "the graph has no checkpoint node: a run that is stopped cannot be resumed");
    for (guint i = 0; checkpoint && i < graph->links->len; i++) {
        FlowLink *link = g_ptr_array_index(graph->links, i);
        if (link->edge.feedback && link->edge.from != checkpoint)
            flow_error(messages, link->where,
                       "[%s] %s: [%s] (checkpoint) must stand last before the feedback edge, not [%s]",
                       link->edge.to->name, link->edge.in_port, checkpoint->name, link->edge.from->name);
    }
}

void flow_graph_check(FlowGraph *graph, FlowMessages *messages)
{
    graph->checked = TRUE;
    for (guint i = 0; i < graph->nodes->len; i++)
        flow__node_describe(g_ptr_array_index(graph->nodes, i), messages);
    if (graph->cyclic)
        return;
    flow__routes_prepare(graph);
    for (guint i = 0; i < graph->nodes->len; i++)
        follow(g_ptr_array_index(graph->nodes, i), messages);
    for (guint i = 0; i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        for (guint p = 0; p < node->n_in; p++)
            if (flow__port_feedback(&node->in[p]))
                follow_input(&node->in[p], messages);
        if (!node->stage)
            continue;
        check_outputs(node, messages);
        check_join(node, messages);
        check_workers(node, messages);
    }
    check_loop(graph, messages);
    flow__deadlock_check(graph, messages);
}
