/* Passes over the flat buffers of adapters: finite check, norm, update. */
#ifndef KERNELS_OPTIMIZER_H
#define KERNELS_OPTIMIZER_H
#include "kernels/type.h"

G_BEGIN_DECLS

/* Number of elements that are inf or nan; *first is the index of the first, n when there is none
 * (may be NULL). */
gsize kernel_count_nonfinite(NetType type, gconstpointer x, gsize n, gsize *first);
/* Sum of squares in double, fixed chunks. */
double kernel_sum_squares(const float *x, gsize n);

typedef struct {
    double lr, beta1, beta2, eps, weight_decay;
    guint64 step;  /* counts updates from 1: this one */
    double factor; /* the gradient is multiplied by this first (unscale and clip); usually 1 */
} KernelAdamw;

/* g = factor grad; p *= 1 - lr wd; m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g;
 * p -= lr (m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + eps). */
void kernel_adamw(const KernelAdamw *p, float *param, float *m, float *v, const float *grad, gsize n);

G_END_DECLS
#endif
