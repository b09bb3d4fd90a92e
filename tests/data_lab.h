/* Stages for tests of the data path: items that a test has prepared go in, what comes out is collected.
 *
 *   t_items    source: the samples and marks of lab_items, in order; t_batches the same for batches
 *   t_picture  encoder of pictures: latents that follow from file_id, geometry and `salt`
 *   t_text     encoder of captions
 *   t_got      sink: references to all that arrives, in lab_got
 *
 * Encoders count their calls (lab_pictures, lab_texts), are slow on request and call a picture bad by rule.
 */
#ifndef TESTS_DATA_LAB_H
#define TESTS_DATA_LAB_H
#include "tests/graph_lab.h"

static GPtrArray *lab_items, *lab_got;
static const char *lab_gives = ""; /* fields of lab_items */
static _Atomic(gint64) lab_pictures, lab_texts;

/* -- t_items ------------------------------------------------------------------------ */

typedef struct {
    guint next;
} TItems;

static gboolean t_items_describe(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    flow_node_gives(node, "out", lab_gives);
    return TRUE;
}

static FlowStatus t_items_process(FlowCtx *ctx, FlowItem **in G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    TItems *s = flow_ctx_state(ctx);
    if (s->next == lab_items->len)
        return FLOW_EOS;
    /* a copy: seq and the like are the host's, and the prepared ones are used again */
    FlowItem *item = flow_item_ref(g_ptr_array_index(lab_items, s->next++));
    return flow_emit(ctx, 0, flow_item_writable(&item));
}

static const FlowPort t_items_out[] = {{.name = "out", .doc = "Samples.", .flags = FLOW_PORT_NEW}, FLOW_END};
static const FlowStage t_items = {.abi = FLOW_ABI,
                                  .size = sizeof(FlowStage),
                                  .name = "t_items",
                                  .summary = "Samples.",
                                  .version = 1,
                                  .state_size = sizeof(TItems),
                                  .outputs = t_items_out,
                                  .describe = t_items_describe,
                                  .process = t_items_process};
static const FlowPort t_batches_out[] = {
    {.name = "out", .kind = FLOW_BATCH, .doc = "Batches.", .flags = FLOW_PORT_NEW}, FLOW_END};
static const FlowStage t_batches = {.abi = FLOW_ABI,
                                    .size = sizeof(FlowStage),
                                    .name = "t_batches",
                                    .summary = "Batches.",
                                    .version = 1,
                                    .state_size = sizeof(TItems),
                                    .outputs = t_batches_out,
                                    .describe = t_items_describe,
                                    .process = t_items_process};

/* -- encoders ----------------------------------------------------------------------- */

typedef struct {
    gint64 salt, bad, ms;
    double scale;
} TEncoder;

enum { LAB_CHANNELS = 4 };

/* What t_picture gives for an item; the test computes the same. */
static inline float lab_latent(const FlowItem *item, gint64 salt, gsize i, int which)
{
    const gint64 *id = flow_item_i64(item, FLOW_F_FILE_ID);
    guint64 key = flow_random_key((guint64)(id[1] * 1000 + id[3]), "latent", (gint64[]){salt, which}, 2);
    return (float)(flow_random_uniform(key, i) * 4 - 2);
}

static inline float lab_state(const char *caption, gsize i)
{
    return (float)(flow_random_uniform(flow_random_key(3, caption, NULL, 0), i) * 4 - 2);
}

