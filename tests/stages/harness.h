/* A stage alone: items are pushed into its inputs and pulled from its outputs, the host does the rest.
 *
 *   Harness *h = harness("resize_crop", "filter = area");
 *   harness_push(h, "in", item);
 *   FlowItem *out = harness_pull(h, "out");          waits; NULL when nothing more will come
 *   harness_end(h);                                  the inputs end
 *   g_assert_cmpint(harness_finish(h, &said), ==, FLOW_RUN_DONE);
 *
 * The text after the name is what stands in the node's section of a graph file, one key a line: parameters,
 * `workers`, `ring`, ... Feedback inputs stay unlinked. */
#ifndef TESTS_STAGES_HARNESS_H
#define TESTS_STAGES_HARNESS_H
#include "core/flow/graph.h"
#include <pthread.h>
#include <string.h>
#include <time.h>

typedef struct {
    char *port;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    GQueue items; /* FlowItem *, marks too */
    gboolean ended;
    gint64 accepts; /* sink: ends by itself after so many, -1 = never */
} HarnessQueue;

typedef struct {
    GPtrArray *queues; /* HarnessQueue *: inputs, then outputs */
    guint n_in;
    FlowGraph *graph;
    pthread_t thread;
    gboolean running;
    FlowRunStatus status;
    GError *error;
} Harness;

/* -- the two stages at its ends ------------------------------------------------------- */

typedef struct {
    gint64 queue;
} HarnessEnd;

static GPtrArray *harness_queues; /* HarnessQueue *, found by number from the graph file */

static inline HarnessQueue *harness_queue_of(FlowCtx *ctx)
{
    return g_ptr_array_index(harness_queues, ((HarnessEnd *)flow_ctx_state(ctx))->queue);
}

/* With the lock held; a short while, so that a cancelled run is noticed. */
static inline void harness_wait(HarnessQueue *queue)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 5000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&queue->changed, &queue->lock, &until);
}

static inline FlowStatus harness_in_process(FlowCtx *ctx, FlowItem **in G_GNUC_UNUSED,
                                            GError **error G_GNUC_UNUSED)
{
    HarnessQueue *queue = harness_queue_of(ctx);
    pthread_mutex_lock(&queue->lock);
    while (g_queue_is_empty(&queue->items) && !queue->ended && !flow_ctx_cancelled(ctx) &&
           !flow_ctx_stopping(ctx))
        harness_wait(queue);
    FlowItem *item = g_queue_pop_head(&queue->items);
    pthread_mutex_unlock(&queue->lock);
    return item ? flow_emit(ctx, 0, item) : FLOW_EOS;
}

static inline FlowStatus harness_out_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    HarnessQueue *queue = harness_queue_of(ctx);
    pthread_mutex_lock(&queue->lock);
    g_queue_push_tail(&queue->items, flow_take(&in[0]));
    gboolean enough = queue->accepts >= 0 && (gint64)g_queue_get_length(&queue->items) >= queue->accepts;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    return enough ? FLOW_EOS : FLOW_OK;
}

static const FlowParam harness_params[] = {
    FLOW_INT(HarnessEnd, queue, NULL, 0, 1e6, "", "Number of the queue."), FLOW_END};
static const FlowPort harness_any_in[] = {{.name = "in", .doc = "Items.", .flags = FLOW_PORT_ANY}, FLOW_END};
static const FlowPort harness_any_out[] = {
    {.name = "out", .doc = "Items.", .flags = FLOW_PORT_ANY | FLOW_PORT_NEW}, FLOW_END};

/* The source claims to give every field, so that check lets any stage follow it. */
static inline gboolean harness_in_describe(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    g_autoptr(GString) all = g_string_new(NULL);
    const FlowFieldInfo *info;
    for (guint f = 0; f < FLOW_FIELD_MAX && (info = flow_field_info((FlowField)f)); f++)
        g_string_append_printf(all, "%s ", info->name);
    flow_node_gives(node, "out", all->str);
    return TRUE;
}

