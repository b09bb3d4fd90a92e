/* Graph files: every one in tests/graphs/good passes check without a word, every one in tests/graphs/bad
 * yields exactly the text beside it. LORAFLOW_UPDATE=1 writes those texts.
 *
 * @label short
 */
#include "tests/graph_lab.h"

/* -- stages for the files ------------------------------------------------------------ */

static const FlowFieldInfo t_fields[] = {
    {"t_depth", "h w", "distance", NET_F32, 0},
    {"t_flat", "1", "is it flat", NET_F32, 0},
    {"t_nowhere", "1", "given by no stage", NET_F32, 0},
};

typedef struct {
    gint64 width;
    double rate;
    guint64 room;
    gboolean fast;
    int mode;
    char *text, *file, **list;
    FlowNode *of;
} TParams;

static FlowStatus pass(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static gboolean describe_list(FlowNode *node, GError **error)
{
    const TParams *params = flow_node_state(node);
    if (params->width == 100 && params->fast) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                    "width = 100 and fast = yes contradict each other");
        return FALSE;
    }
    if (params->list) {
        g_autofree char *needs = g_strjoinv(" ", params->list);
        flow_node_needs(node, "in", needs);
    }
    return TRUE;
}

static const FlowParam params[] = {
    FLOW_INT(TParams, width, "64", 16, 4096, "px", "Width."),
    FLOW_FLOAT(TParams, rate, "0.5", 0, 1, "", "Rate."),
    FLOW_SIZE(TParams, room, "1MiB", 1, 1e12, "Room."),
    FLOW_BOOL(TParams, fast, "no", "Fast."),
    FLOW_ENUM(TParams, mode, "soft", "soft|hard", "Mode."),
    FLOW_STRING(TParams, text, "", "Text."),
    FLOW_PATH(TParams, file, "", "File."),
    FLOW_LIST(TParams, list, "", "Fields that it needs."),
    FLOW_NODE(TParams, of, "", "Another node."),
    FLOW_END,
};
typedef struct {
    gint64 must;
} TMust;
static const FlowParam must[] = {FLOW_INT(TMust, must, NULL, 0, 9, "", "Has no default."), FLOW_END};

#define ONE(n, ...) static const FlowPort n[] = {{__VA_ARGS__}, FLOW_END}
ONE(any_in, .name = "in", .doc = "Any.", .flags = FLOW_PORT_ANY);
ONE(any_out, .name = "out", .doc = "Any.", .flags = FLOW_PORT_ANY);
ONE(sample_in, .name = "in", .doc = "Samples.");
ONE(sample_out, .name = "out", .doc = "Samples.");
ONE(depth_in, .name = "in", .doc = "Samples.", .needs = "t_depth t_flat?");
ONE(depth_out, .name = "out", .doc = "Samples.", .gives = "t_depth");
ONE(drop_out, .name = "out", .doc = "Samples.", .drops = "t_depth");
ONE(new_out, .name = "out", .doc = "Samples.", .gives = "t_flat t_depth?", .flags = FLOW_PORT_NEW);
ONE(batch_in, .name = "in", .kind = FLOW_BATCH, .doc = "Batches.");
ONE(batch_out, .name = "out", .kind = FLOW_BATCH, .doc = "Batches.");
static const FlowPort two_out[] = {
    {.name = "left", .doc = "Some."}, {.name = "right", .doc = "Others."}, FLOW_END};
static const FlowPort loop_in[] = {
    {.name = "batch", .doc = "Samples."},
    {.name = "params", .doc = "Settled.", .kind = FLOW_STEP, .flags = FLOW_PORT_FEEDBACK},
    FLOW_END};
ONE(loop_out, .name = "out", .kind = FLOW_STEP, .doc = "Steps.", .gives = "step model",
    .flags = FLOW_PORT_NEW);
ONE(model_in, .name = "in", .kind = FLOW_STEP, .doc = "Steps.", .needs = "model");
ONE(step_out, .name = "out", .kind = FLOW_STEP, .doc = "Steps.");

#define STAGE(n, ...)                                                                                        \
    {                                                                                                        \
        .abi = FLOW_ABI, .size = sizeof(FlowStage), .name = n, .summary = "Test.", .process = pass,          \
        __VA_ARGS__                                                                                          \
    }
