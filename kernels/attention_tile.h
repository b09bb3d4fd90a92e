/* Attention in tiles, for any vector width. Included by one file an instruction set (attention_avx2.c, ...),
 * which has defined the vectors (simd_avx2.h, ...) and TILE, the target attribute.
 *
 *            KERNEL_ATTENTION_COLS keys
 *          +--------------------------+        Scores of ROWS queries x COLS keys live in one tile that stays
 * in ROWS   |  S = Q K'                |        L2 (48 KiB). Operands are copied beside it once a tile, in
 * the queries |  P = softmax, in place   |        order in which the products read them; a copy is used by
 * all
 *          +--------------------------+        rows of the tile, so its cost is a few percent.
 *             O += P V
 *
 * There is one matrix product, C (+)= A B: A is read by broadcast of 32-bit words, B and C by vectors, so a
 * row of lanes is a row of keys in Q K' and a row of channels in P V. A word is one float, or, with `pairs`,
 * two bf16 that lie beside each other in the direction of the sum: then a step is a bf16 dot product.
 * Elements outside the tensors are zeros in the copies and change nothing. */
#include "kernels/rows.h"
#include <math.h>

enum { COLS = KERNEL_ATTENTION_COLS, BLOCK_ROWS = 6 };
#define BODY TILE SIMD_BODY
#define LOG2E 1.44269504088896341

/* -- the product -- */

BODY Vec multiply_add(gboolean pairs, float a, Vec b, Vec c)
{
#ifdef TILE_PAIRS
    if (pairs)
        return vec_dot_pairs(vec_set(a), b, c);
#endif
    (void)pairs;
    return vec_fma(vec_set(a), b, c);
}

/* BLOCK_ROWS x `vectors` of C, all of it in registers. */
BODY void product_block(gboolean pairs, int vectors, float *c, gsize c_row, const float *a, gsize a_row,
                        gsize a_step, const float *b, gsize b_row, gsize k, gboolean accumulate)
{
    Vec sum[BLOCK_ROWS][BLOCK_VECTORS];
    for (int r = 0; r < BLOCK_ROWS; r++)
        for (int v = 0; v < vectors; v++)
            sum[r][v] = accumulate ? vec_load(c + (gsize)r * c_row + v * LANES) : vec_set(0);
    for (gsize i = 0; i < k; i++, a += a_step, b += b_row) {
        Vec column[BLOCK_VECTORS];
        for (int v = 0; v < vectors; v++)
            column[v] = vec_load(b + v * LANES);
        for (int r = 0; r < BLOCK_ROWS; r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] = multiply_add(pairs, a[(gsize)r * a_row], column[v], sum[r][v]);
    }
    for (int r = 0; r < BLOCK_ROWS; r++)
        for (int v = 0; v < vectors; v++)
            vec_store(c + (gsize)r * c_row + v * LANES, sum[r][v]);
}

/* C (rows x width floats) = A B, or += A B; k words to a sum. rows: multiple of BLOCK_ROWS, width: of LANES.
 */
BODY void product(gboolean pairs, float *c, gsize c_row, gsize rows, gsize width, const float *a, gsize a_row,
                  gsize a_step, const float *b, gsize b_row, gsize k, gboolean accumulate)
{
#define BLOCK(n) product_block(pairs, n, to, c_row, from, a_row, a_step, b + x, b_row, k, accumulate)
    for (gsize x = 0; x < width; x += BLOCK_VECTORS * LANES)
        for (gsize r = 0; r < rows; r += BLOCK_ROWS) {
            gsize vectors = MIN((gsize)BLOCK_VECTORS, (width - x) / LANES);
            float *to = c + r * c_row + x;
            const float *from = a + r * a_row;
            if (vectors == BLOCK_VECTORS)
                BLOCK(BLOCK_VECTORS);
            else if (vectors == 3)
                BLOCK(MIN(3, BLOCK_VECTORS));
            else if (vectors == 2)
                BLOCK(2);
            else
                BLOCK(1);
        }
#undef BLOCK
}

