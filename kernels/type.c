/* Element types and conversions between f32, bf16 and f16.
 *
 * One scalar definition of each conversion says what is right; the vector rows give the same bits.
 * bf16 is plain integer arithmetic in every row: the processor's own bf16 conversion flushes denormals. */
#include "kernels/type.h"
#include "kernels/rows.h"
#include "kernels/simd.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static const struct {
    const char *name;
    guint bits;
} types[NET_TYPE_COUNT] = {
    [NET_F32] = {"f32", 32}, [NET_BF16] = {"bf16", 16}, [NET_F16] = {"f16", 16}, [NET_I8] = {"i8", 8},
    [NET_U8] = {"u8", 8},    [NET_I32] = {"i32", 32},   [NET_I64] = {"i64", 64}, [NET_NF4] = {"nf4", 4},
};

const char *net_type_name(NetType type)
{
    return (guint)type < NET_TYPE_COUNT ? types[type].name : "unknown";
}

gsize net_type_bytes(NetType type, gsize n)
{
    g_assert((guint)type < NET_TYPE_COUNT);
    guint bits = types[type].bits;
    return bits < 8 ? n / 2 + n % 2 : n * (bits / 8);
}

guint16 net_f32_to_f16(float x)
{
    guint32 u = simd_float_bits(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) /* NaN: quiet, the top of its payload stays */
        return (guint16)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u) /* 65520 and more round to inf */
        return (guint16)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: a multiple of 2^-24, rounded by adding 1/2 ulp of 2^-1 */
        float magic = simd_bits_float(a) + 0.5f;
        return (guint16)(sign | (simd_float_bits(magic) - 0x3f000000u));
    }
    a += 0xfffu + (a >> 13 & 1);
    return (guint16)(sign | ((a - 0x38000000u) >> 13));
}

float net_f16_to_f32(guint16 x)
{
    guint32 sign = (guint32)(x & 0x8000u) << 16, a = x & 0x7fffu;
    if (a > 0x7c00u)
        return simd_bits_float(sign | 0x7fc00000u | a << 13);
    if (a == 0x7c00u)
        return simd_bits_float(sign | 0x7f800000u);
    if (a < 0x400u) /* denormal: a 2^-24, exact */
        return simd_bits_float(sign | simd_float_bits((float)a * 0x1p-24f));
    return simd_bits_float(sign | ((a << 13) + 0x38000000u));
}

guint16 net_f32_to_bf16(float x)
{
    return simd_to_bf16(x);
}

float net_bf16_to_f32(guint16 x)
{
    return simd_from_bf16(x);
}

/* -- rows: each handles n <= BLOCK elements and counts finite values that became infinite -- */

enum { BLOCK = 1024 };

static gsize f32_to_f16_c(void *dst, const void *src, gsize n)
{
    gsize overflows = 0;
    for (gsize i = 0; i < n; i++) {
        float x;
        memcpy(&x, (const char *)src + 4 * i, 4);
        guint16 y = net_f32_to_f16(x);
        memcpy((char *)dst + 2 * i, &y, 2);
        overflows += (y & 0x7fffu) == 0x7c00u && (simd_float_bits(x) & 0x7fffffffu) != 0x7f800000u;
    }
    return overflows;
}
FLOW_KERNEL(f32_to_f16, c, 0, f32_to_f16_c, 0);

static gsize f16_to_f32_c(void *dst, const void *src, gsize n)
{
    for (gsize i = 0; i < n; i++) {
        guint16 x;
        memcpy(&x, (const char *)src + 2 * i, 2);
        float y = net_f16_to_f32(x);
        memcpy((char *)dst + 4 * i, &y, 4);
    }
    return 0;
}
FLOW_KERNEL(f16_to_f32, c, 0, f16_to_f32_c, 0);

SIMD_BODY gsize to_bf16_body(void *dst, const void *src, gsize n)
{
    guint32 overflows = 0;
    SIMD_LOOP
    for (gsize i = 0; i < n; i++) {
        guint32 u;
        memcpy(&u, (const char *)src + 4 * i, 4);
        guint16 y = simd_to_bf16(simd_bits_float(u));
        memcpy((char *)dst + 2 * i, &y, 2);
        overflows += (u & 0x7fffffffu) - 0x7f7f8000u < 0x8000u;
    }
    return overflows;
}

SIMD_BODY gsize from_bf16_body(void *dst, const void *src, gsize n)
{
    SIMD_LOOP
    for (gsize i = 0; i < n; i++) {
        guint16 x;
        memcpy(&x, (const char *)src + 2 * i, 2);
        guint32 u = (guint32)x << 16;
        memcpy((char *)dst + 4 * i, &u, 4);
    }
    return 0;
}

