/* Orthonormal 2-D Haar transform of pictures with few channels.
 *
 * One level turns (h, w) into four quarters: low-low in the top left (h/2, w/2) corner, then horizontal
 * (right), vertical (below) and diagonal detail; the next level transforms the low-low corner alone.
 * Orthonormal: the sum of squares stays, and the inverse is the transpose. */
#ifndef KERNELS_HAAR_H
#define KERNELS_HAAR_H
#include <glib.h>

G_BEGIN_DECLS

/* The most levels, up to `wanted`, that 2^levels divides both sides. */
guint kernel_haar_levels(gsize h, gsize w, guint wanted);
/* In place on x (h, w, c); scratch (h, w, c). levels <= kernel_haar_levels(). [any] */
void kernel_haar(float *x, float *scratch, gsize h, gsize w, gsize c, guint levels);
void kernel_haar_inverse(float *x, float *scratch, gsize h, gsize w, gsize c, guint levels);

G_END_DECLS
#endif