/* -- copies of operands -- */

static inline gsize round_up(gsize n, gsize to)
{
    return (n + to - 1) / to * to;
}

/* Words of n elements. */
static inline gsize words(gboolean pairs, gsize n)
{
    return pairs ? (n + 1) / 2 : n;
}

/* Words w .. w + LANES - 1 of a row of dim elements, zeros behind its end. */
BODY Vec load_words(NetType type, gboolean pairs, gconstpointer row, gsize w, gsize dim)
{
#ifdef TILE_PAIRS
    if (pairs)
        return vec_load_pairs((const guint16 *)row + 2 * w, MIN(dim - 2 * w, (gsize)(2 * LANES)));
#endif
    (void)pairs;
    return vec_load_elements(type, simd_at_const(type, row, w), MIN(dim - w, (gsize)LANES));
}

/* For A: row after row, `width` words each; rows up to `padded` are zero. */
BODY void copy_rows(NetType type, gboolean pairs, float *to, gsize width, gconstpointer x, gsize stride,
                    gsize rows, gsize padded, gsize dim)
{
    for (gsize r = 0; r < padded; r++)
        for (gsize w = 0; w < width; w += LANES) {
            Vec v =
                r < rows ? load_words(type, pairs, simd_at_const(type, x, r * stride), w, dim) : vec_set(0);
            vec_store(to + r * width + w, v);
        }
}

/* For B where the sum runs over rows: row (pair of rows) after row, `width` lanes each. */
BODY void copy_lanes(NetType type, gboolean pairs, float *to, gsize width, gconstpointer x, gsize stride,
                     gsize rows, gsize padded, gsize dim)
{
    gsize step = pairs ? 2 : 1;
    for (gsize r = 0; r < padded; r += step)
        for (gsize i = 0; i < width; i += LANES) {
            gsize n = i < dim ? MIN(dim - i, (gsize)LANES) : 0;
            gconstpointer row = simd_at_const(type, x, MIN(r, rows - 1) * stride + (n ? i : 0));
            Vec v = vec_set(0);
#ifdef TILE_PAIRS
            if (pairs) {
                gconstpointer next = simd_at_const(type, row, r + 1 < rows ? stride : 0);
                v = vec_load_interleaved(row, next, r < rows ? n : 0, r + 1 < rows ? n : 0);
            } else
#endif
                if (r < rows && n)
                v = vec_load_elements(type, row, n);
            vec_store(to + r / step * width + i, v);
        }
}

/* For B where the sum runs along the rows: word w of row r goes to [w][r]; rows up to `padded` are zero. */
BODY void copy_transposed(NetType type, gboolean pairs, float *to, gsize width, gconstpointer x, gsize stride,
                          gsize rows, gsize padded, gsize dim)
{
    gsize count = words(pairs, dim);
    for (gsize r = 0; r < padded; r += LANES)
        for (gsize w = 0; w < count; w += LANES) {
            Vec v[LANES];
            for (gsize i = 0; i < LANES; i++)
                v[i] = r + i < rows
                           ? load_words(type, pairs, simd_at_const(type, x, (r + i) * stride), w, dim)
                           : vec_set(0);
            vec_transpose(v);
            for (gsize i = 0; i < MIN((gsize)LANES, count - w); i++)
                vec_store(to + (w + i) * width + r, v[i]);
        }
}

/* Lanes x .. x + LANES - 1 of a row of the tile become words of an A operand, in place: a pair of bf16 takes
 * half the room of two floats, so writing stays behind reading. `x` counts floats in steps of 2 LANES if
 * pairs. */
BODY void store_words(gboolean pairs, float *row, gsize x, Vec low, Vec high)
{
#ifdef TILE_PAIRS
    if (pairs) {
        vec_store(row + x / 2, vec_to_pairs(low, high));
        return;
    }
#endif
    (void)pairs;
    vec_store(row + x, low);
    vec_store(row + x + LANES, high);
}

/* -- one sample and head -- */

