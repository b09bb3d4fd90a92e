/* What dump writes, replay emits: every kind of field, of item and of mark; what is not a recording is
 * refused with the line.
 *
 * @label short
 */
#include "core/model/safetensors.h"
#include "tests/stages/harness.h"
#include "tests/stages/item_text.h"
#include <glib/gstdio.h>

static char *folder;

static FlowValue *numbers(NetType type, guint ndim, const gint64 *shape, guint seed)
{
    FlowValue *value = flow_value_new(type, ndim, shape);
    for (gsize i = 0; i < value->nbytes; i++)
        ((guint8 *)value->data)[i] = (guint8)(seed + i * 37 + i / 251);
    return value;
}

static FlowItem *full_item(guint n)
{
    FlowItem *item = flow_item_new(n % 3 == 2 ? FLOW_BATCH : FLOW_SAMPLE);
    item->cursor = (FlowCursor){n ? 1 : -1, n, 7, 2};
    flow_item_set(item, FLOW_F_PATH, flow_value_string(n == 1 ? "r\xe9sum\xe9.png" : "photo \"a\".png"));
    flow_item_set(item, FLOW_F_CAPTION, flow_value_string(n == 2 ? "" : "eine Katze, schläft\nam Fenster"));
    flow_item_set(item, FLOW_F_IMAGE, numbers(NET_U8, 3, (gint64[]){5 + n, 7, 3}, n));
    flow_item_set(item, FLOW_F_BYTES, numbers(NET_U8, 1, (gint64[]){11}, n));
    flow_item_set(item, FLOW_F_LATENT_MEAN, numbers(NET_F16, 4, (gint64[]){2, 3, 4, 2}, n));
    flow_item_set(item, FLOW_F_SCORES, numbers(NET_F32, 1, (gint64[]){5}, n));
    flow_item_set(item, FLOW_F_FILE_ID, numbers(NET_I64, 1, (gint64[]){5}, n));
    flow_item_set(item, FLOW_F_CONTEXT, numbers(NET_BF16, 2, (gint64[]){3, 0}, n));
    flow_item_set(item, FLOW_F_GEOMETRY, numbers(NET_I32, 1, (gint64[]){7}, n));
    return item;
}

static FlowItem *mark(FlowMark which)
{
    return flow_item_new_mark(which, &(FlowCursor){.epoch = 4, .position = 5, .size = 6, .epochs = 7});
}

static char *sub(const char *name)
{
    return g_build_filename(folder, name, NULL);
}

static GPtrArray *drain(Harness *h)
{
    GPtrArray *texts = g_ptr_array_new_with_free_func(g_free);
    for (FlowItem *item; (item = harness_pull(h, "out"));) {
        g_ptr_array_add(texts, item_text(item));
        flow_item_unref(item);
    }
    return texts;
}

/* Pushes items through dump; returns what came out. */
static GPtrArray *record(const char *path, const char *more)
{
    g_autofree char *keys = g_strdup_printf("path = %s\n%s", path, more);
    Harness *h = harness("dump", keys);
    for (guint i = 0; i < 4; i++) {
        harness_push(h, "in", full_item(i));
        if (i == 0 || i == 3)
            harness_push(h, "in", mark(i ? FLOW_MARK_EPOCH : FLOW_MARK_PREFILL_DONE));
    }
    harness_end(h);
    GPtrArray *out = drain(h);
    g_assert_cmpint(harness_finish(h, NULL), ==, FLOW_RUN_DONE);
    return out;
}

static GPtrArray *play(const char *path, const char *more)
{
    g_autofree char *keys = g_strdup_printf("path = %s\n%s", path, more);
    Harness *h = harness("replay", keys);
    GPtrArray *out = drain(h);
    g_assert_cmpint(harness_finish(h, NULL), ==, FLOW_RUN_DONE);
    return out;
}

