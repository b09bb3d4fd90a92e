/* EXIF orientation, the one tag that a picture cannot be shown without. */
#ifndef IMAGE_EXIF_H
#define IMAGE_EXIF_H
#include <glib.h>

G_BEGIN_DECLS

/* Orientation 1..8 from a TIFF structure: a JPEG's APP1 after "Exif\0\0", or a PNG's eXIf chunk. What is
 * absent, damaged or out of range gives 1: a picture is never refused for its EXIF. [any] */
int image_exif_orientation(const guint8 *tiff, gsize n);

G_END_DECLS
#endif