typedef struct {
    gconstpointer x;
    gsize stride;
} Rows;

BODY Rows rows_of(NetType type, const KernelAttention *p, gconstpointer x, gsize stride, gsize n, gsize t,
                  gsize head)
{
    return (Rows){simd_at_const(type, x, n * t * stride + head * p->dim), stride};
}

BODY gconstpointer row_from(NetType type, Rows rows, gsize row)
{
    return simd_at_const(type, rows.x, row * rows.stride);
}

/* factor times rows of an accumulator, into the tensor. */
BODY void write_rows(NetType type, const KernelAttention *p, gpointer y, gsize stride, gsize n, gsize t,
                     gsize head, gsize begin, gsize rows, const float *sum, gsize width, const float *factors,
                     float factor)
{
    for (gsize r = 0; r < rows; r++) {
        gpointer to = simd_at(type, y, (n * t + begin + r) * stride + head * p->dim);
        float f = factors ? 1.0f / factors[r] : factor;
        SIMD_LOOP
        for (gsize i = 0; i < p->dim; i++)
            simd_store(type, to, i, sum[r * width + i] * f);
    }
}

/* The sizes of a tile's operands, and what is left of scratch. */
typedef struct {
    gsize rows, padded; /* rows of the range; rounded up to BLOCK_ROWS */
    gsize count, width; /* words of a row, rounded up to LANES; lanes of a row */
    float *free;
} Tile;

static inline Tile tile_of(const KernelAttention *p, gboolean pairs, gsize rows, gpointer scratch)
{
    return (Tile){rows, round_up(rows, BLOCK_ROWS), round_up(words(pairs, p->dim), LANES),
                  round_up(p->dim, LANES), scratch};
}

static inline float *tile_take(Tile *t, gsize floats)
{
    float *at = t->free;
    t->free += round_up(floats, 16);
    return at;
}

/* -- forward -- */

/* Softmax of a row of raw scores, going on from the maximum and sum of the tiles before: scores become words
 * of P, and what was summed so far is scaled to the new maximum. Lanes from `valid` on are no keys. */
BODY void softmax_row(gboolean pairs, float *s, gsize padded, gsize valid, float scale, float *most,
                      float *total, float *o, gsize width, gboolean first)
{
    Vec m = vec_set(-INFINITY), none = m;
    gsize full = valid / LANES * LANES;
    for (gsize x = 0; x < full; x += LANES)
        m = vec_max(m, vec_load(s + x));
    if (full < valid)
        m = vec_max(m, vec_range(vec_load(s + full), 0, valid - full, none));
    float now = vec_most(m), before = first ? now : *most;
    now = MAX(now, before);
    Vec factor = vec_set(scale), shift = vec_set(now * scale), sum = vec_set(0), zero = sum;
    for (gsize x = 0; x < padded; x += 2 * LANES) {
        Vec a = vec_exp2(vec_fms(vec_load(s + x), factor, shift));
        Vec b = vec_exp2(vec_fms(vec_load(s + x + LANES), factor, shift));
        if (x + 2 * LANES > valid) {
            a = vec_range(a, 0, valid > x ? valid - x : 0, zero);
            b = vec_range(b, 0, valid > x + LANES ? valid - x - LANES : 0, zero);
        }
        sum = vec_add(sum, vec_add(a, b));
        store_words(pairs, s, x, a, b);
    }
    if (first) {
        *total = vec_sum(sum);
    } else if (now > before) {
        Vec shrink = vec_exp2(vec_set((before - now) * scale));
        float x[LANES];
        vec_store(x, shrink);
        *total = *total * x[0] + vec_sum(sum);
        for (gsize i = 0; i < width; i += LANES)
            vec_store(o + i, vec_mul(vec_load(o + i), shrink));
    } else {
        *total += vec_sum(sum);
    }
    *most = now;
}