static void assert_same(const GPtrArray *a, const GPtrArray *b)
{
    g_assert_cmpuint(a->len, ==, b->len);
    for (guint i = 0; i < a->len; i++)
        g_assert_cmpstr(g_ptr_array_index(a, i), ==, g_ptr_array_index(b, i));
}

static void test_round_trip(void)
{
    g_autofree char *path = sub("all");
    gint64 before = flow_item_live();
    g_autoptr(GPtrArray) passed = record(path, ""), again = record(path, ""), played = play(path, "");
    g_assert_cmpuint(passed->len, ==, 6);
    assert_same(passed, again);
    assert_same(passed, played);
    g_autoptr(GPtrArray) twice = play(path, "repeat = 2\n");
    g_assert_cmpuint(twice->len, ==, 12);
    for (guint i = 0; i < 12; i++)
        g_assert_cmpstr(g_ptr_array_index(twice, i), ==, g_ptr_array_index(passed, i % 6));
    g_assert_cmpint(flow_item_live(), ==, before);
    g_autofree char *png = g_build_filename(path, "000002.image.png", NULL);
    g_autofree char *tensor = g_build_filename(path, "000000.latent_mean.safetensors", NULL);
    g_assert_true(g_file_test(png, G_FILE_TEST_EXISTS));
    g_assert_true(g_file_test(tensor, G_FILE_TEST_EXISTS));
}

static void test_chosen(void)
{
    g_autofree char *path = sub("chosen"), *said = NULL;
    g_autoptr(GPtrArray) passed = record(path, "fields = caption, scores\nitems = 2\n"),
                         played = play(path, "");
    g_assert_cmpuint(passed->len, ==, 6); /* everything passes */
    g_assert_cmpuint(played->len, ==, 4); /* two items and the marks were written */
    g_assert_null(strstr(g_ptr_array_index(played, 0), "image"));
    g_assert_nonnull(strstr(g_ptr_array_index(played, 0), "caption='eine Katze, schläft\nam Fenster'"));
    g_assert_null(harness_try("dump", "path = x\nfields = captoin\n", &said));
    g_assert_nonnull(strstr(said, "there is no field 'captoin'; did you mean 'caption'?"));
}

/* check knows what a recording gives. */
static void test_describe(void)
{
    g_autofree char *path = sub("described"), *keys = g_strdup_printf("path = %s\n", path);
    g_autoptr(GPtrArray) passed = record(path, "fields = caption\n");
    Harness *h = harness_try("replay", keys, NULL);
    FlowFieldSet fields = 0;
    for (guint i = 0; i < flow_graph_edges(h->graph); i++)
        fields |= flow_graph_edge(h->graph, i)->fields;
    g_assert_cmpuint(fields, ==, FLOW_FIELD_BIT(FLOW_F_CAPTION));
    harness_free(h);
}

static void test_one_file(void)
{
    g_autofree char *path = sub("tensors.safetensors");
    const float a[] = {1, 2, 3}, b[] = {4, 5, 6};
    const guint8 caption[] = "hi";
    const SafeEntry entries[] = {
        {"10/latent_mean", NET_F32, 3, {1, 1, 3}, b, NET_F32},
        {"2/latent_mean", NET_F32, 3, {1, 3, 1}, a, NET_F32},
        {"2/caption", NET_U8, 1, {2}, caption, NET_U8},
    };
    g_assert_true(safe_write(path, entries, 3, NULL, NULL, NULL));
    g_autoptr(GPtrArray) played = play(path, "kind = batch\n");
    g_assert_cmpuint(played->len, ==, 2);
    g_assert_true(
        g_str_has_prefix(g_ptr_array_index(played, 0), "batch 0/2/2/0 caption='hi' latent_mean=f32[1,3,1]"));
    g_assert_true(g_str_has_prefix(g_ptr_array_index(played, 1), "batch 0/10/2/0 latent_mean=f32[1,1,3]"));
}

