/* Operations that treat every element (or every channel) alike.
 *
 * Common to all kernel headers: tensors are packed, row-major, channels last; `type` is NET_F32 or NET_BF16
 * and names the type of every gpointer argument, arithmetic is f32 inside; rows = N * H * W. Pointers need
 * the alignment of an element only. Unless said otherwise, outputs must not overlap inputs. Results do not
 * depend on the number of threads. The caller has checked shapes: nothing here can fail. */
#ifndef KERNELS_ELEMENTWISE_H
#define KERNELS_ELEMENTWISE_H
#include "kernels/type.h"

G_BEGIN_DECLS

/* y = f(x), n elements; y may be x.
 * silu: x s(x); gelu: x/2 (1 + erf(x/sqrt 2)); quick_gelu: x s(1.702 x); s = sigmoid. */
void kernel_silu(NetType type, gpointer y, gconstpointer x, gsize n);
void kernel_gelu(NetType type, gpointer y, gconstpointer x, gsize n);
void kernel_quick_gelu(NetType type, gpointer y, gconstpointer x, gsize n);
/* dx = dy f'(x); dx may be dy or x. */
void kernel_silu_backward(NetType type, gpointer dx, gconstpointer dy, gconstpointer x, gsize n);
void kernel_gelu_backward(NetType type, gpointer dx, gconstpointer dy, gconstpointer x, gsize n);
void kernel_quick_gelu_backward(NetType type, gpointer dx, gconstpointer dy, gconstpointer x, gsize n);

/* y = a + b; y may be a or b. */
void kernel_add(NetType type, gpointer y, gconstpointer a, gconstpointer b, gsize n);
/* y = factor x; y may be x. */
void kernel_scale(NetType type, gpointer y, gconstpointer x, float factor, gsize n);
/* y[i] = value. */
void kernel_fill(NetType type, gpointer y, float value, gsize n);
/* y += factor x, into an f32 accumulator; x has `type`. */
void kernel_axpy(float *y, float factor, NetType type, gconstpointer x, gsize n);
/* net_convert on all threads. Returns the number of finite values that became infinite. */
gsize kernel_cast(gpointer dst, NetType dst_type, gconstpointer src, NetType src_type, gsize n);

/* y (n, hw, c) = x (n, hw, c) + e (n, c); y may be x. */
void kernel_add_channel(NetType type, gpointer y, gconstpointer x, gconstpointer e, gsize n, gsize hw,
                        gsize c);
/* y (rows, c) = x (rows, c) + bias (c); y may be x. */
void kernel_add_bias(NetType type, gpointer y, gconstpointer x, const float *bias, gsize rows, gsize c);
/* y (n, c) f32 = sum over hw of x (n, hw, c): the gradient of e in add_channel, or of a bias with n = 1.
 * Adds in double, in an order that depends on the shape only. */
void kernel_sum_rows(float *y, NetType type, gconstpointer x, gsize n, gsize hw, gsize c);

G_END_DECLS
#endif
