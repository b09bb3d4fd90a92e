/* Filters against their definition in double precision, what must hold exactly, and aliasing.
 * @label short
 */
#include "core/image/resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ImageGeometry whole(gint32 h, gint32 w)
{
    return (ImageGeometry){h, w, h, w, 0, 0, 0};
}

static guint8 *resized(const guint8 *src, ImageSize size, ImageFilter filter, ImageGeometry g)
{
    ImageResizer *r = image_resizer_new();
    gsize n = (gsize)g.target_height * (gsize)g.target_width * 3;
    guint8 *dst = g_malloc(n + 16); /* guard behind the end */
    memset(dst + n, 0xa5, 16);
    image_resize(r, src, size, filter, &g, dst);
    for (int i = 0; i < 16; i++)
        g_assert_cmpint(dst[n + (gsize)i], ==, 0xa5);
    image_resizer_free(r);
    return dst;
}

static guint8 *noise(ImageSize size)
{
    gsize n = (gsize)size.height * (gsize)size.width * 3;
    guint8 *p = g_malloc(n);
    guint32 v = 1;
    for (gsize i = 0; i < n; i++)
        p[i] = (guint8)((v = v * 1664525u + 1013904223u) >> 24);
    return p;
}

/* The kernels as they are written in textbooks. */
static double kernel(ImageFilter filter, double x)
{
    x = fabs(x);
    if (filter == IMAGE_BICUBIC)
        return x < 1   ? 1.5 * x * x * x - 2.5 * x * x + 1
               : x < 2 ? -0.5 * x * x * x + 2.5 * x * x - 4 * x + 2
                       : 0;
    if (x >= 3)
        return 0;
    return x < 1e-12 ? 1 : 3 * sin(M_PI * x) * sin(M_PI * x / 3) / (M_PI * M_PI * x * x);
}

static double weight(ImageFilter filter, int in, int out, int i, int j)
{
    double scale = (double)in / out, from = i * scale;
    if (filter == IMAGE_AREA)
        return fmax(0, fmin(j + 1, from + scale) - fmax(j, from));
    return kernel(filter, (j + 0.5 - (from + scale / 2)) / fmax(scale, 1));
}

static double reference(const guint8 *src, ImageSize in, ImageFilter filter, ImageSize out, int y, int x,
                        int c)
{
    double sum = 0, total = 0;
    for (int sy = 0; sy < in.height; sy++)
        for (int sx = 0; sx < in.width; sx++) {
            double w =
                weight(filter, in.height, out.height, y, sy) * weight(filter, in.width, out.width, x, sx);
            sum += w * src[((gsize)sy * (gsize)in.width + (gsize)sx) * 3 + (gsize)c];
            total += w;
        }
    return CLAMP(sum / total, 0, 255);
}

static void test_reference(void)
{
    static const gint32 sizes[][4] = {{40, 50, 13, 17}, {13, 17, 40, 50}, {30, 20, 30, 45}, {9, 64, 20, 8},
                                      {64, 64, 32, 32}, {1, 1, 5, 7},     {2, 3, 1, 1},     {50, 1, 7, 1}};
    for (int f = IMAGE_AREA; f <= IMAGE_LANCZOS; f++)
        for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
            ImageSize in = {sizes[i][0], sizes[i][1]}, out = {sizes[i][2], sizes[i][3]};
            g_autofree guint8 *src = noise(in);
            g_autofree guint8 *dst = resized(src, in, (ImageFilter)f, whole(out.height, out.width));
            for (int y = 0; y < out.height; y++)
                for (int x = 0; x < out.width; x++)
                    for (int c = 0; c < 3; c++) {
                        double want = reference(src, in, (ImageFilter)f, out, y, x, c);
                        int got = dst[(y * out.width + x) * 3 + c];
                        /* rounding to bytes, and float sums of at most 100 terms */
                        g_assert_cmpfloat_with_epsilon(got, want, 0.5 + 1e-3);
                    }
        }
}

static void test_exact(void)
{
    ImageSize in = {37, 53};
    g_autofree guint8 *src = noise(in);
    g_autofree guint8 *same = resized(src, in, IMAGE_LANCZOS, whole(37, 53));
    g_assert_cmpmem(same, 37 * 53 * 3, src, 37 * 53 * 3);

    /* one colour stays that colour, through any filter and scale; a picture of one pixel too */
    g_autofree guint8 *flat = g_malloc(37 * 53 * 3);
    for (int value = 0; value <= 255; value += 51) {
        memset(flat, value, 37 * 53 * 3);
        for (int f = IMAGE_AUTO; f <= IMAGE_LANCZOS; f++) {
            g_autofree guint8 *small = resized(flat, in, (ImageFilter)f, whole(11, 5));
            g_autofree guint8 *large = resized(flat, (ImageSize){1, 1}, (ImageFilter)f, whole(64, 128));
            for (int i = 0; i < 11 * 5 * 3; i++)
                g_assert_cmpint(small[i], ==, value);
            for (int i = 0; i < 64 * 128 * 3; i++)
                g_assert_cmpint(large[i], ==, value);
        }
    }
    /* area by 2 is the mean of four */
    g_autofree guint8 *even = noise((ImageSize){8, 6});
    g_autofree guint8 *half = resized(even, (ImageSize){8, 6}, IMAGE_AREA, whole(4, 3));
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 3; x++)
            for (int c = 0; c < 3; c++) {
                const guint8 *p = even + (y * 2 * 6 + x * 2) * 3 + c;
                g_assert_cmpint(half[(y * 3 + x) * 3 + c], ==, (p[0] + p[3] + p[18] + p[21] + 2) / 4);
            }
    /* auto: area where both sides shrink, else lanczos */
    g_autofree guint8 *a = resized(src, in, IMAGE_AUTO, whole(20, 20)),
                      *b = resized(src, in, IMAGE_AREA, whole(20, 20));
    g_assert_cmpmem(a, 1200, b, 1200);
    g_autofree guint8 *c = resized(src, in, IMAGE_AUTO, whole(37, 20)),
                      *d = resized(src, in, IMAGE_LANCZOS, whole(37, 20));
    g_assert_cmpmem(c, 37 * 60, d, 37 * 60);
}