static const FlowStage harness_in = {.abi = FLOW_ABI,
                                     .size = sizeof(FlowStage),
                                     .name = "harness_in",
                                     .summary = "Pushed items.",
                                     .state_size = sizeof(HarnessEnd),
                                     .params = harness_params,
                                     .outputs = harness_any_out,
                                     .describe = harness_in_describe,
                                     .process = harness_in_process};
static const FlowStage harness_out = {.abi = FLOW_ABI,
                                      .size = sizeof(FlowStage),
                                      .name = "harness_out",
                                      .summary = "Items to pull.",
                                      .flags = FLOW_STATEFUL | FLOW_MARKS | FLOW_PREFILL,
                                      .state_size = sizeof(HarnessEnd),
                                      .params = harness_params,
                                      .inputs = harness_any_in,
                                      .process = harness_out_process};

static inline void harness_setup(void)
{
    if (harness_queues)
        return;
    harness_queues = g_ptr_array_new();
    g_assert_true(flow_plugin_add(&harness_in, NULL));
    g_assert_true(flow_plugin_add(&harness_out, NULL));
}

/* -- building ------------------------------------------------------------------------- */

static inline void harness_add_queue(Harness *h, const char *port)
{
    HarnessQueue *queue = g_new0(HarnessQueue, 1);
    queue->port = g_strdup(port);
    queue->accepts = -1;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
    g_queue_init(&queue->items);
    g_ptr_array_add(h->queues, queue);
    g_ptr_array_add(harness_queues, queue);
}

static inline void harness_free_queue(HarnessQueue *queue)
{
    g_queue_clear_full(&queue->items, (GDestroyNotify)flow_item_unref);
    pthread_mutex_destroy(&queue->lock);
    pthread_cond_destroy(&queue->changed);
    g_free(queue->port);
    g_free(queue);
}

/* The graph around the stage; node "it" is the stage. */
static inline char *harness_text(Harness *h, const FlowStage *stage, const char *keys)
{
    GString *nodes = g_string_new(NULL);
    g_autoptr(GString) it = g_string_new(NULL);
    g_string_append_printf(it, "[it]\nstage = %s\n%s\n", stage->name, keys ? keys : "");
    for (const FlowPort *port = stage->inputs; port && port->name; port++) {
        if (port->flags & FLOW_PORT_FEEDBACK)
            continue;
        g_string_append_printf(nodes, "[in_%s]\nstage = harness_in\nqueue = %u\n", port->name,
                               harness_queues->len);
        g_string_append_printf(it, "in.%s = in_%s\n", port->name, port->name);
        harness_add_queue(h, port->name);
        h->n_in++;
    }
    g_string_append(nodes, it->str);
    for (const FlowPort *port = stage->outputs; port && port->name; port++) {
        g_string_append_printf(nodes, "[out_%s]\nstage = harness_out\nqueue = %u\nin = it.%s\n", port->name,
                               harness_queues->len, port->name);
        harness_add_queue(h, port->name);
    }
    return g_string_free(nodes, FALSE);
}

static inline void *harness_main(void *data)
{
    Harness *h = data;
    h->status = flow_graph_run(h->graph, NULL, &h->error);
    for (guint i = h->n_in; i < h->queues->len; i++) {
        HarnessQueue *queue = g_ptr_array_index(h->queues, i);
        pthread_mutex_lock(&queue->lock);
        queue->ended = TRUE;
        pthread_cond_broadcast(&queue->changed);
        pthread_mutex_unlock(&queue->lock);
    }
    return NULL;
}

static inline void harness_free(Harness *h)
{
    flow_graph_free(h->graph);
    g_clear_error(&h->error);
    for (guint i = 0; i < h->queues->len; i++)
        harness_free_queue(g_ptr_array_index(h->queues, i));
    g_ptr_array_unref(h->queues);
    g_free(h);
}

