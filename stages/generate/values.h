/* What generate fills fields with. */
#ifndef GENERATE_VALUES_H
#define GENERATE_VALUES_H
#include "core/flow/item.h"
#include "core/flow/random.h"
#include "core/flow/status.h"

typedef struct {
    FlowKind kind;
    gint64 batch, width, height; /* of the pictures, px */
    gint64 size, factor;         /* target, px; pixels per latent pixel */
    gint64 context, pooled;      /* widths of text vectors */
} GenerateShape;

/* Can the field be made? */
gboolean generate_knows(FlowField field);
/* The field of variant `i`; all draws come from `key`. `folder` is where pictures are written for `path`.
 * NULL with error if a file cannot be written. */
FlowValue *generate_value(const GenerateShape *shape, FlowField field, guint i, guint64 key,
                          const char *folder, GError **error);
/* RGB of a picture, and the same as JPEG. Return new. */
guint8 *generate_picture(gint64 width, gint64 height, guint64 key);
GBytes *generate_jpeg(const guint8 *rgb, gint64 width, gint64 height);

#endif
