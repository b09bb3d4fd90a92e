/* Attention: plain reference, and the division of the work.
 *
 * A query's gradient sums over the keys and a key's over the queries, and one thread must own each sum for
 * the order of additions to be fixed. Either attention_dq for ranges of queries and then attention_dkv for
 * ranges of keys, which makes the scores twice (7 products of the size of Q K'); or attention_backward for a
 * whole sample and head (5 products, but fewer parts to share out). Both give the same bits, so the choice
 * may look at the number of threads. */
#include "kernels/attention.h"
#include "kernels/parallel.h"
#include "kernels/rows.h"
#include "kernels/simd.h"
#include <math.h>

/* Element 0 of row `row` of sample n and head `head`. */
static gsize row_at(const KernelAttention *p, gsize n, gsize t, gsize row, gsize stride, gsize head)
{
    return (n * t + row) * stride + head * p->dim;
}

/* -- reference: one query or key at a time, in double -- */

static double dot(NetType type, gconstpointer a, gsize at, gconstpointer b, gsize bt, gsize dim)
{
    double sum = 0;
    for (gsize i = 0; i < dim; i++)
        sum += (double)simd_load(type, a, at + i) * simd_load(type, b, bt + i);
    return sum;
}

static void store_row(NetType type, gpointer y, gsize at, const double *x, gsize dim)
{
    for (gsize i = 0; i < dim; i++)
        simd_store(type, y, at + i, (float)x[i]);
}

static void attention_reference(NetType type, const KernelAttentionRow *c, gsize n, gsize head, gsize begin,
                                gsize end, gpointer scratch)
{
    const KernelAttention *p = c->p;
    double *score = scratch, sum[KERNEL_ATTENTION_DIM];
    for (gsize i = begin; i < end; i++) {
        gsize keys = p->causal ? MIN(i + 1, p->tk) : p->tk, q = row_at(p, n, p->tq, i, p->q_stride, head);
        double most = -INFINITY, total = 0;
        for (gsize j = 0; j < keys; j++) {
            score[j] = p->scale * dot(type, c->q, q, c->k, row_at(p, n, p->tk, j, p->k_stride, head), p->dim);
            most = MAX(most, score[j]);
        }
        memset(sum, 0, sizeof sum);
        for (gsize j = 0; j < keys; j++) {
            double e = exp(score[j] - most);
            gsize v = row_at(p, n, p->tk, j, p->v_stride, head);
            total += e;
            for (gsize d = 0; d < p->dim; d++)
                sum[d] += e * simd_load(type, c->v, v + d);
        }
        for (gsize d = 0; d < p->dim; d++)
            sum[d] /= total;
        store_row(type, c->o, row_at(p, n, p->tq, i, p->o_stride, head), sum, p->dim);
        if (c->lse_out)
            c->lse_out[(n * p->heads + head) * p->tq + i] = (float)(most + log(total));
    }
}

static void attention_delta_reference(NetType type, const KernelAttentionRow *c, gsize n, gsize head,
                                      gsize begin, gsize end, gpointer scratch)
{
    (void)scratch;
    const KernelAttention *p = c->p;
    for (gsize i = begin; i < end; i++)
        c->delta_out[(n * p->heads + head) * p->tq + i] =
            (float)dot(type, c->do_, row_at(p, n, p->tq, i, p->do_stride, head), c->o,
                       row_at(p, n, p->tq, i, p->o_stride, head), p->dim);
}

/* P and dS of query i and key j. */
static double probability(NetType type, const KernelAttentionRow *c, gsize n, gsize head, gsize i, gsize j,
                          double *ds)
{
    const KernelAttention *p = c->p;
    gsize at = (n * p->heads + head) * p->tq + i;
    double s = dot(type, c->q, row_at(p, n, p->tq, i, p->q_stride, head), c->k,
                   row_at(p, n, p->tk, j, p->k_stride, head), p->dim);
    double dp = dot(type, c->do_, row_at(p, n, p->tq, i, p->do_stride, head), c->v,
                    row_at(p, n, p->tk, j, p->v_stride, head), p->dim);
    double e = exp(p->scale * s - c->lse[at]);
    *ds = e * (dp - c->delta[at]);
    return e;
}

