/* A training loop in a test: a source of recorded batches, a graph text around it, its log and LoRA file.
 *
 *   t_batches   groups of golden micro-batches; can hold back a batch, blow up or poison one, ask for a stop
 */
#ifndef TESTS_LOOP_LAB_H
#define TESTS_LOOP_LAB_H
#include "core/flow/graph.h"
#include "core/model/safetensors.h"
#include "tests/golden_train.h"
#include <glib/gstdio.h>

typedef struct {
    gint64 groups, epochs, accumulate, held, stop_at, poison_at, same;
    double blow;

    Model *model;
    SafeFile *golden;
    gint64 epoch, group, micro;
    gboolean prefilled;
} TBatches;

static gboolean t_batches_open(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    TBatches *s = flow_node_state(node);
    s->model = golden_model("tiny-sd");
    s->golden = golden_open("tiny-sd", "train");
    return TRUE;
}

static void t_batches_close(FlowNode *node)
{
    TBatches *s = flow_node_state(node);
    model_free(s->model);
    safe_close(s->golden);
}

static FlowStatus t_batches_prefill(FlowCtx *ctx, TBatches *s)
{
    FlowCursor start = flow_graph_start(flow_node_graph(flow_ctx_node(ctx)));
    s->prefilled = TRUE;
    s->epoch = start.epoch;
    s->group = start.position;
    for (gint64 i = 0; i < s->held; i++) {
        FlowItem *item = golden_batch(s->model, s->golden, GOLDEN_ROWS - 1 - i, 0);
        item->cursor.epoch = -1;
        flow_item_set_i64(item, FLOW_F_MICRO, (gint64[]){-1, 0, 1, 1, 0, -1}, 6);
        flow_item_set_i32(item, FLOW_F_ROLE, (gint32[]){1}, 1);
        flow_item_set_i64(item, FLOW_F_SAMPLE, (gint64[]){1000 + 2 * i, 1001 + 2 * i}, 2);
        FlowStatus status = flow_emit(ctx, 0, item);
        if (status != FLOW_OK)
            return status;
    }
    FlowCursor cursor = {.epoch = -1};
    return s->held ? flow_emit(ctx, 0, flow_item_new_mark(FLOW_MARK_PREFILL_DONE, &cursor)) : FLOW_OK;
}

static FlowItem *t_batches_make(FlowCtx *ctx, TBatches *s)
{
    gint64 number = s->epoch * s->groups + s->group;
    gint64 row = s->same ? 0 : (number * s->accumulate + s->micro) % GOLDEN_ROWS;
    FlowItem *item = golden_batch(s->model, s->golden, row, 0);
    item->cursor = (FlowCursor){s->epoch, s->group, s->groups, s->epochs};
    flow_item_set_i64(item, FLOW_F_MICRO,
                      (gint64[]){number + 1, s->micro, s->accumulate, s->accumulate * GOLDEN_N,
                                 s->epochs * s->groups, s->epoch},
                      6);
    float weight[GOLDEN_N];
    for (guint i = 0; i < GOLDEN_N; i++)
        weight[i] = (float)(s->blow / (double)(GOLDEN_N * s->accumulate));
    if (number + 1 == s->poison_at)
        weight[GOLDEN_N - 1] = NAN;
    flow_item_set_f32(item, FLOW_F_WEIGHT, weight, GOLDEN_N);
    if (number + 1 == s->stop_at)
        flow_graph_stop(flow_node_graph(flow_ctx_node(ctx)));
    return item;
}

static FlowStatus t_batches_process(FlowCtx *ctx, FlowItem **in G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    TBatches *s = flow_ctx_state(ctx);
    if (!s->prefilled) {
        FlowStatus status = t_batches_prefill(ctx, s);
        if (status != FLOW_OK)
            return status;
    }
    if (s->epochs && s->epoch >= s->epochs)
        return FLOW_EOS;
    FlowStatus status = s->group < s->groups ? flow_emit(ctx, 0, t_batches_make(ctx, s)) : FLOW_OK;
    if (++s->micro < s->accumulate)
        return status;
    s->micro = 0;
    if (++s->group < s->groups)
        return status;
    FlowCursor cursor = {.epoch = s->epoch++, .position = s->groups};
    s->group = 0;
    return status == FLOW_OK ? flow_emit(ctx, 0, flow_item_new_mark(FLOW_MARK_EPOCH, &cursor)) : status;
}

static const FlowParam t_batches_params[] = {
    FLOW_INT(TBatches, groups, "12", 0, 1e9, "", "Groups in an epoch."),
    FLOW_INT(TBatches, epochs, "1", 0, 1e9, "", "Epochs, 0 = without end."),
    FLOW_INT(TBatches, accumulate, "1", 1, 12, "", "Micro-batches in a group."),
    FLOW_INT(TBatches, held, "0", 0, 4, "", "Held-back batches."),
    FLOW_INT(TBatches, stop_at, "0", 0, 1e9, "", "Group that asks for a stop as it is made."),
    FLOW_INT(TBatches, poison_at, "0", 0, 1e9, "", "Group with a weight that is not a number."),
    FLOW_INT(TBatches, same, "0", 0, 1, "", "Every micro-batch is the first one."),
    FLOW_FLOAT(TBatches, blow, "1", 0, 1e38, "", "Loss weight of every sample."),
    FLOW_END,
};
static const FlowPort t_batches_out[] = {
    {.name = "out",
     .kind = FLOW_BATCH,
     .doc = "Batches.",
     .gives = "latent noise context timestep noise_key weight micro role sample",
     .flags = FLOW_PORT_NEW},
    FLOW_END};
