/* decode_image: parameters, sizes that do not fit the list, reduction, order with many workers.
 * @label short
 * @link libjpeg zlib
 */
#include "picture_lab.h"

#define GRAPH                                                                                                \
    "[items]\nstage = t_items\n[decode]\nstage = decode_image\nin = items\nworkers = %d\non_error = %s\n%s"  \
    "[catch]\nstage = t_catch\nin = decode\n"

/* Takes the bytes. `listed` may be NULL. */
static FlowItem *add(const char *name, GByteArray *bytes, const gint32 *listed)
{
    FlowItem *item = flow_item_new(FLOW_SAMPLE);
    gint64 n = bytes->len;
    FlowValue *value = flow_value_new(NET_U8, 1, &n);
    memcpy(value->data, bytes->data, bytes->len);
    g_byte_array_unref(bytes);
    flow_item_set(item, FLOW_F_BYTES, value);
    flow_item_set(item, FLOW_F_PATH, flow_value_string(name));
    if (listed)
        flow_item_set_i32(item, FLOW_F_SOURCE_SIZE, listed, 2);
    g_ptr_array_add(lab_items, item);
    return item;
}

static void start(const char *gives)
{
    lab_gives = gives;
    g_ptr_array_set_size(lab_items, 0);
}

static const guint8 *image(guint i, gint64 h, gint64 w)
{
    const FlowValue *v = flow_item_get(lab_item_at(i), FLOW_F_IMAGE);
    g_assert_cmpint(v->ndim, ==, 3);
    g_assert_cmpint(v->shape[0], ==, h);
    g_assert_cmpint(v->shape[1], ==, w);
    g_assert_cmpint(v->shape[2], ==, 3);
    return v->data;
}

static void test_decode(void)
{
    start("bytes path");
    add("a.png", make_png(2, 1, 8, 6, "ff00ff00ff000080", FALSE, NULL), NULL);
    add("b.jpg", make_jpeg(5, 3, &(JpegMake){.rgb = TRUE}, paint_solid, (guint8[]){1, 2, 3, 0}), NULL);
    LAB_RUN(GRAPH, 1, "stop", "");
    g_assert_cmpmem(image(0, 1, 2), 6, "\377\377\377\377\177\177", 6);
    g_assert_cmpmem(image(1, 3, 5), 3, "\1\2\3", 3);
    g_assert_null(flow_item_get(lab_item_at(0), FLOW_F_BYTES));
    LAB_RUN(GRAPH, 1, "stop", "background = black\n");
    g_assert_cmpmem(image(0, 1, 2), 6, "\0\0\0\200\0\0", 6);
    LAB_RUN(GRAPH, 1, "stop", "background = #0a141e\n");
    g_assert_cmpmem(image(0, 1, 2), 3, "\12\24\36", 3);
    FlowGraph *graph = NULL;
    g_autofree char *text = g_strdup_printf(GRAPH, 1, "stop", "background = purple\n");
    g_autofree char *messages = lab_check(text, &graph);
    g_autoptr(GError) error = NULL;
    g_assert_false(flow_graph_open(graph, &error));
    g_assert_nonnull(strstr(error->message, "background: 'purple' is no colour"));
    flow_graph_free(graph);
    g_assert_cmpstr(messages, ==, "");
}

static void test_bad(void)
{
    start("bytes path source_size");
    g_autoptr(GByteArray) noise = make_jpeg(64, 64, &(JpegMake){0}, paint_noise, NULL);
    add("d/cut.jpg", cut(noise, noise->len / 2), (gint32[]){64, 64});
    LAB_FAIL("d/cut.jpg: the file is cut short; truncated = allow", GRAPH, 1, "stop", "");
    LAB_RUN(GRAPH, 1, "skip", "");
    g_assert_cmpuint(lab_count(), ==, 0);
    LAB_RUN(GRAPH, 1, "stop", "truncated = allow\n");
    image(0, 64, 64);
    LAB_FAIL("d/cut.jpg is 64x64 = 4096 pixels, more than max_pixels = 4000", GRAPH, 1, "stop",
             "max_pixels = 4000\n");
    start("bytes path source_size");
    add("d/other.png", make_png(20, 30, 8, 2, "ff0000", FALSE, NULL), (gint32[]){30, 40});
    LAB_FAIL("d/other.png is 20x30 pixels, but was listed as 40x30", GRAPH, 1, "stop", "");
}

static void test_reduce(void)
{
    start("bytes path source_size geometry");
    GByteArray *jpeg = make_jpeg(400, 300, &(JpegMake){.h2 = 2, .v2 = 2}, paint_smooth, NULL);
    FlowItem *item = add("a.jpg", jpeg, (gint32[]){300, 400});
    flow_item_set_i32(item, FLOW_F_GEOMETRY, (gint32[]){64, 64, 70, 93, 0, 0, 0}, 7);
    LAB_RUN(GRAPH, 1, "stop", "");
    image(0, 75, 100);
    LAB_RUN(GRAPH, 1, "stop", "reduce = no\n");
    image(0, 300, 400);
}

/* Good and bad ones mixed on many threads: the same items in the same order, each bad one named, none else.
 */
static void test_workers(void)
{
    start("bytes path");
    g_autoptr(GByteArray) noise = make_jpeg(48, 40, &(JpegMake){0}, paint_noise, NULL);
    for (int i = 0; i < 200; i++) {
        g_autofree char *name = g_strdup_printf("%03d.jpg", i);
        add(name, cut(noise, i == 117 ? noise->len / 2 : noise->len), NULL);
    }
    for (int workers = 1; workers <= 16; workers *= 4) {
        LAB_RUN(GRAPH, workers, "skip:1", "");
        g_assert_cmpuint(lab_count(), ==, 199);
        for (guint i = 0; i < 199; i++) {
            g_autofree char *name = g_strdup_printf("%03u.jpg", i < 117 ? i : i + 1);
            g_assert_cmpstr(flow_item_string(lab_item_at(i), FLOW_F_PATH), ==, name);
        }
        LAB_FAIL("117.jpg: the file is cut short", GRAPH, workers, "stop", "");
    }
}

int main(int argc, char **argv)
{
    picture_lab_init(&argc, &argv);
    g_test_add_func("/decode_image/decode", test_decode);
    g_test_add_func("/decode_image/bad", test_bad);
    g_test_add_func("/decode_image/reduce", test_reduce);
    g_test_add_func("/decode_image/workers", test_workers);
    int rc = g_test_run();
    picture_lab_done();
    return rc;
}
