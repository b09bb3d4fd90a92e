/* What the variants of attention implement. Internal to kernels/attention*.c.
 *
 * A row of the kernel table handles a range of one sample and head: queries for attention and attention_dq,
 * keys for attention_dkv; each with _f32 and _bf16. A range never depends on the number of threads, and a
 * query's (key's) result never depends on the range it is in. */
#ifndef KERNELS_ATTENTION_ROWS_H
#define KERNELS_ATTENTION_ROWS_H
#include "kernels/attention.h"

G_BEGIN_DECLS

/* Most rows of a range, and columns of a tile of scores. */
enum { ATTENTION_ROWS = 96, ATTENTION_COLS = 128, ATTENTION_DIM = 512 };

typedef struct {
    const KernelAttention *p;
    gconstpointer q, k, v, do_;
    const float *lse, *delta; /* (n, heads, tq); delta = sum over dim of do_ o */
    gpointer o, dq, dk, dv;   /* written; dk or dv may be NULL */
    float *lse_out;           /* may be NULL */
} AttentionCall;

typedef void (*AttentionFn)(const AttentionCall *call, gsize n, gsize head, gsize begin, gsize end,
                            gpointer scratch);

/* Bytes of a thread's scratch for tiles of f32; a multiple of 64. */
gsize attention_tile_bytes(const KernelAttention *p);

G_END_DECLS
#endif