/* A crop is a part of the whole, a flip its mirror image, also where nothing is resized. */
static void test_crop_and_flip(void)
{
    static const ImageSize to[] = {{50, 90}, {21, 33}, {41, 60}};
    ImageSize in = {41, 60};
    g_autofree guint8 *src = noise(in);
    for (guint i = 0; i < G_N_ELEMENTS(to); i++)
        for (int f = IMAGE_AUTO; f <= IMAGE_LANCZOS; f++)
            for (int flip = 0; flip < 2; flip++) {
                ImageGeometry g = {16, 24, to[i].height, to[i].width, to[i].height - 17, 5, flip};
                g_autofree guint8 *all = resized(src, in, (ImageFilter)f, whole(to[i].height, to[i].width));
                g_autofree guint8 *part = resized(src, in, (ImageFilter)f, g);
                for (int y = 0; y < 16; y++)
                    for (int x = 0; x < 24; x++)
                        g_assert_cmpmem(part + (y * 24 + x) * 3, 3,
                                        all + ((g.top + y) * to[i].width + g.left + (flip ? 23 - x : x)) * 3,
                                        3);
            }
}

/* What is finer than the output can show must vanish, not turn into stripes. */
static void test_no_aliasing(void)
{
    ImageSize in = {240, 240};
    g_autofree guint8 *src = g_malloc(240 * 240 * 3);
    for (int y = 0; y < 240; y++)
        for (int x = 0; x < 240; x++)
            memset(src + (y * 240 + x) * 3, (x + y) % 2 ? 255 : 0, 3);
    for (int f = IMAGE_AREA; f <= IMAGE_LANCZOS; f++) {
        g_autofree guint8 *dst = resized(src, in, (ImageFilter)f, whole(67, 67));
        for (int i = 0; i < 67 * 67 * 3; i++)
            g_assert_cmpint(abs(dst[i] - 127), <=,
                            4); /* area leaves 1 / (2 * 3.6 * 3.6) of 128 at the most */
    }
    /* a ramp stays a ramp where the edges are out of reach */
    for (int y = 0; y < 240; y++)
        for (int x = 0; x < 240; x++)
            memset(src + (y * 240 + x) * 3, x, 3);
    for (int f = IMAGE_BICUBIC; f <= IMAGE_LANCZOS; f++) {
        g_autofree guint8 *dst = resized(src, in, (ImageFilter)f, whole(80, 80));
        for (int x = 4; x < 76; x++)
            g_assert_cmpint(abs(dst[(40 * 80 + x) * 3] - (3 * x + 1)), <=, 1);
    }
}

/* One resizer for many sizes; and the same bytes without the fast variant (checksum of a second process). */
static void test_reuse_and_variants(void)
{
    g_autofree char *again = NULL;
    GChecksum *sum = g_checksum_new(G_CHECKSUM_SHA256);
    ImageResizer *r = image_resizer_new();
    for (int i = 0; i < 60; i++) {
        ImageSize in = {20 + i * 37 % 91, 15 + i * 53 % 130};
        ImageGeometry g = whole(8 + i * 29 % 100, 8 + i * 17 % 100);
        g_autofree guint8 *src = noise(in), *dst = g_malloc((gsize)(g.target_height * g.target_width * 3));
        ImageFilter filter = (ImageFilter)(IMAGE_AREA + i % 3);
        image_resize(r, src, in, filter, &g, dst);
        g_autofree guint8 *fresh = resized(src, in, filter, g);
        g_assert_cmpmem(dst, g.target_height * g.target_width * 3, fresh,
                        g.target_height * g.target_width * 3);
        g_checksum_update(sum, dst, g.target_height * g.target_width * 3);
    }
    image_resizer_free(r);
    if (g_getenv("RESIZE_PRINT")) {
        g_print("sum %s\n", g_checksum_get_string(sum));
    } else {
        char *argv[] = {"/proc/self/exe", "-p", "/resize/reuse_and_variants", NULL};
        g_auto(GStrv) env = g_environ_setenv(g_get_environ(), "FLOW_CPU", "0", TRUE);
        env = g_environ_setenv(env, "RESIZE_PRINT", "1", TRUE);
        g_autofree char *self = g_file_read_link("/proc/self/exe", NULL);
        argv[0] = self;
        g_assert_true(g_spawn_sync(NULL, argv, env, 0, NULL, NULL, &again, NULL, NULL, NULL));
        g_assert_nonnull(strstr(again, g_checksum_get_string(sum)));
    }
    g_checksum_free(sum);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/resize/reference", test_reference);
    g_test_add_func("/resize/exact", test_exact);
    g_test_add_func("/resize/crop_and_flip", test_crop_and_flip);
    g_test_add_func("/resize/no_aliasing", test_no_aliasing);
    g_test_add_func("/resize/reuse_and_variants", test_reuse_and_variants);
    return g_test_run();
}
