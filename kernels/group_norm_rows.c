/* Inner loops of GroupNorm (kernels/rows.h): along the channels of a row, which are contiguous.
 *
 * Sums take ROWS rows at once, so that the accumulators are read and written once for all of them. */
#include "kernels/rows.h"
#include "kernels/simd_math.h"
#include <math.h>

enum { ROWS = 4 };

/* -- plain C, double -- */

static double slope(double z)
{
    double s = 1 / (1 + exp(-z));
    return s * (1 + z * (1 - s));
}

static void group_norm_sums_reference(NetType type, gboolean silu, const KernelGroupNormRow *p)
{
    (void)silu;
    for (gsize i = 0; i < p->c; i++) {
        double sum = p->sum[i], product = p->product[i];
        for (gsize r = 0; r < p->rows; r++) {
            double d = (double)simd_load(type, p->x, r * p->x_stride + i) - p->m[i];
            sum += d;
            product += d * d;
        }
        p->sum[i] = (float)sum;
        p->product[i] = (float)product;
    }
}

static double normalised(NetType type, const KernelGroupNormRow *p, gsize r, gsize i)
{
    return ((double)simd_load(type, p->x, r * p->x_stride + i) - p->m[i]) * p->s[i] + p->b[i];
}

static void group_norm_apply_reference(NetType type, gboolean silu, const KernelGroupNormRow *p)
{
    for (gsize r = 0; r < p->rows; r++)
        for (gsize i = 0; i < p->c; i++) {
            double z = normalised(type, p, r, i);
            simd_store(type, p->y, r * p->y_stride + i, (float)(silu ? z / (1 + exp(-z)) : z));
        }
}

static void group_norm_grad_sums_reference(NetType type, gboolean silu, const KernelGroupNormRow *p)
{
    for (gsize i = 0; i < p->c; i++) {
        double sum = p->sum[i], product = p->product[i];
        for (gsize r = 0; r < p->rows; r++) {
            double dz = simd_load(type, p->dy, r * p->y_stride + i);
            dz *= silu ? slope(normalised(type, p, r, i)) : 1;
            sum += dz;
            product += dz * ((double)simd_load(type, p->x, r * p->x_stride + i) - p->m[i]);
        }
        p->sum[i] = (float)sum;
        p->product[i] = (float)product;
    }
}

static void group_norm_grad_reference(NetType type, gboolean silu, const KernelGroupNormRow *p)
{
    for (gsize r = 0; r < p->rows; r++)
        for (gsize i = 0; i < p->c; i++) {
            double dz = simd_load(type, p->dy, r * p->y_stride + i);
            dz *= silu ? slope(normalised(type, p, r, i)) : 1;
            double d = (double)simd_load(type, p->x, r * p->x_stride + i) - p->m[i];
            double dx = p->s[i] * dz + d * p->q[i] + p->p[i];
            dx += p->add ? simd_load(type, p->add, r * p->x_stride + i) : 0;
            simd_store(type, p->dx, r * p->x_stride + i, (float)dx);
        }
}

/* -- bodies for the compiler to vectorise -- */

SIMD_BODY void sums_rows(NetType type, const KernelGroupNormRow *p, gsize first, int rows)
{
    gsize stride = p->x_stride;
    gconstpointer x = simd_at_const(type, p->x, first * stride);
    const float *m = p->m;
    float *sum = p->sum, *product = p->product;
    SIMD_LOOP
    for (gsize i = 0; i < p->c; i++) {
        float s = sum[i], q = product[i];
        for (int r = 0; r < rows; r++) {
            float d = simd_load(type, x, (gsize)r * stride + i) - m[i];
            s += d;
            q = simd_fma(d, d, q);
        }
        sum[i] = s;
        product[i] = q;
    }
}

SIMD_BODY void group_norm_sums_body(NetType type, gboolean silu, const KernelGroupNormRow *p)
{
    (void)silu;
    gsize r = 0;
    for (; r + ROWS <= p->rows; r += ROWS)
        sums_rows(type, p, r, ROWS);
    for (; r < p->rows; r++)
        sums_rows(type, p, r, 1);
}

SIMD_BODY void group_norm_apply_body(NetType type, gboolean silu, const KernelGroupNormRow *p)
{
    const float *m = p->m, *s = p->s, *b = p->b;
    for (gsize r = 0; r < p->rows; r++) {
        gconstpointer x = simd_at_const(type, p->x, r * p->x_stride);
        gpointer y = simd_at(type, p->y, r * p->y_stride);
        SIMD_LOOP
        for (gsize i = 0; i < p->c; i++) {
            float z = simd_fma(simd_load(type, x, i) - m[i], s[i], b[i]);
            simd_store(type, y, i, silu ? z / (1.0f + simd_exp(-z)) : z);
        }
    }
}

/* The gradient of z at one element; d = x - m. */
SIMD_BODY float grad_z(gboolean silu, float dy, float d, float s, float b)
{
    if (!silu)
        return dy;
    float z = simd_fma(d, s, b), sigmoid = simd_sigmoid(z);
    return dy * (sigmoid * simd_fma(z, 1.0f - sigmoid, 1.0f));
}

