/* Buckets by aspect ratio, the rule that kohya's trainer made the common one, so that a data set
 * prepared for it lands in the same buckets here.
 *
 *   area = resolution^2;  square of floor(sqrt(area) / step) * step
 *   for w = min, min + step .. max:  h = min(max, floor(area / w / step) * step);  if h >= min: (w,h), (h,w)
 *
 * Known traps of the rule, and what is done about them:
 *  - with max = resolution most buckets have a far smaller area than asked for: max defaults to twice the
 *    resolution, so that no bucket is cut by it before 4:1;
 *  - a very long picture makes a side of 0 and a division by zero: `max_aspect` refuses it by name;
 *  - without upscaling, buckets are not taken from the list: the picture keeps its own size (or the area
 *    limit) rounded down to `step`, so a step above a picture's side leaves nothing: refused by name.
 *
 * Ratios are compared as plain doubles (not logarithms) and the first minimum wins, as there; sizes are
 * rounded in integers, so that they do not depend on the compiler. */
#include "core/image/geometry.h"

#include "core/flow/status.h"
#include <math.h>
#include <stdlib.h>

enum { SIDE_MAX = 65536, BUCKETS_MAX = 100000 };

static int by_width_and_height(gconstpointer a, gconstpointer b)
{
    const ImageSize *p = a, *q = b;
    return p->width != q->width ? (p->width > q->width) - (p->width < q->width)
                                : (p->height > q->height) - (p->height < q->height);
}

static gboolean refuse(GError **error, int code, const char *format, ...) G_GNUC_PRINTF(3, 4);
static gboolean refuse(GError **error, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *text = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error_literal(error, FLOW_STAGE_ERROR, code, text);
    return FALSE;
}

static gboolean limits(ImageBuckets *b, GError **error)
{
    gint64 step = b->step;

    if (step < 1 || b->resolution < step || b->resolution > SIDE_MAX)
        return refuse(error, FLOW_STAGE_ERROR_PARAM,
                      "resolution = %" G_GINT64_FORMAT " px is outside step = %" G_GINT64_FORMAT "..%d",
                      b->resolution, step, SIDE_MAX);
    if (b->min == 0)
        b->min = MIN(256, b->resolution / 2);
    if (b->max == 0)
        b->max = 2 * b->resolution;
    if (b->min > b->resolution || b->max < b->resolution)
        return refuse(error, FLOW_STAGE_ERROR_PARAM,
                      "resolution = %" G_GINT64_FORMAT " px is outside min = %" G_GINT64_FORMAT
                      " and max = %" G_GINT64_FORMAT,
                      b->resolution, b->min, b->max);
    if (b->max > SIDE_MAX)
        return refuse(error, FLOW_STAGE_ERROR_PARAM, "max = %" G_GINT64_FORMAT " px is more than %d", b->max,
                      SIDE_MAX);
    b->min = MAX(b->min / step * step, step);
    b->max = (b->max + step - 1) / step * step;
    if ((b->max - b->min) / step > BUCKETS_MAX)
        return refuse(error, FLOW_STAGE_ERROR_PARAM,
                      "step = %" G_GINT64_FORMAT " px makes more than %d buckets", step, BUCKETS_MAX);
    return TRUE;
}

gboolean image_geometry_open(ImageBuckets *b, GError **error)
{
    if (!limits(b, error))
        return FALSE;
    GArray *list = g_array_new(FALSE, FALSE, sizeof(ImageSize));
    gint64 area = b->resolution * b->resolution;
    gint32 square = (gint32)(b->resolution / b->step * b->step);
    g_array_append_val(list, ((ImageSize){square, square}));
    for (gint64 w = b->min; w <= b->max; w += b->step) {
        gint64 h = MIN(b->max, area / w / b->step * b->step);
        if (h < b->min)
            continue;
        g_array_append_val(list, ((ImageSize){(gint32)h, (gint32)w}));
        g_array_append_val(list, ((ImageSize){(gint32)w, (gint32)h}));
    }
    g_array_sort(list, by_width_and_height);
    guint n = 0;
    for (guint i = 0; i < list->len; i++) {
        ImageSize size = g_array_index(list, ImageSize, i);
        if (n == 0 || by_width_and_height(&size, &g_array_index(list, ImageSize, n - 1)) != 0)
            g_array_index(list, ImageSize, n++) = size;
    }
    b->n = n;
    b->buckets = (ImageSize *)(gpointer)g_array_free(list, FALSE);
    return TRUE;
}

void image_geometry_close(ImageBuckets *b)
{
    g_clear_pointer(&b->buckets, g_free);
    b->n = 0;
}

