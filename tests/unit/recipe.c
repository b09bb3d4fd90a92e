/* Caches, as the host sees them: recipes change with what changes a result and with nothing else; items that
 * a cache has skip the nodes between lookup and store, and look like the others behind it.
 *
 * @label short
 */
#include "tests/graph_lab.h"

/* -- stages: lookup -> image -> latent -> text -> store --------------------------------- */

typedef struct {
    gint64 quality, threads;
    char *note;
    FlowNode *of;
} TMake;

static void set_number(FlowItem *item, FlowField field, gint64 n)
{
    flow_item_set_i64(item, field, &n, 1);
}

/* Every maker leaves its number behind and counts its calls. */
static FlowStatus make(FlowCtx *ctx, FlowItem **in, FlowField field)
{
    flow_node_count(flow_ctx_node(ctx), "calls", 1);
    flow_item_writable(&in[0]);
    set_number(in[0], field, *flow_item_i64(in[0], FLOW_F_SAMPLE));
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static FlowStatus image_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    return make(ctx, in, FLOW_F_IMAGE);
}

static FlowStatus latent_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    g_assert_nonnull(flow_item_get(in[0], FLOW_F_IMAGE));
    return make(ctx, in, FLOW_F_LATENT_MEAN);
}

static FlowStatus text_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    return make(ctx, in, FLOW_F_CONTEXT);
}

static FlowStatus look_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    g_assert_nonnull(flow_item_get(in[0], FLOW_F_IMAGE));
    flow_node_count(flow_ctx_node(ctx), "calls", 1);
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static const char *weights = "abc"; /* what recipe() of t_latent says */

static char *latent_recipe(FlowNode *node G_GNUC_UNUSED, GError **error)
{
    if (!weights)
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, "no weights");
    return g_strdup(weights);
}

/* Number n: 4k has everything, 4k+1 the latent, 4k+2 is on its way, 4k+3 nothing. */
static FlowStatus lookup_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    gint64 n = *flow_item_i64(in[0], FLOW_F_SAMPLE);
    FlowItem *item = flow_item_writable(&in[0]);
    item->pending = n % 4 == 2;
    if (n % 4 <= 1) {
        set_number(item, FLOW_F_LATENT_MEAN, n);
        item->filled |= FLOW_FIELD_BIT(FLOW_F_LATENT_MEAN);
    }
    if (n % 4 == 0) {
        set_number(item, FLOW_F_CONTEXT, n);
        item->filled |= FLOW_FIELD_BIT(FLOW_F_CONTEXT);
    }
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

typedef struct {
    FlowNode *cache;
} TStore;

static gboolean store_describe(FlowNode *node, GError **error G_GNUC_UNUSED)
{
    const TStore *store = flow_node_state(node);
    flow_node_stores(store->cache, node, FLOW_FIELD_BIT(FLOW_F_LATENT_MEAN) | FLOW_FIELD_BIT(FLOW_F_CONTEXT));
    return TRUE;
}

static FlowStatus store_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    FlowItem *item = flow_item_writable(&in[0]);
    if (item->pending) {
        g_assert_null(flow_item_get(item, FLOW_F_LATENT_MEAN));
        set_number(item, FLOW_F_LATENT_MEAN, -1);
        set_number(item, FLOW_F_CONTEXT, -1);
        item->pending = FALSE;
    }
    g_assert_nonnull(flow_item_get(item, FLOW_F_LATENT_MEAN));
    g_assert_nonnull(flow_item_get(item, FLOW_F_CONTEXT));
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

/* Behind the store hits and misses carry the same fields. */
static FlowStatus end_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    g_assert_null(flow_item_get(in[0], FLOW_F_IMAGE));
    g_assert_nonnull(flow_item_get(in[0], FLOW_F_CONTEXT));
    flow_node_count(flow_ctx_node(ctx), "items", 1);
    return FLOW_OK;
}

static FlowStatus facts_process(FlowCtx *ctx, FlowItem **in, GError **error G_GNUC_UNUSED)
{
    flow_item_writable(&in[0]);
    set_number(in[0], FLOW_F_FILE_ID, 1);
    flow_item_set(in[0], FLOW_F_CAPTION, flow_value_string("a caption"));
    return flow_emit(ctx, 0, flow_take(&in[0]));
}

