/* image_folder: what it emits, in which order, what it refuses, what a resume must find again.
 * @label short
 * @link libjpeg zlib
 */
#include "picture_lab.h"

#define CATCH "[catch]\nstage = t_catch\nin = pictures\n"

static void five(void)
{
    lab_dir_make();
    lab_picture("a", 10, 10, "ff0000", "cap a");
    lab_picture("b", 20, 30, "00ff00", "cap b");
    lab_picture("c", 5, 5, "0000ff", "cap c");
    lab_picture("d", 20, 31, "00ffff", "cap d");
    lab_picture("e", 1, 1, "00ffff", "");
}

static void test_epochs(void)
{
    five();
    LAB_RUN("[pictures]\nstage = image_folder\npath = %s\nshuffle = no\nepochs = 2\n" CATCH, lab_dir);
    LAB_STORY("a b c d e | a b c d e |");
    for (guint i = 0; i < 10; i++) {
        const FlowItem *item = lab_item_at(i);
        g_assert_cmpint(item->cursor.epoch, ==, i / 5);
        g_assert_cmpint(item->cursor.position, ==, i % 5);
        g_assert_cmpint(item->cursor.size, ==, 5);
        g_assert_cmpint(item->cursor.epochs, ==, 2);
        g_assert_cmpint(*flow_item_i64(item, FLOW_F_SAMPLE), ==, i % 5);
        g_assert_cmpint(*flow_item_i32(item, FLOW_F_ROLE), ==, 0);
    }
    g_assert_cmpstr(flow_item_string(lab_item_at(1), FLOW_F_CAPTION), ==, "cap b");
    g_assert_cmpstr(flow_item_string(lab_item_at(4), FLOW_F_CAPTION), ==, "");
    g_assert_cmpint(flow_item_i32(lab_item_at(1), FLOW_F_SOURCE_SIZE)[0], ==, 20);
    g_assert_cmpint(flow_item_i32(lab_item_at(1), FLOW_F_SOURCE_SIZE)[1], ==, 30);
    g_assert_null(flow_item_get(lab_item_at(1), FLOW_F_CAPTION_FULL));
    lab_dir_remove();
}

static void test_shuffle(void)
{
    five();
    const char *graph = "[graph]\nseed = %d\n[pictures]\nstage = image_folder\npath = %s\nepochs = 6\n" CATCH;
    LAB_RUN(graph, 1, lab_dir);
    g_autofree char *one = lab_story();
    guint orders = 0;
    for (guint epoch = 0; epoch < 6; epoch++) { /* each picture once in every epoch */
        guint seen = 0;
        gboolean sorted = TRUE;
        for (guint i = 0; i < 5; i++) {
            gint64 sample = *flow_item_i64(lab_item_at(epoch * 5 + i), FLOW_F_SAMPLE);
            seen |= 1u << sample;
            sorted &= sample == i;
        }
        g_assert_cmpuint(seen, ==, 31);
        orders += !sorted;
    }
    g_assert_cmpuint(orders, >, 3);
    LAB_RUN(graph, 1, lab_dir);
    LAB_STORY(one);
    LAB_RUN(graph, 2, lab_dir);
    g_autofree char *two = lab_story();
    g_assert_cmpstr(one, !=, two);
    lab_dir_remove();
}

static void test_repeats(void)
{
    lab_dir_make();
    lab_picture("3_x/a", 2, 2, "ff0000", "");
    lab_picture("b", 2, 2, "ff0000", "");
    LAB_RUN("[pictures]\nstage = image_folder\npath = %s\nshuffle = no\nrepeats = 2\nepochs = 1\n" CATCH,
            lab_dir);
    LAB_STORY("a b a b a a a a |"); /* 3 x 2 and 1 x 2, far apart */
    LAB_RUN("[pictures]\nstage = image_folder\npath = %s\nshuffle = no\nrepeats = 2\nepochs = 1\nprefill = "
            "yes\n" CATCH,
            lab_dir);
    /* B-18 */
    LAB_STORY("p:a p:b <prefill_done> a b a b a a a a |"); /* filled once, used 8 times */
    lab_dir_remove();
}