static inline FlowStatus t_picture_process(FlowCtx *ctx, FlowItem **in, GError **error)
{
    TEncoder *s = flow_ctx_state(ctx);
    const gint32 *g = flow_item_i32(in[0], FLOW_F_GEOMETRY);
    gint64 shape[3] = {g[0] / 8, g[1] / 8, LAB_CHANNELS};
    atomic_fetch_add(&lab_pictures, 1);
    if (s->ms)
        nanosleep(&(struct timespec){0, s->ms * 1000000}, NULL);
    if (*flow_item_i64(in[0], FLOW_F_SAMPLE) == s->bad) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, "bad picture");
        return FLOW_SKIP;
    }
    FlowItem *item = flow_item_writable(&in[0]);
    for (int which = 0; which < 2; which++) {
        FlowValue *v = flow_value_new(NET_F32, 3, shape);
        for (gsize i = 0; i < flow_value_count(v); i++)
            ((float *)v->data)[i] = lab_latent(item, s->salt, i, which) * (float)s->scale;
        flow_item_set(item, which ? FLOW_F_LATENT_LOGVAR : FLOW_F_LATENT_MEAN, v);
    }
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static inline FlowStatus t_text_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    atomic_fetch_add(&lab_texts, 1);
    FlowItem *item = flow_item_writable(&in[0]);
    FlowValue *v = flow_value_new(NET_F32, 2, (gint64[]){5, 7});
    for (gsize i = 0; i < 35; i++)
        ((float *)v->data)[i] = lab_state(flow_item_string(item, FLOW_F_CAPTION), i);
    flow_item_set(item, FLOW_F_CONTEXT, v);
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static const FlowParam t_encoder_params[] = {
    FLOW_INT(TEncoder, salt, "0", 0, 1e9, "", "Another result."),
    FLOW_INT(TEncoder, bad, "-1", -1, 1e9, "", "Sample that is bad.", | FLOW_P_NORESULT),
    FLOW_INT(TEncoder, ms, "0", 0, 900, "ms", "Time for an item.", | FLOW_P_NORESULT),
    FLOW_FLOAT(TEncoder, scale, "1", 0, 1e30, "", "Factor."),
    FLOW_END,
};
static const FlowPort t_picture_in[] = {
    {.name = "in", .doc = "Pictures.", .needs = "path file_id geometry sample"}, FLOW_END};
static const FlowPort t_picture_out[] = {
    {.name = "out", .doc = "Latents.", .gives = "latent_mean latent_logvar"}, FLOW_END};
static const FlowPort t_text_in[] = {{.name = "in", .doc = "Captions.", .needs = "caption"}, FLOW_END};
static const FlowPort t_text_out[] = {{.name = "out", .doc = "Context.", .gives = "context"}, FLOW_END};
static const FlowStage t_picture = {.abi = FLOW_ABI,
                                    .size = sizeof(FlowStage),
                                    .name = "t_picture",
                                    .summary = "Encode.",
                                    .version = 1,
                                    .flags = FLOW_PARALLEL,
                                    .state_size = sizeof(TEncoder),
                                    .params = t_encoder_params,
                                    .inputs = t_picture_in,
                                    .outputs = t_picture_out,
                                    .process = t_picture_process};
static const FlowStage t_text = {.abi = FLOW_ABI,
                                 .size = sizeof(FlowStage),
                                 .name = "t_text",
                                 .summary = "Encode.",
                                 .version = 1,
                                 .flags = FLOW_PARALLEL,
                                 .inputs = t_text_in,
                                 .outputs = t_text_out,
                                 .process = t_text_process};

/* -- t_got -------------------------------------------------------------------------- */

static FlowStatus t_got_process(FlowCtx *ctx G_GNUC_UNUSED, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    g_ptr_array_add(lab_got, flow_take(&in[0]));
    return FLOW_OK;
}

static const FlowPort t_got_in[] = {{.name = "in", .doc = "Items.", .flags = FLOW_PORT_ANY}, FLOW_END};
static const FlowStage t_got = {.abi = FLOW_ABI,
                                .size = sizeof(FlowStage),
                                .name = "t_got",
                                .summary = "Collect.",
                                .version = 1,
                                .flags = FLOW_STATEFUL | FLOW_MARKS,
                                .inputs = t_got_in,
                                .process = t_got_process};

/* -- running ------------------------------------------------------------------------ */

static inline void data_lab_init(void)
{
    const FlowStage *stages[] = {&t_items, &t_batches, &t_picture, &t_text, &t_got};
    lab_add_stages();
    for (guint i = 0; i < G_N_ELEMENTS(stages); i++) {
        g_autoptr(GError) error = NULL;
        flow_plugin_add(stages[i], &error);
        g_assert_no_error(error);
    }
    lab_items = g_ptr_array_new_with_free_func((GDestroyNotify)flow_item_unref);
    lab_got = g_ptr_array_new_with_free_func((GDestroyNotify)flow_item_unref);
}

