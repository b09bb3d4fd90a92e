/* The watchdog: deadlocks, nodes that do not come forward, and the line that says how far the run is.
 *
 * Called by the thread that runs the graph, a few times a second. A deadlock is reported when two samples
 * find the same workers waiting and none of their rings has moved between, which leaves no room for a
 * worker that was only about to go on. A slow node is never an error: after `stall` seconds in which
 * nothing moved there is one warning, with the node, the item and the time. */
#include "core/flow/graph_private.h"

enum { MAX_GROWN = 1 << 20 };

struct FlowWatch {
    FlowGraph *graph;
    const FlowRunOptions *options;
    guint64 start, moved_at, sampled_at, movement;
    double stall, warn_after;
    GPtrArray *suspects; /* dead workers of the sample before */
    guint64 suspects_moved;
    guint64 *busy; /* per node, at the sample before */
    guint64 first_step_at;
    gint64 first_step, last_step;
};

FlowWatch *flow__watch_new(FlowGraph *graph, const FlowRunOptions *options)
{
    FlowWatch *watch = g_new0(FlowWatch, 1);
    watch->graph = graph;
    watch->options = options;
    watch->start = watch->moved_at = watch->sampled_at = flow__now_ns();
    watch->stall = watch->warn_after = options->stall > 0 ? options->stall : graph->stall;
    watch->busy = g_new0(guint64, graph->nodes->len + 1);
    watch->first_step = -1;
    return watch;
}

static guint64 ring_moves(const FlowPortState *port)
{
    FlowRingStats stats;
    flow_ring_stats(port->ring, &stats);
    return stats.pushed + stats.popped;
}

static guint64 all_moves(FlowGraph *graph)
{
    guint64 sum = 0;
    for (guint i = 0; i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        for (guint p = 0; p < node->n_in; p++)
            sum += node->in[p].ring ? ring_moves(&node->in[p]) : 0;
    }
    return sum;
}

/* -- deadlocks ---------------------------------------------------------------------- */

/* Moves of every ring at the nodes of these workers. */
static guint64 moves_around(const GPtrArray *workers)
{
    guint64 sum = 0;
    for (guint i = 0; i < workers->len; i++) {
        FlowNode *node = ((FlowCtx *)g_ptr_array_index(workers, i))->node;
        for (guint p = 0; p < node->n_in; p++)
            sum += node->in[p].ring ? ring_moves(&node->in[p]) : 0;
        for (guint p = 0; p < node->n_out; p++)
            for (guint l = 0; l < node->out[p].links->len; l++)
                sum += ring_moves(((FlowLink *)g_ptr_array_index(node->out[p].links, l))->in);
    }
    return sum;
}

static gboolean same_workers(const GPtrArray *a, const GPtrArray *b)
{
    if (!a || !b || a->len != b->len)
        return FALSE;
    for (guint i = 0; i < a->len; i++)
        if (g_ptr_array_index(a, i) != g_ptr_array_index(b, i))
            return FALSE;
    return TRUE;
}

/* Where a key of the port is written, for all inputs or for this one; else where its link is. */
static FlowWhere key_where(const FlowPortState *port, const char *key)
{
    g_autofree char *own = g_strdup_printf("%s.%s", key, port->port->name);
    const FlowIniValue *value = flow_ini_value(port->node->section, own);
    if (!value)
        value = flow_ini_value(port->node->section, key);
    return value ? value->where : port->where;
}

/* "set ring.b = 8 in [zip], graphs/x.ini:40". NULL if no larger ring would help; *capacity is 0 if only more
 * bytes would. Returns new. */
static char *advice(const FlowPortState *port, guint32 *capacity)
{
    FlowRingStats stats;
    if (!port)
        return NULL;
    flow_ring_stats(port->ring, &stats);
    gboolean by_bytes = stats.fill < stats.capacity;
    const char *dot = port->node->n_in > 1 ? "." : "", *name = port->node->n_in > 1 ? port->port->name : "";
    FlowWhere where = key_where(port, by_bytes ? "bytes" : "ring");
    *capacity = by_bytes || stats.capacity > MAX_GROWN / 2 ? 0 : stats.capacity * 2;
    if (by_bytes)
        return g_strdup_printf("raise bytes%s%s in [%s], %s:%d", dot, name, port->node->name, where.file,
                               where.line);
    return g_strdup_printf("set ring%s%s = %u in [%s], %s:%d", dot, name, stats.capacity * 2,
                           port->node->name, where.file, where.line);
}