static void test_prefill_and_validation(void)
{
    five();
    lab_picture("held/x", 25, 25, "112233", "cap x");
    lab_picture("held/y", 2, 2, "112233", "cap y");
    const char *graph =
        "[pictures]\nstage = image_folder\npath = %s\nvalidation = %s/held\nshuffle = no\nepochs = 1\n"
        "prefill = %s\n" CATCH;
    LAB_RUN(graph, lab_dir, lab_dir, "yes");
    LAB_STORY("p:v:x p:d p:b p:a p:c p:v:y p:e <prefill_done> a b c d e |"); /* largest first */
    g_assert_cmpint(*flow_item_i64(lab_item_at(0), FLOW_F_SAMPLE), ==, 5);
    LAB_RUN(graph, lab_dir, lab_dir, "no");
    LAB_STORY("p:v:x p:v:y a b c d e |");
    LAB_RUN(graph, lab_dir, lab_dir, "auto"); /* nothing caches here */
    LAB_STORY("p:v:x p:v:y a b c d e |");
    LAB_FAIL("is the folder that is trained on",
             "[pictures]\nstage = image_folder\npath = %s\nvalidation = %s\nepochs = 1\n" CATCH, lab_dir,
             lab_dir);
    lab_dir_remove();
}

static void test_share(void)
{
    lab_dir_make();
    for (int i = 0; i < 20; i++) {
        g_autofree char *name = g_strdup_printf("%02d", i);
        lab_picture(name, 2, 2, "ff0000", "");
    }
    const char *graph =
        "[pictures]\nstage = image_folder\npath = %s\nvalidation = %s\nshuffle = no\nepochs = 1\n" CATCH;
    LAB_RUN(graph, lab_dir, "10%");
    g_assert_cmpuint(lab_count(), ==, 20);
    g_autofree char *held = g_strdup(flow_item_string(lab_item_at(0), FLOW_F_PATH));
    g_assert_cmpint(*flow_item_i32(lab_item_at(0), FLOW_F_ROLE), ==, 1);
    g_assert_cmpint(*flow_item_i32(lab_item_at(1), FLOW_F_ROLE), ==, 1);
    for (guint i = 2; i < 20; i++) { /* never trained on */
        g_assert_cmpint(*flow_item_i32(lab_item_at(i), FLOW_F_ROLE), ==, 0);
        g_assert_cmpstr(flow_item_string(lab_item_at(i), FLOW_F_PATH), !=, held);
    }
    LAB_FAIL("validation = 80% is outside 0..50%", graph, lab_dir, "80%");
    lab_dir_remove();
}

static void test_captions(void)
{
    lab_dir_make();
    lab_picture("10_cat/a", 2, 2, "ff0000", "with");
    lab_picture("10_cat/b", 2, 2, "ff0000", NULL);
    lab_picture("c", 2, 2, "ff0000", NULL);
    const char *graph =
        "[pictures]\nstage = image_folder\npath = %s\nshuffle = no\nprefill = yes\nepochs = 1\n"
        "missing = %s\n" CATCH;
    /* B-04 */
    LAB_FAIL(
        "2 of 3 pictures have no caption (.txt, .caption): 10_cat/b.png, c.png; write them, or set missing =",
        graph, lab_dir, "error");
    LAB_RUN(graph, lab_dir, "empty");
    g_assert_cmpstr(flow_item_string(lab_item_at(1), FLOW_F_CAPTION), ==, "");
    LAB_RUN(graph, lab_dir, "folder");
    g_assert_cmpstr(flow_item_string(lab_item_at(1), FLOW_F_CAPTION), ==, "cat");
    g_assert_cmpstr(flow_item_string(lab_item_at(2), FLOW_F_CAPTION), ==, "");
    LAB_RUN(graph, lab_dir, "skip");
    g_assert_cmpuint(lab_count(), ==, 1 + 10);
    lab_text("c.md", "from md");
    LAB_RUN("[pictures]\nstage = image_folder\npath = %s\nshuffle = no\nepochs = 1\nmissing = "
            "skip\ncaption_ext = md\n" CATCH,
            lab_dir);
    g_assert_cmpuint(lab_count(), ==, 1);
    g_assert_cmpstr(flow_item_string(lab_item_at(0), FLOW_F_CAPTION), ==, "from md");
    lab_dir_remove();
}