/* Runs the graph to its end; `counters` of the form "NODE.COUNTER" go to values[]. What was collected before
 * is dropped first. The error text if it failed (new), else NULL. */
static inline char *data_lab_try(const char *text, const char *const *counters, double *values)
{
    g_autoptr(GError) error = NULL;
    g_ptr_array_set_size(lab_got, 0);
    lab_pictures = lab_texts = 0;
    FlowGraph *graph = NULL;
    g_autofree char *messages = lab_check(text, &graph);
    if (!graph)
        return g_steal_pointer(&messages);
    if (flow_graph_open(graph, &error))
        flow_graph_run(graph, NULL, &error);
    for (guint i = 0; counters && counters[i]; i++) {
        g_auto(GStrv) part = g_strsplit(counters[i], ".", 2);
        FlowNode *node = flow_graph_node_named(graph, part[0]);
        g_assert_nonnull(node);
        values[i] = flow_node_counter(node, part[1]);
    }
    flow_graph_free(graph);
    return error ? g_strdup(error->message) : NULL;
}

static inline void data_lab_run(const char *text, const char *const *counters, double *values)
{
    g_autofree char *error = data_lab_try(text, counters, values);
    if (error)
        g_error("%s", error);
}

static inline void data_lab_refused(const char *text, const char *says)
{
    g_autofree char *error = data_lab_try(text, NULL, NULL);
    if (!error || !strstr(error, says))
        g_error("'%s' does not say '%s'", error ? error : "(no error)", says);
}

/* Drops everything and looks for leaks. */
static inline void data_lab_clean(void)
{
    g_ptr_array_set_size(lab_items, 0);
    g_ptr_array_set_size(lab_got, 0);
    g_assert_cmpint(flow_item_live(), ==, 0);
}

/* -- prepared items ----------------------------------------------------------------- */

/* A reference to picture `sample` of 64 x 64, as image_folder and bucket give it; added to lab_items. */
static inline FlowItem *lab_reference(gint64 sample, gint64 epoch, gint64 position, gint64 size)
{
    FlowItem *item = flow_item_new(FLOW_SAMPLE);
    g_autofree char *path = g_strdup_printf("%" G_GINT64_FORMAT ".png", sample);
    g_autofree char *caption = g_strdup_printf("caption %" G_GINT64_FORMAT, sample);
    item->cursor = (FlowCursor){.epoch = epoch, .position = position, .size = size, .epochs = 3};
    flow_item_set(item, FLOW_F_PATH, flow_value_string(path));
    flow_item_set(item, FLOW_F_CAPTION, flow_value_string(caption));
    flow_item_set_i64(item, FLOW_F_FILE_ID, (gint64[]){1, 100 + sample, 5000, 7, 8}, 5);
    flow_item_set_i64(item, FLOW_F_SAMPLE, &sample, 1);
    flow_item_set_i32(item, FLOW_F_ROLE, (gint32[]){0}, 1);
    flow_item_set_i32(item, FLOW_F_SOURCE_SIZE, (gint32[]){100, 100}, 2);
    flow_item_set_i32(item, FLOW_F_GEOMETRY, (gint32[]){64, 64, 64, 64, 0, 0, 0}, 7);
    flow_item_set_f32(item, FLOW_F_COMPLEXITY, (float[]){0.5f}, 1);
    flow_item_set_f32(item, FLOW_F_SCORES, (float[]){0.5f, 0.5f, 0, 0, 0}, 5);
    g_ptr_array_add(lab_items, item);
    return item;
}
#define LAB_REFERENCE "path caption file_id sample role source_size geometry complexity scores"

static inline void lab_mark(FlowMark mark, gint64 epoch)
{
    FlowCursor cursor = {.epoch = epoch};
    g_ptr_array_add(lab_items, flow_item_new_mark(mark, &cursor));
}

#endif
