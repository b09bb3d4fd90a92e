/* Buckets against the published lists of kohya's trainer, scale and crop against its arithmetic, and what
 * long or tiny pictures do.
 *
 * @label short
 */
#include "core/image/geometry.h"

static ImageBuckets buckets(gint64 resolution, gint64 min, gint64 max, gint64 step, gboolean upscale)
{
    ImageBuckets b = {resolution, min, max, step, upscale, 16, NULL, 0};
    g_autoptr(GError) error = NULL;
    g_assert_true(image_geometry_open(&b, &error));
    g_assert_no_error(error);
    return b;
}

static void test_lists(void)
{
    static const ImageSize of512[] = {{832, 256}, {896, 256}, {960, 256}, {1024, 256}, {704, 320}, {768, 320},
                                      {640, 384}, {576, 448}, {512, 512}, {448, 576},  {384, 640}, {320, 704},
                                      {320, 768}, {256, 832}, {256, 896}, {256, 960},  {256, 1024}};
    ImageBuckets b = buckets(512, 0, 0, 64, TRUE);
    g_assert_cmpuint(b.n, ==, G_N_ELEMENTS(of512));
    for (guint i = 0; i < b.n; i++) {
        g_assert_cmpint(b.buckets[i].width, ==, of512[i].width);
        g_assert_cmpint(b.buckets[i].height, ==, of512[i].height);
    }
    image_geometry_close(&b);

    b = buckets(1024, 256, 2048, 64, TRUE);
    g_assert_cmpuint(b.n, ==, 41);
    image_geometry_close(&b);
    b = buckets(1024, 0, 0, 64, TRUE); /* the default is not the trap below */
    g_assert_cmpuint(b.n, ==, 41);
    image_geometry_close(&b);
    b = buckets(1024, 256, 1024, 64, TRUE); /* max = resolution: every bucket has a side of 1024 */
    g_assert_cmpuint(b.n, ==, 25);
    for (guint i = 0; i < b.n; i++)
        g_assert_cmpint(MAX(b.buckets[i].width, b.buckets[i].height), ==, 1024);
    image_geometry_close(&b);
    b = buckets(128, 0, 0, 64, TRUE); /* a tiny model */
    g_assert_cmpuint(b.n, ==, 5);
    image_geometry_close(&b);
}

static void expect(const ImageBuckets *b, ImageSize source, ImageSize target, ImageSize resized)
{
    ImageSize t, r;
    g_autoptr(GError) error = NULL;
    g_assert_true(image_geometry_pick(b, source, &t, &r, &error));
    g_assert_cmpint(t.height, ==, target.height);
    g_assert_cmpint(t.width, ==, target.width);
    g_assert_cmpint(r.height, ==, resized.height);
    g_assert_cmpint(r.width, ==, resized.width);
}

static void test_pick(void)
{
    ImageBuckets b = buckets(1024, 256, 2048, 64, TRUE);
    expect(&b, (ImageSize){1024, 1024}, (ImageSize){1024, 1024}, (ImageSize){1024, 1024});
    expect(&b, (ImageSize){3000, 4000}, (ImageSize){896, 1152}, (ImageSize){896, 1195});
    expect(&b, (ImageSize){4000, 3000}, (ImageSize){1152, 896}, (ImageSize){1195, 896});
    expect(&b, (ImageSize){1, 1}, (ImageSize){1024, 1024}, (ImageSize){1024, 1024});
    expect(&b, (ImageSize){100, 1600}, (ImageSize){256, 2048}, (ImageSize){256, 4096});
    image_geometry_close(&b);

    b = buckets(512, 256, 1024, 64, FALSE);
    expect(&b, (ImageSize){100, 200}, (ImageSize){64, 192}, (ImageSize){100, 200});
    expect(&b, (ImageSize){512, 512}, (ImageSize){512, 512}, (ImageSize){512, 512});
    expect(&b, (ImageSize){1080, 1050}, (ImageSize){448, 448}, (ImageSize){461, 448});
    image_geometry_close(&b);
}