static gsize f32_to_bf16_c(void *dst, const void *src, gsize n)
{
    return to_bf16_body(dst, src, n);
}
static gsize bf16_to_f32_c(void *dst, const void *src, gsize n)
{
    return from_bf16_body(dst, src, n);
}
FLOW_KERNEL(f32_to_bf16, c, 0, f32_to_bf16_c, 0);
FLOW_KERNEL(bf16_to_f32, c, 0, bf16_to_f32_c, 0);

#if defined(__x86_64__)
SIMD_AVX2 static gsize f32_to_f16_avx2(void *dst, const void *src, gsize n)
{
    const float *x = src;
    guint16 *y = dst;
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), limit = _mm256_set1_epi32(0x477fefff),
                  infinite = _mm256_set1_epi32(0x7f800000);
    gsize i = 0, overflows = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        __m256i a = _mm256_and_si256(_mm256_castps_si256(v), magnitude);
        __m256i over = _mm256_and_si256(_mm256_cmpgt_epi32(a, limit), _mm256_cmpgt_epi32(infinite, a));
        overflows += (guint)__builtin_popcount((guint)_mm256_movemask_ps(_mm256_castsi256_ps(over)));
        _mm_storeu_si128((__m128i *)(y + i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    return overflows + f32_to_f16_c(y + i, x + i, n - i);
}

SIMD_AVX2 static gsize f16_to_f32_avx2(void *dst, const void *src, gsize n)
{
    const guint16 *x = src;
    float *y = dst;
    gsize i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
    return f16_to_f32_c(y + i, x + i, n - i);
}

SIMD_AVX2 static gsize f32_to_bf16_avx2(void *dst, const void *src, gsize n)
{
    return to_bf16_body(dst, src, n);
}
SIMD_AVX512 static gsize f32_to_bf16_avx512(void *dst, const void *src, gsize n)
{
    return to_bf16_body(dst, src, n);
}
SIMD_AVX2 static gsize bf16_to_f32_avx2(void *dst, const void *src, gsize n)
{
    return from_bf16_body(dst, src, n);
}
SIMD_AVX512 static gsize bf16_to_f32_avx512(void *dst, const void *src, gsize n)
{
    return from_bf16_body(dst, src, n);
}
FLOW_KERNEL(f32_to_f16, avx2, FLOW_CPU_AVX2, f32_to_f16_avx2, 0);
FLOW_KERNEL(f16_to_f32, avx2, FLOW_CPU_AVX2, f16_to_f32_avx2, 0);
FLOW_KERNEL(f32_to_bf16, avx2, FLOW_CPU_AVX2, f32_to_bf16_avx2, 0);
FLOW_KERNEL(f32_to_bf16, avx512, FLOW_CPU_AVX512, f32_to_bf16_avx512, 0);
FLOW_KERNEL(bf16_to_f32, avx2, FLOW_CPU_AVX2, bf16_to_f32_avx2, 0);
FLOW_KERNEL(bf16_to_f32, avx512, FLOW_CPU_AVX512, bf16_to_f32_avx512, 0);
#endif

static KernelConvertFn to_f32(NetType type)
{
    return type == NET_BF16 ? SIMD_FIND(KernelConvertFn, "bf16_to_f32")
                            : SIMD_FIND(KernelConvertFn, "f16_to_f32");
}

static KernelConvertFn from_f32(NetType type)
{
    return type == NET_BF16 ? SIMD_FIND(KernelConvertFn, "f32_to_bf16")
                            : SIMD_FIND(KernelConvertFn, "f32_to_f16");
}

/* The two 16-bit types have no direct way: f32 holds every value of both. */
static gsize convert_block(char *dst, NetType dst_type, const char *src, NetType src_type, gsize n)
{
    float middle[BLOCK];
    if (src_type == NET_F32)
        return from_f32(dst_type)(dst, src, n);
    if (dst_type == NET_F32)
        return to_f32(src_type)(dst, src, n);
    to_f32(src_type)(middle, src, n);
    return from_f32(dst_type)(dst, middle, n);
}

gsize net_convert(void *dst, NetType dst_type, const void *src, NetType src_type, gsize n)
{
    gboolean ok = (src_type == NET_F32 || src_type == NET_BF16 || src_type == NET_F16) &&
                  (dst_type == NET_F32 || dst_type == NET_BF16 || dst_type == NET_F16);
    g_return_val_if_fail(ok, 0);
    if (src_type == dst_type) {
        memmove(dst, src, net_type_bytes(src_type, n));
        return 0;
    }
    gsize overflows = 0;
    for (gsize i = 0; i < n; i += BLOCK)
        overflows += convert_block((char *)dst + net_type_bytes(dst_type, i), dst_type,
                                   (const char *)src + net_type_bytes(src_type, i), src_type,
                                   MIN((gsize)BLOCK, n - i));
    return overflows;
}
