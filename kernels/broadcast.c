/* A vector of channels added to every row, and the reverse: the sum over rows.
 *
 * Work is cut into runs of rows that share one vector. */
#include "kernels/elementwise.h"
#include "kernels/parallel.h"
#include "kernels/rows.h"
#include "kernels/simd.h"

enum { SUM_BLOCK = KERNEL_SUM_BLOCK, SUM_RUN = 32 };

static void add_vector_reference(NetType type, NetType e_type, gpointer y, gconstpointer x, gconstpointer e,
                                 gsize rows, gsize c)
{
    for (gsize i = 0; i < rows * c; i++)
        simd_store(type, y, i, (float)((double)simd_load(type, x, i) + simd_load(e_type, e, i % c)));
}

SIMD_BODY void add_vector_body(NetType type, NetType e_type, gpointer y, gconstpointer x, gconstpointer e,
                               gsize rows, gsize c)
{
    for (gsize r = 0; r < rows; r++) {
        gpointer to = simd_at(type, y, r * c);
        gconstpointer from = simd_at_const(type, x, r * c);
        SIMD_LOOP
        for (gsize i = 0; i < c; i++)
            simd_store(type, to, i, simd_load(type, from, i) + simd_load(e_type, e, i));
    }
}

static void sum_rows_reference(NetType type, float *y, gconstpointer x, gsize stride, gsize rows, gsize c)
{
    for (gsize i = 0; i < c; i++) {
        double sum = 0;
        for (gsize r = 0; r < rows; r++)
            sum += simd_load(type, x, r * stride + i);
        y[i] = (float)sum;
    }
}

/* f32 within runs of SUM_RUN rows, double over the runs. */
SIMD_BODY void sum_rows_body(NetType type, float *y, gconstpointer x, gsize stride, gsize rows, gsize c)
{
    double total[SUM_BLOCK] = {0};
    for (gsize r0 = 0; r0 < rows; r0 += SUM_RUN) {
        float run[SUM_BLOCK] = {0};
        for (gsize r = r0; r < MIN(rows, r0 + SUM_RUN); r++) {
            gconstpointer from = simd_at_const(type, x, r * stride);
            SIMD_LOOP
            for (gsize i = 0; i < c; i++)
                run[i] += simd_load(type, from, i);
        }
        for (gsize i = 0; i < c; i++)
            total[i] += run[i];
    }
    for (gsize i = 0; i < c; i++)
        y[i] = (float)total[i];
}