static void refuses(const ImageBuckets *b, ImageSize source, const char *text)
{
    ImageSize t, r;
    g_autoptr(GError) error = NULL;
    g_assert_false(image_geometry_pick(b, source, &t, &r, &error));
    if (!strstr(error->message, text))
        g_error("'%s' lacks '%s'", error->message, text);
}

static void test_refused(void)
{
    ImageBuckets b = buckets(512, 0, 0, 64, TRUE);
    /* */
    refuses(&b, (ImageSize){1, 30000}, "30000x1 pixels: aspect 3e+04:1 is outside max_aspect = 16:1");
    refuses(&b, (ImageSize){30000, 1}, "outside max_aspect");
    b.max_aspect = 1e9;
    ImageSize t, r;
    g_assert_true(image_geometry_pick(&b, (ImageSize){1, 30000}, &t, &r, NULL));
    g_assert_cmpint(MIN(t.height, t.width), >=, 64);
    image_geometry_close(&b);

    b = buckets(512, 0, 0, 64, FALSE);
    refuses(&b, (ImageSize){64, 31}, "31x64 pixels: a side is below the bucket step of 64 px");
    refuses(&b, (ImageSize){63, 640}, "below the bucket step");
    b.max_aspect = 1e9;
    refuses(&b, (ImageSize){1, 30000}, "below the bucket step");
    refuses(&b, (ImageSize){10, 60000}, "below the bucket step");
    image_geometry_close(&b);

    static const gint64 bad[][4] = {
        {512, 600, 1024, 64}, {512, 256, 500, 64}, {32, 0, 0, 64}, {1 << 20, 0, 0, 8}};
    for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        ImageBuckets c = {bad[i][0], bad[i][1], bad[i][2], bad[i][3], TRUE, 16, NULL, 0};
        g_assert_false(image_geometry_open(&c, &error));
        g_assert_nonnull(strstr(error->message, "resolution = "));
    }
}

/* Every size up to a limit: the target is a bucket, resized covers it, nothing is cut on both sides. */
static void test_every_size(void)
{
    ImageBuckets b = buckets(256, 64, 512, 32, TRUE);
    for (gint32 h = 1; h < 300; h += 7)
        for (gint32 w = 1; w < 300; w += 3) {
            ImageSize t, r;
            if (MAX(h, w) > 16 * MIN(h, w))
                continue;
            g_assert_true(image_geometry_pick(&b, (ImageSize){h, w}, &t, &r, NULL));
            g_assert_true(t.height % 32 == 0 && t.width % 32 == 0 && t.height * t.width <= 256 * 256);
            g_assert_true(r.height >= t.height && r.width >= t.width);
            g_assert_true(r.height == t.height || r.width == t.width);
            ImageGeometry g;
            image_geometry_fit((ImageSize){h, w}, t, 0.999, 0, &g);
            g_assert_true(g.top >= 0 && g.top + g.target_height <= g.resized_height && g.left == 0);
        }
    image_geometry_close(&b);
}

static void test_crop(void)
{
    ImageGeometry g;
    image_geometry_fit((ImageSize){3000, 4000}, (ImageSize){896, 1152}, 0.5, 0.5, &g);
    g_assert_cmpint(g.top, ==, 0);
    g_assert_cmpint(g.left, ==, 21);
    image_geometry_crop((ImageSize){65, 64}, (ImageSize){64, 64}, 0.5, 0.5, &g);
    g_assert_cmpint(g.top, ==, 0); /* an odd pixel goes at the bottom, as trim / 2 does */
    image_geometry_crop((ImageSize){74, 64}, (ImageSize){64, 64}, 0.9999, 0, &g);
    g_assert_cmpint(g.top, ==, 10);
    ImageSize s = image_geometry_scaled((ImageSize){1024, 832}, 0.5, 64);
    g_assert_cmpint(s.height, ==, 512);
    g_assert_cmpint(s.width, ==, 448);
    s = image_geometry_scaled((ImageSize){64, 64}, 0.1, 64);
    g_assert_cmpint(s.height, ==, 64);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/geometry/lists", test_lists);
    g_test_add_func("/geometry/pick", test_pick);
    g_test_add_func("/geometry/refused", test_refused);
    g_test_add_func("/geometry/every_size", test_every_size);
    g_test_add_func("/geometry/crop", test_crop);
    return g_test_run();
}
