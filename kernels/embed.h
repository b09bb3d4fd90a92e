/* Tables and positions. Conventions: kernels/elementwise.h. */
#ifndef KERNELS_EMBED_H
#define KERNELS_EMBED_H
#include "kernels/type.h"

G_BEGIN_DECLS

/* y (n, t, c) = table (rows, c)[ids (n, t)] + positions (>= t, c); positions may be NULL. The caller has
 * checked 0 <= ids < rows. Table and positions may be f32, bf16 or f16. */
void kernel_embed(NetType type, gpointer y, const gint32 *ids, NetType table_type, gconstpointer table,
                  NetType positions_type, gconstpointer positions, gsize n, gsize t, gsize c);
/* y (n, c) = x (n, t, c)[index[n]]; the caller has checked 0 <= index < t. */
void kernel_pick_row(NetType type, gpointer y, gconstpointer x, const gint32 *index, gsize n, gsize t,
                     gsize c);
/* y (n, dim): n numbers t, each as dim / 2 cosines, then dim / 2 sines (odd dim: one zero at the end);
 * e = -ln 1e4 * i; e /= half; f = exp(e); a = t f; every step in f32. */
void kernel_sinusoid(NetType type, gpointer y, const float *t, gsize n, gsize dim);

G_END_DECLS
#endif