static const FlowParam make_params[] = {
    FLOW_INT(TMake, quality, "5", 0, 9, "", "Changes the result."),
    FLOW_INT(TMake, threads, "1", 0, 9, "", "Does not.", | FLOW_P_NORESULT),
    FLOW_STRING(TMake, note, "", "Changes the result too."),
    FLOW_NODE(TMake, of, "", "Another node."),
    FLOW_END,
};
static const FlowParam store_params[] = {FLOW_NODE(TStore, cache, NULL, "The lookup."), FLOW_END};
#define ONE(n, ...) static const FlowPort n[] = {{__VA_ARGS__}, FLOW_END}
ONE(plain_in, .name = "in", .doc = "Samples.", .needs = "sample");
ONE(plain_out, .name = "out", .doc = "Samples.");
ONE(image_in, .name = "in", .doc = "Samples.", .needs = "path file_id geometry?");
ONE(image_out, .name = "out", .doc = "Samples.", .gives = "image");
ONE(latent_in, .name = "in", .doc = "Samples.", .needs = "image");
ONE(latent_out, .name = "out", .doc = "Samples.", .gives = "latent_mean");
ONE(text_in, .name = "in", .doc = "Samples.", .needs = "caption");
ONE(text_out, .name = "out", .doc = "Samples.", .gives = "context");
ONE(store_in, .name = "in", .doc = "Samples.", .needs = "latent_mean context");
ONE(facts_out, .name = "out", .doc = "Samples.", .gives = "file_id caption");
#define STAGE(n, ...)                                                                                        \
    {                                                                                                        \
        .abi = FLOW_ABI, .size = sizeof(FlowStage), .name = n, .summary = "Test.", __VA_ARGS__               \
    }
#define MAKER .state_size = sizeof(TMake), .params = make_params, .version = 1
static const FlowStage stages[] = {
    STAGE("t_facts", .inputs = plain_in, .outputs = facts_out, .process = facts_process),
    STAGE("t_lookup", .inputs = plain_in, .outputs = plain_out, .process = lookup_process,
          .flags = FLOW_PENDING),
    STAGE("t_image", MAKER, .inputs = image_in, .outputs = image_out, .process = image_process,
          .flags = FLOW_PARALLEL),
    STAGE("t_latent", MAKER, .inputs = latent_in, .outputs = latent_out, .process = latent_process,
          .recipe = latent_recipe),
    STAGE("t_text", MAKER, .inputs = text_in, .outputs = text_out, .process = text_process),
    STAGE("t_look", .inputs = latent_in, .outputs = plain_out, .process = look_process),
    STAGE("t_store", .state_size = sizeof(TStore), .params = store_params, .inputs = store_in,
          .outputs = plain_out, .describe = store_describe, .process = store_process,
          .flags = FLOW_PENDING | FLOW_PREFILL),
    STAGE("t_end", .inputs = plain_in, .process = end_process),
};

static char *pipeline(const char *image, const char *latent, const char *text, const char *between)
{
    return g_strdup_printf("[src]\nstage=t_count\nitems=8\n[facts]\nstage=t_facts\nin=src\n"
                           "[find]\nstage=t_lookup\nin=facts\n[image]\nstage=t_image\nin=find\n%s\n"
                           "%s[latent]\nstage=t_latent\nin=%s\n%s\n[text]\nstage=t_text\nin=latent\n%s\n"
                           "[keep]\nstage=t_store\nin=text\ncache=find\n[end]\nstage=t_end\nin=keep\n",
                           image, between, *between ? "look" : "image", latent, text);
}

/* -- skipping ----------------------------------------------------------------------- */

static void test_skips(void)
{
    const char *const workers[] = {"workers=1", "workers=3"};
    for (guint w = 0; w < 2; w++) {
        g_autofree char *text = pipeline(workers[w], "", "", "[look]\nstage=t_look\nin=image\n");
        FlowGraph *graph = lab_open(text);
        g_autoptr(GError) error = NULL;
        flow_graph_run(graph, NULL, &error);
        g_assert_no_error(error);
        const struct {
            const char *node;
            double calls;
        } expected[] = {{"image", 2}, {"look", 2}, {"latent", 2}, {"text", 4}};
        for (guint i = 0; i < G_N_ELEMENTS(expected); i++)
            g_assert_cmpfloat(flow_node_counter(flow_graph_node_named(graph, expected[i].node), "calls"), ==,
                              expected[i].calls);
        g_assert_cmpfloat(flow_node_counter(flow_graph_node_named(graph, "end"), "items"), ==, 8);
        flow_graph_free(graph);
    }
}

/* What exists only on a miss is missed by check already. */
static void test_lost(void)
{
    g_autofree char *text = pipeline("", "", "", "");
    g_autofree char *more = g_strconcat(text, "[late]\nstage=t_look\nin=keep\n", NULL);
    g_autofree char *said = lab_check(more, NULL);
    g_assert_cmpstr(said, ==,
                    "lab.ini:31: error: [late] needs 'image', which behind [keep] exists only when the cache "
                    "has no hit\n");
}

static void test_wrong_pairs(void)
{
    g_autofree char *said =
        lab_check("[src]\nstage=t_count\n[facts]\nstage=t_facts\nin=src\n"
                  "[find]\nstage=t_lookup\nin=facts\n[end]\nstage=null\nin=find\n"
                  "[image]\nstage=t_image\nin=facts\n[latent]\nstage=t_latent\nin=image\n"
                  "[text]\nstage=t_text\nin=latent\n[keep]\nstage=t_store\nin=text\ncache=find\n"
                  "[end2]\nstage=null\nin=keep\n",
                  NULL);
    g_assert_cmpstr(said, ==, "lab.ini:21: error: [keep] the lookup [find] is not before it\n");
}

