/* Passes over the flat adapter buffers.
 *
 * Counts and sums are made per chunk of CHUNK elements and joined in chunk order, so they do not depend on
 * the threads. */
#include "kernels/optimizer.h"
#include "kernels/parallel.h"
#include "kernels/rows.h"
#include "kernels/simd.h"
#include <math.h>

enum { CHUNK = 32768, GROUP = 256, LANES = 16 };

static gboolean is_finite(NetType type, gconstpointer x, gsize i)
{
    return type == NET_BF16 ? (((const guint16 *)x)[i] & 0x7f80u) != 0x7f80u
                            : isfinite(((const float *)x)[i]) != 0;
}

static gsize count_nonfinite_reference(NetType type, gconstpointer x, gsize n)
{
    gsize bad = 0;
    for (gsize i = 0; i < n; i++)
        bad += !is_finite(type, x, i);
    return bad;
}

SIMD_BODY gsize count_nonfinite_body(NetType type, gconstpointer x, gsize n)
{
    guint32 bad = 0;
    SIMD_LOOP
    for (gsize i = 0; i < n; i++)
        bad += (simd_float_bits(simd_load(type, x, i)) & 0x7f800000u) == 0x7f800000u;
    return bad;
}

static double sum_squares_reference(const float *x, gsize n)
{
    double sum = 0;
    for (gsize i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

SIMD_BODY double sum_squares_body(const float *x, gsize n)
{
    double lane[LANES] = {0}, sum = 0;
    gsize i = 0;
    for (; i + LANES <= n; i += LANES)
        for (gsize l = 0; l < LANES; l++)
            lane[l] += (double)x[i + l] * x[i + l];
    for (; i < n; i++)
        sum += (double)x[i] * x[i];
    for (gsize l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

static void adamw_reference(const KernelAdamwRow *u, float *p, float *m, float *v, const float *g, gsize n)
{
    for (gsize i = 0; i < n; i++) {
        double gradient = (double)u->factor * g[i];
        m[i] = (float)((double)u->beta1 * m[i] + u->grad1 * gradient);
        v[i] = (float)((double)u->beta2 * v[i] + u->grad2 * gradient * gradient);
        p[i] =
            (float)((double)u->decay * p[i] - (double)u->rate * m[i] / (sqrt(v[i]) * u->correction + u->eps));
    }
}

SIMD_BODY void adamw_body(const KernelAdamwRow *u, float *p, float *m, float *v, const float *g, gsize n)
{
    const KernelAdamwRow c = *u;
    SIMD_LOOP
    for (gsize i = 0; i < n; i++) {
        float gradient = c.factor * g[i];
        m[i] = simd_fma(c.beta1, m[i], c.grad1 * gradient);
        v[i] = simd_fma(c.beta2, v[i], c.grad2 * gradient * gradient);
        p[i] = c.decay * p[i] - c.rate * (m[i] / simd_fma(sqrtf(v[i]), c.correction, c.eps));
    }
}

#define COUNT(suffix, type, variant, target, needs, body)                                                    \
    target static gsize count_nonfinite_##suffix##_##variant(gconstpointer x, gsize n)                       \
    {                                                                                                        \
        return count_nonfinite_##body(type, x, n);                                                           \
    }                                                                                                        \
    FLOW_KERNEL(count_nonfinite_##suffix, variant, needs, count_nonfinite_##suffix##_##variant, 0);
#define UPDATE(variant, target, needs, body, sum_nmse, update_nmse)                                          \
    target static double sum_squares_f32_##variant(const float *x, gsize n)                                  \
    {                                                                                                        \
        return sum_squares_##body(x, n);                                                                     \
    }                                                                                                        \
    target static void adamw_f32_##variant(const KernelAdamwRow *u, float *p, float *m, float *v,            \
                                           const float *g, gsize n)                                          \
    {                                                                                                        \
        adamw_##body(u, p, m, v, g, n);                                                                      \
    }                                                                                                        \
    FLOW_KERNEL(sum_squares_f32, variant, needs, sum_squares_f32_##variant, sum_nmse);                       \
    FLOW_KERNEL(adamw_f32, variant, needs, adamw_f32_##variant, update_nmse);

COUNT(f32, NET_F32, c, , 0, reference)
COUNT(bf16, NET_BF16, c, , 0, reference)
UPDATE(c, , 0, reference, 0, 0)
#if defined(__x86_64__)
COUNT(f32, NET_F32, avx2, SIMD_AVX2, FLOW_CPU_AVX2, body)
COUNT(f32, NET_F32, avx512, SIMD_AVX512, FLOW_CPU_AVX512, body)
COUNT(bf16, NET_BF16, avx2, SIMD_AVX2, FLOW_CPU_AVX2, body)
COUNT(bf16, NET_BF16, avx512, SIMD_AVX512, FLOW_CPU_AVX512, body)
UPDATE(avx2, SIMD_AVX2, FLOW_CPU_AVX2, body, 1e-24, 1e-13)
UPDATE(avx512, SIMD_AVX512, FLOW_CPU_AVX512, body, 1e-24, 1e-13)
#endif

typedef struct {
    KernelCountFn fn;
    NetType type;
    gconstpointer x;
    gsize bad, first; /* atomics: sums and minima, so the order of threads does not show */
} Count;

static void count_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    Count *c = data;
    gsize bad = c->fn(simd_at_const(c->type, c->x, begin), end - begin);
    if (!bad)
        return;
    __atomic_fetch_add(&c->bad, bad, __ATOMIC_RELAXED);
    while (is_finite(c->type, c->x, begin))
        begin++;
    gsize first = __atomic_load_n(&c->first, __ATOMIC_RELAXED);
    while (begin < first &&
           !__atomic_compare_exchange_n(&c->first, &first, begin, FALSE, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

gsize kernel_count_nonfinite(NetType type, gconstpointer x, gsize n, gsize *first)
{
    Count c = {SIMD_FIND_TYPE(KernelCountFn, type, "count_nonfinite"), type, x, 0, n};
    net_parallel_for(n, CHUNK, count_chunk, &c);
    if (first)
        *first = c.first;
    return c.bad;
}

typedef struct {
    KernelSumSquaresFn fn;
    const float *x;
    double *sums;
} Sum;

static void sum_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    const Sum *s = data;
    s->sums[chunk] = s->fn(s->x + begin, end - begin);
}

/* GROUP chunks at a time, so that the partial sums need no allocation. */
double kernel_sum_squares(const float *x, gsize n)
{
    double sums[GROUP], total = 0;
    Sum s = {SIMD_FIND(KernelSumSquaresFn, "sum_squares_f32"), NULL, sums};
    for (gsize i = 0; i < n; i += (gsize)GROUP * CHUNK) {
        gsize count = MIN((gsize)GROUP * CHUNK, n - i);
        s.x = x + i;
        net_parallel_for(count, CHUNK, sum_chunk, &s);
        for (gsize j = 0; j < (count + CHUNK - 1) / CHUNK; j++)
            total += sums[j];
    }
    return total;
}

typedef struct {
    KernelAdamwFn fn;
    KernelAdamwRow u;
    float *p, *m, *v;
    const float *g;
} Adamw;

static void adamw_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Adamw *a = data;
    a->fn(&a->u, a->p + begin, a->m + begin, a->v + begin, a->g + begin, end - begin);
}

void kernel_adamw(const KernelAdamw *p, float *param, float *m, float *v, const float *grad, gsize n)
{
    g_assert(p->step > 0);
    double correction1 = 1 - pow(p->beta1, (double)p->step), correction2 = 1 - pow(p->beta2, (double)p->step);
    KernelAdamwRow u = {.decay = (float)(1 - p->lr * p->weight_decay),
                        .beta1 = (float)p->beta1,
                        .grad1 = (float)(1 - p->beta1),
                        .beta2 = (float)p->beta2,
                        .grad2 = (float)(1 - p->beta2),
                        .rate = (float)(p->lr / correction1),
                        .correction = (float)(1 / sqrt(correction2)),
                        .eps = (float)p->eps,
                        .factor = (float)p->factor};
    Adamw a = {SIMD_FIND(KernelAdamwFn, "adamw_f32"), u, param, m, v, grad};
    net_parallel_for(n, CHUNK, adamw_chunk, &a);
}
