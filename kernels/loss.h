/* Mean squared error with a weight a sample. pred (n, per) in `type`, target (n, per) f32, weight (n) f32. */
#ifndef KERNELS_LOSS_H
#define KERNELS_LOSS_H
#include "kernels/type.h"

G_BEGIN_DECLS

/* sum over n of weight[n] * mean (pred - target)^2; sums in double in an order that depends on the shape
 * only. each (n) f32 receives the unweighted means, when not NULL. */
float kernel_mse(NetType type, gconstpointer pred, const float *target, const float *weight, gsize n,
                 gsize per, float *each);
/* dpred (n, per) = scale * 2 weight[n] (pred - target) / per; dpred may be pred. */
void kernel_mse_backward(NetType type, gpointer dpred, gconstpointer pred, const float *target,
                         const float *weight, float scale, gsize n, gsize per);

G_END_DECLS
#endif
