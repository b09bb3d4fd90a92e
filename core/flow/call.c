/* One call into a stage: timed, with what the worker has in hand noted for messages, and its outcome judged
 * by the rules that hold for every stage. */
#include "core/flow/graph_private.h"
#include <stdatomic.h>
#include <time.h>

guint64 flow__now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (guint64)t.tv_sec * 1000000000u + (guint64)t.tv_nsec;
}

/* -- what is in hand ---------------------------------------------------------------- */

/* The item itself may be changed or given away by the stage, so its identity is copied. The name is a value
 * that nobody changes while it is referred to. */
static void take_in_hand(FlowCtx *ctx, const FlowItem *item)
{
    FlowValue *path = item ? flow_item_get(item, FLOW_F_PATH) : NULL;
    pthread_mutex_lock(&ctx->lock);
    ctx->at_work = item != NULL;
    ctx->path = path ? flow_value_ref(path) : NULL;
    if (item) {
        ctx->kind = item->kind;
        ctx->mark = item->mark;
        ctx->cursor = item->cursor;
    }
    pthread_mutex_unlock(&ctx->lock);
}

static void put_down(FlowCtx *ctx)
{
    pthread_mutex_lock(&ctx->lock);
    g_clear_pointer(&ctx->path, flow_value_unref);
    ctx->at_work = FALSE;
    pthread_mutex_unlock(&ctx->lock);
}

char *flow__ctx_label(FlowCtx *ctx)
{
    pthread_mutex_lock(&ctx->lock);
    FlowItem *twin = ctx->at_work ? flow_item_new(ctx->kind) : NULL;
    if (twin) {
        twin->mark = ctx->mark;
        twin->cursor = ctx->cursor;
        if (ctx->path)
            flow_item_set(twin, FLOW_F_PATH, flow_value_ref(ctx->path));
    }
    pthread_mutex_unlock(&ctx->lock);
    char *label = twin ? flow_item_label(twin) : NULL;
    flow_item_unref(twin);
    return label;
}

/* -- judging ------------------------------------------------------------------------ */

static FlowStatus ends(FlowCtx *ctx)
{
    FlowNode *node = ctx->node;
    pthread_mutex_lock(&node->lock);
    node->no_flush = TRUE;
    pthread_mutex_unlock(&node->lock);
    node->ended = TRUE;
    return FLOW_EOS;
}

static FlowStatus fails(FlowCtx *ctx, GError *error, const char *otherwise)
{
    if (ctx->injected && !error)
        error = g_error_new(FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "injected fault");
    if (!error)
        error = g_error_new(FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "%s", otherwise);
    flow__fail(ctx, error);
    return FLOW_CANCELLED;
}

static FlowStatus skips(FlowCtx *ctx, GError *error)
{
    FlowNode *node = ctx->node;
    if (node->on_error == FLOW_ON_ERROR_STOP)
        return fails(ctx, error, "skipped an item without saying why");
    guint64 n = atomic_fetch_add(&node->n_skipped, 1) + 1;
    if (n > node->max_skips) {
        if (error)
            g_prefix_error(&error,
                           "more than %" G_GUINT64_FORMAT " items are bad (on_error): ", node->max_skips);
        return fails(ctx, error, "more items are bad than on_error allows");
    }
    g_autofree char *label = flow__ctx_label(ctx);
    flow_node_warn(node, "skipped %s: %s", label ? label : "an item",
                   error ? error->message : "no reason given");
    g_clear_error(&error);
    return FLOW_OK;
}

/* ERROR before CANCELLED before EOS. A stage may also answer a stop with CANCELLED: it left its work. */
static FlowStatus judge(FlowCtx *ctx, FlowStatus status, GError *error)
{
    FlowGraph *graph = ctx->node->graph;
    if (error && status != FLOW_SKIP)
        status = FLOW_ERROR;
    switch (status) {
    case FLOW_OK:
        return graph->cancelled ? FLOW_CANCELLED : FLOW_OK;
    case FLOW_EOS:
        return ends(ctx);
    case FLOW_SKIP:
        return skips(ctx, error);
    case FLOW_CANCELLED:
        if (graph->cancelled)
            return FLOW_CANCELLED;
        return graph->stopping ? ends(ctx) : fails(ctx, NULL, "gave up although nobody asked it to");
    case FLOW_ERROR:
        break;
    }
    return fails(ctx, error, "returned an error without a message");
}

/* -- calls -------------------------------------------------------------------------- */

typedef struct {
    guint64 start, waited;
} Clock;

static guint64 waited(const FlowCtx *ctx)
{
    return ctx->wait.wait_full_ns + ctx->wait.wait_empty_ns;
}

static Clock clock_start(FlowCtx *ctx)
{
    Clock clock = {flow__now_ns(), waited(ctx)};
    ctx->wait.busy_since_ns = clock.start;
    return clock;
}

/* Waiting inside a call (emit, feedback) is not work. */
static void clock_stop(FlowCtx *ctx, Clock clock)
{
    guint64 in_call = flow__now_ns() - clock.start, waiting = waited(ctx) - clock.waited;
    ctx->wait.busy_since_ns = 0;
    ctx->busy_ns += in_call - MIN(waiting, in_call);
}

FlowStatus flow__call_process(FlowCtx *ctx)
{
    FlowNode *node = ctx->node;
    GError *error = NULL;
    const FlowItem *first = NULL;
    for (guint i = 0; i < node->n_in && !first; i++)
        first = ctx->in[i];
    take_in_hand(ctx, first);
    Clock clock = clock_start(ctx);
    flow__stall(ctx);
    FlowStatus status = flow__fault("process") ? FLOW_ERROR : FLOW_OK;
    if (status == FLOW_OK)
        status = node->stage->process(ctx, node->n_in ? ctx->in : NULL, &error);
    else
        ctx->injected = TRUE;
    clock_stop(ctx, clock);
    flow__drop_inputs(ctx);
    status = judge(ctx, status, error);
    put_down(ctx);
    return status;
}

FlowStatus flow__call_mark(FlowCtx *ctx, FlowItem *mark)
{
    FlowNode *node = ctx->node;
    GError *error = NULL;
    if (!node->stage->mark)
        return FLOW_OK;
    gboolean direct = ctx->direct;
    ctx->direct = TRUE; /* the other workers are idle: what is emitted comes before the mark */
    take_in_hand(ctx, mark);
    Clock clock = clock_start(ctx);
    FlowStatus status = node->stage->mark(ctx, mark->mark, &error);
    clock_stop(ctx, clock);
    status = judge(ctx, status == FLOW_SKIP ? FLOW_ERROR : status, error);
    put_down(ctx);
    ctx->direct = direct;
    return status;
}

FlowStatus flow__call_flush(FlowCtx *ctx)
{
    FlowNode *node = ctx->node;
    GError *error = NULL;
    if (!node->stage->flush)
        return FLOW_OK;
    ctx->direct = TRUE;
    Clock clock = clock_start(ctx);
    FlowStatus status = node->stage->flush(ctx, &error);
    clock_stop(ctx, clock);
    return judge(ctx, status == FLOW_SKIP ? FLOW_ERROR : status, error);
}