static ImageSize nearest(const ImageBuckets *b, ImageSize source)
{
    double aspect = (double)source.width / source.height, best = INFINITY;
    ImageSize found = b->buckets[0];

    for (guint i = 0; i < b->n; i++) {
        ImageSize s = b->buckets[i];
        if (s.width == source.width && s.height == source.height)
            return s;
        double off = fabs((double)s.width / s.height - aspect);
        if (off < best) {
            best = off;
            found = s;
        }
    }
    return found;
}

static gint32 to_step(double x, gint64 step)
{
    gint64 v = (gint64)(x + 0.5);
    return (gint32)(v - v % step);
}

/* The size that a picture above the area limit is scaled down to: one side a multiple of step, whichever
 * choice keeps the aspect ratio of the resulting bucket nearer. */
static ImageSize shrunk(const ImageBuckets *b, ImageSize source)
{
    double area = (double)b->resolution * b->resolution;
    double aspect = (double)source.width / source.height;
    double w = sqrt(area * aspect), h = area / w;
    gint32 w1 = to_step(w, b->step), h1 = to_step(w1 / aspect, b->step);
    gint32 h2 = to_step(h, b->step), w2 = to_step(h2 * aspect, b->step);
    double off1 = h1 > 0 ? fabs((double)w1 / h1 - aspect) : INFINITY;
    double off2 = h2 > 0 ? fabs((double)w2 / h2 - aspect) : INFINITY;

    if (off1 < off2)
        return (ImageSize){(gint32)(w1 / aspect + 0.5), w1};
    return (ImageSize){h2, (gint32)(h2 * aspect + 0.5)};
}

gboolean image_geometry_pick(const ImageBuckets *b, ImageSize source, ImageSize *target, ImageSize *resized,
                             GError **error)
{
    gint32 longer = MAX(source.width, source.height), shorter = MIN(source.width, source.height);

    if (shorter < 1 || longer > b->max_aspect * shorter)
        return refuse(error, FLOW_STAGE_ERROR_ITEM,
                      "%dx%d pixels: aspect %.4g:1 is outside max_aspect = %g:1", source.width, source.height,
                      shorter > 0 ? (double)longer / shorter : INFINITY, b->max_aspect);
    if (b->upscale) {
        ImageGeometry g;
        *target = nearest(b, source);
        image_geometry_fit(source, *target, 0.5, 0.5, &g);
        *resized = (ImageSize){g.resized_height, g.resized_width};
        return TRUE;
    }
    gboolean above = (gint64)source.width * source.height > b->resolution * b->resolution;
    *resized = above ? shrunk(b, source) : source;
    *target = (ImageSize){resized->height - resized->height % (gint32)b->step,
                          resized->width - resized->width % (gint32)b->step};
    if (target->height == 0 || target->width == 0)
        return refuse(error, FLOW_STAGE_ERROR_ITEM,
                      "%dx%d pixels: a side is below the bucket step of %" G_GINT64_FORMAT
                      " px; set upscale = yes or leave the picture out",
                      source.width, source.height, b->step);
    return TRUE;
}

void image_geometry_crop(ImageSize resized, ImageSize target, double y, double x, ImageGeometry *g)
{
    gint32 spare_y = resized.height - target.height, spare_x = resized.width - target.width;

    *g = (ImageGeometry){
        .target_height = target.height,
        .target_width = target.width,
        .resized_height = resized.height,
        .resized_width = resized.width,
        .top = y == 0.5 ? spare_y / 2 : MIN((gint32)(y * (spare_y + 1)), spare_y),
        .left = x == 0.5 ? spare_x / 2 : MIN((gint32)(x * (spare_x + 1)), spare_x),
    };
}

/* a * num / den, half rounded up. */
static gint32 scaled(gint32 a, gint32 num, gint32 den)
{
    return (gint32)(((gint64)a * num * 2 + den) / (2 * (gint64)den));
}

void image_geometry_fit(ImageSize source, ImageSize target, double y, double x, ImageGeometry *g)
{
    ImageSize resized = target;

    if ((gint64)source.width * target.height > (gint64)target.width * source.height)
        resized.width = MAX(scaled(source.width, target.height, source.height), target.width);
    else
        resized.height = MAX(scaled(source.height, target.width, source.width), target.height);
    image_geometry_crop(resized, target, y, x, g);
}

ImageSize image_geometry_scaled(ImageSize target, double scale, gint64 step)
{
    gint64 h = (gint64)(target.height * scale / (double)step + 0.5) * step;
    gint64 w = (gint64)(target.width * scale / (double)step + 0.5) * step;
    return (ImageSize){(gint32)MAX(h, step), (gint32)MAX(w, step)};
}
