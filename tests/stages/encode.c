/* vae_encode and text_encode as nodes: values against diffusers and transformers, the same bits for every
 * batch, order kept, hits passed on, weights freed when caches are filled, bad sizes named.
 *
 * @label stage short
 * @link jansson
 * @timeout 60
 */
#include "core/flow/graph.h"
#include "tests/golden.h"

/* Samples 0 .. items - 1: the two recorded pictures (of two sizes) in turn, and the four captions. */
typedef struct {
    gint64 items, next, filled, wide, runs;
    SafeFile *golden;
    char *captions[4];
} TPictures;

static gboolean t_pictures_open(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    TPictures *s = flow_node_state(node);
    json_t *root = json_load_file("tests/fixtures/golden.json", 0, NULL);
    json_t *captions =
        json_object_get(json_object_get(json_object_get(root, "models"), "tiny-sd"), "captions4");
    for (guint i = 0; i < 4; i++)
        s->captions[i] = g_strdup(json_string_value(json_array_get(captions, i)));
    json_decref(root);
    s->golden = golden_open("tiny-sd", "forward");
    return TRUE;
}

static void t_pictures_close(FlowNode *node)
{
    TPictures *s = flow_node_state(node);
    for (guint i = 0; i < 4; i++)
        g_free(s->captions[i]);
    safe_close(s->golden);
}

static FlowItem *picture(const TPictures *s, gint64 i)
{
    FlowItem *item = flow_item_new(FLOW_SAMPLE);
    const SafeTensor *t = golden_tensor(s->golden, i / s->runs % 2 ? "vae/image1" : "vae/image0");
    gint64 shape[] = {t->shape[0], t->shape[1] + s->wide, 3};
    FlowValue *pixels = flow_value_new(NET_U8, 3, shape);
    memset(pixels->data, 0, pixels->nbytes);
    memcpy(pixels->data, safe_data(s->golden, t), t->nbytes);
    g_autofree char *path = g_strdup_printf("picture-%d.png", (int)i);
    flow_item_set(item, FLOW_F_PIXELS, pixels);
    flow_item_set(item, FLOW_F_PATH, flow_value_string(path));
    flow_item_set(item, FLOW_F_CAPTION, flow_value_string(s->captions[i % 4]));
    flow_item_set_i64(item, FLOW_F_SAMPLE, &i, 1);
    if (s->filled && i % s->filled == 0) { /* as a cache lookup leaves it */
        float found = (float)i;
        flow_item_drop(item, FLOW_F_PIXELS);
        flow_item_set_f32(item, FLOW_F_LATENT_MEAN, &found, 1);
        flow_item_set_f32(item, FLOW_F_LATENT_LOGVAR, &found, 1);
        flow_item_set_f32(item, FLOW_F_CONTEXT, &found, 1);
        item->filled = FLOW_FIELD_BIT(FLOW_F_LATENT_MEAN) | FLOW_FIELD_BIT(FLOW_F_LATENT_LOGVAR) |
                       FLOW_FIELD_BIT(FLOW_F_CONTEXT);
    }
    return item;
}

static FlowStatus t_pictures_process(FlowCtx *ctx, FlowItem **in G_GNUC_UNUSED, GError **error G_GNUC_UNUSED)
{
    TPictures *s = flow_ctx_state(ctx);
    if (s->next == s->items)
        return FLOW_EOS;
    FlowItem *item = picture(s, s->next);
    item->cursor = (FlowCursor){.position = s->next++, .size = s->items};
    return flow_emit(ctx, 0, item);
}

static const FlowParam t_pictures_params[] = {
    FLOW_INT(TPictures, items, "8", 0, 1000, "", "Samples."),
    FLOW_INT(TPictures, filled, "0", 0, 1000, "", "Every so manieth is a hit."),
    FLOW_INT(TPictures, runs, "1", 1, 1000, "", "Pictures of one size behind each other."),
    FLOW_INT(TPictures, wide, "0", 0, 100, "px", "Added to the width."),
    FLOW_END,
};
static const FlowPort t_pictures_out[] = {
    {.name = "out", .doc = "Pictures.", .gives = "pixels caption path sample", .flags = FLOW_PORT_NEW},
    FLOW_END};
static const FlowStage t_pictures = {.abi = FLOW_ABI,
                                     .size = sizeof(FlowStage),
                                     .name = "t_pictures",
                                     .summary = "Recorded pictures.",
                                     .version = 1,
                                     .flags = FLOW_NEEDS_OUT,
                                     .state_size = sizeof(TPictures),
                                     .params = t_pictures_params,
                                     .outputs = t_pictures_out,
                                     .open = t_pictures_open,
                                     .close = t_pictures_close,
                                     .process = t_pictures_process};

/* Keeps what arrives. */
static GPtrArray *seen;

static FlowStatus t_keep_process(FlowCtx *ctx G_GNUC_UNUSED, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    g_ptr_array_add(seen, flow_take(&in[0]));
    return FLOW_OK;
}

static const FlowPort t_keep_in[] = {{.name = "in", .doc = "Samples.", .needs = "sample"}, FLOW_END};
static const FlowStage t_keep = {.abi = FLOW_ABI,
                                 .size = sizeof(FlowStage),
                                 .name = "t_keep",
                                 .summary = "Keep.",
                                 .version = 1,
                                 .flags = FLOW_STATEFUL,
                                 .inputs = t_keep_in,
                                 .process = t_keep_process};

