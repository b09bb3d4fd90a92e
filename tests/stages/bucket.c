/* bucket: geometry of every item, draws, prefill twins, plan, and where the resolution comes from.
 * @label short
 * @link libjpeg zlib
 */
#include "core/image/geometry.h"
#include "picture_lab.h"

#define SOURCE "[pictures]\nstage = image_folder\npath = %s\nmissing = empty\nshuffle = no\n"
#define CATCH "[catch]\nstage = t_catch\nin = shape\n"

static const ImageGeometry *geometry(guint i)
{
    return (const ImageGeometry *)flow_item_i32(lab_item_at(i), FLOW_F_GEOMETRY);
}

static void pictures(void)
{
    lab_dir_make();
    lab_picture("a", 64, 64, "ff0000", NULL);
    lab_picture("b", 64, 140, "00ff00", NULL);
    lab_picture("c", 200, 100, "0000ff", NULL);
}

static void test_geometry(void)
{
    pictures();
    LAB_RUN(
        SOURCE
        "epochs = 1\n[shape]\nstage = bucket\nin = pictures\nresolution = 128\nmin = 64\nstep = 32\n" CATCH,
        lab_dir);
    g_assert_cmpuint(lab_count(), ==, 3);
    ImageBuckets b = {128, 64, 0, 32, TRUE, 16, NULL, 0};
    g_assert_true(image_geometry_open(&b, NULL));
    static const ImageSize sources[] = {{64, 64}, {64, 140}, {200, 100}};
    for (guint i = 0; i < 3; i++) { /* as the one function says, centred */
        ImageSize target, resized;
        ImageGeometry g;
        g_assert_true(image_geometry_pick(&b, sources[i], &target, &resized, NULL));
        image_geometry_crop(resized, target, 0.5, 0.5, &g);
        g_assert_cmpmem(geometry(i), sizeof g, &g, sizeof g);
    }
    image_geometry_close(&b);
    lab_dir_remove();
}

static void test_draws(void)
{
    pictures();
    const char *graph =
        SOURCE "epochs = 40\n[shape]\nstage = bucket\nin = pictures\nresolution = 64\nmin = 32\n"
               "step = 32\ncrop = random\nflip = 0.3\n" CATCH;
    LAB_RUN(graph, lab_dir);
    guint flips = 0, tops[4] = {0};
    for (guint i = 0; i < 120; i++) {
        const ImageGeometry *g = geometry(i);
        flips += (guint)g->flip;
        g_assert_cmpint(g->top, >=, 0);
        g_assert_cmpint(g->top + g->target_height, <=, g->resized_height);
        g_assert_cmpint(g->left + g->target_width, <=, g->resized_width);
        if (i % 3 == 1)
            tops[MIN((guint)g->top * 4 / (guint)(g->resized_height - g->target_height + 1), 3)]++;
    }
    g_assert_cmpuint(flips, >, 16); /* 36 are due; 4 standard deviations are 20 */
    g_assert_cmpuint(flips, <, 56);
    for (guint k = 0; k < 4; k++)
        g_assert_cmpuint(tops[k], >, 0); /* 40 draws reach every quarter */
    g_autofree ImageGeometry *before = g_new(ImageGeometry, 120);
    for (guint i = 0; i < 120; i++)
        before[i] = *geometry(i);
    LAB_RUN(graph, lab_dir);
    /* D-16 */
    for (guint i = 0; i < 120; i++)
        g_assert_cmpmem(&before[i], sizeof *before, geometry(i), sizeof *before);
    lab_dir_remove();
}

/* What may be asked for later is filled: both ways round, but held-back pictures as they are. */
static void test_prefill(void)
{
    pictures();
    const char *graph =
        SOURCE "epochs = 1\nprefill = yes\nvalidation = 34%%\n[shape]\nstage = bucket\nin = pictures\n"
               "resolution = 64\nmin = 32\nstep = 32\nflip = %s\n" CATCH;
    LAB_RUN(graph, lab_dir, "0.5");
    guint twins = 0, held = 0;
    for (guint i = 0; i < lab_count(); i++) {
        const FlowItem *item = lab_item_at(i);
        if (item->cursor.epoch >= 0)
            continue;
        held += *flow_item_i32(item, FLOW_F_ROLE) == 1;
        twins += (guint)geometry(i)->flip;
        if (*flow_item_i32(item, FLOW_F_ROLE))
            g_assert_cmpint(geometry(i)->flip, ==, 0);
    }
    g_assert_cmpuint(held, ==, 1);
    g_assert_cmpuint(twins, ==, 2);
    g_assert_cmpuint(lab_count(), ==, 1 + 4 + 2);
    LAB_RUN(graph, lab_dir, "1");
    g_assert_cmpuint(lab_count(), ==, 1 + 2 + 2);
    lab_dir_remove();
}