static const FlowStage t_batches = {.abi = FLOW_ABI,
                                    .size = sizeof(FlowStage),
                                    .name = "t_batches",
                                    .summary = "Recorded batches.",
                                    .version = 1,
                                    .flags = FLOW_NEEDS_OUT,
                                    .state_size = sizeof(TBatches),
                                    .params = t_batches_params,
                                    .outputs = t_batches_out,
                                    .open = t_batches_open,
                                    .close = t_batches_close,
                                    .process = t_batches_process};

/* -- graphs ------------------------------------------------------------------------- */

static char *loop_dir; /* of this test, removed at the end */

/* Paths below the test's folder. Returns new. */
static inline char *loop_path(const char *name)
{
    return g_build_filename(loop_dir, name, NULL);
}

/* The usual loop with more lines for each node (NULL = none); `tail` is appended as it is. Returns new. */
typedef struct {
    const char *source, *step, *scale, *adam, *measure, *save, *tail;
} LoopText;

/* `lines`, after `line` where they do not say something else for its key. Returns new. */
static inline char *loop_lines(const char *lines, const char *line)
{
    g_autofree char *key = g_strndup(line, strcspn(line, " "));
    return g_strconcat(lines && strstr(lines, key) ? "" : line, "\n", lines, NULL);
}

static inline char *loop_text(const LoopText *t)
{
    g_autofree char *compute = loop_lines(t->step, "compute = f32"), *step = loop_lines(compute, "alpha = 2");
    g_autofree char *adam = loop_lines(t->adam, "lr = 1e-3"), *save = loop_lines(t->save, "dtype = f32");
    return g_strdup_printf("[graph]\nname = loop\nseed = 3\n[source]\nstage = t_batches\n%s\n"
                           "[step]\nstage = lora_step\nin.batch = source\nin.params = save\nlatents = given\n"
                           "base = tests/fixtures/tiny-sd\nrank = 4\n%s\n"
                           "[scale]\nstage = scaler\nin = step\n%s\n[adam]\nstage = adamw\nin = scale\n%s\n"
                           "[measure]\nstage = validate\nin = adam\nof = step\n%s\n"
                           "[save]\nstage = save_lora\nin = measure\npath = %s/out.safetensors\n%s\n"
                           "[watch]\nstage = monitor\nin = save\nlog = %s/log.jsonl\n%s",
                           t->source ? t->source : "", step, t->scale ? t->scale : "", adam,
                           t->measure ? t->measure : "", loop_dir, save, loop_dir, t->tail ? t->tail : "");
}

static inline FlowGraph *loop_load(const char *text, char **said)
{
    FlowMessages *messages = flow_messages_new();
    g_autofree char *here = g_get_current_dir();
    FlowIni *ini = flow_ini_read_text("loop.ini", here, text, strlen(text), NULL, NULL, messages);
    FlowGraph *graph = flow_graph_load(ini, messages);
    flow_graph_check(graph, messages);
    g_autofree char *found = flow_messages_text(messages);
    gboolean good = !messages->errors;
    flow_messages_free(messages);
    if (good)
        return graph;
    flow_graph_free(graph);
    if (!said)
        g_error("%s", found);
    *said = g_steal_pointer(&found);
    return NULL;
}

/* Runs; the error text in *said if wanted (else there must be none). Checks for leaks of items. */
static inline FlowRunStatus loop_run(const LoopText *t, char **said)
{
    gint64 before = flow_item_live();
    g_autofree char *text = loop_text(t);
    g_autoptr(GError) error = NULL;
    FlowGraph *graph = loop_load(text, said);
    if (!graph)
        return FLOW_RUN_FAILED;
    FlowRunStatus status = FLOW_RUN_FAILED;
    if (flow_graph_open(graph, &error))
        status = flow_graph_run(graph, NULL, &error);
    flow_graph_free(graph);
    g_assert_cmpint(flow_item_live(), ==, before);
    if (said)
        *said = error ? g_strdup(error->message) : NULL;
    else
        g_assert_no_error(error);
    return status;
}

/* The log as an array of objects. Returns new. */
static inline json_t *loop_log(void)
{
    g_autofree char *path = loop_path("log.jsonl"), *text = NULL;
    json_t *all = json_array();
    if (!g_file_get_contents(path, &text, NULL, NULL))
        return all;
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (guint i = 0; lines[i] && *lines[i]; i++) {
        json_t *line = json_loads(lines[i], 0, NULL);
        if (!line)
            g_error("not JSON: %s", lines[i]);
        json_array_append_new(all, line);
    }
    return all;
}

static inline double loop_number(json_t *log, gsize i, const char *key)
{
    json_t *v = json_object_get(json_array_get(log, i), key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* Contents of the file, NULL if there is none. */
static inline GBytes *loop_file(const char *name)
{
    g_autofree char *path = loop_path(name);
    char *data;
    gsize n;
    return g_file_get_contents(path, &data, &n, NULL) ? g_bytes_new_take(data, n) : NULL;
}

static inline void loop_clean(void)
{
    const char *name;
    GDir *dir = g_dir_open(loop_dir, 0, NULL);
    while (dir && (name = g_dir_read_name(dir))) {
        g_autofree char *path = loop_path(name);
        g_unlink(path);
    }
    if (dir)
        g_dir_close(dir);
}

static inline void loop_start(void)
{
    g_autoptr(GError) error = NULL;
    g_setenv("SOURCE_DATE_EPOCH", "1700000000", TRUE);
    flow_plugin_add(&t_batches, &error);
    g_assert_no_error(error);
    loop_dir = g_dir_make_tmp("loraflow-loop-XXXXXX", &error);
    g_assert_no_error(error);
}

static inline void loop_end(void)
{
    loop_clean();
    g_rmdir(loop_dir);
    g_free(loop_dir);
}

#endif