BODY void attention_tile(NetType type, gboolean pairs, const KernelAttentionRow *c, gsize n, gsize head,
                         gsize begin, gsize end, gpointer scratch)
{
    const KernelAttention *p = c->p;
    Tile t = tile_of(p, pairs, end - begin, scratch);
    float *qa = tile_take(&t, t.padded * t.count), *kt = tile_take(&t, t.count * COLS);
    float *vl = tile_take(&t, COLS * t.width), *s = tile_take(&t, t.padded * COLS);
    float *o = tile_take(&t, t.padded * t.width), *most = tile_take(&t, t.padded),
          *total = tile_take(&t, t.padded);
    Rows q = rows_of(type, p, c->q, p->q_stride, n, p->tq, head),
         k = rows_of(type, p, c->k, p->k_stride, n, p->tk, head);
    Rows v = rows_of(type, p, c->v, p->v_stride, n, p->tk, head);
    float scale = (float)(p->scale * LOG2E);
    gsize keys = p->causal ? end : p->tk;
    copy_rows(type, pairs, qa, t.count, row_from(type, q, begin), q.stride, t.rows, t.padded, p->dim);
    for (gsize k0 = 0; k0 < keys; k0 += COLS) {
        gsize cols = MIN((gsize)COLS, keys - k0), padded = round_up(cols, 2 * LANES);
        copy_transposed(type, pairs, kt, COLS, row_from(type, k, k0), k.stride, cols, padded, p->dim);
        copy_lanes(type, pairs, vl, t.width, row_from(type, v, k0), v.stride, cols, padded, p->dim);
        product(pairs, s, COLS, t.padded, padded, qa, t.count, 1, kt, COLS, words(pairs, p->dim), FALSE);
        for (gsize r = 0; r < t.rows; r++) {
            gsize seen = p->causal ? begin + r + 1 : keys, valid = seen > k0 ? MIN(seen - k0, cols) : 0;
            softmax_row(pairs, s + r * COLS, padded, valid, scale, &most[r], &total[r], o + r * t.width,
                        t.width, k0 == 0);
        }
        product(pairs, o, t.width, t.padded, t.width, s, COLS, 1, vl, t.width, words(pairs, padded), k0 > 0);
    }
    write_rows(type, p, c->o, p->o_stride, n, p->tq, head, begin, t.rows, o, t.width, total, 0);
    if (c->lse_out)
        for (gsize r = 0; r < t.rows; r++)
            c->lse_out[(n * p->heads + head) * p->tq + begin + r] =
                (float)((double)most[r] * p->scale + log((double)total[r]));
}

/* -- backward: for queries -- */

BODY void attention_delta_tile(NetType type, gboolean pairs, const KernelAttentionRow *c, gsize n, gsize head,
                               gsize begin, gsize end, gpointer scratch)
{
    (void)pairs, (void)scratch;
    const KernelAttention *p = c->p;
    Rows g = rows_of(type, p, c->do_, p->do_stride, n, p->tq, head),
         o = rows_of(type, p, c->o, p->o_stride, n, p->tq, head);
    for (gsize r = begin; r < end; r++) {
        Vec sum = vec_set(0);
        for (gsize i = 0; i < p->dim; i += LANES) {
            gsize count = MIN(p->dim - i, (gsize)LANES);
            Vec a = vec_load_elements(type, simd_at_const(type, row_from(type, g, r), i), count);
            sum =
                vec_fma(a, vec_load_elements(type, simd_at_const(type, row_from(type, o, r), i), count), sum);
        }
        c->delta_out[(n * p->heads + head) * p->tq + r] = vec_sum(sum);
    }
}

