/* resize_crop: the stage around image_resize: shapes, filters, flips, geometry that cannot be.
 * @label short
 * @link libjpeg zlib
 */
#include "core/image/resize.h"
#include "picture_lab.h"

#define GRAPH                                                                                                \
    "[items]\nstage = t_items\n[fit]\nstage = resize_crop\nin = items\nworkers = %d\nfilter = %s\n"          \
    "[catch]\nstage = t_catch\nin = fit\n"

static void add(gint32 h, gint32 w, const gint32 geometry[7])
{
    FlowItem *item = flow_item_new(FLOW_SAMPLE);
    gint64 shape[3] = {h, w, 3};
    FlowValue *value = flow_value_new(NET_U8, 3, shape);
    for (gsize i = 0; i < value->nbytes; i++)
        ((guint8 *)value->data)[i] = (guint8)(i * 7919 >> 3);
    flow_item_set(item, FLOW_F_IMAGE, value);
    flow_item_set_i32(item, FLOW_F_GEOMETRY, geometry, 7);
    g_ptr_array_add(lab_items, item);
}

static void start(void)
{
    lab_gives = "image geometry";
    g_ptr_array_set_size(lab_items, 0);
}

static void test_same_as_function(void)
{
    static const char *const filters[] = {"auto", "area", "bicubic", "lanczos"};
    static const gint32 geometry[][7] = {{16, 24, 20, 24, 2, 0, 0},
                                         {16, 24, 20, 24, 4, 0, 1},
                                         {64, 64, 64, 80, 0, 16, 0},
                                         {8, 8, 30, 41, 20, 30, 1}};
    start();
    for (int i = 0; i < 24; i++)
        add(30, 41, geometry[i % 4]);
    for (int f = 0; f < 4; f++)
        for (int workers = 1; workers <= 8; workers *= 8) {
            LAB_RUN(GRAPH, workers, filters[f]);
            g_assert_cmpuint(lab_count(), ==, 24);
            ImageResizer *r = image_resizer_new();
            for (guint i = 0; i < 24; i++) {
                const ImageGeometry *g = (const ImageGeometry *)geometry[i % 4];
                const FlowValue *got = flow_item_get(lab_item_at(i), FLOW_F_PIXELS),
                                *image = flow_item_get(lab_items->pdata[i], FLOW_F_IMAGE);
                g_autofree guint8 *want = g_malloc((gsize)g->target_height * (gsize)g->target_width * 3);
                image_resize(r, image->data, (ImageSize){30, 41}, (ImageFilter)f, g, want);
                g_assert_cmpint(got->shape[0], ==, g->target_height);
                g_assert_cmpint(got->shape[1], ==, g->target_width);
                g_assert_cmpmem(got->data, got->nbytes, want,
                                (gsize)(g->target_height * g->target_width * 3));
                g_assert_null(flow_item_get(lab_item_at(i), FLOW_F_IMAGE));
            }
            image_resizer_free(r);
        }
}

static void test_bad_geometry(void)
{
    static const gint32 bad[][7] = {{16, 16, 15, 16, 0, 0, 0},  {16, 16, 20, 20, 5, 0, 0},
                                    {16, 16, 20, 20, 0, -1, 0}, {0, 16, 20, 20, 0, 0, 0},
                                    {-1, 16, 20, 20, 0, 0, 0},  {16, 16, 20, 20, 0, 5, 0},
                                    {16, 16, -20, 20, 0, 0, 0}, {16, 16, 20, 20, -2147483647, 0, 0}};
    for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
        start();
        add(30, 41, bad[i]);
        LAB_FAIL("geometry: a target of ", GRAPH, 1, "auto");
    }
}

int main(int argc, char **argv)
{
    picture_lab_init(&argc, &argv);
    g_test_add_func("/resize_crop/same_as_function", test_same_as_function);
    g_test_add_func("/resize_crop/bad_geometry", test_bad_geometry);
    int rc = g_test_run();
    picture_lab_done();
    return rc;
}
