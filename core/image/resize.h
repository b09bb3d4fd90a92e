/* Antialiased resizing of RGB pictures to an exact geometry. */
#ifndef IMAGE_RESIZE_H
#define IMAGE_RESIZE_H
#include "core/image/geometry.h"

G_BEGIN_DECLS

typedef enum {
    IMAGE_AUTO,    /* area where both sides shrink, else lanczos */
    IMAGE_AREA,    /* mean over the exact area that an output pixel covers */
    IMAGE_BICUBIC, /* a = -0.5 */
    IMAGE_LANCZOS, /* three lobes */
} ImageFilter;

/* Scratch for one thread: a row and the filter weights, kept from call to call. */
typedef struct ImageResizer ImageResizer;
ImageResizer *image_resizer_new(void);
void image_resizer_free(ImageResizer *resizer); /* NULL is fine */

/* Bytes of scratch for pictures of at most this size. [any] */
gsize image_resizer_bytes(ImageSize source);

/* Resizes src (size.height, size.width, 3) to geometry's resized size, cuts out the target, mirrors it if
 * flip is set: dst gets (target_height, target_width, 3). Only what the target shows is computed. The result
 * is the same on every machine and for every compiler. [one thread per resizer] */
void image_resize(ImageResizer *resizer, const guint8 *src, ImageSize size, ImageFilter filter,
                  const ImageGeometry *geometry, guint8 *dst);

G_END_DECLS
#endif
