/* LayerNorm, one row at a time: a row stays in L1 over its three passes (mean, variance, output).
 *
 * Sums run in LANES f32 accumulators that are joined in order, in double: the same bits for every vector
 * width. Two passes instead of sum and sum of squares: no cancellation. */
#include "kernels/layer_norm.h"
#include "kernels/parallel.h"
#include "kernels/rows.h"
#include "kernels/simd.h"
#include <math.h>

enum { LANES = 32, RUN = 1024 };

static void apply_reference(NetType type, const KernelLayerNormRow *p, gsize r, double mean, double rstd)
{
    for (gsize i = r * p->c; i < (r + 1) * p->c; i++) {
        double d = simd_load(type, p->x, i) - mean;
        simd_store(type, p->y, i, (float)(d * rstd * p->gamma[i - r * p->c] + p->beta[i - r * p->c]));
    }
}

static void layer_norm_again_reference(NetType type, const KernelLayerNormRow *p, gsize begin, gsize end)
{
    for (gsize r = begin; r < end; r++)
        apply_reference(type, p, r, p->kept_mean[r], p->kept_rstd[r]);
}

/* The output is made from the rounded statistics, so that `again` repeats it. */
static void layer_norm_reference(NetType type, const KernelLayerNormRow *p, gsize begin, gsize end)
{
    for (gsize r = begin; r < end; r++) {
        double sum = 0, square = 0;
        for (gsize i = 0; i < p->c; i++)
            sum += simd_load(type, p->x, r * p->c + i);
        float mean = (float)(sum / (double)p->c), rstd;
        for (gsize i = 0; i < p->c; i++) {
            double d = simd_load(type, p->x, r * p->c + i) - (double)mean;
            square += d * d;
        }
        rstd = (float)(1 / sqrt(square / (double)p->c + p->eps));
        apply_reference(type, p, r, mean, rstd);
        if (p->mean) {
            p->mean[r] = mean;
            p->rstd[r] = rstd;
        }
    }
}

static void layer_norm_backward_reference(NetType type, const KernelLayerNormRow *p, gsize begin, gsize end)
{
    for (gsize r = begin; r < end; r++) {
        double mean = p->kept_mean[r], rstd = p->kept_rstd[r], sum = 0, dot = 0;
        for (gsize i = 0; i < p->c; i++) {
            double g = (double)simd_load(type, p->dy, r * p->c + i) * p->gamma[i];
            sum += g;
            dot += g * (simd_load(type, p->x, r * p->c + i) - mean) * rstd;
        }
        sum /= (double)p->c;
        dot /= (double)p->c;
        for (gsize i = 0; i < p->c; i++) {
            gsize at = r * p->c + i;
            double g = (double)simd_load(type, p->dy, at) * p->gamma[i];
            double dx = rstd * (g - sum - (simd_load(type, p->x, at) - mean) * rstd * dot);
            simd_store(type, p->y, at, (float)(dx + (p->add ? simd_load(type, p->add, at) : 0)));
        }
    }
}

