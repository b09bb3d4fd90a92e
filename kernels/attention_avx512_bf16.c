/* Attention tiles with the bf16 dot product of AVX512-BF16: twice the rate of f32. Scores, softmax and all
 * sums stay f32; P and dS are rounded to bf16 for the products that follow, as on any bf16 hardware. The
 * limit is that rounding: 2^-9 relative for each of the two factors of a product. */
#if defined(__x86_64__)
#include "kernels/simd_avx512.h"
#define TILE SIMD_AVX512_BF16
#define TILE_PAIRS

/* c + a.low b.low + a.high b.high in every lane */
TILE SIMD_BODY Vec vec_dot_pairs(Vec a, Vec b, Vec c)
{
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}

/* Lanes of low, then of high, rounded to bf16. */
TILE SIMD_BODY Vec vec_to_pairs(Vec low, Vec high)
{
    return (Vec)_mm512_cvtne2ps_pbh(high, low);
}

#include "kernels/attention_tile.inc"

TILE_ROWS(bf16, NET_BF16, TRUE, avx512_bf16, FLOW_CPU_AVX512_BF16, 2e-5)
#endif