static void attention_dq_reference(NetType type, const KernelAttentionRow *c, gsize n, gsize head,
                                   gsize begin, gsize end, gpointer scratch)
{
    (void)scratch;
    const KernelAttention *p = c->p;
    double sum[KERNEL_ATTENTION_DIM], ds;
    for (gsize i = begin; i < end; i++) {
        memset(sum, 0, sizeof sum);
        for (gsize j = 0; j < (p->causal ? MIN(i + 1, p->tk) : p->tk); j++) {
            gsize k = row_at(p, n, p->tk, j, p->k_stride, head);
            probability(type, c, n, head, i, j, &ds);
            for (gsize d = 0; d < p->dim; d++)
                sum[d] += p->scale * ds * simd_load(type, c->k, k + d);
        }
        store_row(type, c->dq, row_at(p, n, p->tq, i, p->dq_stride, head), sum, p->dim);
    }
}

static void attention_dkv_reference(NetType type, const KernelAttentionRow *c, gsize n, gsize head,
                                    gsize begin, gsize end, gpointer scratch)
{
    (void)scratch;
    const KernelAttention *p = c->p;
    double dk[KERNEL_ATTENTION_DIM], dv[KERNEL_ATTENTION_DIM], ds;
    for (gsize j = begin; j < end; j++) {
        memset(dk, 0, sizeof dk);
        memset(dv, 0, sizeof dv);
        for (gsize i = p->causal ? j : 0; i < p->tq; i++) {
            double e = probability(type, c, n, head, i, j, &ds);
            gsize q = row_at(p, n, p->tq, i, p->q_stride, head),
                  g = row_at(p, n, p->tq, i, p->do_stride, head);
            for (gsize d = 0; d < p->dim; d++) {
                dk[d] += p->scale * ds * simd_load(type, c->q, q + d);
                dv[d] += e * simd_load(type, c->do_, g + d);
            }
        }
        if (c->dk)
            store_row(type, c->dk, row_at(p, n, p->tk, j, p->dk_stride, head), dk, p->dim);
        if (c->dv)
            store_row(type, c->dv, row_at(p, n, p->tk, j, p->dv_stride, head), dv, p->dim);
    }
}

static void attention_backward_reference(NetType type, const KernelAttentionRow *c, gsize n, gsize head,
                                         gsize begin, gsize end, gpointer scratch)
{
    attention_dq_reference(type, c, n, head, 0, c->p->tq, scratch);
    attention_dkv_reference(type, c, n, head, begin, end, scratch);
}

#define REFERENCE(op, suffix, type)                                                                          \
    static void op##_##suffix##_c(const KernelAttentionRow *call, gsize n, gsize head, gsize begin,          \
                                  gsize end, gpointer scratch)                                               \
    {                                                                                                        \
        op##_reference(type, call, n, head, begin, end, scratch);                                            \
    }                                                                                                        \
    FLOW_KERNEL(op##_##suffix, c, 0, op##_##suffix##_c, 0);

REFERENCE(attention, f32, NET_F32)
REFERENCE(attention, bf16, NET_BF16)
REFERENCE(attention_delta, f32, NET_F32)
REFERENCE(attention_delta, bf16, NET_BF16)
REFERENCE(attention_dq, f32, NET_F32)
REFERENCE(attention_dq, bf16, NET_BF16)
REFERENCE(attention_dkv, f32, NET_F32)
REFERENCE(attention_dkv, bf16, NET_BF16)
REFERENCE(attention_backward, f32, NET_F32)
REFERENCE(attention_backward, bf16, NET_BF16)

/* -- division of the work -- */

enum { WORK = 1 << 20 };

typedef struct {
    KernelAttentionRow call;
    KernelAttentionFn fn;
    gsize t, rows, ranges; /* rows of one sample and head, of a range; ranges of one sample and head */
    char *scratch;
    gsize tile; /* bytes of a thread's part of scratch */
} Job;

/* Cuts t rows into equal ranges of at most `most`. */
static void cut(Job *job, gsize most)
{
    gsize ranges = (job->t + most - 1) / most;
    job->rows = (job->t + ranges - 1) / ranges;
    job->ranges = (job->t + job->rows - 1) / job->rows;
}

static void range_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Job *job = data;
    const KernelAttention *p = job->call.p;
    for (gsize i = begin; i < end; i++) {
        gsize pair = i / job->ranges, first = i % job->ranges * job->rows;
        job->fn(&job->call, pair / p->heads, pair % p->heads, first, MIN(first + job->rows, job->t),
                job->scratch + net_thread_index() * job->tile);
    }
}

