/* A worker thread: takes inputs, calls the stage, hands on the outputs, until the node ends.
 *
 *   dispatch lock { one item from each input; one ticket on each output }   so that outputs keep the order
 *   process()                                                             workers run side by side here
 *   commit                                                                in any order, tickets sort it out
 *
 * The worker that leaves last flushes the node and tells its neighbours that it is gone. */
#include "core/flow/graph_private.h"
#include <stdatomic.h>

static void lock_dispatch(FlowCtx *ctx)
{
    ctx->hold = FLOW_HOLD_LOCK; /* the watchdog must not take this for work */
    pthread_mutex_lock(&ctx->node->dispatch);
    ctx->node->holder = (int)ctx->index;
    ctx->hold = FLOW_HOLD_NONE;
}

static void unlock_dispatch(FlowCtx *ctx)
{
    ctx->node->holder = -1;
    pthread_mutex_unlock(&ctx->node->dispatch);
}

static void count_inflight(FlowNode *node, int change)
{
    pthread_mutex_lock(&node->lock);
    node->inflight += (guint)change;
    if (!node->inflight)
        pthread_cond_broadcast(&node->idle);
    pthread_mutex_unlock(&node->lock);
}

static FlowStatus no_one_left(FlowNode *node)
{
    pthread_mutex_lock(&node->lock);
    node->no_flush = TRUE; /* nobody would receive it */
    pthread_mutex_unlock(&node->lock);
    return FLOW_EOS;
}

static FlowStatus take(FlowCtx *ctx)
{
    FlowNode *node = ctx->node;
    FlowStatus status = FLOW_EOS;
    lock_dispatch(ctx);
    if (!node->ended)
        status = node->n_links && !node->open_links ? no_one_left(node) : flow__take_inputs(ctx);
    if (status == FLOW_OK && !ctx->direct)
        status = flow__reserve(ctx) == FLOW_EOS ? no_one_left(node)
                 : node->graph->cancelled       ? FLOW_CANCELLED
                                                : FLOW_OK;
    if (status == FLOW_OK) {
        count_inflight(node, 1);
        atomic_fetch_add_explicit(&node->n_in_items, 1, memory_order_relaxed);
    } else {
        node->ended = TRUE;
        flow__drop_inputs(ctx);
    }
    unlock_dispatch(ctx);
    return status;
}

/* A cache has what this node would make: the item goes on as it is. NULL if the stage must see it. */
static FlowItem *skipping_item(FlowCtx *ctx)
{
    FlowNode *node = ctx->node;
    guint found = 0, n = 0;
    for (guint i = 0; node->between && i < node->n_in; i++)
        if (ctx->in[i]) {
            found = i;
            n++;
        }
    return n == 1 && flow__cache_skips(node, ctx->in[found]) ? g_steal_pointer(&ctx->in[found]) : NULL;
}

static FlowStatus pass_on(FlowCtx *ctx, FlowItem *item)
{
    FlowNode *node = ctx->node;
    FlowStatus status = FLOW_OK;
    for (guint p = 0; p < node->n_out && status == FLOW_OK; p++)
        if (!(node->out[p].port->flags & FLOW_PORT_NEW))
            status = flow_emit(ctx, p, flow_item_ref(item));
    flow_item_unref(item);
    return status == FLOW_EOS ? no_one_left(node) : status;
}

static FlowStatus turn(FlowCtx *ctx)
{
    FlowStatus status = take(ctx);
    if (status != FLOW_OK)
        return status;
    FlowItem *item = skipping_item(ctx);
    status = item ? pass_on(ctx, item) : flow__call_process(ctx);
    if (!ctx->direct)
        flow__commit(ctx);
    count_inflight(ctx->node, -1);
    return status;
}

static FlowStatus turn_source(FlowCtx *ctx)
{
    FlowNode *node = ctx->node;
    if (node->graph->cancelled)
        return FLOW_CANCELLED;
    if (node->end_asked || (node->n_links && !node->open_links) ||
        (node->graph->limit && node->made >= node->graph->limit))
        return FLOW_EOS;
    return flow__call_process(ctx);
}