/* Words of dS = P (dP - delta), in place of dP. */
BODY void slope_row(gboolean pairs, const float *s, float *dp, gsize padded, gsize valid, float scale,
                    float lse, float delta)
{
    Vec factor = vec_set(scale), shift = vec_set((float)(lse * LOG2E)), d = vec_set(delta), zero = vec_set(0);
    for (gsize x = 0; x < padded; x += 2 * LANES) {
        Vec a = vec_exp2(vec_fms(vec_load(s + x), factor, shift));
        Vec b = vec_exp2(vec_fms(vec_load(s + x + LANES), factor, shift));
        a = vec_mul(a, vec_sub(vec_load(dp + x), d));
        b = vec_mul(b, vec_sub(vec_load(dp + x + LANES), d));
        if (x + 2 * LANES > valid) {
            a = vec_range(a, 0, valid > x ? valid - x : 0, zero);
            b = vec_range(b, 0, valid > x + LANES ? valid - x - LANES : 0, zero);
        }
        store_words(pairs, dp, x, a, b);
    }
}

BODY void attention_dq_tile(NetType type, gboolean pairs, const KernelAttentionRow *c, gsize n, gsize head,
                            gsize begin, gsize end, gpointer scratch)
{
    const KernelAttention *p = c->p;
    Tile t = tile_of(p, pairs, end - begin, scratch);
    float *qa = tile_take(&t, t.padded * t.count), *ga = tile_take(&t, t.padded * t.count);
    float *kt = tile_take(&t, t.count * COLS), *vt = tile_take(&t, t.count * COLS);
    float *kl = tile_take(&t, COLS * t.width), *dq = tile_take(&t, t.padded * t.width);
    float *s = tile_take(&t, t.padded * COLS), *dp = tile_take(&t, t.padded * COLS);
    Rows q = rows_of(type, p, c->q, p->q_stride, n, p->tq, head),
         k = rows_of(type, p, c->k, p->k_stride, n, p->tk, head);
    Rows v = rows_of(type, p, c->v, p->v_stride, n, p->tk, head);
    Rows g = rows_of(type, p, c->do_, p->do_stride, n, p->tq, head);
    float scale = (float)(p->scale * LOG2E);
    gsize keys = p->causal ? end : p->tk, at = (n * p->heads + head) * p->tq + begin,
          k_words = words(pairs, p->dim);
    copy_rows(type, pairs, qa, t.count, row_from(type, q, begin), q.stride, t.rows, t.padded, p->dim);
    copy_rows(type, pairs, ga, t.count, row_from(type, g, begin), g.stride, t.rows, t.padded, p->dim);
    for (gsize k0 = 0; k0 < keys; k0 += COLS) {
        gsize cols = MIN((gsize)COLS, keys - k0), padded = round_up(cols, 2 * LANES);
        copy_transposed(type, pairs, kt, COLS, row_from(type, k, k0), k.stride, cols, padded, p->dim);
        copy_transposed(type, pairs, vt, COLS, row_from(type, v, k0), v.stride, cols, padded, p->dim);
        copy_lanes(type, pairs, kl, t.width, row_from(type, k, k0), k.stride, cols, padded, p->dim);
        product(pairs, s, COLS, t.padded, padded, qa, t.count, 1, kt, COLS, k_words, FALSE);
        product(pairs, dp, COLS, t.padded, padded, ga, t.count, 1, vt, COLS, k_words, FALSE);
        for (gsize r = 0; r < t.rows; r++) {
            gsize seen = p->causal ? begin + r + 1 : keys, valid = seen > k0 ? MIN(seen - k0, cols) : 0;
            slope_row(pairs, s + r * COLS, dp + r * COLS, padded, valid, scale, c->lse[at + r],
                      c->delta[at + r]);
        }
        product(pairs, dq, t.width, t.padded, t.width, dp, COLS, 1, kl, t.width, words(pairs, padded),
                k0 > 0);
    }
    write_rows(type, p, c->dq, p->dq_stride, n, p->tq, head, begin, t.rows, dq, t.width, NULL, p->scale);
}

/* -- backward: for keys; the tile is transposed, a row is a key -- */

