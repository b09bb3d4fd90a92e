/* Signatures of the rows of the kernel table, for the operations' own files, the checker and the benchmark.
 *
 * A row does one thread's share of an operation; the public functions cut the work and choose the row. An
 * operation NAME has rows NAME_f32 and NAME_bf16 where both types make sense; `type` of a row is the type of
 * its gpointer arguments. */
#ifndef KERNELS_ROWS_H
#define KERNELS_ROWS_H
#include "kernels/attention.h"
#include "kernels/each.h"

G_BEGIN_DECLS

/* f32_to_bf16, bf16_to_f32, f32_to_f16, f16_to_f32: returns the finite values that became infinite. */
typedef gsize (*KernelConvertFn)(void *dst, const void *src, gsize n);

/* add_channel, add_bias (f32 e): y[r][c] = x[r][c] + e[c] */
typedef void (*KernelAddVectorFn)(gpointer y, gconstpointer x, gconstpointer e, gsize rows, gsize c);
/* sum_rows: y[c] = sum of x[r * stride + c], c <= KERNEL_SUM_BLOCK */
typedef void (*KernelSumRowsFn)(float *y, gconstpointer x, gsize stride, gsize rows, gsize c);
enum { KERNEL_SUM_BLOCK = 64 };

/* geglu, geglu_backward */
typedef void (*KernelGegluFn)(gpointer y, gconstpointer u, gsize rows, gsize c);
typedef void (*KernelGegluBackwardFn)(gpointer du, gconstpointer dy, gconstpointer u, gsize rows, gsize c);

/* upsample_backward: a line of w pixels of dx from the two lines of 2w pixels of dy above each other */
typedef void (*KernelFoldFn)(gpointer dx, gconstpointer dy, gsize w, gsize c);

/* count_nonfinite; sum_squares */
typedef gsize (*KernelCountFn)(gconstpointer x, gsize n);
typedef double (*KernelSumSquaresFn)(const float *x, gsize n);
/* adamw: kernel_adamw with its constants worked out */
typedef struct {
    float decay;                      /* 1 - lr wd */
    float beta1, grad1, beta2, grad2; /* grad = 1 - beta */
    float rate, correction, eps;      /* lr / (1 - b1^step), 1 / sqrt(1 - b2^step) */
    float factor;                     /* of the gradient */
} KernelAdamwRow;
typedef void (*KernelAdamwFn)(const KernelAdamwRow *u, float *p, float *m, float *v, const float *g, gsize n);

/* layer_norm, layer_norm_again, layer_norm_backward: rows begin .. end - 1 */
typedef struct {
    gpointer y; /* dx in backward */
    gconstpointer x, dy, add;
    const float *gamma, *beta;
    gsize c;
    float eps;
    float *mean, *rstd;                 /* written by layer_norm, may be NULL */
    const float *kept_mean, *kept_rstd; /* read by the others */
} KernelLayerNormRow;
typedef void (*KernelLayerNormFn)(const KernelLayerNormRow *p, gsize begin, gsize end);

/* The inner loops of GroupNorm: rows of c channels of one source. The normalised tensor (y, dy) may be wider
 * than the source (x, dx, add): strides in elements. With m, s, b, p, q per channel:
 *   z = (x - m) s + b, y = z or silu(z);   dz = dy or dy silu'(z);   dx = s dz + (x - m) q + p (+ add)
 * group_norm_sums              sum += x - m, product += (x - m)^2
 * group_norm_apply[_silu]      y
 * group_norm_grad_sums[_silu]  sum += dz, product += dz (x - m)
 * group_norm_grad[_silu]       dx */
typedef struct {
    gsize rows, c;
    gsize x_stride, y_stride;
    gconstpointer x, dy, add;
    gpointer y, dx;
    const float *m, *s, *b, *p, *q; /* (c) */
    float *sum, *product;           /* (c) */
} KernelGroupNormRow;
typedef void (*KernelGroupNormFn)(const KernelGroupNormRow *part);

/* attention, attention_delta, attention_dq: queries begin .. end - 1 of one sample and head; attention_dkv:
 * keys; attention_backward: both gradients at once, all keys (begin 0, end tk). A query's (key's) result
 * never depends on the range it is in, and attention_backward gives the bits of the other two. */
typedef struct {
    const KernelAttention *p;
    gconstpointer q, k, v, do_;
    const float *lse, *delta; /* (n, heads, tq); delta = sum over dim of do_ o */
    gpointer o, dq, dk, dv;   /* written (o is read by attention_delta); dk or dv may be NULL */
    float *lse_out;           /* may be NULL */
    float *delta_out;
} KernelAttentionRow;
typedef void (*KernelAttentionFn)(const KernelAttentionRow *call, gsize n, gsize head, gsize begin, gsize end,
                                  gpointer scratch);
/* Most rows of a range (forward with small heads: twice that), columns of a tile of scores, largest head. */
enum { KERNEL_ATTENTION_ROWS = 96, KERNEL_ATTENTION_COLS = 192, KERNEL_ATTENTION_DIM = 512 };
/* Bytes of the scratch that one thread needs; multiples of 64. The second: for attention_backward. */
gsize kernel_attention_tile(const KernelAttention *p);
gsize kernel_attention_backward_tile(const KernelAttention *p);

G_END_DECLS
#endif
