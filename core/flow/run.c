/* Running a graph: rings and threads are made, the calling thread watches, everything is joined.
 *
 * No thread begins before all of them exist, so a limit on threads ends in an error and not in half a
 * graph. Whatever goes wrong first is kept with its place; the rings are aborted, every wait returns, the
 * threads leave by themselves. Nothing is killed.
 *
 * A stop is asked for by a signal handler, which may only raise a number and post a semaphore; this
 * thread does the rest. With a training loop, the rings in front of it and everything before it are cut:
 * the loop finishes its step and lets a closing item go round. Without one, sources are asked to end. */
#include "core/flow/graph_private.h"
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { SAMPLE_MS = 200 };

/* -- making ------------------------------------------------------------------------- */

static void drop_item(gpointer item)
{
    flow_item_unref(item);
}

static void make_rings(FlowNode *node)
{
    for (guint i = 0; i < node->n_in; i++) {
        FlowPortState *in = &node->in[i];
        if (!in->links->len)
            continue;
        const FlowLink *first = g_ptr_array_index(in->links, 0);
        g_autofree char *name =
            g_strdup_printf("%s.%s%s -> %s.%s", first->edge.from->name, first->edge.out_port,
                            in->links->len > 1 ? ", ..." : "", node->name, in->port->name);
        in->ring = flow_ring_new(name, in->capacity, in->max_bytes, in->links->len, drop_item);
        for (guint l = 0; l < in->links->len; l++)
            ((FlowLink *)g_ptr_array_index(in->links, l))->edge.ring = in->ring;
    }
}

static void free_rings(FlowNode *node)
{
    for (guint i = 0; i < node->n_in; i++) {
        FlowPortState *in = &node->in[i];
        for (guint l = 0; l < in->links->len; l++)
            ((FlowLink *)g_ptr_array_index(in->links, l))->edge.ring = NULL;
        g_clear_pointer(&in->ring, flow_ring_free);
    }
}

static void make_worker(FlowNode *node, guint index)
{
    FlowCtx *ctx = &node->ctx[index];
    ctx->node = node;
    ctx->index = index;
    ctx->chance = (node->index + 1) * 2654435761u + index * 40503u;
    ctx->direct = node->workers == 1 || node->any_order;
    ctx->scratch = g_malloc0(MAX(node->stage->worker_size, 1));
    ctx->in = g_new0(FlowItem *, node->n_in + 1);
    ctx->ticket = g_new0(guint64, node->n_links + 1);
    ctx->has_ticket = g_new0(gboolean, node->n_links + 1);
    ctx->scratch_items = g_ptr_array_new();
    ctx->chain = g_new0(GPtrArray *, node->n_out + 1);
    for (guint p = 0; p < node->n_out; p++)
        ctx->chain[p] = g_ptr_array_new_with_free_func(drop_item);
    pthread_mutex_init(&ctx->lock, NULL);
}

static void free_worker(FlowCtx *ctx)
{
    for (guint p = 0; p < ctx->node->n_out; p++)
        g_ptr_array_unref(ctx->chain[p]);
    g_ptr_array_unref(ctx->scratch_items);
    g_free(ctx->chain);
    g_free(ctx->has_ticket);
    g_free(ctx->ticket);
    g_free(ctx->in);
    g_free(ctx->scratch);
    ctx->scratch = NULL;
}

static void make_workers(FlowNode *node)
{
    for (guint p = 0; p < node->n_out; p++)
        node->n_links += node->out[p].links->len;
    node->open_links = node->n_links;
    node->n_ctx = node->running = node->workers;
    node->ctx = g_new0(FlowCtx, node->n_ctx);
    for (guint i = 0; i < node->n_ctx; i++)
        make_worker(node, i);
}

/* -- ending ------------------------------------------------------------------------- */

void flow__cancel(FlowGraph *graph)
{
    graph->cancelled = TRUE;
    for (guint i = 0; i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        for (guint p = 0; p < node->n_in; p++)
            if (node->in[p].ring)
                flow_ring_abort(node->in[p].ring);
    }
}

void flow__fail(FlowCtx *ctx, GError *error)
{
    FlowNode *node = ctx->node;
    FlowGraph *graph = node->graph;
    g_autofree char *label = flow__ctx_label(ctx);
    g_prefix_error(&error, "%s:%d: [%s] ", node->where.file, node->where.line, node->name);
    if (label && !strstr(error->message, label)) {
        GError *whole = g_error_new(error->domain, error->code, "%s (%s)", error->message, label);
        g_error_free(error);
        error = whole;
    }
    pthread_mutex_lock(&graph->lock);
    gboolean first = !graph->error;
    if (first)
        graph->error = error;
    else
        g_error_free(error);
    pthread_mutex_unlock(&graph->lock);
    if (first)
        flow__dump_dot(graph, "error");
    flow__cancel(graph);
}

void flow_graph_stop(FlowGraph *graph)
{
    atomic_fetch_add(&graph->stop, 1);
    sem_post(&graph->wake);
}

