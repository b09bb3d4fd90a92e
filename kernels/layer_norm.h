/* LayerNorm over the last dimension. x, y (rows, c); gamma, beta (c) f32; mean, rstd (rows) f32.
 * Biased variance. Conventions: kernels/elementwise.h. */
#ifndef KERNELS_LAYER_NORM_H
#define KERNELS_LAYER_NORM_H
#include "kernels/type.h"

G_BEGIN_DECLS

/* mean and rstd may both be NULL (nothing is kept for backward). y may be x. */
void kernel_layer_norm(NetType type, gpointer y, gconstpointer x, const float *gamma, const float *beta,
                       gsize rows, gsize c, float eps, float *mean, float *rstd);
/* y once more from the kept statistics; the same bits as the first time. y may be x. */
void kernel_layer_norm_again(NetType type, gpointer y, gconstpointer x, const float *gamma, const float *beta,
                             gsize rows, gsize c, const float *mean, const float *rstd);
/* dx = gradient of x, plus `add` where that is not NULL (the residual's gradient, rows x c).
 * dx may be dy, x or add. */
void kernel_layer_norm_backward(NetType type, gpointer dx, gconstpointer add, gconstpointer dy,
                                gconstpointer x, const float *gamma, gsize rows, gsize c, const float *mean,
                                const float *rstd);

G_END_DECLS
#endif
