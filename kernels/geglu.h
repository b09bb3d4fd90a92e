/* GEGLU: u (rows, 2c) holds the value a in its first and the gate g in its second half of channels;
 * y (rows, c) = a gelu(g), gelu with erf. Conventions: kernels/elementwise.h. */
#ifndef KERNELS_GEGLU_H
#define KERNELS_GEGLU_H
#include "kernels/type.h"

G_BEGIN_DECLS

void kernel_geglu(NetType type, gpointer y, gconstpointer u, gsize rows, gsize c);
/* du (rows, 2c) = (dy gelu(g), dy a gelu'(g)); du may be u. */
void kernel_geglu_backward(NetType type, gpointer du, gconstpointer dy, gconstpointer u, gsize rows, gsize c);

G_END_DECLS
#endif