static void test_long_pictures(void)
{
    pictures();
    lab_bytes("wide.png", make_png(30000, 1, 8, 2, "ff0000", FALSE, NULL));
    lab_bytes("one.png", make_png(1, 1, 8, 2, "ff0000", FALSE, NULL));
    lab_bytes("small.png", make_png(64, 31, 8, 2, "ff0000", FALSE, NULL));
    const char *graph = SOURCE "epochs = 1\n[shape]\nstage = bucket\nin = pictures\nresolution = 512\n"
                               "on_error = %s\nupscale = %s\n" CATCH;
    /* */
    LAB_FAIL("30000x1 pixels: aspect 3e+04:1 is outside max_aspect = 16:1", graph, lab_dir, "stop", "yes");
    LAB_RUN(graph, lab_dir, "skip", "yes");
    g_assert_cmpuint(lab_count(), ==, 5);
    LAB_FAIL("1x1 pixels: a side is below the bucket step of 64 px; set upscale = yes", graph, lab_dir,
             "stop", "no");
    LAB_RUN(graph, lab_dir, "skip", "no");
    g_assert_cmpuint(lab_count(), ==, 3); /* a, b, c */
    lab_dir_remove();
}

static char *refused(const char *format, ...) G_GNUC_PRINTF(1, 2);
static char *refused(const char *format, ...)
{
    va_list args;
    FlowGraph *graph = NULL;
    g_autoptr(GError) error = NULL;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    g_autofree char *messages = lab_check(text, &graph);
    if (!graph)
        g_error("%s", messages);
    g_assert_false(flow_graph_open(graph, &error));
    flow_graph_free(graph);
    return g_strdup(error->message);
}

static void expect_refused(const char *params, const char *text)
{
    g_autofree char *said =
        refused(SOURCE "epochs = 1\n[shape]\nstage = bucket\nin = pictures\n%s" CATCH, "/tmp", params);
    if (!strstr(said, text))
        g_error("'%s' lacks '%s'", said, text);
}

static void test_refused(void)
{
    expect_refused("", "resolution = 0 is the model's own, but no node has a base; set resolution");
    expect_refused("resolution = 512\nmin = 600\n",
                   "resolution = 512 px is outside min = 600 and max = 1024");
    expect_refused("resolution = 32\n", "resolution = 32 px is outside step = 64..65536");
}

/* score names a model, which tells the resolution and what steps it can work with. */
static void test_model(void)
{
    const char *model = "[score]\nstage = score\nin = shape\nbase = tests/fixtures/tiny-sd\n";
    pictures();
    g_autofree char *text =
        g_strdup_printf(SOURCE "epochs = 1\n[shape]\nstage = bucket\nin = pictures\nmin = 32\n%s"
                               "[catch]\nstage = t_catch\nin = score\n",
                        lab_dir, model);
    FlowGraph *graph = lab_open(text);
    g_autoptr(GError) error = NULL;
    FlowPlan *plan = flow_graph_plan(graph, FALSE, &error);
    g_assert_no_error(error);
    gint64 count = 0;
    for (guint i = 0; i < plan->sizes->len; i++) {
        const FlowPlanSize *s = &g_array_index(plan->sizes, FlowPlanSize, i);
        count += s->count;
        g_assert_cmpint(s->height % 64, ==, 0);
    }
    g_assert_cmpint(count, ==, 3);
    flow_plan_free(plan);
    flow_graph_free(graph);
    g_autofree char *said =
        refused(SOURCE "epochs = 1\n[shape]\nstage = bucket\nin = pictures\nresolution = 64\nstep = 3\n%s"
                       "[catch]\nstage = t_catch\nin = score\n",
                lab_dir, model);
    g_assert_nonnull(strstr(said, "step = 3 px is not a multiple of "));
    lab_dir_remove();
}

static void test_plan(void)
{
    pictures();
    lab_picture("d", 65, 65, "ff0000", NULL);
    g_autofree char *text =
        g_strdup_printf(SOURCE "epochs = 1\n[shape]\nstage = bucket\nin = pictures\nresolution = 64\n"
                               "min = 32\nstep = 32\n" CATCH,
                        lab_dir);
    FlowGraph *graph = lab_open(text);
    g_autoptr(GError) error = NULL;
    FlowPlan *plan = flow_graph_plan(graph, FALSE, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(plan->sizes->len, ==, 3);
    gint64 square = 0;
    for (guint i = 0; i < plan->sizes->len; i++) {
        const FlowPlanSize *s = &g_array_index(plan->sizes, FlowPlanSize, i);
        square += s->height == 64 && s->width == 64 ? s->count : 0;
    }
    g_assert_cmpint(square, ==, 2);
    flow_plan_free(plan);
    plan = flow_graph_plan(graph, TRUE, &error); /* every bucket, without looking at pictures */
    g_assert_no_error(error);
    g_assert_cmpuint(plan->sizes->len, ==, 5);
    flow_plan_free(plan);
    flow_graph_free(graph);
    lab_dir_remove();
}

int main(int argc, char **argv)
{
    picture_lab_init(&argc, &argv);
    g_test_add_func("/bucket/geometry", test_geometry);
    g_test_add_func("/bucket/draws", test_draws);
    g_test_add_func("/bucket/prefill", test_prefill);
    g_test_add_func("/bucket/long_pictures", test_long_pictures);
    g_test_add_func("/bucket/refused", test_refused);
    g_test_add_func("/bucket/model", test_model);
    g_test_add_func("/bucket/plan", test_plan);
    int rc = g_test_run();
    picture_lab_done();
    return rc;
}
