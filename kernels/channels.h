/* Moving whole channels and pixels: concatenation, nearest upsampling, layout. Exact (bytes are moved),
 * but for the sum in upsample_backward. Conventions: kernels/elementwise.h. */
#ifndef KERNELS_CHANNELS_H
#define KERNELS_CHANNELS_H
#include "kernels/type.h"

G_BEGIN_DECLS

/* y (rows, ca + cb) = a (rows, ca), b (rows, cb) side by side. */
void kernel_concat(NetType type, gpointer y, gconstpointer a, gsize ca, gconstpointer b, gsize cb,
                   gsize rows);
/* The reverse; a or b may be NULL (not wanted). */
void kernel_split(NetType type, gpointer a, gsize ca, gpointer b, gsize cb, gconstpointer y, gsize rows);

/* y (n, 2h, 2w, c): y[i][j] = x[i / 2][j / 2]. */
void kernel_upsample(NetType type, gpointer y, gconstpointer x, gsize n, gsize h, gsize w, gsize c);
/* dx (n, h, w, c) = sum of the four pixels of dy (n, 2h, 2w, c). */
void kernel_upsample_backward(NetType type, gpointer dx, gconstpointer dy, gsize n, gsize h, gsize w,
                              gsize c);

/* (n, c, hw) <-> (n, hw, c), elements of `size` 1, 2 or 4 bytes. A convolution's weight OIHW -> OHWI is the
 * first with n = O, c = I, hw = kh * kw. */
void kernel_to_channels_last(gpointer dst, gconstpointer src, gsize size, gsize n, gsize c, gsize hw);
void kernel_to_channels_first(gpointer dst, gconstpointer src, gsize size, gsize n, gsize c, gsize hw);

G_END_DECLS
#endif