/* P in place of S', dS' in place of dP'. Lanes below `from` are queries that do not see the key. */
BODY void slope_key_row(gboolean pairs, float *s, float *dp, gsize padded, gsize from, float scale,
                        const float *lse, const float *delta)
{
    Vec factor = vec_set(scale), zero = vec_set(0);
    for (gsize x = 0; x < padded; x += 2 * LANES) {
        Vec a = vec_exp2(vec_fms(vec_load(s + x), factor, vec_load(lse + x)));
        Vec b = vec_exp2(vec_fms(vec_load(s + x + LANES), factor, vec_load(lse + x + LANES)));
        if (x < from) {
            a = vec_range(a, from - x, LANES, zero);
            b = vec_range(b, from > x + LANES ? from - x - LANES : 0, LANES, zero);
        }
        store_words(pairs, s, x, a, b);
        a = vec_mul(a, vec_sub(vec_load(dp + x), vec_load(delta + x)));
        b = vec_mul(b, vec_sub(vec_load(dp + x + LANES), vec_load(delta + x + LANES)));
        store_words(pairs, dp, x, a, b);
    }
}

/* dq: NULL, or the sums of dS K of every query so far (round_up(tq, COLS) x lanes), to which these keys'
 * part is added. The bits are those of attention_dq, which adds the same keys in the same order. */
BODY void attention_keys(NetType type, gboolean pairs, const KernelAttentionRow *c, gsize n, gsize head,
                         gsize begin, gsize end, gpointer scratch, float *dq)
{
    const KernelAttention *p = c->p;
    Tile t = tile_of(p, pairs, end - begin, scratch);
    float *ka = tile_take(&t, t.padded * t.count), *va = tile_take(&t, t.padded * t.count);
    float *qt = tile_take(&t, t.count * COLS), *gt = tile_take(&t, t.count * COLS);
    float *ql = tile_take(&t, COLS * t.width), *gl = tile_take(&t, COLS * t.width);
    float *dk = tile_take(&t, t.padded * t.width), *dv = tile_take(&t, t.padded * t.width);
    float *s = tile_take(&t, t.padded * COLS), *dp = tile_take(&t, t.padded * COLS);
    float *lse = tile_take(&t, COLS), *delta = tile_take(&t, COLS), *kl = NULL, *ds = dp;
    Rows q = rows_of(type, p, c->q, p->q_stride, n, p->tq, head),
         k = rows_of(type, p, c->k, p->k_stride, n, p->tk, head);
    Rows v = rows_of(type, p, c->v, p->v_stride, n, p->tk, head);
    Rows g = rows_of(type, p, c->do_, p->do_stride, n, p->tq, head);
    float scale = (float)(p->scale * LOG2E);
    gsize at = (n * p->heads + head) * p->tq, k_words = words(pairs, p->dim);
    gsize first = p->causal ? begin / COLS * COLS : 0;
    copy_rows(type, pairs, ka, t.count, row_from(type, k, begin), k.stride, t.rows, t.padded, p->dim);
    copy_rows(type, pairs, va, t.count, row_from(type, v, begin), v.stride, t.rows, t.padded, p->dim);
    if (dq) {
        kl = tile_take(&t, t.padded * t.width);
        ds = pairs ? tile_take(&t, t.padded / 2 * COLS) : dp;
        copy_lanes(type, pairs, kl, t.width, row_from(type, k, begin), k.stride, t.rows, t.padded, p->dim);
    }
    for (gsize q0 = first; q0 < p->tq; q0 += COLS) {
        gsize cols = MIN((gsize)COLS, p->tq - q0), padded = round_up(cols, 2 * LANES);
        copy_transposed(type, pairs, qt, COLS, row_from(type, q, q0), q.stride, cols, padded, p->dim);
        copy_transposed(type, pairs, gt, COLS, row_from(type, g, q0), g.stride, cols, padded, p->dim);
        copy_lanes(type, pairs, ql, t.width, row_from(type, q, q0), q.stride, cols, padded, p->dim);
        copy_lanes(type, pairs, gl, t.width, row_from(type, g, q0), g.stride, cols, padded, p->dim);
        for (gsize i = 0; i < padded; i++) {
            lse[i] = i < cols ? (float)(c->lse[at + q0 + i] * LOG2E) : 0;
            delta[i] = i < cols ? c->delta[at + q0 + i] : 0;
        }
        product(pairs, s, COLS, t.padded, padded, ka, t.count, 1, qt, COLS, k_words, FALSE);
        product(pairs, dp, COLS, t.padded, padded, va, t.count, 1, gt, COLS, k_words, FALSE);
        for (gsize r = 0; r < t.rows; r++) {
            gsize from = p->causal && begin + r > q0 ? MIN(begin + r - q0, padded) : 0;
            slope_key_row(pairs, s + r * COLS, dp + r * COLS, padded, from, scale, lse, delta);
        }
        product(pairs, dv, t.width, t.padded, t.width, s, COLS, 1, gl, t.width, words(pairs, padded),
                q0 > first);
        product(pairs, dk, t.width, t.padded, t.width, dp, COLS, 1, ql, t.width, words(pairs, padded),
                q0 > first);
        if (!dq)
            continue;
        /* dS is read by columns. Its pairs lie along the queries; the sum over keys wants them across. */
        if (pairs)
            copy_lanes(NET_BF16, TRUE, ds, COLS, dp, 2 * COLS, t.rows, round_up(t.rows, 2), padded);
        product(pairs, dq + q0 * t.width, t.width, round_up(cols, BLOCK_ROWS), t.width, ds, 1, COLS, kl,
                t.width, words(pairs, t.rows), TRUE);
    }
    if (c->dk)
        write_rows(type, p, c->dk, p->dk_stride, n, p->tk, head, begin, t.rows, dk, t.width, NULL, p->scale);
    if (c->dv)
        write_rows(type, p, c->dv, p->dv_stride, n, p->tk, head, begin, t.rows, dv, t.width, NULL, 1);
}

