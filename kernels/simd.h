/* How kernels are written once and compiled for several instruction sets.
 *
 * A kernel's body is a plain C loop in an always-inlined function; functions with a target attribute wrap
 * it, and the compiler turns the loop into that target's vectors. Intrinsics are kept for what loops cannot
 * say (attention). A body therefore has no branches inside its loop and uses the functions below instead of
 * libm. Multiplications and additions are fused where the body says so (simd_fma) and nowhere else, so that
 * a loop's tail and another vector width give the same bits. */
#ifndef KERNELS_SIMD_H
#define KERNELS_SIMD_H
#include "kernels/kernel.h"
#include "kernels/type.h"
#include <string.h>

G_BEGIN_DECLS

#define SIMD_BODY static inline __attribute__((always_inline))
#if defined(__x86_64__)
#define SIMD_AVX2 __attribute__((target("avx2,fma,f16c")))
#define SIMD_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define SIMD_AVX512_BF16                                                                                     \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")))
#endif

/* Before a loop: its turns are independent, even where output and input are the same array. */
#if defined(__clang__)
#define SIMD_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define SIMD_LOOP _Pragma("GCC ivdep")
#endif

/* The best variant of an operation, looked up once a call site. */
#define SIMD_FIND(Fn, op)                                                                                    \
    __extension__({                                                                                          \
        static FlowKernelFn found_;                                                                          \
        FlowKernelFn fn_ = __atomic_load_n(&found_, __ATOMIC_RELAXED);                                       \
        if (!fn_)                                                                                            \
            __atomic_store_n(&found_, fn_ = flow_kernel_find(op), __ATOMIC_RELAXED);                         \
        (Fn) fn_;                                                                                            \
    })
/* The same for an operation with an f32 and a bf16 row. */
#define SIMD_FIND_TYPE(Fn, type, op)                                                                         \
    ((type) == NET_BF16 ? SIMD_FIND(Fn, op "_bf16") : SIMD_FIND(Fn, op "_f32"))

SIMD_BODY float simd_bits_float(guint32 u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

SIMD_BODY guint32 simd_float_bits(float f)
{
    guint32 u;
    memcpy(&u, &f, sizeof u);
    return u;
}

SIMD_BODY float simd_from_bf16(guint16 x)
{
    return simd_bits_float((guint32)x << 16);
}

/* Nearest even; a NaN is made quiet and keeps its sign. */
SIMD_BODY guint16 simd_to_bf16(float f)
{
    guint32 u = simd_float_bits(f), rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
    return (guint16)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : rounded);
}

/* Element i of an array of `type`, which is a constant wherever a body is inlined. */
SIMD_BODY float simd_load(NetType type, gconstpointer x, gsize i)
{
    return type == NET_BF16 ? simd_from_bf16(((const guint16 *)x)[i]) : ((const float *)x)[i];
}

SIMD_BODY void simd_store(NetType type, gpointer y, gsize i, float value)
{
    if (type == NET_BF16)
        ((guint16 *)y)[i] = simd_to_bf16(value);
    else
        ((float *)y)[i] = value;
}

SIMD_BODY gpointer simd_at(NetType type, gpointer x, gsize i)
{
    return (char *)x + i * (type == NET_BF16 ? 2 : 4);
}

SIMD_BODY gconstpointer simd_at_const(NetType type, gconstpointer x, gsize i)
{
    return (const char *)x + i * (type == NET_BF16 ? 2 : 4);
}

/* a b + c, rounded once. Only in functions with a SIMD_ target: elsewhere it is a slow call. */
SIMD_BODY float simd_fma(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

G_END_DECLS
#endif
