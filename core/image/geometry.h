/* Where a picture goes: its bucket (target size), the size it is resized to, the crop, the flip.
 *
 * One place for everyone who needs it: bucket, the planner, sparse_batch (which makes samples smaller),
 * tests. Sizes are pixels of the picture as it is seen (after EXIF orientation). */
#ifndef IMAGE_GEOMETRY_H
#define IMAGE_GEOMETRY_H
#include <glib.h>

G_BEGIN_DECLS

typedef struct {
    gint32 height, width;
} ImageSize;

/* The field "geometry": resized covers the target, the target is cut out of it at (top, left). */
typedef struct {
    gint32 target_height, target_width, resized_height, resized_width, top, left, flip;
} ImageGeometry;

typedef struct {
    gint64 resolution;  /* side of the square whose area every bucket stays under, px */
    gint64 min, max;    /* shortest and longest side; rounded down and up to `step`; 0 = by resolution */
    gint64 step;        /* sides are multiples of it */
    gboolean upscale;   /* may a picture be made larger to fill its bucket? */
    double max_aspect;  /* pictures longer than this to one are refused */
    ImageSize *buckets; /* set by image_geometry_open; sorted by (width, height) */
    guint n;
} ImageBuckets;

/* Fills in min, max and the list. FALSE if the numbers contradict each other. image_geometry_close() frees
 * the list. [any] */
gboolean image_geometry_open(ImageBuckets *buckets, GError **error);
void image_geometry_close(ImageBuckets *buckets);
/* The target for a picture. FALSE if it is too long or too small. [any] */
gboolean image_geometry_pick(const ImageBuckets *buckets, ImageSize source, ImageSize *target,
                             ImageSize *resized, GError **error);
/* Scale and crop that fill `target` from `source`: the short side fits, the long one is cut. `y` and `x`
 * in 0..1 say where (0.5 = centre). [any] */
void image_geometry_fit(ImageSize source, ImageSize target, double y, double x, ImageGeometry *geometry);
/* Crop only: from an already chosen `resized`. [any] */
void image_geometry_crop(ImageSize resized, ImageSize target, double y, double x, ImageGeometry *geometry);
/* `target` times `scale`, to the nearest multiple of step, at least one step: for smaller samples. [any] */
ImageSize image_geometry_scaled(ImageSize target, double scale, gint64 step);

G_END_DECLS
#endif