/* Halves onto each other, so that the additions do not wait for one another. */
SIMD_BODY double join(const float *lane)
{
    double sum[LANES / 2];
    for (int l = 0; l < LANES / 2; l++)
        sum[l] = (double)lane[l] + lane[l + LANES / 2];
    for (int l = 0; l < LANES / 4; l++)
        sum[l] += sum[l + LANES / 4];
    for (int l = 0; l < LANES / 8; l++)
        sum[l] += sum[l + LANES / 8];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* Elements first .. first + n - 1 as floats: where they are, or widened into `buffer` (a loop of its own,
 * because one that widens and adds does not become good vectors). */
SIMD_BODY const float *widen(NetType type, gconstpointer x, gsize first, gsize n, float *buffer)
{
    if (type == NET_F32)
        return (const float *)x + first;
    SIMD_LOOP
    for (gsize i = 0; i < n; i++)
        buffer[i] = simd_load(type, x, first + i);
    return buffer;
}

SIMD_BODY float row_mean(NetType type, gconstpointer x, gsize c)
{
    float lane[LANES] = {0}, buffer[RUN];
    for (gsize first = 0; first < c; first += RUN) {
        gsize n = MIN((gsize)RUN, c - first), i = 0;
        const float *v = widen(type, x, first, n, buffer);
        for (; i + LANES <= n; i += LANES)
            for (gsize l = 0; l < LANES; l++)
                lane[l] += v[i + l];
        for (gsize l = 0; i < n; i++, l++)
            lane[l] += v[i];
    }
    return (float)(join(lane) / (double)c);
}

SIMD_BODY double row_square(NetType type, gconstpointer x, float mean, gsize c)
{
    float lane[LANES] = {0}, buffer[RUN];
    for (gsize first = 0; first < c; first += RUN) {
        gsize n = MIN((gsize)RUN, c - first), i = 0;
        const float *v = widen(type, x, first, n, buffer);
        for (; i + LANES <= n; i += LANES)
            for (gsize l = 0; l < LANES; l++) {
                float d = v[i + l] - mean;
                lane[l] = simd_fma(d, d, lane[l]);
            }
        for (gsize l = 0; i < n; i++, l++) {
            float d = v[i] - mean;
            lane[l] = simd_fma(d, d, lane[l]);
        }
    }
    return join(lane);
}

SIMD_BODY void row_apply(NetType type, gpointer y, gconstpointer x, const float *gamma, const float *beta,
                         float mean, float rstd, gsize c)
{
    SIMD_LOOP
    for (gsize i = 0; i < c; i++)
        simd_store(type, y, i, simd_fma((simd_load(type, x, i) - mean) * rstd, gamma[i], beta[i]));
}

SIMD_BODY void layer_norm_body(NetType type, const KernelLayerNormRow *p, gsize begin, gsize end)
{
    for (gsize r = begin; r < end; r++) {
        gconstpointer x = simd_at_const(type, p->x, r * p->c);
        float mean = row_mean(type, x, p->c);
        float rstd = (float)(1 / sqrt(row_square(type, x, mean, p->c) / (double)p->c + p->eps));
        row_apply(type, simd_at(type, p->y, r * p->c), x, p->gamma, p->beta, mean, rstd, p->c);
        if (p->mean) {
            p->mean[r] = mean;
            p->rstd[r] = rstd;
        }
    }
}

SIMD_BODY void layer_norm_again_body(NetType type, const KernelLayerNormRow *p, gsize begin, gsize end)
{
    for (gsize r = begin; r < end; r++)
        row_apply(type, simd_at(type, p->y, r * p->c), simd_at_const(type, p->x, r * p->c), p->gamma, p->beta,
                  p->kept_mean[r], p->kept_rstd[r], p->c);
}

/* Means of g = dy gamma, and of g times the normalised x, over a row. */
SIMD_BODY void row_products(NetType type, gconstpointer dy, gconstpointer x, const float *gamma, float mean,
                            float rstd, gsize c, float *sum, float *dot)
{
    float s[LANES] = {0}, d[LANES] = {0}, x_buffer[RUN], dy_buffer[RUN];
    for (gsize first = 0; first < c; first += RUN) {
        gsize n = MIN((gsize)RUN, c - first), i = 0;
        const float *v = widen(type, x, first, n, x_buffer), *w = widen(type, dy, first, n, dy_buffer);
        const float *factor = gamma + first;
        for (; i + LANES <= n; i += LANES)
            for (gsize l = 0; l < LANES; l++) {
                float g = w[i + l] * factor[i + l];
                s[l] += g;
                d[l] = simd_fma(g, (v[i + l] - mean) * rstd, d[l]);
            }
        for (gsize l = 0; i < n; i++, l++) {
            float g = w[i] * factor[i];
            s[l] += g;
            d[l] = simd_fma(g, (v[i] - mean) * rstd, d[l]);
        }
    }
    *sum = (float)(join(s) / (double)c);
    *dot = (float)(join(d) / (double)c);
}

SIMD_BODY void layer_norm_backward_body(NetType type, const KernelLayerNormRow *p, gsize begin, gsize end)
{
    const float *gamma = p->gamma;
    for (gsize r = begin; r < end; r++) {
        gconstpointer x = simd_at_const(type, p->x, r * p->c), dy = simd_at_const(type, p->dy, r * p->c);
        gpointer dx = simd_at(type, p->y, r * p->c);
        float mean = p->kept_mean[r], rstd = p->kept_rstd[r], sum, dot;
        row_products(type, dy, x, gamma, mean, rstd, p->c, &sum, &dot);
        if (p->add) {
            gconstpointer add = simd_at_const(type, p->add, r * p->c);
            SIMD_LOOP
            for (gsize i = 0; i < p->c; i++) {
                float g = simd_fma(simd_load(type, dy, i), gamma[i], -sum);
                g = simd_fma((simd_load(type, x, i) - mean) * rstd, -dot, g);
                simd_store(type, dx, i, simd_fma(rstd, g, simd_load(type, add, i)));
            }
        } else {
            SIMD_LOOP
            for (gsize i = 0; i < p->c; i++) {
                float g = simd_fma(simd_load(type, dy, i), gamma[i], -sum);
                g = simd_fma((simd_load(type, x, i) - mean) * rstd, -dot, g);
                simd_store(type, dx, i, rstd * g);
            }
        }
    }
}

#define ROW(op, suffix, type, variant, target, needs, body, nmse)                                            \
    target static void op##_##suffix##_##variant(const KernelLayerNormRow *p, gsize begin, gsize end)        \
    {                                                                                                        \
        op##_##body(type, p, begin, end);                                                                    \
    }                                                                                                        \
    FLOW_KERNEL(op##_##suffix, variant, needs, op##_##suffix##_##variant, nmse);
#define ROWS(suffix, type, variant, target, needs, body, nmse)                                               \
    ROW(layer_norm, suffix, type, variant, target, needs, body, nmse)                                        \
    ROW(layer_norm_again, suffix, type, variant, target, needs, body, nmse)                                  \
    ROW(layer_norm_backward, suffix, type, variant, target, needs, body, nmse)

ROWS(f32, NET_F32, c, , 0, reference, 0)
ROWS(bf16, NET_BF16, c, , 0, reference, 0)
#if defined(__x86_64__)
ROWS(f32, NET_F32, avx2, SIMD_AVX2, FLOW_CPU_AVX2, body, 1e-12)
ROWS(f32, NET_F32, avx512, SIMD_AVX512, FLOW_CPU_AVX512, body, 1e-12)
ROWS(bf16, NET_BF16, avx2, SIMD_AVX2, FLOW_CPU_AVX2, body, 1e-7)
ROWS(bf16, NET_BF16, avx512, SIMD_AVX512, FLOW_CPU_AVX512, body, 1e-7)
#endif

typedef struct {
    KernelLayerNormFn fn;
    KernelLayerNormRow p;
} Job;

static void norm_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Job *job = data;
    job->fn(&job->p, begin, end);
}

static void run(const Job *job, gsize rows)
{
    net_parallel_for(rows, MAX(1, 32768 / MAX(job->p.c, 1)), norm_chunk, (gpointer)job);
}

void kernel_layer_norm(NetType type, gpointer y, gconstpointer x, const float *gamma, const float *beta,
                       gsize rows, gsize c, float eps, float *mean, float *rstd)
{
    Job job = {
        SIMD_FIND_TYPE(KernelLayerNormFn, type, "layer_norm"),
        {.y = y, .x = x, .gamma = gamma, .beta = beta, .c = c, .eps = eps, .mean = mean, .rstd = rstd}};
    run(&job, rows);
}

void kernel_layer_norm_again(NetType type, gpointer y, gconstpointer x, const float *gamma, const float *beta,
                             gsize rows, gsize c, const float *mean, const float *rstd)
{
    Job job = {SIMD_FIND_TYPE(KernelLayerNormFn, type, "layer_norm_again"),
               {.y = y, .x = x, .gamma = gamma, .beta = beta, .c = c, .kept_mean = mean, .kept_rstd = rstd}};
    run(&job, rows);
}

void kernel_layer_norm_backward(NetType type, gpointer dx, gconstpointer add, gconstpointer dy,
                                gconstpointer x, const float *gamma, gsize rows, gsize c, const float *mean,
                                const float *rstd)
{
    Job job = {SIMD_FIND_TYPE(KernelLayerNormFn, type, "layer_norm_backward"),
               {.y = dx,
                .x = x,
                .dy = dy,
                .add = add,
                .gamma = gamma,
                .c = c,
                .kept_mean = mean,
                .kept_rstd = rstd}};
    run(&job, rows);
}