/* Runs source -> vae_encode -> text_encode -> keep into `seen`. Returns the error text or NULL. */
static char *run(const char *source, const char *encoders)
{
    g_autofree char *here = g_get_current_dir();
    g_autofree char *text =
        g_strdup_printf("[graph]\nname = encode\n[source]\nstage = t_pictures\n%s\n"
                        "[latents]\nstage = vae_encode\nin = source\nbase = tests/fixtures/tiny-sd\n%s\n"
                        "[text]\nstage = text_encode\nin = latents\nbase = "
                        "tests/fixtures/tiny-sd\n%s\n[keep]\nstage = t_keep\nin = text\n",
                        source, encoders, encoders);
    FlowMessages *messages = flow_messages_new();
    FlowIni *ini = flow_ini_read_text("encode.ini", here, text, strlen(text), NULL, NULL, messages);
    FlowGraph *graph = flow_graph_load(ini, messages);
    flow_graph_check(graph, messages);
    g_autofree char *found = flow_messages_text(messages);
    if (messages->errors)
        g_error("%s", found);
    flow_messages_free(messages);
    g_autoptr(GError) error = NULL;
    if (seen)
        g_ptr_array_unref(seen);
    seen = g_ptr_array_new_with_free_func((GDestroyNotify)flow_item_unref);
    if (flow_graph_open(graph, &error))
        flow_graph_run(graph, NULL, &error);
    flow_graph_free(graph);
    return error ? g_strdup(error->message) : NULL;
}

static void check_order(guint n)
{
    g_assert_cmpuint(seen->len, ==, n);
    for (guint i = 0; i < n; i++)
        g_assert_cmpint(*flow_item_i64(seen->pdata[i], FLOW_F_SAMPLE), ==, i);
}

static const FlowValue *value(guint i, FlowField field)
{
    const FlowValue *v = flow_item_get(seen->pdata[i], field);
    g_assert_nonnull(v);
    return v;
}

/* Gates of fixtures/README. */
static void test_values(void)
{
    g_assert_null(run("items = 4", "compute = f32"));
    check_order(4);
    SafeFile *golden = golden_open("tiny-sd", "forward");
    for (guint i = 0; i < 4; i++) {
        g_autofree float *mean = golden_image(golden, i % 2 ? "vae/image1_mean" : "vae/image0_mean");
        g_autofree float *logvar = golden_image(golden, i % 2 ? "vae/image1_logvar" : "vae/image0_logvar");
        g_autofree float *context = golden_f32(golden, "te/context");
        const FlowValue *m = value(i, FLOW_F_LATENT_MEAN), *v = value(i, FLOW_F_LATENT_LOGVAR);
        const FlowValue *c = value(i, FLOW_F_CONTEXT);
        g_assert_cmpint(m->shape[0], ==, i % 2 ? 20 : 32);
        g_assert_cmpint(m->shape[1], ==, i % 2 ? 36 : 32);
        golden_near("mean", m->data, mean, flow_value_count(m), 5e-6);
        golden_near("logvar", v->data, logvar, flow_value_count(v), 5e-6);
        golden_near("context", c->data, context + i * 77 * 32, 77 * 32, 5e-6);
        g_assert_null(flow_item_get(seen->pdata[i], FLOW_F_PIXELS));
    }
    safe_close(golden);
}

/* What is encoded together does not show in the result. */
static void test_batches(const void *data)
{
    static const FlowField fields[] = {FLOW_F_LATENT_MEAN, FLOW_F_LATENT_LOGVAR, FLOW_F_CONTEXT};
    static const char *const batches[] = {"1", "3", "4"};
    GPtrArray *first = NULL;
    for (guint k = 0; k < G_N_ELEMENTS(batches); k++) {
        g_autofree char *encoders =
            g_strdup_printf("compute = %s\nbatch = %s", (const char *)data, batches[k]);
        g_assert_null(run("items = 14\nruns = 6\nfilled = 5", encoders));
        check_order(14);
        if (!first) {
            first = g_steal_pointer(&seen);
            continue;
        }
        for (guint i = 0; i < 14; i++)
            for (guint f = 0; f < G_N_ELEMENTS(fields); f++) {
                const FlowValue *a = flow_item_get(first->pdata[i], fields[f]), *b = value(i, fields[f]);
                g_assert_cmpmem(a->data, a->nbytes, b->data, b->nbytes);
            }
    }
    g_ptr_array_unref(first);
}

static void test_hits(void)
{
    g_assert_null(run("items = 7\nfilled = 3", "batch = 4"));
    check_order(7);
    for (guint i = 0; i < 7; i += 3)
        g_assert_cmpfloat(*flow_item_f32(seen->pdata[i], FLOW_F_CONTEXT), ==, i);
}

static void test_bad_size(void)
{
    g_autofree char *said = run("items = 1\nwide = 1", "batch = 1");
    g_assert_nonnull(said);
    g_assert_nonnull(strstr(said, "65 x 64 px"));
    g_assert_nonnull(strstr(said, "multiples of 4"));
    g_assert_nonnull(strstr(said, "picture-0.png"));
}

int main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    g_test_init(&argc, &argv, NULL);
    flow_plugin_add(&t_pictures, &error);
    g_assert_no_error(error);
    flow_plugin_add(&t_keep, &error);
    g_assert_no_error(error);
    g_test_add_func("/encode/values", test_values);
    g_test_add_data_func("/encode/batches/f32", "f32", test_batches);
    g_test_add_data_func("/encode/batches/bf16", "bf16", test_batches);
    g_test_add_func("/encode/hits", test_hits);
    g_test_add_func("/encode/bad-size", test_bad_size);
    int rc = g_test_run();
    g_ptr_array_unref(seen);
    return rc;
}