#define ROW(op, suffix, variant, target, needs, nmse, call, ...)                                             \
    target static void op##_##suffix##_##variant(__VA_ARGS__)                                                \
    {                                                                                                        \
        call;                                                                                                \
    }                                                                                                        \
    FLOW_KERNEL(op##_##suffix, variant, needs, op##_##suffix##_##variant, nmse);
#define ADD(op, suffix, type, e_type, variant, target, needs, fn)                                            \
    ROW(op, suffix, variant, target, needs, 0, fn(type, e_type, y, x, e, rows, c), gpointer y,               \
        gconstpointer x, gconstpointer e, gsize rows, gsize c)
#define SUM(suffix, type, variant, target, needs, fn)                                                        \
    ROW(sum_rows, suffix, variant, target, needs, 1e-12, fn(type, y, x, stride, rows, c), float *y,          \
        gconstpointer x, gsize stride, gsize rows, gsize c)

ADD(add_channel, f32, NET_F32, NET_F32, c, , 0, add_vector_reference)
ADD(add_channel, bf16, NET_BF16, NET_BF16, c, , 0, add_vector_reference)
ADD(add_bias, bf16, NET_BF16, NET_F32, c, , 0, add_vector_reference)
SUM(f32, NET_F32, c, , 0, sum_rows_reference)
SUM(bf16, NET_BF16, c, , 0, sum_rows_reference)
#if defined(__x86_64__)
ADD(add_channel, f32, NET_F32, NET_F32, avx2, SIMD_AVX2, FLOW_CPU_AVX2, add_vector_body)
ADD(add_channel, f32, NET_F32, NET_F32, avx512, SIMD_AVX512, FLOW_CPU_AVX512, add_vector_body)
ADD(add_channel, bf16, NET_BF16, NET_BF16, avx2, SIMD_AVX2, FLOW_CPU_AVX2, add_vector_body)
ADD(add_channel, bf16, NET_BF16, NET_BF16, avx512, SIMD_AVX512, FLOW_CPU_AVX512, add_vector_body)
ADD(add_bias, bf16, NET_BF16, NET_F32, avx2, SIMD_AVX2, FLOW_CPU_AVX2, add_vector_body)
ADD(add_bias, bf16, NET_BF16, NET_F32, avx512, SIMD_AVX512, FLOW_CPU_AVX512, add_vector_body)
SUM(f32, NET_F32, avx2, SIMD_AVX2, FLOW_CPU_AVX2, sum_rows_body)
SUM(f32, NET_F32, avx512, SIMD_AVX512, FLOW_CPU_AVX512, sum_rows_body)
SUM(bf16, NET_BF16, avx2, SIMD_AVX2, FLOW_CPU_AVX2, sum_rows_body)
SUM(bf16, NET_BF16, avx512, SIMD_AVX512, FLOW_CPU_AVX512, sum_rows_body)
#endif

typedef struct {
    KernelAddVectorFn fn;
    NetType type, e_type;
    gpointer y;
    gconstpointer x, e;
    gsize hw, c;
} Add;

static void add_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Add *a = data;
    while (begin < end) {
        gsize n = begin / a->hw, stop = MIN(end, (n + 1) * a->hw);
        a->fn(simd_at(a->type, a->y, begin * a->c), simd_at_const(a->type, a->x, begin * a->c),
              simd_at_const(a->e_type, a->e, n * a->c), stop - begin, a->c);
        begin = stop;
    }
}

static gsize rows_grain(gsize c)
{
    return MAX(1, 32768 / MAX(c, 1));
}

void kernel_add_channel(NetType type, gpointer y, gconstpointer x, gconstpointer e, gsize n, gsize hw,
                        gsize c)
{
    Add a = {SIMD_FIND_TYPE(KernelAddVectorFn, type, "add_channel"), type, type, y, x, e, hw, c};
    net_parallel_for(n * hw, rows_grain(c), add_chunk, &a);
}

void kernel_add_bias(NetType type, gpointer y, gconstpointer x, const float *bias, gsize rows, gsize c)
{
    /* With f32 rows a bias is a channel vector of one sample. */
    KernelAddVectorFn fn = type == NET_BF16 ? SIMD_FIND(KernelAddVectorFn, "add_bias_bf16")
                                            : SIMD_FIND(KernelAddVectorFn, "add_channel_f32");
    Add a = {fn, type, NET_F32, y, x, bias, rows, c};
    net_parallel_for(rows, rows_grain(c), add_chunk, &a);
}

typedef struct {
    KernelSumRowsFn fn;
    NetType type;
    float *y;
    gconstpointer x;
    gsize hw, c, blocks;
} Sum;

static void sum_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Sum *s = data;
    for (gsize i = begin; i < end; i++) {
        gsize n = i / s->blocks, from = i % s->blocks * SUM_BLOCK, c = MIN((gsize)SUM_BLOCK, s->c - from);
        s->fn(s->y + n * s->c + from, simd_at_const(s->type, s->x, n * s->hw * s->c + from), s->c, s->hw, c);
    }
}

void kernel_sum_rows(float *y, NetType type, gconstpointer x, gsize n, gsize hw, gsize c)
{
    Sum s = {SIMD_FIND_TYPE(KernelSumRowsFn, type, "sum_rows"),
             type,
             y,
             x,
             hw,
             c,
             (c + SUM_BLOCK - 1) / SUM_BLOCK};
    net_parallel_for(n * s.blocks, 1, sum_chunk, &s);
}
