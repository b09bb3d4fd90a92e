/* GroupNorm, optionally followed by SiLU, over one tensor or over the channel concatenation of two.
 *
 * The concatenation is never made: a (n, hw, ca) and b (n, hw, cb) are read side by side; a group may
 * straddle the border. y (n, hw, ca + cb); gamma, beta (ca + cb) f32; mean, rstd (n, groups) f32.
 * groups must divide ca + cb. Biased variance. Conventions: kernels/elementwise.h. */
#ifndef KERNELS_GROUP_NORM_H
#define KERNELS_GROUP_NORM_H
#include "kernels/type.h"

G_BEGIN_DECLS

typedef struct {
    NetType type;
    gsize n, hw;
    gsize ca, cb; /* cb = 0: one source, b = NULL */
    gsize groups;
    float eps;
    gboolean silu;
    const float *gamma, *beta;
} KernelGroupNorm;

/* Bytes of scratch that each of the functions below wants (64-byte aligned). */
gsize kernel_group_norm_scratch(const KernelGroupNorm *p);
/* y may be a when there is one source. */
void kernel_group_norm(const KernelGroupNorm *p, gpointer y, gconstpointer a, gconstpointer b, float *mean,
                       float *rstd, gpointer scratch);
/* y once more from the kept statistics; the same bits as the first time. */
void kernel_group_norm_again(const KernelGroupNorm *p, gpointer y, gconstpointer a, gconstpointer b,
                             const float *mean, const float *rstd, gpointer scratch);
/* dy (n, hw, ca + cb) -> da (n, hw, ca), db (n, hw, cb); either may be NULL (not wanted). add_a and add_b
 * (the gradients that already arrived there) are added where not NULL. da may be a or add_a, db may be b or
 * add_b; with one source da may also be dy. */
void kernel_group_norm_backward(const KernelGroupNorm *p, gpointer da, gpointer db, gconstpointer add_a,
                                gconstpointer add_b, gconstpointer dy, gconstpointer a, gconstpointer b,
                                const float *mean, const float *rstd, gpointer scratch);

G_END_DECLS
#endif
