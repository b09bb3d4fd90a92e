/* Exponential and normal distribution without branches, for the bodies of kernels/simd.h.
 *
 * Polynomials are minimax fits. Relative errors against exact values: simd_exp 1.2e-7, simd_phi 4e-7 over
 * the whole range (2e-7 absolute). Infinities and NaN come out as libm gives them. */
#ifndef KERNELS_SIMD_MATH_H
#define KERNELS_SIMD_MATH_H
#include "kernels/simd.h"

G_BEGIN_DECLS

/* `yes` where x is negative, else `no`. Not the ?: operator: the compiler would move arithmetic that makes
 * yes or no into the branch, and arithmetic that may trap keeps a branch from becoming vectors. */
SIMD_BODY float simd_if_negative(float x, float yes, float no)
{
    guint32 mask = (guint32)((gint32)simd_float_bits(x) >> 31);
    return simd_bits_float((simd_float_bits(yes) & mask) | (simd_float_bits(no) & ~mask));
}

/* e^x: x = n ln 2 + r, |r| <= ln 2 / 2. Below -87.7 it is 0 (no denormals), above 88.7 inf. */
SIMD_BODY float simd_exp(float x)
{
    x = x < -88.0f ? -88.0f : x;
    /* Adding 1.5 * 2^23 leaves the rounded integer in the low bits; as integers such floats keep their
     * order, so the clamp works for any x, NaN included. */
    gint32 n = (gint32)simd_float_bits(simd_fma(x, 1.44269504f, 12582912.0f)) - 0x4b400000;
    n = n > 127 ? 127 : n; /* the last half step up to inf is the polynomial's */
    float r = simd_fma((float)n, -0.693145752f, x);
    r = simd_fma((float)n, -1.42860677e-6f, r);
    float p = 1.38368543e-3f;
    p = simd_fma(p, r, 8.37482400e-3f);
    p = simd_fma(p, r, 4.16682259e-2f);
    p = simd_fma(p, r, 0.166664200f);
    p = simd_fma(p, r, 0.499999921f);
    p = simd_fma(p, r, 1.00000004f);
    p = simd_fma(p, r, 1.0f);
    return p * simd_bits_float((guint32)(n + 127) << 23);
}

/* 1 / (1 + e^-x) */
SIMD_BODY float simd_sigmoid(float x)
{
    return 1.0f / (1.0f + simd_exp(-x));
}

/* The normal distribution function of x, and its density without the factor 1 / sqrt(2 pi):
 * for a = |x| the upper tail is e^(-a a / 2) t P(t), t = 1 / (1 + 0.35 a). */
SIMD_BODY float simd_phi(float x, float *density)
{
    float a = simd_bits_float(simd_float_bits(x) & 0x7fffffffu);
    float t = 1.0f / simd_fma(a, 0.35f, 1.0f), e = simd_exp(-0.5f * a * a);
    float p = -2.91459778e-2f;
    p = simd_fma(p, t, 0.143971902f);
    p = simd_fma(p, t, -0.255714617f);
    p = simd_fma(p, t, 0.159174506f);
    p = simd_fma(p, t, -2.31100261e-2f);
    p = simd_fma(p, t, 0.105508066f);
    p = simd_fma(p, t, 0.119832857f);
    p = simd_fma(p, t, 0.139861871f);
    p = simd_fma(p, t, 0.139621404f);
    float tail = p * t * e;
    *density = e;
    return simd_if_negative(x, tail, 1.0f - tail);
}

G_END_DECLS
#endif