static void report_deadlock(FlowGraph *graph, GPtrArray *dead)
{
    guint32 capacity = 0;
    FlowPortState *port = flow__dead_ring(dead);
    g_autofree char *text = flow__dead_text(dead), *help = advice(port, &capacity);
    if (graph->grow && capacity) {
        flow_ring_grow(port->ring, capacity);
        flow_node_warn(port->node,
                       "%s; the ring is larger now (on_stall = grow); to have it so from the start %s", text,
                       help);
        return;
    }
    flow__dump_dot(graph, "stall");
    pthread_mutex_lock(&graph->lock);
    if (!graph->error) {
        graph->stalled = TRUE;
        g_set_error(&graph->error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "%s: %s%s%s", graph->ini->path,
                    text, help ? "; " : "; no larger ring would help", help ? help : "");
    }
    pthread_mutex_unlock(&graph->lock);
    flow__cancel(graph);
}

static void look_for_deadlock(FlowWatch *watch)
{
    GPtrArray *dead = watch->graph->cancelled ? NULL : flow__dead_workers(watch->graph);
    guint64 moved = dead ? moves_around(dead) : 0;
    if (dead && same_workers(dead, watch->suspects) && moved == watch->suspects_moved) {
        report_deadlock(watch->graph, dead);
        g_clear_pointer(&dead, g_ptr_array_unref);
    }
    g_clear_pointer(&watch->suspects, g_ptr_array_unref);
    watch->suspects = dead;
    watch->suspects_moved = moved;
}

/* -- slow nodes --------------------------------------------------------------------- */

static FlowCtx *longest_at_work(FlowGraph *graph, guint64 now, double *seconds)
{
    FlowCtx *found = NULL;
    for (guint i = 0; i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        for (guint w = 0; w < node->n_ctx; w++) {
            guint64 since = node->ctx[w].wait.busy_since_ns;
            double time = since ? (double)(now - MIN(since, now)) / 1e9 : 0;
            if (since && node->ctx[w].wait.kind == FLOW_WAIT_NONE && (!found || time > *seconds)) {
                found = &node->ctx[w];
                *seconds = time;
            }
        }
    }
    return found;
}

static void look_for_standstill(FlowWatch *watch, guint64 now)
{
    FlowGraph *graph = watch->graph;
    pthread_mutex_lock(&graph->lock);
    guint64 movement = all_moves(graph) + graph->losses;
    pthread_mutex_unlock(&graph->lock);
    if (movement != watch->movement) {
        watch->movement = movement;
        watch->moved_at = now;
        watch->warn_after = watch->stall;
        return;
    }
    double still = (double)(now - watch->moved_at) / 1e9, seconds = 0;
    if (watch->stall <= 0 || still < watch->warn_after)
        return;
    watch->warn_after *= 2;
    FlowCtx *ctx = longest_at_work(graph, now, &seconds);
    if (!ctx)
        return;
    g_autofree char *label = flow__ctx_label(ctx);
    flow_node_warn(ctx->node, "nothing has moved for %.1f s; it has been at %s for %.1f s", still,
                   label ? label : "one call", seconds);
}

/* -- progress ----------------------------------------------------------------------- */

/* The node that was busiest since the last sample, counted per worker. */
static const char *busiest(FlowWatch *watch)
{
    FlowGraph *graph = watch->graph;
    const char *name = NULL;
    double most = 0;
    for (guint i = 0; i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        guint64 busy = 0, now = flow__now_ns();
        for (guint w = 0; w < node->n_ctx; w++) {
            guint64 since = node->ctx[w].wait.busy_since_ns;
            busy += node->ctx[w].busy_ns;
            if (since && node->ctx[w].wait.kind == FLOW_WAIT_NONE)
                busy += now - MIN(MAX(since, watch->sampled_at), now);
        }
        double share = busy > watch->busy[i] ? (double)(busy - watch->busy[i]) / MAX(node->n_ctx, 1) : 0;
        watch->busy[i] = busy;
        if (share > most) {
            most = share;
            name = node->name;
        }
    }
    return name;
}

static void show_progress(FlowWatch *watch, guint64 now)
{
    FlowGraph *graph = watch->graph;
    FlowRunProgress progress = {.busiest = busiest(watch), .seconds = (double)(now - watch->start) / 1e9};
    pthread_mutex_lock(&graph->lock);
    gboolean known = graph->losses > 0;
    progress.step = graph->step;
    progress.total = graph->total;
    progress.loss = graph->loss;
    pthread_mutex_unlock(&graph->lock);
    if (known && watch->first_step < 0) {
        watch->first_step = progress.step;
        watch->first_step_at = now;
    }
    double since = (double)(now - watch->first_step_at) / 1e9;
    if (known && progress.step > watch->first_step && since > 0)
        progress.steps_per_s = (double)(progress.step - watch->first_step) / since;
    watch->sampled_at = now;
    if (watch->options->progress)
        watch->options->progress(&progress, watch->options->progress_data);
}

void flow__watch_sample(FlowWatch *watch)
{
    guint64 now = flow__now_ns();
    look_for_deadlock(watch);
    look_for_standstill(watch, now);
    show_progress(watch, now);
}

void flow__watch_free(FlowWatch *watch)
{
    g_clear_pointer(&watch->suspects, g_ptr_array_unref);
    g_free(watch->busy);
    g_free(watch);
}
