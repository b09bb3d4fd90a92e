/* The inner loops of GroupNorm: rectangles of rows and channels of one source. Internal to group_norm.c. */
#ifndef KERNELS_GROUP_NORM_ROWS_H
#define KERNELS_GROUP_NORM_ROWS_H
#include "kernels/type.h"

G_BEGIN_DECLS

/* Rows of c channels. The normalised tensor (y, dy) may be wider than the source (x, dx, add): strides in
 * elements. With m, s, b, p, q per channel:
 *   z = (x - m) s + b, y = z or silu(z);   dz = dy or dy silu'(z);   dx = s dz + (x - m) q + p (+ add) */
typedef struct {
    gsize rows, c;
    gsize x_stride, y_stride;
    gconstpointer x, dy, add;
    gpointer y, dx;
    const float *m, *s, *b, *p, *q; /* (c) */
    float *sum, *product;           /* (c): sums are added to these */
} GroupNormPart;

typedef void (*GroupNormFn)(const GroupNormPart *part);

/* Rows of the kernel table, each with _f32 and _bf16:
 *   group_norm_sums              sum += x - m, product += (x - m)^2
 *   group_norm_apply[_silu]      y
 *   group_norm_grad_sums[_silu]  sum += dz, product += dz (x - m)
 *   group_norm_grad[_silu]       dx */

G_END_DECLS
#endif
