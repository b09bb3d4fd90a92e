/* What a picture looks like, in four numbers: how much is in it, and its mean colour. */
#ifndef IMAGE_SCORE_H
#define IMAGE_SCORE_H
#include <glib.h>

G_BEGIN_DECLS

enum { IMAGE_SCORE_SIDE = 256 }; /* longest side of the picture that is looked at */

typedef struct {
    float entropy; /* 0..1: Shannon entropy of the 256-bin luma histogram, over 8 bits */
    float lab[3];  /* CIELAB (D65) of the mean light of all pixels, over 100 */
} ImageScore;

/* rgb is (height, width, 3), height x width >= 1. [any] */
void image_score(const guint8 *rgb, gint32 height, gint32 width, ImageScore *score);

G_END_DECLS
#endif
