/* The two decoders as picture.c sees them. Private to core/image. */
#ifndef IMAGE_CODEC_H
#define IMAGE_CODEC_H
#include "core/image/picture.h"

G_BEGIN_DECLS

gboolean image_jpeg_probe(const ImageSource *source, const char *name, ImageInfo *info, GError **error);
gboolean image_png_probe(const ImageSource *source, const char *name, ImageInfo *info, GError **error);
/* picture->info is filled in and within the limits. */
FlowStatus image_jpeg_decode(const ImageSource *source, const char *name, const ImageRequest *request,
                             ImagePicture *picture, GError **error);
FlowStatus image_png_decode(const ImageSource *source, const char *name, const ImageRequest *request,
                            ImagePicture *picture, GError **error);

G_END_DECLS
#endif