static gboolean has_feedback(const FlowNode *node)
{
    for (guint p = 0; p < node->n_in; p++)
        if (node->in[p].ring && flow__port_feedback(&node->in[p]))
            return TRUE;
    return FALSE;
}

/* From the loop backwards, so that nobody wakes to work whose result arrives nowhere. */
static void begin_stop(FlowGraph *graph)
{
    graph->stopping = TRUE;
    for (guint i = graph->nodes->len; i-- > 0;) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        node->end_asked = TRUE;
        for (guint p = 0; p < node->n_in; p++)
            if (flow__flows(&node->in[p]) && (node->before_loop || has_feedback(node)))
                flow_ring_cut(node->in[p].ring);
    }
}

static void obey_stop(FlowGraph *graph)
{
    int asked = graph->stop;
    if (asked >= 1 && !graph->stopping)
        begin_stop(graph);
    if (asked >= 2 && !graph->cancelled)
        flow__cancel(graph);
}

/* -- threads ------------------------------------------------------------------------ */

static void open_gate(FlowGraph *graph, int state)
{
    pthread_mutex_lock(&graph->lock);
    graph->gate_state = state;
    pthread_cond_broadcast(&graph->gate);
    pthread_mutex_unlock(&graph->lock);
}

static gboolean start_worker(FlowCtx *ctx, guint number, guint all)
{
    FlowNode *node = ctx->node;
    int rc = flow__fault("thread") ? EAGAIN : pthread_create(&ctx->thread, NULL, flow__worker_main, ctx);
    if (rc) {
        flow__fail(ctx, g_error_new(FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                                    "cannot start thread %u of %u: %s; lower 'workers' or raise the limit of "
                                    "threads (ulimit -u)",
                                    number, all, g_strerror(rc)));
        return FALSE;
    }
    char name[16];
    g_strlcpy(name, node->name, sizeof name);
    pthread_setname_np(ctx->thread, name);
    ctx->thread_made = TRUE;
    return TRUE;
}

static void start_workers(FlowGraph *graph)
{
    guint all = 0, number = 0;
    gboolean ok = TRUE;
    for (guint i = 0; i < graph->nodes->len; i++)
        all += ((FlowNode *)g_ptr_array_index(graph->nodes, i))->n_ctx;
    for (guint i = 0; i < graph->nodes->len && ok; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        for (guint w = 0; w < node->n_ctx && ok; w++) {
            atomic_fetch_add(&graph->alive, 1);
            ok = start_worker(&node->ctx[w], ++number, all);
            if (!ok)
                atomic_fetch_sub(&graph->alive, 1);
        }
    }
    open_gate(graph, ok ? 1 : -1);
}

static void watch(FlowGraph *graph, const FlowRunOptions *options)
{
    FlowWatch *watcher = flow__watch_new(graph, options);
    guint64 next = flow__now_ns();
    while (graph->alive) {
        next = MAX(next + SAMPLE_MS * 1000000ull, flow__now_ns());
        struct timespec until = {(time_t)(next / 1000000000u), (long)(next % 1000000000u)};
        while (graph->alive && sem_clockwait(&graph->wake, CLOCK_MONOTONIC, &until) == 0)
            obey_stop(graph);
        obey_stop(graph);
        flow__watch_sample(watcher);
    }
    flow__watch_free(watcher);
}

static void join_workers(FlowGraph *graph)
{
    for (guint i = 0; i < graph->nodes->len; i++) {
        FlowNode *node = g_ptr_array_index(graph->nodes, i);
        for (guint w = 0; w < node->n_ctx; w++) {
            if (node->ctx[w].thread_made)
                pthread_join(node->ctx[w].thread, NULL);
            free_worker(&node->ctx[w]);
        }
        free_rings(node);
    }
}

FlowRunStatus flow_graph_run(FlowGraph *graph, const FlowRunOptions *options, GError **error)
{
    static const FlowRunOptions none = {0};
    if (!graph->opened || graph->ran) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "a graph must be open, and runs once");
        return FLOW_RUN_FAILED;
    }
    graph->ran = TRUE;
    options = options ? options : &none;
    graph->limit = options->limit;
    flow__fault_arm();
    if (options->resume && !flow_checkpoint_read(graph, options->resume, error))
        return FLOW_RUN_FAILED;
    for (guint i = 0; i < graph->nodes->len; i++) {
        make_rings(g_ptr_array_index(graph->nodes, i));
        make_workers(g_ptr_array_index(graph->nodes, i));
    }
    start_workers(graph);
    watch(graph, options);
    join_workers(graph);
    if (graph->error) {
        g_propagate_error(error, g_steal_pointer(&graph->error));
        return graph->stalled ? FLOW_RUN_STALLED : FLOW_RUN_FAILED;
    }
    return graph->stopping ? FLOW_RUN_STOPPED : FLOW_RUN_DONE;
}
