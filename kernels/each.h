/* Operations whose element i depends on element i of their inputs only.
 *
 * Such an operation is two functions, OP_reference (plain C, double) and OP_body (for the compiler to
 * vectorise), and one line, EACH_ROWS(OP, ...), that makes the rows of the kernel table from them. */
#ifndef KERNELS_EACH_H
#define KERNELS_EACH_H
#include "kernels/simd.h"

G_BEGIN_DECLS

typedef struct {
    gpointer y;
    gconstpointer a, b; /* NULL where the operation has fewer inputs */
    float factor;
} KernelEach;
/* Elements begin .. end - 1. */
typedef void (*KernelEachFn)(const KernelEach *e, gsize begin, gsize end);

/* Runs fn over n elements on all threads. */
void kernel_each(KernelEachFn fn, const KernelEach *e, gsize n);

#define EACH_ROW(op, suffix, type, variant, target, needs, fn, nmse)                                         \
    target static void op##_##suffix##_##variant(const KernelEach *e, gsize begin, gsize end)                \
    {                                                                                                        \
        fn(type, e, begin, end);                                                                             \
    }                                                                                                        \
    FLOW_KERNEL(op##_##suffix, variant, needs, op##_##suffix##_##variant, nmse);

#if defined(__x86_64__)
#define EACH_VARIANTS(op, suffix, type, nmse)                                                                \
    EACH_ROW(op, suffix, type, avx2, SIMD_AVX2, FLOW_CPU_AVX2, op##_body, nmse)                              \
    EACH_ROW(op, suffix, type, avx512, SIMD_AVX512, FLOW_CPU_AVX512, op##_body, nmse)
#else
#define EACH_VARIANTS(op, suffix, type, nmse)
#endif

/* nmse: limits of the f32 and of the bf16 rows. */
#define EACH_ROWS(op, nmse_f32, nmse_bf16)                                                                   \
    EACH_ROW(op, f32, NET_F32, c, , 0, op##_reference, 0)                                                    \
    EACH_VARIANTS(op, f32, NET_F32, nmse_f32)                                                                \
    EACH_ROW(op, bf16, NET_BF16, c, , 0, op##_reference, 0)                                                  \
    EACH_VARIANTS(op, bf16, NET_BF16, nmse_bf16)

G_END_DECLS
#endif
