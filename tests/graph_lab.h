/* Stages and helpers for tests of the graph runtime, compiled into the test.
 *
 *   t_count   source: samples 0, 1, 2, ... of `epochs` epochs, with marks; optionally a prefill round
 *   t_work    parallel: value = value * 3 + 1, with holes, chains, errors and skips by rules on the number
 *   t_zip     joins two inputs: the values as one number
 *   t_sink    collects numbers, values and marks as text in the order of arrival
 *   t_early   ends by itself after `items`
 *
 * The value of an item is its field "noise_key", its number the field "sample". */
#ifndef TESTS_GRAPH_LAB_H
#define TESTS_GRAPH_LAB_H
#include "core/flow/graph.h"
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* -- t_count ------------------------------------------------------------------------ */

typedef struct {
    gint64 items, epochs, next, epoch;
    gboolean prefill, begun;
} TCount;

static FlowItem *lab_item(gint64 number, gint64 epoch)
{
    FlowItem *item = flow_item_new(FLOW_SAMPLE);
    item->cursor = (FlowCursor){.epoch = epoch, .position = number};
    g_autofree char *path = g_strdup_printf("item-%" G_GINT64_FORMAT, number);
    flow_item_set_i64(item, FLOW_F_SAMPLE, &number, 1);
    flow_item_set_i64(item, FLOW_F_NOISE_KEY, &number, 1);
    flow_item_set(item, FLOW_F_PATH, flow_value_string(path));
    return item;
}

static FlowStatus t_count_process(FlowCtx *ctx, FlowItem **in G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    TCount *count = flow_ctx_state(ctx);
    gint64 first = flow_graph_start(flow_node_graph(flow_ctx_node(ctx))).epoch;
    if (!count->begun)
        count->epoch = count->prefill ? -1 : first;
    count->begun = TRUE;
    if (count->epochs && count->epoch >= count->epochs)
        return FLOW_EOS;
    if (count->next < count->items)
        return flow_emit(ctx, 0, lab_item(count->next++, count->epoch));
    FlowCursor cursor = {.epoch = count->epoch, .position = count->next};
    FlowMark mark = count->epoch < 0 ? FLOW_MARK_PREFILL_DONE : FLOW_MARK_EPOCH;
    count->next = 0;
    count->epoch = count->epoch < 0 ? first : count->epoch + 1;
    return flow_emit(ctx, 0, flow_item_new_mark(mark, &cursor));
}

static const FlowParam t_count_params[] = {
    FLOW_INT(TCount, items, "10", 0, 1e9, "", "Items in an epoch."),
    FLOW_INT(TCount, epochs, "1", 0, 1e9, "", "Epochs, 0 = without end."),
    FLOW_BOOL(TCount, prefill, "no", "One round of prefill items first."),
    FLOW_END,
};
static const FlowPort t_count_out[] = {
    {.name = "out", .doc = "Numbers.", .gives = "sample noise_key path", .flags = FLOW_PORT_NEW}, FLOW_END};
static const FlowStage t_count = {.abi = FLOW_ABI,
                                  .size = sizeof(FlowStage),
                                  .name = "t_count",
                                  .summary = "Count.",
                                  .version = 1,
                                  .flags = FLOW_NEEDS_OUT,
                                  .state_size = sizeof(TCount),
                                  .params = t_count_params,
                                  .outputs = t_count_out,
                                  .process = t_count_process};

/* -- t_work ------------------------------------------------------------------------- */

typedef struct {
    gint64 holes, chains, fail, skip, hang, ms, opened;
    _Atomic(gint64) calls;
} TWork;

static FlowStatus t_work_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    TWork *work = flow_ctx_state(ctx);
    gint64 number = *flow_item_i64(in[0], FLOW_F_SAMPLE), value = *flow_item_i64(in[0], FLOW_F_NOISE_KEY);
    atomic_fetch_add(&work->calls, 1);
    if (work->ms)
        nanosleep(&(struct timespec){work->ms / 1000, work->ms % 1000 * 1000000}, NULL);
    if (work->fail >= 0 && number == work->fail) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, "cannot work on number %d", (int)number);
        return FLOW_ERROR;
    }
    if (work->skip > 0 && number % work->skip == 0) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, "bad number %d", (int)number);
        return FLOW_SKIP;
    }
    if (work->holes && number % work->holes == 1)
        return FLOW_OK;
    value = value * 3 + 1;
    FlowItem *item = flow_item_writable(&in[0]);
    flow_item_set_i64(item, FLOW_F_NOISE_KEY, &value, 1);
    FlowStatus status = FLOW_OK;
    for (gint64 i = 0; work->chains && i < number % work->chains && status == FLOW_OK; i++)
        status = flow_emit(ctx, 0, flow_item_ref(in[0]));
    return status == FLOW_OK ? flow_emit(ctx, 0, flow_take(&in[0])) : status;
}

static const FlowParam t_work_params[] = {
    FLOW_INT(TWork, holes, "0", 0, 1e9, "", "Drop number % holes == 1."),
    FLOW_INT(TWork, chains, "0", 0, 1e9, "", "Emit number % chains more."),
    FLOW_INT(TWork, fail, "-1", -1, 1e9, "", "Number at which to fail."),
    FLOW_INT(TWork, skip, "0", 0, 1e9, "", "Call every skip-th number bad."),
    FLOW_INT(TWork, ms, "0", 0, 1e6, "ms", "Time for an item."),
    FLOW_END,
};
static const FlowPort t_work_in[] = {{.name = "in", .doc = "Numbers.", .needs = "sample noise_key"},
                                     FLOW_END};