/* Opens the stage; harness_start() runs it. NULL, with the messages in *said, if check or open refuses. */
static inline Harness *harness_try(const char *name, const char *keys, char **said)
{
    harness_setup();
    Harness *h = g_new0(Harness, 1);
    FlowMessages *messages = flow_messages_new();
    g_autoptr(GError) error = NULL;
    const FlowPlugin *plugin = flow_plugin_find(name, &error);
    g_assert_no_error(error);
    h->queues = g_ptr_array_new();
    g_autofree char *text = harness_text(h, plugin->stage, keys), *base = g_get_current_dir();
    FlowIni *ini = flow_ini_read_text("harness.ini", base, text, strlen(text), NULL, NULL, messages);
    h->graph = flow_graph_load(ini, messages);
    flow_graph_check(h->graph, messages);
    gboolean ok = !messages->errors && flow_graph_open(h->graph, &error);
    if (!ok && said)
        *said = error ? g_strdup(error->message) : flow_messages_text(messages);
    flow_messages_free(messages);
    if (!ok)
        g_clear_pointer(&h, harness_free);
    return h;
}

static inline void harness_start(Harness *h)
{
    g_assert_cmpint(pthread_create(&h->thread, NULL, harness_main, h), ==, 0);
    h->running = TRUE;
}

static inline Harness *harness(const char *name, const char *keys)
{
    g_autofree char *said = NULL;
    Harness *h = harness_try(name, keys, &said);
    if (!h)
        g_error("%s", said);
    harness_start(h);
    return h;
}

static inline FlowNode *harness_node(Harness *h)
{
    return flow_graph_node_named(h->graph, "it");
}

/* -- using ---------------------------------------------------------------------------- */

static inline HarnessQueue *harness_queue(Harness *h, const char *port, gboolean input)
{
    for (guint i = input ? 0 : h->n_in; i < (input ? h->n_in : h->queues->len); i++) {
        HarnessQueue *queue = g_ptr_array_index(h->queues, i);
        if (g_str_equal(queue->port, port))
            return queue;
    }
    g_error("no port '%s'", port);
}

/* Takes `item`. */
static inline void harness_push(Harness *h, const char *port, FlowItem *item)
{
    HarnessQueue *queue = harness_queue(h, port, TRUE);
    pthread_mutex_lock(&queue->lock);
    g_queue_push_tail(&queue->items, item);
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

/* The next item or mark; NULL when the run has ended. Returns a reference. */
static inline FlowItem *harness_pull(Harness *h, const char *port)
{
    HarnessQueue *queue = harness_queue(h, port, FALSE);
    pthread_mutex_lock(&queue->lock);
    while (g_queue_is_empty(&queue->items) && !queue->ended)
        harness_wait(queue);
    FlowItem *item = g_queue_pop_head(&queue->items);
    pthread_mutex_unlock(&queue->lock);
    return item;
}

/* The consumer of the output ends after `items`. Before harness_start(). */
static inline void harness_accept(Harness *h, const char *port, gint64 items)
{
    harness_queue(h, port, FALSE)->accepts = items;
}

static inline void harness_end(Harness *h)
{
    for (guint i = 0; i < h->n_in; i++) {
        HarnessQueue *queue = g_ptr_array_index(h->queues, i);
        pthread_mutex_lock(&queue->lock);
        queue->ended = TRUE;
        pthread_cond_broadcast(&queue->changed);
        pthread_mutex_unlock(&queue->lock);
    }
}

/* Waits for the end of the run and frees the harness. */
static inline FlowRunStatus harness_finish(Harness *h, char **said)
{
    pthread_join(h->thread, NULL);
    FlowRunStatus status = h->status;
    if (said)
        *said = h->error ? g_strdup(h->error->message) : NULL;
    else
        g_assert_no_error(h->error);
    harness_free(h);
    return status;
}

#endif