static void test_dropout_and_tags(void)
{
    lab_dir_make();
    for (int i = 0; i < 10; i++) {
        g_autofree char *name = g_strdup_printf("%d", i);
        lab_picture(name, 2, 2, "ff0000", "style, one, two, three");
    }
    const char *graph = "[pictures]\nstage = image_folder\npath = %s\nepochs = 40\ncaption_dropout = 0.25\n"
                        "shuffle_tags = yes\nkeep_tags = 1\ncaption_variants = 3\nprefill = yes\n" CATCH;
    LAB_RUN(graph, lab_dir);
    g_autoptr(GHashTable) filled = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    guint dropped = 0, uses = 0;
    for (guint i = 0; i < lab_count(); i++) {
        const FlowItem *item = lab_item_at(i);
        const char *caption = flow_item_string(item, FLOW_F_CAPTION);
        char *key = *caption ? g_strdup_printf("%d %s", (int)*flow_item_i64(item, FLOW_F_SAMPLE), caption)
                             : g_strdup("");
        g_assert_cmpstr(flow_item_string(item, FLOW_F_CAPTION_FULL), ==, "style, one, two, three");
        g_assert_true(!*caption || g_str_has_prefix(caption, "style, "));
        if (item->cursor.epoch < 0) {
            g_assert_true(g_hash_table_add(filled, key)); /* each once */
            continue;
        }
        g_assert_true(g_hash_table_contains(filled, key)); /* nothing is used that was not filled */
        g_free(key);
        dropped += !*caption;
        uses++;
    }
    g_assert_cmpuint(uses, ==, 400);
    g_assert_cmpuint(dropped, >, 65); /* 100 of 400 are due, 4 standard deviations are 35 */
    g_assert_cmpuint(dropped, <, 135);
    g_assert_cmpuint(g_hash_table_size(filled), >, 20);
    g_assert_cmpuint(g_hash_table_size(filled), <=, 31);
    g_autofree char *error = NULL;
    FlowGraph *open = NULL;
    g_autofree char *text =
        g_strdup_printf("[pictures]\nstage = image_folder\npath = %s\nepochs = 1\nshuffle_tags = yes\n"
                        "caption_variants = 0\nprefill = yes\n" CATCH,
                        lab_dir);
    error = lab_check(text, &open);
    g_autoptr(GError) refused = NULL;
    g_assert_nonnull(open);
    g_assert_false(flow_graph_open(open, &refused));
    g_assert_nonnull(strstr(refused->message, "caption_variants = 0"));
    flow_graph_free(open);
    lab_dir_remove();
}

static void test_bad_pictures(void)
{
    lab_dir_make();
    lab_text("1.jpg", "");
    lab_picture("2", 2, 2, "ff0000", "");
    lab_file("3.jpg", "RIFF\034\0\0\0WEBPVP8L", 16);
    lab_picture("4", 2, 2, "ff0000", "");
    lab_text("5.png", "<html>");
    const char *graph =
        "[pictures]\nstage = image_folder\npath = %s\nepochs = 1\nshuffle = no\non_error = %s\n" CATCH;
    LAB_FAIL("1.jpg is an empty file", graph, lab_dir, "stop");
    LAB_RUN(graph, lab_dir, "skip:3");
    /* B-20 */
    LAB_STORY("2 4 |"); /* the good ones, once each; totals know it */
    g_assert_cmpint(lab_item_at(0)->cursor.size, ==, 2);
    LAB_FAIL("5.png is HTML, not JPEG or PNG", graph, lab_dir, "skip:2");
    lab_dir_remove();
}

static void test_refused(void)
{
    lab_dir_make();
    lab_text("notes.txt", "");
    const char *graph = "[pictures]\nstage = image_folder\npath = %s\nepochs = 1\n" CATCH;
    LAB_FAIL("no JPEG or PNG pictures in ", graph, lab_dir);
    LAB_FAIL("cannot be read: No such file or directory", graph, "/nonexistent");
    lab_dir_remove();
}

