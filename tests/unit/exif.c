/* Orientation tags, good and damaged, and the eight ways of turning a picture.
 *
 * @label short
 */
#include "core/image/exif.h"
#include "core/image/orient.h"

#include <string.h>

/* A TIFF with one directory entry, in a buffer of exactly its length so that a sanitizer sees overreads. */
static guint8 *tiff(gboolean big, guint32 offset, guint16 entries, guint16 tag, guint16 type, guint16 value,
                    gsize *n)
{
    guint8 *p = g_malloc0(26);
    *n = 26;
#define PUT16(at, v) (p[at] = (guint8)(big ? (v) >> 8 : (v)), p[(at) + 1] = (guint8)(big ? (v) : (v) >> 8))
    p[0] = p[1] = big ? 'M' : 'I';
    PUT16(2, 42);
    PUT16(big ? 4 : 6, offset >> 16);
    PUT16(big ? 6 : 4, offset & 0xffff);
    PUT16(8, entries);
    PUT16(10, tag);
    PUT16(12, type);
    PUT16(big ? 16 : 14, 1);
    PUT16(18, value);
#undef PUT16
    return p;
}

static int orientation(gboolean big, guint32 offset, guint16 entries, guint16 tag, guint16 type,
                       guint16 value, gsize cut)
{
    gsize n;
    g_autofree guint8 *p = tiff(big, offset, entries, tag, type, value, &n);
    g_autofree guint8 *exact = g_memdup2(p, MIN(n, cut));
    return image_exif_orientation(exact, MIN(n, cut));
}

static void test_orientation(void)
{
    for (int big = 0; big < 2; big++) {
        for (guint16 v = 1; v <= 8; v++)
            g_assert_cmpint(orientation(big, 8, 1, 0x0112, 3, v, 26), ==, v);
        /* */
        g_assert_cmpint(orientation(big, 8, 1, 0x0112, 3, 0, 26), ==, 1); /* phones write 0 */
        g_assert_cmpint(orientation(big, 8, 1, 0x0112, 3, 9, 26), ==, 1);
        g_assert_cmpint(orientation(big, 8, 1, 0x0112, 2, 6, 26), ==, 1); /* text */
        g_assert_cmpint(orientation(big, 8, 1, 0x0110, 3, 6, 26), ==, 1); /* another tag */
        g_assert_cmpint(orientation(big, 8, 0, 0x0112, 3, 6, 26), ==, 1);
        g_assert_cmpint(orientation(big, 8, 0xffff, 0x0112, 3, 6, 26), ==, 1);
        g_assert_cmpint(orientation(big, 0xffffffff, 1, 0x0112, 3, 6, 26), ==, 1);
        g_assert_cmpint(orientation(big, 26, 1, 0x0112, 3, 6, 26), ==, 1);
        g_assert_cmpint(orientation(big, 24, 1, 0x0112, 3, 6, 26), ==, 1);
        for (gsize cut = 0; cut < 22; cut++)
            g_assert_cmpint(orientation(big, 8, 1, 0x0112, 3, 6, cut), ==, 1);
    }
    g_assert_cmpint(image_exif_orientation((const guint8 *)"XX*\0\10\0\0\0\0\0", 10), ==, 1);
    g_assert_cmpint(image_exif_orientation((const guint8 *)"IM*\0\10\0\0\0\0\0", 10), ==, 1);
}

/* Where the pixel seen at (y, x) is stored, by the words of the EXIF standard ("row 0 is the visual ...). */
static void stored(int orientation, int h, int w, int y, int x, int *sy, int *sx)
{
    switch (orientation) { /* h, w: stored size */
    case 1:
        *sy = y, *sx = x;
        break;
    case 2:
        *sy = y, *sx = w - 1 - x;
        break;
    case 3:
        *sy = h - 1 - y, *sx = w - 1 - x;
        break;
    case 4:
        *sy = h - 1 - y, *sx = x;
        break;
    case 5:
        *sy = x, *sx = y;
        break;
    case 6:
        *sy = h - 1 - x, *sx = y;
        break;
    case 7:
        *sy = h - 1 - x, *sx = w - 1 - y;
        break;
    default:
        *sy = x, *sx = w - 1 - y;
        break;
    }
}

static void test_turns(void)
{
    static const int sizes[][2] = {{1, 1}, {1, 5}, {3, 2}, {33, 70}, {64, 32}};
    for (guint i = 0; i < G_N_ELEMENTS(sizes); i++)
        for (int o = 1; o <= 8; o++) {
            int h = sizes[i][0], w = sizes[i][1];
            gsize n = (gsize)h * w * 3;
            g_autofree guint8 *src = g_malloc(n), *dst = g_malloc0(n);
            for (gsize k = 0; k < n; k++)
                src[k] = (guint8)(k * 131 + (k >> 8) * 17);
            image_orient(src, h, w, o, dst);
            int rows = image_orient_swaps(o) ? w : h, columns = image_orient_swaps(o) ? h : w;
            for (int y = 0; y < rows; y++)
                for (int x = 0; x < columns; x++) {
                    int sy, sx;
                    stored(o, h, w, y, x, &sy, &sx);
                    g_assert_cmpmem(dst + ((gsize)y * columns + x) * 3, 3, src + ((gsize)sy * w + sx) * 3, 3);
                }
        }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/exif/orientation", test_orientation);
    g_test_add_func("/exif/turns", test_turns);
    return g_test_run();
}
