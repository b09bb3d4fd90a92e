/* The eight EXIF orientations as pixel moves. */
#ifndef IMAGE_ORIENT_H
#define IMAGE_ORIENT_H
#include <glib.h>

G_BEGIN_DECLS

/* Does the orientation exchange height and width? [any] */
static inline gboolean image_orient_swaps(int orientation)
{
    return orientation >= 5;
}

/* Turns stored RGB pixels (height, width, 3) the way they are to be seen: `dst` gets (height, width, 3), or
 * (width, height, 3) where the orientation swaps. `orientation` is 1..8; the buffers do not overlap. [any] */
void image_orient(const guint8 *src, int height, int width, int orientation, guint8 *dst);

G_END_DECLS
#endif
