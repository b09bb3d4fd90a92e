/* softmax(scale q k') v for every sample and head, tile by tile: the scores never exist as a whole.
 *
 * q (n, tq, heads, dim), k and v (n, tk, heads, dim), o like q. A row is a token; rows lie `stride`
 * elements apart and a sample's rows follow one another, so q, k and v may be column ranges of one fused
 * (n, t, 3 heads dim) buffer (stride 3 heads dim). The heads of a row are packed.
 * lse (n, heads, tq) f32: log of the sum of exp of a row's scores; all that backward needs of the softmax.
 * Results do not depend on the number of threads. */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H
#include "kernels/type.h"

G_BEGIN_DECLS

typedef struct {
    NetType type; /* NET_F32 or NET_BF16; products and softmax accumulate in f32 */
    gsize n, tq, tk;
    gsize heads, dim; /* dim: 1..512 */
    gsize q_stride, k_stride, v_stride, o_stride;
    gsize dq_stride, dk_stride, dv_stride, do_stride; /* backward only */
    float scale;                                      /* usually 1 / sqrt(dim) */
    gboolean causal;                                  /* query i sees keys 0..i (tq == tk) */
} KernelAttention;

/* Bytes of scratch (64-byte aligned) for kernel_attention; for kernel_attention_backward. Depends on the
 * shape and on net_threads(). */
gsize kernel_attention_scratch(const KernelAttention *p);
gsize kernel_attention_backward_scratch(const KernelAttention *p);
/* lse may be NULL. o may be q (same stride). */
void kernel_attention(const KernelAttention *p, gpointer o, gconstpointer q, gconstpointer k, gconstpointer v,
                      float *lse, gpointer scratch);
/* dq, dk, dv: any may be NULL (not wanted). do_ is the gradient of o. */
void kernel_attention_backward(const KernelAttention *p, gpointer dq, gpointer dk, gpointer dv,
                               gconstpointer do_, gconstpointer q, gconstpointer k, gconstpointer v,
                               gconstpointer o, const float *lse, gpointer scratch);

G_END_DECLS
#endif