/* Ranges of all heads; those of less than WORK multiplications go to a thread together. */
static void run(Job *job, gsize t, gsize rows)
{
    const KernelAttention *p = job->call.p;
    job->t = t;
    cut(job, rows);
    gsize work = job->rows * (t == p->tq ? p->tk : p->tq) * p->dim;
    net_parallel_for(p->n * p->heads * job->ranges, MAX(1, WORK / MAX(work, 1)), range_chunk, job);
}

gsize kernel_attention_tile(const KernelAttention *p)
{
    gsize lanes = (p->dim + 15) / 16 * 16, rows = KERNEL_ATTENTION_ROWS, cols = KERNEL_ATTENTION_COLS;
    /* operands of a tile: five of rows x dim, four of cols x dim; tiles of scores; a few vectors */
    gsize floats = (5 * rows + 4 * cols) * lanes + (2 * rows + rows / 2) * cols + 4 * (rows + cols);
    return MAX(floats * sizeof(float), (p->tk * sizeof(double) + 63) / 64 * 64);
}

gsize kernel_attention_backward_tile(const KernelAttention *p)
{
    gsize lanes = (p->dim + 15) / 16 * 16, cols = KERNEL_ATTENTION_COLS;
    return kernel_attention_tile(p) + (p->tq + cols - 1) / cols * cols * lanes * sizeof(float);
}

static gsize delta_bytes(const KernelAttention *p)
{
    return (p->n * p->heads * p->tq * sizeof(float) + 63) / 64 * 64;
}

gsize kernel_attention_scratch(const KernelAttention *p)
{
    return net_threads() * kernel_attention_tile(p);
}

gsize kernel_attention_backward_scratch(const KernelAttention *p)
{
    return delta_bytes(p) + net_threads() * kernel_attention_backward_tile(p);
}

static void check(const KernelAttention *p)
{
    g_assert(p->dim >= 1 && p->dim <= KERNEL_ATTENTION_DIM && p->tq && p->tk &&
             (!p->causal || p->tq == p->tk));
}

void kernel_attention(const KernelAttention *p, gpointer o, gconstpointer q, gconstpointer k, gconstpointer v,
                      float *lse, gpointer scratch)
{
    check(p);
    Job job = {.call = {.p = p, .q = q, .k = k, .v = v, .o = o, .lse_out = lse},
               .fn = SIMD_FIND_TYPE(KernelAttentionFn, p->type, "attention"),
               .scratch = scratch,
               .tile = kernel_attention_tile(p)};
    run(&job, p->tq, p->dim > 128 ? KERNEL_ATTENTION_ROWS : 2 * KERNEL_ATTENTION_ROWS);
}

/* Products on the busiest thread decide; queries or keys of one head go to one thread in one pass. */
static gboolean one_pass(const KernelAttention *p)
{
    gsize parts = p->n * p->heads, threads = net_threads();
    return 5 * ((parts + threads - 1) / threads) * threads <= 7 * parts;
}

void kernel_attention_backward(const KernelAttention *p, gpointer dq, gpointer dk, gpointer dv,
                               gconstpointer do_, gconstpointer q, gconstpointer k, gconstpointer v,
                               gconstpointer o, const float *lse, gpointer scratch)
{
    check(p);
    Job job = {.call = {.p = p, .q = q, .k = k, .v = v, .do_ = do_, .lse = lse, .delta = scratch},
               .scratch = (char *)scratch + delta_bytes(p),
               .tile = kernel_attention_backward_tile(p)};
    job.call.o = (gpointer)o;
    job.call.delta_out = scratch;
    job.fn = SIMD_FIND_TYPE(KernelAttentionFn, p->type, "attention_delta");
    run(&job, p->tq, KERNEL_ATTENTION_ROWS);
    job.call.dq = dq;
    gboolean both = dq && (dk || dv) && one_pass(p);
    if (dq && !both) {
        job.fn = SIMD_FIND_TYPE(KernelAttentionFn, p->type, "attention_dq");
        run(&job, p->tq, KERNEL_ATTENTION_ROWS);
    }
    job.call.dk = dk;
    job.call.dv = dv;
    if (both) {
        job.fn = SIMD_FIND_TYPE(KernelAttentionFn, p->type, "attention_backward");
        run(&job, p->tk, p->tk);
    } else if (dk || dv) {
        job.fn = SIMD_FIND_TYPE(KernelAttentionFn, p->type, "attention_dkv");
        run(&job, p->tk, KERNEL_ATTENTION_ROWS);
    }
}
