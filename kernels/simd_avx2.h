/* Vectors of 8 floats (AVX2, FMA) for kernels/attention_tile.inc. The twin of kernels/simd_avx512.h: the same
 * names, another width. */
#ifndef KERNELS_SIMD_AVX2_H
#define KERNELS_SIMD_AVX2_H
#include "kernels/simd.h"
#include <immintrin.h>

enum { LANES = 8, BLOCK_VECTORS = 2 }; /* a block of 6 rows x 2 vectors fills 12 of 16 registers */
typedef __m256 Vec;

#define VEC SIMD_AVX2 SIMD_BODY

VEC Vec vec_load(const float *x)
{
    return _mm256_loadu_ps(x);
}

VEC void vec_store(float *x, Vec v)
{
    _mm256_storeu_ps(x, v);
}

VEC Vec vec_set(float x)
{
    return _mm256_set1_ps(x);
}

VEC Vec vec_add(Vec a, Vec b)
{
    return _mm256_add_ps(a, b);
}

VEC Vec vec_sub(Vec a, Vec b)
{
    return _mm256_sub_ps(a, b);
}

VEC Vec vec_mul(Vec a, Vec b)
{
    return _mm256_mul_ps(a, b);
}

VEC Vec vec_max(Vec a, Vec b)
{
    return _mm256_max_ps(a, b);
}

/* a b + c */
VEC Vec vec_fma(Vec a, Vec b, Vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* a b - c */
VEC Vec vec_fms(Vec a, Vec b, Vec c)
{
    return _mm256_fmsub_ps(a, b, c);
}

VEC float vec_sum(Vec a)
{
    float x[LANES];
    vec_store(x, a);
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

VEC float vec_most(Vec a)
{
    float x[LANES];
    vec_store(x, a);
    float most = x[0];
    for (int i = 1; i < LANES; i++)
        most = MAX(most, x[i]);
    return most;
}

/* Lanes from .. to - 1 of a, `other` in the rest. */
VEC Vec vec_range(Vec a, gsize from, gsize to, Vec other)
{
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)MIN(from, 8)), lane);
    __m256i inside = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)MIN(to, 8)), lane);
    return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(_mm256_andnot_si256(below, inside)));
}

/* 2^z for z < 128; 2^-126 below. p(f) 2^n with n the nearest integer: relative error 7.5e-8 and rounding. */
VEC Vec vec_exp2(Vec z)
{
    z = _mm256_max_ps(z, _mm256_set1_ps(-126.0f));
    Vec n = _mm256_round_ps(z, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = _mm256_sub_ps(z, n);
    Vec p = _mm256_set1_ps(1.32764715e-3f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(9.67554139e-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.55071328e-2f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.240221197f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.693146967f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

/* n <= LANES elements of `type` as floats, zeros behind them; nothing behind them is read. */
VEC Vec vec_load_elements(NetType type, gconstpointer x, gsize n)
{
    guint32 padded[LANES] = {0};
    if (n < LANES) {
        memcpy(padded, x, n * (type == NET_F32 ? 4 : 2));
        x = padded;
    }
    if (type == NET_F32)
        return _mm256_loadu_ps((const float *)x);
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* v[i] lane j becomes v[j] lane i. */
VEC void vec_transpose(Vec v[LANES])
{
    Vec t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) /* 4 x 4 squares inside the 128-bit halves */
        for (int j = 0; j < 2; j++) {
            v[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            v[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) { /* then the halves */
        t[i] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++)
        v[i] = t[i];
}

#endif