static gboolean is_source(const FlowNode *node)
{
    for (guint i = 0; i < node->n_in; i++)
        if (flow__flows(&node->in[i]))
            return FALSE;
    return TRUE;
}

static gboolean gate_opens(FlowGraph *graph)
{
    pthread_mutex_lock(&graph->lock);
    while (graph->gate_state == 0)
        pthread_cond_wait(&graph->gate, &graph->lock);
    gboolean open = graph->gate_state > 0;
    pthread_mutex_unlock(&graph->lock);
    return open;
}

static gboolean start(FlowCtx *ctx)
{
    const FlowStage *stage = ctx->node->stage;
    GError *error = NULL;
    if (!stage->worker_start || stage->worker_start(ctx, &error))
        return TRUE;
    flow__fail(ctx, error ? error
                          : g_error_new(FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED,
                                        "worker_start() failed without saying why"));
    return FALSE;
}

static void leave(FlowCtx *ctx, gboolean source)
{
    FlowNode *node = ctx->node;
    pthread_mutex_lock(&node->lock);
    gboolean last = --node->running == 0, flush = !node->no_flush && !source;
    pthread_mutex_unlock(&node->lock);
    if (!last)
        return;
    if (flush && !node->graph->cancelled)
        flow__call_flush(ctx);
    flow__finish_links(node);
}

void *flow__worker_main(void *data)
{
    FlowCtx *ctx = data;
    FlowGraph *graph = ctx->node->graph;
    gboolean source = is_source(ctx->node), started = gate_opens(graph);
    FlowStatus status = FLOW_CANCELLED;
    flow_ring_self(&ctx->wait);
    flow__ctx_enter(ctx);
    if (started && start(ctx))
        status = FLOW_OK;
    while (status == FLOW_OK)
        status = source ? turn_source(ctx) : turn(ctx);
    leave(ctx, source);
    if (started && ctx->node->stage->worker_stop)
        ctx->node->stage->worker_stop(ctx);
    ctx->wait.kind = FLOW_WAIT_EXITED;
    flow_ring_self(NULL);
    if (atomic_fetch_sub(&graph->alive, 1) == 1)
        sem_post(&graph->wake);
    return NULL;
}

/* -- what stages ask their worker --------------------------------------------------- */

FlowNode *flow_ctx_node(FlowCtx *ctx)
{
    return ctx->node;
}

gpointer flow_ctx_state(FlowCtx *ctx)
{
    return ctx->node->state;
}

gpointer flow_ctx_worker(FlowCtx *ctx)
{
    return ctx->scratch;
}

gboolean flow_ctx_cancelled(FlowCtx *ctx)
{
    return ctx->node->graph->cancelled;
}

gboolean flow_ctx_stopping(FlowCtx *ctx)
{
    return ctx->node->graph->stopping;
}

guint64 flow_ctx_key(FlowCtx *ctx, const FlowItem *item)
{
    gint64 v[2] = {0, 0};
    if (item) {
        const gint64 *sample = flow_item_i64(item, FLOW_F_SAMPLE);
        v[0] = item->cursor.epoch;
        v[1] = sample ? *sample : item->cursor.position;
    }
    return flow_random_key(ctx->node->graph->seed, ctx->node->name, v, item ? 2 : 0);
}

void flow_progress(FlowCtx *ctx, gint64 step, gint64 total, double loss)
{
    enum { MEMORY = 20 }; /* steps over which the shown loss is smoothed */
    FlowGraph *graph = ctx->node->graph;
    pthread_mutex_lock(&graph->lock);
    graph->step = step;
    graph->total = total;
    graph->losses++;
    graph->loss += (loss - graph->loss) / (double)MIN(graph->losses, MEMORY);
    pthread_mutex_unlock(&graph->lock);
}