/* What changed since a checkpoint is named. */
static void expect_difference(GBytes *before, const char *text)
{
    g_autofree char *graph = g_strdup_printf(
        "[pictures]\nstage = image_folder\npath = %s\nmissing = empty\nepochs = 1\n" CATCH, lab_dir);
    FlowGraph *g = lab_open(graph);
    FlowNode *node = flow_graph_node_named(g, "pictures");
    g_autoptr(GError) error = NULL;
    gboolean same = flow_node_stage(node)->load(node, before, &error);
    g_assert_cmpint(same, ==, text == NULL);
    if (text && !strstr(error->message, text))
        g_error("'%s' lacks '%s'", error->message, text);
    flow_graph_free(g);
}

static void test_resume(void)
{
    five();
    g_autofree char *graph = g_strdup_printf(
        "[pictures]\nstage = image_folder\npath = %s\nmissing = empty\nepochs = 1\n" CATCH, lab_dir);
    FlowGraph *g = lab_open(graph);
    FlowNode *node = flow_graph_node_named(g, "pictures");
    g_autoptr(GBytes) empty = g_bytes_new("", 0);
    g_assert_false(flow_node_stage(node)->load(node, empty, NULL)); /* lists, and refuses what is no list */
    g_autoptr(GBytes) before = flow_node_stage(node)->save(node, NULL);
    flow_graph_free(g);
    expect_difference(before, NULL);
    lab_text("a.txt", "edited");
    expect_difference(before, "1 changed (file, caption or repeats) (a.png)");
    lab_text("a.txt", "cap a");
    expect_difference(before, NULL);
    lab_picture("new", 3, 3, "ff0000", "");
    g_autofree char *gone = g_build_filename(lab_dir, "b.png", NULL);
    g_unlink(gone);
    /* D-18 */
    expect_difference(before, "1 new (new.png); 1 gone (b.png)");
    lab_dir_remove();
}

static void test_plan(void)
{
    five();
    lab_picture("f", 20, 30, "112233", "");
    g_autofree char *graph = g_strdup_printf(
        "[pictures]\nstage = image_folder\npath = %s\nvalidation = 17%%\nepochs = 1\n" CATCH, lab_dir);
    FlowGraph *g = lab_open(graph);
    FlowNode *node = flow_graph_node_named(g, "pictures");
    g_autoptr(GError) error = NULL;
    FlowPlan *plan = flow_graph_plan(g, FALSE, &error);
    g_assert_no_error(error);
    g_assert_cmpint(plan->samples, ==, 5);
    g_assert_cmpint(plan->validation, ==, 1);
    g_assert_cmpint(plan->source_pixels, ==, 20 * 31);
    g_assert_cmpuint(plan->sizes->len, ==, 5);
    gint64 all = 0;
    for (guint i = 0; i < plan->sizes->len; i++) {
        const FlowPlanSize *s = &g_array_index(plan->sizes, FlowPlanSize, i);
        all += s->count;
        g_assert_cmpint(s->count, ==, s->width == 30 ? 2 : 1);
    }
    g_assert_cmpint(all, ==, 6);
    g_assert_cmpuint(flow_plan_sum(plan, FLOW_PHASE_TRAIN, FLOW_HOST, node, "list"), >, 0);
    flow_plan_free(plan);
    flow_graph_free(g);
    lab_dir_remove();
}

int main(int argc, char **argv)
{
    picture_lab_init(&argc, &argv);
    g_test_add_func("/image_folder/epochs", test_epochs);
    g_test_add_func("/image_folder/shuffle", test_shuffle);
    g_test_add_func("/image_folder/repeats", test_repeats);
    g_test_add_func("/image_folder/prefill_and_validation", test_prefill_and_validation);
    g_test_add_func("/image_folder/share", test_share);
    g_test_add_func("/image_folder/captions", test_captions);
    g_test_add_func("/image_folder/dropout_and_tags", test_dropout_and_tags);
    g_test_add_func("/image_folder/bad_pictures", test_bad_pictures);
    g_test_add_func("/image_folder/refused", test_refused);
    g_test_add_func("/image_folder/resume", test_resume);
    g_test_add_func("/image_folder/plan", test_plan);
    int rc = g_test_run();
    picture_lab_done();
    return rc;
}
