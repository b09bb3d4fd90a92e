/* zip merges what its inputs bring, in a harness and behind a tee.
 *
 * @label short
 */
#include "tests/stages/harness.h"
#include "tests/stages/item_text.h"

static FlowItem *item(gint64 position, FlowField field, const char *text)
{
    FlowItem *made = flow_item_new(FLOW_SAMPLE);
    made->cursor.position = position;
    flow_item_set(made, FLOW_F_CAPTION, flow_value_string("shared"));
    flow_item_set(made, field, flow_value_string(text));
    return made;
}

static void test_merge(void)
{
    gint64 before = flow_item_live();
    Harness *h = harness("zip", "workers = 2\n");
    for (gint64 i = 0; i < 3; i++) {
        harness_push(h, "a", item(i, FLOW_F_PATH, "of a"));
        harness_push(h, "b", item(i, FLOW_F_CAPTION, "of b"));
        harness_push(h, "c", item(i, FLOW_F_PATH, "of c"));
        harness_push(h, "d", item(i, FLOW_F_CAPTION_FULL, "of d"));
    }
    harness_end(h);
    for (gint64 i = 0; i < 3; i++) {
        g_autoptr(FlowItem) out = harness_pull(h, "out");
        g_assert_cmpint(out->cursor.position, ==, i);
        g_assert_cmpstr(flow_item_string(out, FLOW_F_PATH), ==, "of a");
        g_assert_cmpstr(flow_item_string(out, FLOW_F_CAPTION), ==, "shared");
        g_assert_cmpstr(flow_item_string(out, FLOW_F_CAPTION_FULL), ==, "of d");
    }
    g_assert_null(harness_pull(h, "out"));
    g_assert_cmpint(harness_finish(h, NULL), ==, FLOW_RUN_DONE);
    g_assert_cmpint(flow_item_live(), ==, before);
}

/* check gives the join what any of its branches gives. */
static void test_fields(void)
{
    const char *text = "[src]\nstage = generate\nitems = 6\nfields = image, sample\n"
                       "[scored]\nstage = delay\nin = src\nms = 1\n"
                       "[sized]\nstage = gate\nin = src\nitems = 2\n"
                       "[both]\nstage = zip\nin.a = sized\nin.b = scored\n"
                       "[end]\nstage = null\nin = both\n";
    FlowMessages *messages = flow_messages_new();
    FlowGraph *graph = flow_graph_load(
        flow_ini_read_text("zip.ini", ".", text, strlen(text), NULL, NULL, messages), messages);
    flow_graph_check(graph, messages);
    g_autofree char *said = flow_messages_text(messages);
    g_assert_cmpstr(said, ==, "");
    flow_messages_free(messages);
    g_autoptr(GError) error = NULL;
    g_assert_true(flow_graph_open(graph, &error));
    g_assert_cmpint(flow_graph_run(graph, NULL, &error), ==, FLOW_RUN_DONE);
    FlowNodeStats stats;
    flow_node_stats(flow_graph_node_named(graph, "end"), &stats);
    g_assert_cmpuint(stats.in, ==, 6);
    flow_graph_free(graph);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/zip/merge", test_merge);
    g_test_add_func("/zip/fields", test_fields);
    return g_test_run();
}