static void test_bad_recordings(void)
{
    const char *good = "{\"kind\":\"sample\",\"fields\":{\"caption\":\"x\"}}\n";
    const struct {
        const char *line, *why;
    } cases[] = {
        {"", "holds no items"},
        {"{\"kind\":\"sample\"", ":2: the last line is cut short"},
        {"[1]\n", ":2: not a JSON object"},
        {"{\"kind\":\"simple\",\"fields\":{}}\n", ":2: an item has a 'kind'"},
        {"{\"kind\":\"sample\",\"kind\":\"sample\",\"fields\":{}}\n", ":2: not a JSON object: duplicate"},
        {"{\"kind\":\"sample\",\"fields\":{\"imag\":{\"file\":\"a\"}}}\n",
         "there is no field 'imag'; did you mean 'image'?"},
        {"{\"kind\":\"sample\",\"fields\":{\"image\":\"text\"}}\n",
         "the field 'image' must be {\"file\": NAME}"},
        {"{\"kind\":\"sample\",\"fields\":{\"image\":{\"file\":\"../secret.png\"}}}\n",
         "is not in the folder"},
        {"{\"kind\":\"sample\",\"fields\":{\"caption\":{\"bytes\":\"4\"}}}\n",
         "the field 'caption' must be a text"},
        {"{\"kind\":\"sample\",\"epoch\":\"1\",\"fields\":{}}\n", "'epoch' is not an integer"},
        {"{\"mark\":\"end\"}\n", "the mark is not one of epoch, prefill_done"},
    };
    g_autofree char *path = sub("bad"), *items = g_build_filename(path, "items.jsonl", NULL);
    g_autofree char *keys = g_strdup_printf("path = %s\n", path);
    g_mkdir(path, 0700);
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = g_strconcat(i ? good : "", cases[i].line, NULL), *said = NULL;
        g_assert_true(g_file_set_contents(items, text, -1, NULL));
        g_assert_null(harness_try("replay", keys, &said));
        if (!strstr(said, cases[i].why))
            g_error("'%s' does not say '%s'", said, cases[i].why);
    }
    /* files are looked at when their item comes */
    g_autofree char *text =
        g_strconcat(good, "{\"kind\":\"sample\",\"fields\":{\"image\":{\"file\":\"gone.png\"}}}\n", NULL);
    g_autofree char *said = NULL;
    g_assert_true(g_file_set_contents(items, text, -1, NULL));
    Harness *h = harness("replay", keys);
    g_assert_cmpint(harness_finish(h, &said), ==, FLOW_RUN_FAILED);
    g_assert_nonnull(strstr(said, "[it] cannot read"));
    g_assert_nonnull(strstr(said, "gone.png"));
}

/* A folder with somebody's files is not written to. */
static void test_foreign_folder(void)
{
    g_autofree char *path = sub("photos"), *photo = g_build_filename(path, "cat.jpg", NULL), *said = NULL;
    g_autofree char *keys = g_strdup_printf("path = %s\n", path);
    g_mkdir(path, 0700);
    g_assert_true(g_file_set_contents(photo, "x", 1, NULL));
    g_assert_null(harness_try("dump", keys, &said));
    g_assert_nonnull(strstr(said, "a folder with other files in it"));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    folder = g_dir_make_tmp("loraflow-dump-XXXXXX", NULL);
    g_test_add_func("/dump/round_trip", test_round_trip);
    g_test_add_func("/dump/chosen", test_chosen);
    g_test_add_func("/dump/describe", test_describe);
    g_test_add_func("/dump/one_file", test_one_file);
    g_test_add_func("/dump/bad_recordings", test_bad_recordings);
    g_test_add_func("/dump/foreign_folder", test_foreign_folder);
    int status = g_test_run();
    const char *rm[] = {"rm", "-rf", folder, NULL};
    g_spawn_sync(NULL, (char **)rm, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, NULL, NULL, NULL, NULL);
    g_free(folder);
    return status;
}