/* -- recipes ------------------------------------------------------------------------ */

typedef struct {
    guint8 latent[16], context[16];
    FlowFieldSet latent_by, context_by;
} Recipes;

static Recipes recipes_of(const char *text)
{
    FlowGraph *graph = lab_open(text);
    FlowNode *find = flow_graph_node_named(graph, "find"), *keep = flow_graph_node_named(graph, "keep");
    g_autoptr(GError) error = NULL;
    Recipes r;
    g_assert_true(flow_node_recipe(find, keep, FLOW_F_LATENT_MEAN, r.latent, &r.latent_by, &error));
    g_assert_true(flow_node_recipe(find, keep, FLOW_F_CONTEXT, r.context, &r.context_by, &error));
    g_assert_no_error(error);
    guint8 none[16];
    FlowFieldSet by;
    g_assert_false(flow_node_recipe(find, keep, FLOW_F_CAPTION, none, &by, &error));
    g_assert_no_error(error);
    flow_graph_free(graph);
    return r;
}

static gboolean same(const guint8 *a, const guint8 *b)
{
    return memcmp(a, b, 16) == 0;
}

/* C-02, C-05 */
static void test_recipe(void)
{
    g_autofree char *text = pipeline("", "", "", "");
    Recipes base = recipes_of(text);
    /* the path is no key (its file is), the geometry did not arrive */
    g_assert_cmpuint(base.latent_by, ==, FLOW_FIELD_BIT(FLOW_F_FILE_ID));
    g_assert_cmpuint(base.context_by, ==, FLOW_FIELD_BIT(FLOW_F_CAPTION));
    g_assert_false(same(base.latent, base.context));
    const struct {
        const char *image, *latent, *text;
        gboolean latent_same, context_same;
    } cases[] = {
        {"", "", "", TRUE, TRUE},
        {"workers=4\nring=3\nthreads=7", "threads=2", "bytes=1MiB", TRUE, TRUE},
        {"quality=5", "note=", "quality=5", TRUE, TRUE},
        {"quality=6", "", "", FALSE, TRUE},
        {"", "note=x", "", FALSE, TRUE},
        {"", "", "quality=0", TRUE, FALSE},
        {"", "", "of=latent", TRUE, FALSE},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *other = pipeline(cases[i].image, cases[i].latent, cases[i].text, "");
        Recipes r = recipes_of(other);
        g_assert_cmpint(same(base.latent, r.latent), ==, cases[i].latent_same);
        g_assert_cmpint(same(base.context, r.context), ==, cases[i].context_same);
    }
    /* names of nodes and what stands between do not matter, weights do */
    g_auto(GStrv) parts = g_strsplit(text, "[image]", -1);
    g_autofree char *half = g_strjoinv("[imago]", parts);
    g_auto(GStrv) links = g_strsplit(half, "in=image", -1);
    g_autofree char *renamed_text = g_strjoinv("in=imago", links);
    Recipes renamed = recipes_of(renamed_text);
    g_assert_true(same(base.latent, renamed.latent));
    g_autofree char *with_look = pipeline("", "", "", "[look]\nstage=t_look\nin=image\n");
    Recipes looked = recipes_of(with_look);
    g_assert_true(same(base.latent, looked.latent));
    weights = "abd";
    Recipes weighed = recipes_of(text);
    weights = "abc";
    g_assert_false(same(base.latent, weighed.latent));
    g_assert_true(same(base.context, weighed.context));
}

static void test_recipe_error(void)
{
    g_autofree char *text = pipeline("", "", "", "");
    FlowGraph *graph = lab_open(text);
    g_autoptr(GError) error = NULL;
    guint8 hash[16];
    FlowFieldSet by;
    weights = NULL;
    g_assert_false(flow_node_recipe(flow_graph_node_named(graph, "find"),
                                    flow_graph_node_named(graph, "keep"), FLOW_F_LATENT_MEAN, hash, &by,
                                    &error));
    g_assert_nonnull(error);
    g_assert_cmpstr(error->message, ==, "[latent] no weights");
    weights = "abc";
    flow_graph_free(graph);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    lab_add_stages();
    for (guint i = 0; i < G_N_ELEMENTS(stages); i++) {
        g_autoptr(GError) error = NULL;
        flow_plugin_add(&stages[i], &error);
        g_assert_no_error(error);
    }
    g_test_add_func("/recipe/skips", test_skips);
    g_test_add_func("/recipe/lost", test_lost);
    g_test_add_func("/recipe/wrong_pairs", test_wrong_pairs);
    g_test_add_func("/recipe/recipe", test_recipe);
    g_test_add_func("/recipe/error", test_recipe_error);
    return g_test_run();
}
