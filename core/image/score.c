/* One pass for the luma histogram and the sums of linear light; everything else happens once a picture.
 *
 * Light is averaged, not CIELAB: that is what an eye sees from afar, and one conversion a picture instead of
 * one a pixel. */
#include "core/image/score.h"

#include <math.h>
#include <pthread.h>

static float linear[256]; /* sRGB byte to light */

static void fill_linear(void)
{
    for (int i = 0; i < 256; i++) {
        double v = i / 255.0;
        linear[i] = (float)(v <= 0.04045 ? v / 12.92 : pow((v + 0.055) / 1.055, 2.4));
    }
}

static float entropy(const guint32 *histogram, double n)
{
    double bits = 0;
    for (int i = 0; i < 256; i++)
        if (histogram[i]) {
            double p = histogram[i] / n;
            bits -= p * log2(p);
        }
    return (float)(bits / 8);
}

static double lab_curve(double t)
{
    const double knee = 6.0 / 29;
    return t > knee * knee * knee ? cbrt(t) : t / (3 * knee * knee) + 4.0 / 29;
}

/* Light (linear sRGB) to CIELAB with white D65. */
static void to_lab(const double rgb[3], float lab[3])
{
    double x = lab_curve((0.4124564 * rgb[0] + 0.3575761 * rgb[1] + 0.1804375 * rgb[2]) / 0.95047);
    double y = lab_curve(0.2126729 * rgb[0] + 0.7151522 * rgb[1] + 0.0721750 * rgb[2]);
    double z = lab_curve((0.0193339 * rgb[0] + 0.1191920 * rgb[1] + 0.9503041 * rgb[2]) / 1.08883);
    lab[0] = (float)((116 * y - 16) / 100);
    lab[1] = (float)(500 * (x - y) / 100);
    lab[2] = (float)(200 * (y - z) / 100);
}

void image_score(const guint8 *rgb, gint32 height, gint32 width, ImageScore *score)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    guint32 histogram[256] = {0};
    double sum[3] = {0}, n = (double)height * width;

    pthread_once(&once, fill_linear);
    for (gint32 y = 0; y < height; y++)
        for (gint32 x = 0; x < width; x++, rgb += 3) {
            histogram[(77 * rgb[0] + 150 * rgb[1] + 29 * rgb[2] + 128) >> 8]++; /* BT.601 */
            for (int c = 0; c < 3; c++)
                sum[c] += linear[rgb[c]];
        }
    for (int c = 0; c < 3; c++)
        sum[c] /= n;
    score->entropy = entropy(histogram, n);
    to_lab(sum, score->lab);
}
