/* The noising of a training step: latent draw, noise, noised latent, target; from keys, in f32.
 *
 *   x0     = scaling (mean + exp(logvar / 2) n1), or `latent` as it is
 *   e      = n2 + offset[n] n3[c], or `noise` as it is
 *   x_t    = sqrt(ab) x0 + sqrt(1 - ab) e
 *   target = e, or sqrt(ab) e - sqrt(1 - ab) x0 for v prediction
 *
 * n1, n2, n3 are standard normal numbers of the sample's own key, streams KERNEL_DRAW_*; n1 and n2 are
 * indexed by the element's place in (hw, c), n3 by the channel. So a sample's draw depends on nothing but
 * its key: not on its place in the batch, not on threads. */
#ifndef KERNELS_DRAW_H
#define KERNELS_DRAW_H
#include "kernels/type.h"

G_BEGIN_DECLS

enum { KERNEL_DRAW_LATENT = 1, KERNEL_DRAW_NOISE = 2, KERNEL_DRAW_OFFSET = 3 };

typedef struct {
    gsize n, hw, c;             /* c <= 64 */
    const float *mean, *logvar; /* (n, hw, c); logvar is clamped to [-30, 20] */
    const float *latent;        /* (n, hw, c), already scaled; NULL: drawn from mean and logvar */
    const float *noise;         /* (n, hw, c); NULL: drawn */
    const gint64 *key;          /* (n) */
    const float *offset;        /* (n); NULL: 0 */
    const float *alpha_bar;     /* (n) */
    float scaling;
    gboolean v;
} KernelDraw;

/* x_t (n, hw, c) in `type`, target (n, hw, c) f32. x_t may be NULL (only the target is wanted). */
void kernel_draw(const KernelDraw *p, NetType type, gpointer x_t, float *target);

G_END_DECLS
#endif
