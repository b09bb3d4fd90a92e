/* Each orientation is a walk over the source: a start pixel, a stride for one pixel to the right in
 * the result and one for a row down. So eight cases are eight rows of a table and one loop.
 *
 * Turned pictures (5..8) read the source by columns; the loop goes in square tiles so that each cache line
 * is read once. */
#include "core/image/orient.h"

#include <string.h>

enum { TILE = 32 };

typedef struct {
    gboolean from_bottom, from_right; /* where the result's top left pixel lies in the source */
} Corner;

static const Corner corners[9] = {
    [1] = {FALSE, FALSE}, [2] = {FALSE, TRUE}, [3] = {TRUE, TRUE}, [4] = {TRUE, FALSE},
    [5] = {FALSE, FALSE}, [6] = {TRUE, FALSE}, [7] = {TRUE, TRUE}, [8] = {FALSE, TRUE},
};

void image_orient(const guint8 *src, int height, int width, int orientation, guint8 *dst)
{
    const Corner corner = corners[orientation];
    gboolean swaps = image_orient_swaps(orientation);
    gssize down = corner.from_bottom ? -(gssize)width * 3 : (gssize)width * 3; /* a source row on */
    gssize right = corner.from_right ? -3 : 3;                                 /* a source column on */
    gssize dx = swaps ? down : right, dy = swaps ? right : down;
    int rows = swaps ? width : height, columns = swaps ? height : width;
    const guint8 *start = src + (corner.from_bottom ? (gssize)(height - 1) * width * 3 : 0) +
                          (corner.from_right ? (gssize)(width - 1) * 3 : 0);

    if (orientation == 1) {
        memcpy(dst, src, (gsize)height * width * 3);
        return;
    }
    for (int y0 = 0; y0 < rows; y0 += TILE)
        for (int x0 = 0; x0 < columns; x0 += TILE)
            for (int y = y0; y < MIN(y0 + TILE, rows); y++) {
                const guint8 *s = start + y * dy + x0 * dx;
                guint8 *d = dst + ((gssize)y * columns + x0) * 3;
                for (int x = x0; x < MIN(x0 + TILE, columns); x++, s += dx, d += 3)
                    d[0] = s[0], d[1] = s[1], d[2] = s[2];
            }
}
