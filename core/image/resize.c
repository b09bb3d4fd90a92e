/* Separable filters whose support grows with the reduction, as in Pillow: nothing aliases.
 *
 * For each output row, the source rows under the filter are summed into one row of floats (columns are
 * independent, so this runs as wide as the machine), and that row is filtered across. So the scratch is one
 * row, however large the picture; the usual order, across first, needs a picture between the passes.
 *
 *   src rows  y .. y+taps  --down-->  row (columns, 3) f32  --across-->  dst row (target, 3) u8
 *
 * Sums are taken tap by tap in one order, without fused multiply-add, so the AVX2 build of the same lines
 * gives the same bytes. */
#include "core/image/resize.h"

#include "kernels/kernel.h"
#include <math.h>
#include <string.h>

enum { BLOCK = 32 }; /* columns x channels that stay in registers over the taps */

/* One axis: output i is the sum over k < taps of weight[i * taps + k] * input[first[i] + k]. */
typedef struct {
    ImageFilter filter;
    gint32 in, out, start, n; /* what the weights are for; outputs start .. start + n of `out` */
    gint32 taps;
    gint32 *first;
    float *weight;
    gsize outputs, weights; /* allocated */
} Axis;

typedef void (*DownFn)(const guint8 *src, gsize stride, gint32 taps, const float *w, float *row, gsize n);

struct ImageResizer {
    Axis down, across;
    float *row;
    gsize columns; /* allocated in row */
    DownFn sum_rows;
};

/* -- weights ------------------------------------------------------------------------- */

static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double sinc(double x)
{
    return x == 0 ? 1 : sin(G_PI * x) / (G_PI * x);
}

static double lanczos(double x)
{
    return fabs(x) < 3 ? sinc(x) * sinc(x / 3) : 0;
}

/* Weight of input pixel j for the output pixel that covers [from, from + scale) of the input. */
static double weigh(ImageFilter filter, double from, double scale, gint32 j)
{
    if (filter == IMAGE_AREA)
        return MAX(MIN(j + 1, from + scale) - MAX(j, from), 0);
    double x = (j + 0.5 - from - scale / 2) / MAX(scale, 1);
    return filter == IMAGE_BICUBIC ? bicubic(x) : lanczos(x);
}

static void axis_reserve(Axis *a, gsize outputs, gsize weights)
{
    if (outputs > a->outputs) {
        g_free(a->first);
        a->first = g_new(gint32, outputs);
        a->outputs = outputs;
    }
    if (weights > a->weights) {
        g_free(a->weight);
        a->weight = g_new(float, weights);
        a->weights = weights;
    }
}

static void axis_set(Axis *a, ImageFilter filter, gint32 in, gint32 out, gint32 start, gint32 n)
{
    double scale = (double)in / out, stretch = MAX(scale, 1);
    double reach = filter == IMAGE_AREA ? scale / 2 : (filter == IMAGE_BICUBIC ? 2 : 3) * stretch;

    if (a->filter == filter && a->in == in && a->out == out && a->start == start && a->n == n)
        return;
    gint32 taps = MIN((gint32)ceil(reach * 2) + 1, in);
    axis_reserve(a, (gsize)n, (gsize)n * (gsize)taps);
    a->filter = filter, a->in = in, a->out = out, a->start = start, a->n = n, a->taps = taps;
    for (gint32 i = 0; i < n; i++) {
        double from = (start + i) * scale, sum = 0;
        float *w = a->weight + (gsize)i * (gsize)taps;
        a->first[i] = CLAMP((gint32)floor(from + scale / 2 - reach), 0, in - taps);
        for (gint32 k = 0; k < taps; k++) {
            double v = weigh(filter, from, scale, a->first[i] + k);
            w[k] = (float)v;
            sum += v;
        }
        for (gint32 k = 0; k < taps; k++)
            w[k] = (float)(w[k] / sum);
    }
}

/* -- the two passes ------------------------------------------------------------------- */

static inline __attribute__((always_inline)) void sum_rows(const guint8 *src, gsize stride, gint32 taps,
                                                           const float *w, float *row, gsize n)
{
    gsize j = 0;

    for (; j + BLOCK <= n; j += BLOCK) {
        float sum[BLOCK] = {0};
        for (gint32 k = 0; k < taps; k++) {
            const guint8 *s = src + (gsize)k * stride + j;
            for (gint32 i = 0; i < BLOCK; i++)
                sum[i] += w[k] * s[i];
        }
        memcpy(row + j, sum, sizeof sum);
    }
    for (; j < n; j++) {
        float sum = 0;
        for (gint32 k = 0; k < taps; k++)
            sum += w[k] * src[(gsize)k * stride + j];
        row[j] = sum;
    }
}

