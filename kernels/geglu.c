/* GEGLU forward and backward, row by row. */
#include "kernels/geglu.h"
#include "kernels/parallel.h"
#include "kernels/rows.h"
#include "kernels/simd_math.h"
#include <math.h>

static void geglu_reference(NetType type, gpointer y, gconstpointer u, gsize rows, gsize c)
{
    for (gsize r = 0; r < rows; r++)
        for (gsize i = 0; i < c; i++) {
            double a = simd_load(type, u, 2 * r * c + i), g = simd_load(type, u, (2 * r + 1) * c + i);
            simd_store(type, y, r * c + i, (float)(a * g * 0.5 * erfc(-g * M_SQRT1_2)));
        }
}

SIMD_BODY void geglu_body(NetType type, gpointer y, gconstpointer u, gsize rows, gsize c)
{
    for (gsize r = 0; r < rows; r++) {
        gconstpointer a = simd_at_const(type, u, 2 * r * c), g = simd_at_const(type, u, (2 * r + 1) * c);
        gpointer to = simd_at(type, y, r * c);
        SIMD_LOOP
        for (gsize i = 0; i < c; i++) {
            float density, x = simd_load(type, g, i);
            simd_store(type, to, i, simd_load(type, a, i) * (x * simd_phi(x, &density)));
        }
    }
}

static void geglu_backward_reference(NetType type, gpointer du, gconstpointer dy, gconstpointer u, gsize rows,
                                     gsize c)
{
    for (gsize r = 0; r < rows; r++)
        for (gsize i = 0; i < c; i++) {
            gsize at = 2 * r * c + i;
            double a = simd_load(type, u, at), g = simd_load(type, u, at + c),
                   d = simd_load(type, dy, r * c + i);
            double p = 0.5 * erfc(-g * M_SQRT1_2), slope = p + g * exp(-g * g / 2) * 0.3989422804014327;
            simd_store(type, du, at, (float)(d * g * p));
            simd_store(type, du, at + c, (float)(d * a * slope));
        }
}

SIMD_BODY void geglu_backward_body(NetType type, gpointer du, gconstpointer dy, gconstpointer u, gsize rows,
                                   gsize c)
{
    for (gsize r = 0; r < rows; r++) {
        gconstpointer a = simd_at_const(type, u, 2 * r * c), g = simd_at_const(type, u, (2 * r + 1) * c);
        gpointer da = simd_at(type, du, 2 * r * c), dg = simd_at(type, du, (2 * r + 1) * c);
        gconstpointer from = simd_at_const(type, dy, r * c);
        SIMD_LOOP
        for (gsize i = 0; i < c; i++) {
            float density, x = simd_load(type, g, i), value = simd_load(type, a, i);
            float d = simd_load(type, from, i), p = simd_phi(x, &density);
            simd_store(type, da, i, d * (x * p));
            simd_store(type, dg, i, d * value * simd_fma(x * 0.398942280f, density, p));
        }
    }
}

#define ROWS(suffix, type, variant, target, needs, body, nmse)                                               \
    target static void geglu_##suffix##_##variant(gpointer y, gconstpointer u, gsize rows, gsize c)          \
    {                                                                                                        \
        geglu_##body(type, y, u, rows, c);                                                                   \
    }                                                                                                        \
    target static void geglu_backward_##suffix##_##variant(gpointer du, gconstpointer dy, gconstpointer u,   \
                                                           gsize rows, gsize c)                              \
    {                                                                                                        \
        geglu_backward_##body(type, du, dy, u, rows, c);                                                     \
    }                                                                                                        \
    FLOW_KERNEL(geglu_##suffix, variant, needs, geglu_##suffix##_##variant, nmse);                           \
    FLOW_KERNEL(geglu_backward_##suffix, variant, needs, geglu_backward_##suffix##_##variant, nmse);

ROWS(f32, NET_F32, c, , 0, reference, 0)
ROWS(bf16, NET_BF16, c, , 0, reference, 0)
#if defined(__x86_64__)
ROWS(f32, NET_F32, avx2, SIMD_AVX2, FLOW_CPU_AVX2, body, 1e-13)
ROWS(f32, NET_F32, avx512, SIMD_AVX512, FLOW_CPU_AVX512, body, 1e-13)
ROWS(bf16, NET_BF16, avx2, SIMD_AVX2, FLOW_CPU_AVX2, body, 1e-7)
ROWS(bf16, NET_BF16, avx512, SIMD_AVX512, FLOW_CPU_AVX512, body, 1e-7)
#endif

typedef struct {
    KernelGegluFn forward;
    KernelGegluBackwardFn backward;
    NetType type;
    gpointer out;
    gconstpointer dy, u;
    gsize c;
} Job;

static void forward_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Job *j = data;
    j->forward(simd_at(j->type, j->out, begin * j->c), simd_at_const(j->type, j->u, 2 * begin * j->c),
               end - begin, j->c);
}

static void backward_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Job *j = data;
    j->backward(simd_at(j->type, j->out, 2 * begin * j->c), simd_at_const(j->type, j->dy, begin * j->c),
                simd_at_const(j->type, j->u, 2 * begin * j->c), end - begin, j->c);
}

static gsize rows_grain(gsize c)
{
    return MAX(1, 16384 / MAX(c, 1));
}

void kernel_geglu(NetType type, gpointer y, gconstpointer u, gsize rows, gsize c)
{
    Job j = {SIMD_FIND_TYPE(KernelGegluFn, type, "geglu"), NULL, type, y, NULL, u, c};
    net_parallel_for(rows, rows_grain(c), forward_chunk, &j);
}

void kernel_geglu_backward(NetType type, gpointer du, gconstpointer dy, gconstpointer u, gsize rows, gsize c)
{
    Job j = {NULL, SIMD_FIND_TYPE(KernelGegluBackwardFn, type, "geglu_backward"), type, du, dy, u, c};
    net_parallel_for(rows, rows_grain(c), backward_chunk, &j);
}
