/* Attention tiles with AVX-512, f32 products. bf16 tensors are widened when operands are copied. */
#if defined(__x86_64__)
#include "kernels/simd_avx512.h"
#define TILE SIMD_AVX512
#include "kernels/attention_tile.inc"

TILE_ROWS(f32, NET_F32, FALSE, avx512, FLOW_CPU_AVX512, 1e-11)
TILE_ROWS(bf16, NET_BF16, FALSE, avx512, FLOW_CPU_AVX512, 1e-7)
#endif