static void sum_rows_c(const guint8 *src, gsize stride, gint32 taps, const float *w, float *row, gsize n)
{
    sum_rows(src, stride, taps, w, row, n);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void sum_rows_avx2(const guint8 *src, gsize stride, gint32 taps,
                                                          const float *w, float *row, gsize n)
{
    sum_rows(src, stride, taps, w, row, n);
}
#endif

/* Four floats from an unaligned place: a pixel and the next one's red, which is not used. */
typedef float Four __attribute__((vector_size(16), aligned(4)));

static inline guint8 to_byte(float x)
{
    return (guint8)(MIN(MAX(x, 0.0f), 255.0f) +
                    0.5f); /* in this order it is two instructions, not branches */
}

/* `row` starts at input column `origin` and has a float to spare behind its last. */
static void filter_across(const Axis *a, const float *row, gint32 origin, gboolean flip, guint8 *dst)
{
    for (gint32 i = 0; i < a->n; i++) {
        const float *w = a->weight + (gsize)i * (gsize)a->taps;
        const float *s = row + (gsize)(a->first[i] - origin) * 3;
        Four sum = {0};
        for (gint32 k = 0; k < a->taps; k++, s += 3)
            sum += w[k] * *(const Four *)s;
        guint8 *d = dst + (gsize)(flip ? a->n - 1 - i : i) * 3;
        d[0] = to_byte(sum[0]), d[1] = to_byte(sum[1]), d[2] = to_byte(sum[2]);
    }
}

/* -- entry ------------------------------------------------------------------------------ */

ImageResizer *image_resizer_new(void)
{
    ImageResizer *r = g_new0(ImageResizer, 1);
    r->sum_rows = sum_rows_c;
#ifdef __x86_64__
    if (flow_cpu() & FLOW_CPU_AVX2)
        r->sum_rows = sum_rows_avx2;
#endif
    return r;
}

void image_resizer_free(ImageResizer *r)
{
    if (!r)
        return;
    Axis *axes[] = {&r->down, &r->across};
    for (guint i = 0; i < G_N_ELEMENTS(axes); i++) {
        g_free(axes[i]->first);
        g_free(axes[i]->weight);
    }
    g_free(r->row);
    g_free(r);
}

gsize image_resizer_bytes(ImageSize size)
{
    /* a row, and at most 7 weights a pixel of each side (lanczos: 6, and the ends of its window) */
    return ((gsize)size.width * 3 + ((gsize)size.width + (gsize)size.height) * 7) * sizeof(float);
}

static void copy(const guint8 *src, gsize stride, const ImageGeometry *g, guint8 *dst)
{
    for (gint32 y = 0; y < g->target_height; y++) {
        const guint8 *s = src + (gsize)(g->top + y) * stride + (gsize)g->left * 3;
        guint8 *d = dst + (gsize)y * (gsize)g->target_width * 3;
        if (!g->flip) {
            memcpy(d, s, (gsize)g->target_width * 3);
            continue;
        }
        for (gint32 x = g->target_width - 1; x >= 0; x--, s += 3)
            d[x * 3] = s[0], d[x * 3 + 1] = s[1], d[x * 3 + 2] = s[2];
    }
}

void image_resize(ImageResizer *r, const guint8 *src, ImageSize size, ImageFilter filter,
                  const ImageGeometry *g, guint8 *dst)
{
    gsize stride = (gsize)size.width * 3;

    if (size.height == g->resized_height && size.width == g->resized_width) {
        copy(src, stride, g, dst);
        return;
    }
    if (filter == IMAGE_AUTO)
        filter =
            g->resized_height < size.height && g->resized_width < size.width ? IMAGE_AREA : IMAGE_LANCZOS;
    axis_set(&r->down, filter, size.height, g->resized_height, g->top, g->target_height);
    axis_set(&r->across, filter, size.width, g->resized_width, g->left, g->target_width);
    const Axis *a = &r->across;
    gint32 origin = a->first[0];
    gsize columns = (gsize)(a->first[a->n - 1] + a->taps - origin);
    if (columns > r->columns) {
        g_free(r->row);
        r->row = g_new0(float, columns * 3 + 1);
        r->columns = columns;
    }
    for (gint32 y = 0; y < g->target_height; y++) {
        r->sum_rows(src + (gsize)r->down.first[y] * stride + (gsize)origin * 3, stride, r->down.taps,
                    r->down.weight + (gsize)y * (gsize)r->down.taps, r->row, columns * 3);
        filter_across(a, r->row, origin, g->flip != 0, dst + (gsize)y * (gsize)g->target_width * 3);
    }
}
