/* Vectors of 16 floats (AVX-512) for kernels/attention_tile.inc. The twin of kernels/simd_avx2.h: the same
 * names, another width. */
#ifndef KERNELS_SIMD_AVX512_H
#define KERNELS_SIMD_AVX512_H
#include "kernels/simd.h"
#include <immintrin.h>

enum { LANES = 16, BLOCK_VECTORS = 4 }; /* a block of 6 rows x 4 vectors fills 24 of 32 registers */
typedef __m512 Vec;

#define VEC SIMD_AVX512 SIMD_BODY

VEC Vec vec_load(const float *x)
{
    return _mm512_loadu_ps(x);
}

VEC void vec_store(float *x, Vec v)
{
    _mm512_storeu_ps(x, v);
}

VEC Vec vec_set(float x)
{
    return _mm512_set1_ps(x);
}

VEC Vec vec_add(Vec a, Vec b)
{
    return _mm512_add_ps(a, b);
}

VEC Vec vec_sub(Vec a, Vec b)
{
    return _mm512_sub_ps(a, b);
}

VEC Vec vec_mul(Vec a, Vec b)
{
    return _mm512_mul_ps(a, b);
}

VEC Vec vec_max(Vec a, Vec b)
{
    return _mm512_max_ps(a, b);
}

/* a b + c */
VEC Vec vec_fma(Vec a, Vec b, Vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* a b - c */
VEC Vec vec_fms(Vec a, Vec b, Vec c)
{
    return _mm512_fmsub_ps(a, b, c);
}

VEC float vec_sum(Vec a)
{
    return _mm512_reduce_add_ps(a);
}

VEC float vec_most(Vec a)
{
    return _mm512_reduce_max_ps(a);
}

/* Lanes from .. to - 1 of a, `other` in the rest. */
VEC Vec vec_range(Vec a, gsize from, gsize to, Vec other)
{
    guint32 mask = (1u << MIN(to, 16)) - (1u << MIN(from, 16));
    return _mm512_mask_mov_ps(other, (__mmask16)mask, a);
}

/* 2^z for any z; p(f) 2^n with f = z - n in 0 .. 1: relative error 7.5e-8 and rounding. */
VEC Vec vec_exp2(Vec z)
{
    Vec f = _mm512_reduce_ps(z, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    Vec p = _mm512_set1_ps(1.87757661e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(8.98934034e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.58263177e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240153617f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693153073f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.999999925f));
    return _mm512_scalef_ps(p, z); /* rounds z down itself */
}

/* n <= LANES elements of `type` as floats, zeros behind them; nothing behind them is read. */
VEC Vec vec_load_elements(NetType type, gconstpointer x, gsize n)
{
    __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (type == NET_F32)
        return _mm512_maskz_loadu_ps(mask, x);
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* n <= 2 LANES 16-bit elements as they are, zeros behind them. */
VEC Vec vec_load_pairs(gconstpointer x, gsize n)
{
    __mmask32 mask = (__mmask32)((1ull << n) - 1);
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, x));
}

/* Lane i: element i of `low` (n_low of them) and of `high` (n_high) in its two halves, zeros behind them. */
VEC Vec vec_load_interleaved(gconstpointer low, gconstpointer high, gsize n_low, gsize n_high)
{
    __mmask16 low_mask = (__mmask16)((1u << n_low) - 1), high_mask = (__mmask16)((1u << n_high) - 1);
    __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(low_mask, low));
    __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(high_mask, high));
    return _mm512_castsi512_ps(_mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
}

/* v[i] lane j becomes v[j] lane i. */
VEC void vec_transpose(Vec v[LANES])
{
    Vec t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) /* 4 x 4 squares inside the 128-bit quarters */
        for (int j = 0; j < 2; j++) {
            v[i + 2 * j] = _mm512_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            v[i + 2 * j + 1] = _mm512_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) { /* then the quarters: rows i, i + 4, i + 8, i + 12 */
        Vec a = _mm512_shuffle_f32x4(v[i], v[i + 4], 0x88), b = _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd);
        Vec c = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0x88),
            d = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0xdd);
        t[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        t[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        t[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
    for (int i = 0; i < 16; i++)
        v[i] = t[i];
}

#endif