static const FlowStage stages[] = {
    STAGE("t_params", .state_size = sizeof(TParams), .params = params, .inputs = any_in, .outputs = any_out,
          .describe = describe_list),
    STAGE("t_must", .state_size = sizeof(TMust), .params = must, .inputs = any_in, .outputs = any_out),
    STAGE("t_depth", .inputs = sample_in, .outputs = depth_out, .flags = FLOW_PARALLEL),
    STAGE("t_depth_two", .inputs = sample_in, .outputs = depth_out),
    STAGE("t_flatten", .inputs = depth_in, .outputs = sample_out),
    STAGE("t_drop", .inputs = sample_in, .outputs = drop_out),
    STAGE("t_new", .inputs = sample_in, .outputs = new_out),
    STAGE("t_batch", .inputs = sample_in, .outputs = batch_out),
    STAGE("t_eat", .inputs = batch_in),
    STAGE("t_two", .inputs = sample_in, .outputs = two_out),
    STAGE("t_loop", .inputs = loop_in, .outputs = loop_out),
    STAGE("t_model", .inputs = model_in, .outputs = step_out),
    STAGE("checkpoint", .inputs = model_in, .outputs = step_out),
};

/* -- the files ---------------------------------------------------------------------- */

static char *messages_of(const char *path)
{
    FlowMessages *messages = flow_messages_new();
    FlowGraph *graph = flow_graph_load(flow_ini_read(path, NULL, NULL, messages), messages);
    flow_graph_check(graph, messages);
    char *text = flow_messages_text(messages);
    flow_graph_free(graph);
    flow_messages_free(messages);
    return text;
}

static void test_good(gconstpointer path)
{
    g_autofree char *text = messages_of(path);
    g_assert_cmpstr(text, ==, "");
}

/* F-13 (stage, keys), F-23 (cycle, kinds, links, missing), F-24 and H-07 (keys) */
static void test_bad(gconstpointer path)
{
    g_autofree char *text = messages_of(path), *expected = NULL;
    g_autofree char *base = g_strndup(path, strlen(path) - 4), *file = g_strconcat(base, ".expected", NULL);
    if (g_getenv("LORAFLOW_UPDATE"))
        g_file_set_contents(file, text, -1, NULL);
    g_assert_true(g_file_get_contents(file, &expected, NULL, NULL));
    g_assert_cmpstr(text, ==, expected);
    g_assert_cmpstr(text, !=, "");
}

/* Ten thousand nodes are checked, not recursed into. */
static void test_many(void)
{
    GString *text = g_string_new("[n0]\nstage=t_count\n");
    for (guint i = 1; i < 10000; i++)
        g_string_append_printf(text, "[n%u]\nstage=%s\nin=n%u\n", i, i % 2 ? "t_depth" : "gate", i - 1);
    g_string_append(text, "[end]\nstage=null\nin=n9999\n[tee]\nstage=null\nin=n1\n");
    gint64 start = g_get_monotonic_time();
    g_autofree char *found = lab_check(text->str, NULL);
    /* F-23 */
    g_assert_cmpstr(found, ==, "");
    g_assert_cmpint(g_get_monotonic_time() - start, <, 10000000);
    g_string_free(text, TRUE);
}

static void add_files(const char *folder, GTestDataFunc test)
{
    g_autoptr(GError) error = NULL;
    GDir *dir = g_dir_open(folder, 0, &error);
    guint n = 0;
    g_assert_no_error(error);
    for (const char *name; (name = g_dir_read_name(dir));) {
        if (!g_str_has_suffix(name, ".ini"))
            continue;
        char *path = g_build_filename(folder, name, NULL);
        g_autofree char *label = g_strdup_printf("/graphs/%s", path + strlen("tests/graphs/"));
        g_test_add_data_func_full(label, path, test, g_free);
        n++;
    }
    g_dir_close(dir);
    g_assert_cmpuint(n, >, 2);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    lab_add_stages();
    for (guint i = 0; i < G_N_ELEMENTS(t_fields); i++)
        g_assert_cmpint(flow_field_register(&t_fields[i], NULL), >=, 0);
    for (guint i = 0; i < G_N_ELEMENTS(stages); i++) {
        g_autoptr(GError) error = NULL;
        flow_plugin_add(&stages[i], &error);
        g_assert_no_error(error);
    }
    g_test_add_func("/graphs/many", test_many);
    add_files("tests/graphs/good", test_good);
    add_files("tests/graphs/bad", test_bad);
    return g_test_run();
}
