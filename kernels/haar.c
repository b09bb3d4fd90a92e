/* Orthonormal 2-D Haar transform, level by level.
 *
 * A 2 x 2 square a b / c d becomes (a+b+c+d)/2, (a-b+c-d)/2, (a+b-c-d)/2, (a-b-c+d)/2: its low-low,
 * horizontal, vertical and diagonal part. The map is its own transpose, so the inverse differs in where it
 * reads and writes only. */
#include "kernels/haar.h"
#include <string.h>

guint kernel_haar_levels(gsize h, gsize w, guint wanted)
{
    guint levels = 0;
    while (levels < wanted && h && w && h % 2 == 0 && w % 2 == 0) {
        h /= 2;
        w /= 2;
        levels++;
    }
    return levels;
}

static void square(const float *a, const float *b, const float *c, const float *d, float *ll, float *lh,
                   float *hl, float *hh, gsize n)
{
    for (gsize i = 0; i < n; i++) {
        float up = a[i] + b[i], down = c[i] + d[i], left = a[i] - b[i], right = c[i] - d[i];
        ll[i] = 0.5f * (up + down);
        lh[i] = 0.5f * (left + right);
        hl[i] = 0.5f * (up - down);
        hh[i] = 0.5f * (left - right);
    }
}

/* One level of the top left h x w corner of x, whose lines are `line` elements apart. */
static void level(float *x, float *scratch, gsize h, gsize w, gsize c, gsize line, gboolean inverse)
{
    gsize half = w / 2, packed = w * c;
    for (gsize i = 0; i < h; i++)
        memcpy(scratch + i * packed, x + i * line, packed * sizeof *x);
    for (gsize i = 0; i < h / 2; i++)
        for (gsize j = 0; j < half; j++) {
            if (inverse) {
                const float *ll = scratch + i * packed + j * c, *hl = ll + h / 2 * packed;
                float *a = x + 2 * i * line + 2 * j * c;
                square(ll, ll + half * c, hl, hl + half * c, a, a + c, a + line, a + line + c, c);
            } else {
                const float *a = scratch + 2 * i * packed + 2 * j * c;
                float *ll = x + i * line + j * c, *hl = ll + h / 2 * line;
                square(a, a + c, a + packed, a + packed + c, ll, ll + half * c, hl, hl + half * c, c);
            }
        }
}

void kernel_haar(float *x, float *scratch, gsize h, gsize w, gsize c, guint levels)
{
    for (guint l = 0; l < levels; l++)
        level(x, scratch, h >> l, w >> l, c, w * c, FALSE);
}

void kernel_haar_inverse(float *x, float *scratch, gsize h, gsize w, gsize c, guint levels)
{
    for (guint l = levels; l-- > 0;)
        level(x, scratch, h >> l, w >> l, c, w * c, TRUE);
}