BODY void attention_dkv_tile(NetType type, gboolean pairs, const KernelAttentionRow *c, gsize n, gsize head,
                             gsize begin, gsize end, gpointer scratch)
{
    attention_keys(type, pairs, c, n, head, begin, end, scratch, NULL);
}

/* -- backward in one pass: all keys of a sample and head, range after range -- */

BODY void attention_backward_tile(NetType type, gboolean pairs, const KernelAttentionRow *c, gsize n,
                                  gsize head, gsize begin, gsize end, gpointer scratch)
{
    const KernelAttention *p = c->p;
    gsize width = round_up(p->dim, LANES), floats = round_up(p->tq, COLS) * width;
    float *dq = scratch;
    memset(dq, 0, floats * sizeof *dq);
    for (gsize k0 = begin; k0 < end; k0 += KERNEL_ATTENTION_ROWS)
        attention_keys(type, pairs, c, n, head, k0, MIN(end, k0 + KERNEL_ATTENTION_ROWS), dq + floats, dq);
    write_rows(type, p, c->dq, p->dq_stride, n, p->tq, head, 0, p->tq, dq, width, NULL, p->scale);
}

#define TILE_ROW(op, suffix, type, pairs, variant, needs, nmse)                                              \
    TILE static void op##_##suffix##_##variant(const KernelAttentionRow *c, gsize n, gsize head,             \
                                               gsize begin, gsize end, gpointer scratch)                     \
    {                                                                                                        \
        op##_tile(type, pairs, c, n, head, begin, end, scratch);                                             \
    }                                                                                                        \
    FLOW_KERNEL(op##_##suffix, variant, needs, op##_##suffix##_##variant, nmse);
#define TILE_ROWS(suffix, type, pairs, variant, needs, nmse)                                                 \
    TILE_ROW(attention, suffix, type, pairs, variant, needs, nmse)                                           \
    TILE_ROW(attention_delta, suffix, type, pairs, variant, needs, 1e-12)                                    \
    TILE_ROW(attention_dq, suffix, type, pairs, variant, needs, nmse)                                        \
    TILE_ROW(attention_dkv, suffix, type, pairs, variant, needs, nmse)                                       \
    TILE_ROW(attention_backward, suffix, type, pairs, variant, needs, nmse)