static const FlowPort t_work_out[] = {{.name = "out", .doc = "Numbers.", .gives = "noise_key"}, FLOW_END};
static const FlowStage t_work = {.abi = FLOW_ABI,
                                 .size = sizeof(FlowStage),
                                 .name = "t_work",
                                 .summary = "Work.",
                                 .version = 1,
                                 .flags = FLOW_PARALLEL,
                                 .state_size = sizeof(TWork),
                                 .params = t_work_params,
                                 .inputs = t_work_in,
                                 .outputs = t_work_out,
                                 .process = t_work_process};

/* -- t_zip -------------------------------------------------------------------------- */

static FlowStatus t_zip_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    gint64 value = *flow_item_i64(in[0], FLOW_F_NOISE_KEY) * 1000 + *flow_item_i64(in[1], FLOW_F_NOISE_KEY);
    flow_item_writable(&in[0]);
    flow_item_set_i64(in[0], FLOW_F_NOISE_KEY, &value, 1);
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static const FlowPort t_zip_in[] = {{.name = "a", .doc = "Numbers.", .needs = "noise_key"},
                                    {.name = "b", .doc = "Numbers.", .needs = "noise_key"},
                                    FLOW_END};
static const FlowStage t_zip = {.abi = FLOW_ABI,
                                .size = sizeof(FlowStage),
                                .name = "t_zip",
                                .summary = "Join.",
                                .version = 1,
                                .flags = FLOW_PARALLEL,
                                .inputs = t_zip_in,
                                .outputs = t_work_out,
                                .process = t_zip_process};

/* -- t_sink ------------------------------------------------------------------------- */

static GString *lab_seen; /* "0=1 1=4 <epoch> ..." of the last run */

static gboolean t_sink_open(FlowNode *node G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    if (!lab_seen)
        lab_seen = g_string_new(NULL);
    g_string_truncate(lab_seen, 0);
    return TRUE;
}

static FlowStatus t_sink_process(FlowCtx *ctx G_GNUC_UNUSED, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    const gint64 *value = flow_item_i64(in[0], FLOW_F_NOISE_KEY),
                 *sample = flow_item_i64(in[0], FLOW_F_SAMPLE);
    g_string_append_printf(lab_seen, "%s%s%d=%d ", in[0]->cursor.epoch < 0 ? "p" : "",
                           in[0]->pending ? "?" : "", sample ? (int)*sample : -1, value ? (int)*value : -1);
    return FLOW_OK;
}

static FlowStatus t_sink_mark(FlowCtx *ctx G_GNUC_UNUSED, FlowMark mark, GError **error G_GNUC_UNUSED)
{
    g_string_append(lab_seen, mark == FLOW_MARK_EPOCH ? "<epoch> " : "<prefill_done> ");
    return FLOW_OK;
}

static FlowStatus t_sink_flush(FlowCtx *ctx G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    g_string_append(lab_seen, "<end>");
    return FLOW_OK;
}

static const FlowPort t_sink_in[] = {{.name = "in", .doc = "Items.", .flags = FLOW_PORT_ANY | FLOW_PORT_MANY},
                                     FLOW_END};
static const FlowStage t_sink = {.abi = FLOW_ABI,
                                 .size = sizeof(FlowStage),
                                 .name = "t_sink",
                                 .summary = "Collect.",
                                 .version = 1,
                                 .flags = FLOW_STATEFUL,
                                 .inputs = t_sink_in,
                                 .open = t_sink_open,
                                 .process = t_sink_process,
                                 .mark = t_sink_mark,
                                 .flush = t_sink_flush};

/* -- running ------------------------------------------------------------------------ */

static inline void lab_add_stages(void)
{
    const FlowStage *stages[] = {&t_count, &t_work, &t_zip, &t_sink};
    for (guint i = 0; i < G_N_ELEMENTS(stages); i++) {
        g_autoptr(GError) error = NULL;
        flow_plugin_add(stages[i], &error);
        g_assert_no_error(error);
    }
}

/* Messages of load and check; the graph in *graph if wanted. Returns new. */
static inline char *lab_check(const char *text, FlowGraph **graph)
{
    FlowMessages *messages = flow_messages_new();
    FlowIni *ini = flow_ini_read_text("lab.ini", ".", text, strlen(text), NULL, NULL, messages);
    FlowGraph *loaded = flow_graph_load(ini, messages);
    flow_graph_check(loaded, messages);
    char *found = flow_messages_text(messages);
    gboolean good = !messages->errors;
    flow_messages_free(messages);
    if (!graph || !good)
        flow_graph_free(loaded);
    if (graph)
        *graph = good ? loaded : NULL;
    return found;
}

static inline FlowGraph *lab_open(const char *text)
{
    FlowGraph *graph = NULL;
    g_autofree char *messages = lab_check(text, &graph);
    g_autoptr(GError) error = NULL;
    if (!graph)
        g_error("%s", messages);
    flow_graph_open(graph, &error);
    g_assert_no_error(error);
    return graph;
}

/* Runs to the end; the error text in *said if wanted (else there must be none). Checks for leaks. */
static inline FlowRunStatus lab_run(const char *text, const FlowRunOptions *options, char **said)
{
    gint64 before = flow_item_live();
    FlowGraph *graph = lab_open(text);
    g_autoptr(GError) error = NULL;
    FlowRunStatus status = flow_graph_run(graph, options, &error);
    flow_graph_free(graph);
    g_assert_cmpint(flow_item_live(), ==, before);
    if (said)
        *said = error ? g_strdup(error->message) : NULL;
    else
        g_assert_no_error(error);
    return status;
}

#endif
