/* Deadlocks that can be seen before anything runs: a tee whose branches meet again in a join.
 *
 *   tee --(4)--> batch of 8 --> join        The join waits for the batch, the batch for its 8th item, and
 *    `----------(4)------------> join       the tee for space on the direct way, which the join empties.
 *
 * What one branch may hold back before its first item comes out (hold() of its stages) must fit, plus one,
 * into the rings of the other branch. Branches are followed as paths: the most that any path of one can
 * hold against the least room on any path of the other. */
#include "core/flow/graph_private.h"

typedef struct {
    gint64 hold, room; /* most held back, least room, from the tee to the ring in front of this node */
    gboolean reached;
    FlowPortState *narrow; /* the smallest ring on that way */
} Way;

static gint64 add(gint64 a, gint64 b)
{
    return a > G_MAXINT64 - b ? G_MAXINT64 : a + b;
}

static void step_over(Way *next, const Way *here, FlowPortState *in, gint64 hold)
{
    Way way = {.reached = TRUE,
               .hold = add(here->hold, hold),
               .room = add(add(here->room, hold), in->capacity),
               .narrow = here->narrow && here->narrow->capacity <= in->capacity ? here->narrow : in};
    if (!next->reached || way.room < next->room) {
        next->room = way.room;
        next->narrow = way.narrow;
    }
    next->hold = next->reached ? MAX(next->hold, way.hold) : way.hold;
    next->reached = TRUE;
}

/* Ways from behind `link` to every input port; `port_index` numbers them. */
static Way *follow(FlowGraph *graph, FlowLink *link, const guint *port_index, guint n_ports)
{
    Way *ways = g_new0(Way, n_ports), start = {.reached = TRUE};
    step_over(&ways[port_index[link->edge.to->index] + link->in->index], &start, link->in, 0);
    for (guint i = link->edge.to->index; i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        for (guint p = 0; p < node->n_in; p++) {
            const Way *here = &ways[port_index[i] + p];
            if (!here->reached || flow__port_feedback(&node->in[p]))
                continue;
            for (guint o = 0; o < node->n_out; o++)
                for (guint l = 0; l < node->out[o].links->len; l++) {
                    FlowLink *out = g_ptr_array_index(node->out[o].links, l);
                    if (!out->edge.feedback)
                        step_over(&ways[port_index[out->edge.to->index] + out->in->index], here, out->in,
                                  node->hold);
                }
        }
    }
    return ways;
}

static gboolean joins(const FlowPortState *in)
{
    return in->links->len && !flow__port_feedback(in) && !(in->port->flags & FLOW_PORT_MANY);
}

static void report(FlowNode *tee, FlowNode *join, const FlowPortState *holding, const Way *direct,
                   gint64 hold, FlowMessages *messages)
{
    const FlowPortState *in = direct->narrow;
    gint64 wanted = add(hold - direct->room + 1, in->capacity);
    const char *dot = in->node->n_in > 1 ? "." : "", *name = in->node->n_in > 1 ? in->port->name : "";
    if (hold > G_MAXINT32) {
        flow_error(
            messages, join->where,
            "[%s] would wait for ever: the branch into '%s' from [%s] keeps all items until the end, and the "
            "other branch cannot hold them",
            join->name, holding->port->name, tee->name);
        return;
    }
    flow_error(messages, join->where,
               "[%s] would wait for ever: the branch into '%s' from [%s] may hold back %" G_GINT64_FORMAT
               " items, the rings of the other hold %" G_GINT64_FORMAT "; set ring%s%s = %" G_GINT64_FORMAT
               " in [%s]",
               join->name, holding->port->name, tee->name, hold, direct->room, dot, name, wanted,
               in->node->name);
}

static gboolean check_join(FlowNode *tee, FlowNode *join, const Way *a, const Way *b, FlowMessages *messages)
{
    for (guint p = 0; p < join->n_in; p++)
        for (guint q = 0; q < join->n_in; q++) {
            if (p == q || !joins(&join->in[p]) || !joins(&join->in[q]) || !a[p].reached || !b[q].reached)
                continue;
            if (a[p].hold > 0 && b[q].room < add(a[p].hold, 1)) {
                report(tee, join, &join->in[p], &b[q], a[p].hold, messages);
                return TRUE;
            }
        }
    return FALSE;
}

static GPtrArray *links_of(FlowNode *node)
{
    GPtrArray *links = g_ptr_array_new();
    for (guint o = 0; o < node->n_out; o++)
        for (guint l = 0; l < node->out[o].links->len; l++) {
            FlowLink *link = g_ptr_array_index(node->out[o].links, l);
            if (!link->edge.feedback)
                g_ptr_array_add(links, link);
        }
    return links;
}

/* Reports a join at most once. */
static void check_tee(FlowNode *tee, const guint *port_index, guint n_ports, gboolean *reported,
                      FlowMessages *messages)
{
    FlowGraph *graph = tee->graph;
    g_autoptr(GPtrArray) links = links_of(tee);
    g_autoptr(GPtrArray) ways = g_ptr_array_new_with_free_func(g_free);
    for (guint i = 0; links->len > 1 && i < links->len; i++)
        g_ptr_array_add(ways, follow(graph, g_ptr_array_index(links, i), port_index, n_ports));
    for (guint a = 0; a < ways->len; a++)
        for (guint b = 0; b < ways->len; b++)
            for (guint i = tee->index + 1; a != b && i < graph->nodes->len; i++) {
                const Way *from_a = g_ptr_array_index(ways, a), *from_b = g_ptr_array_index(ways, b);
                if (!reported[i])
                    reported[i] = check_join(tee, g_ptr_array_index(graph->nodes, i), from_a + port_index[i],
                                             from_b + port_index[i], messages);
            }
}

void flow__deadlock_check(FlowGraph *graph, FlowMessages *messages)
{
    guint n = graph->nodes->len, n_ports = 0;
    gint64 holds = 0;
    g_autofree guint *port_index = g_new0(guint, n + 1);
    g_autofree gboolean *reported = g_new0(gboolean, n + 1);
    for (guint i = 0; i < n; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        port_index[i] = n_ports;
        n_ports += node->n_in;
        holds = MAX(holds, node->hold);
    }
    for (guint i = 0; holds > 0 && i < n; i++)
        check_tee(g_ptr_array_index(graph->nodes, i), port_index, MAX(n_ports, 1), reported, messages);
}