SIMD_BODY void grad_sums_rows(NetType type, gboolean silu, const KernelGroupNormRow *p, gsize first, int rows)
{
    gsize xs = p->x_stride, ys = p->y_stride;
    gconstpointer x = simd_at_const(type, p->x, first * xs), dy = simd_at_const(type, p->dy, first * ys);
    const float *m = p->m, *s = p->s, *b = p->b;
    float *sum = p->sum, *product = p->product;
    SIMD_LOOP
    for (gsize i = 0; i < p->c; i++) {
        float t = sum[i], q = product[i];
        for (int r = 0; r < rows; r++) {
            float d = simd_load(type, x, (gsize)r * xs + i) - m[i];
            float dz = grad_z(silu, simd_load(type, dy, (gsize)r * ys + i), d, s[i], b[i]);
            t += dz;
            q = simd_fma(dz, d, q);
        }
        sum[i] = t;
        product[i] = q;
    }
}

SIMD_BODY void group_norm_grad_sums_body(NetType type, gboolean silu, const KernelGroupNormRow *p)
{
    gsize r = 0;
    /* With SiLU arithmetic outweighs the accumulators, and several rows at once are too much for a loop that
     * the compiler is to turn into vectors. */
    for (; !silu && r + ROWS <= p->rows; r += ROWS)
        grad_sums_rows(type, silu, p, r, ROWS);
    for (; r < p->rows; r++)
        grad_sums_rows(type, silu, p, r, 1);
}

SIMD_BODY void grad_row(NetType type, gboolean silu, gboolean add, const KernelGroupNormRow *p, gsize row)
{
    const float *m = p->m, *s = p->s, *b = p->b, *pp = p->p, *qq = p->q;
    gconstpointer x = simd_at_const(type, p->x, row * p->x_stride);
    gconstpointer dy = simd_at_const(type, p->dy, row * p->y_stride);
    gconstpointer plus = add ? simd_at_const(type, p->add, row * p->x_stride) : NULL;
    gpointer dx = simd_at(type, p->dx, row * p->x_stride);
    SIMD_LOOP
    for (gsize i = 0; i < p->c; i++) {
        float d = simd_load(type, x, i) - m[i];
        float dz = grad_z(silu, simd_load(type, dy, i), d, s[i], b[i]);
        float g = simd_fma(s[i], dz, simd_fma(d, qq[i], pp[i]));
        simd_store(type, dx, i, add ? g + simd_load(type, plus, i) : g);
    }
}

SIMD_BODY void group_norm_grad_body(NetType type, gboolean silu, const KernelGroupNormRow *p)
{
    if (p->add)
        for (gsize r = 0; r < p->rows; r++)
            grad_row(type, silu, TRUE, p, r);
    else
        for (gsize r = 0; r < p->rows; r++)
            grad_row(type, silu, FALSE, p, r);
}

#define ROW(op, name, suffix, type, silu, variant, target, needs, body, nmse)                                \
    target static void name##_##suffix##_##variant(const KernelGroupNormRow *p)                              \
    {                                                                                                        \
        op##_##body(type, silu, p);                                                                          \
    }                                                                                                        \
    FLOW_KERNEL(name##_##suffix, variant, needs, name##_##suffix##_##variant, nmse);
#define OPS(suffix, type, variant, target, needs, body, nmse)                                                \
    ROW(group_norm_sums, group_norm_sums, suffix, type, FALSE, variant, target, needs, body,                 \
        (needs) ? 1e-12 : 0)                                                                                 \
    ROW(group_norm_apply, group_norm_apply, suffix, type, FALSE, variant, target, needs, body, nmse)         \
    ROW(group_norm_apply, group_norm_apply_silu, suffix, type, TRUE, variant, target, needs, body, nmse)     \
    ROW(group_norm_grad_sums, group_norm_grad_sums, suffix, type, FALSE, variant, target, needs, body,       \
        (needs) ? 1e-12 : 0)                                                                                 \
    ROW(group_norm_grad_sums, group_norm_grad_sums_silu, suffix, type, TRUE, variant, target, needs, body,   \
        (needs) ? 1e-12 : 0)                                                                                 \
    ROW(group_norm_grad, group_norm_grad, suffix, type, FALSE, variant, target, needs, body, nmse)           \
    ROW(group_norm_grad, group_norm_grad_silu, suffix, type, TRUE, variant, target, needs, body, nmse)

OPS(f32, NET_F32, c, , 0, reference, 0)
OPS(bf16, NET_BF16, c, , 0, reference, 0)
#if defined(__x86_64__)
OPS(f32, NET_F32, avx2, SIMD_AVX2, FLOW_CPU_AVX2, body, 1e-12)
OPS(f32, NET_F32, avx512, SIMD_AVX512, FLOW_CPU_AVX512, body, 1e-12)
OPS(bf16, NET_BF16, avx2, SIMD_AVX2, FLOW_CPU_AVX2, body, 1e-7)
OPS(bf16, NET_BF16, avx512, SIMD_AVX512, FLOW_CPU_AVX512, body, 1e-7)
#endif
