/* Sum, scaling, filling, accumulation and type conversion of whole tensors. */
#include "kernels/elementwise.h"
#include "kernels/each.h"
#include "kernels/parallel.h"

static void add_reference(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    for (gsize i = begin; i < end; i++)
        simd_store(type, e->y, i, (float)((double)simd_load(type, e->a, i) + simd_load(type, e->b, i)));
}

SIMD_BODY void add_body(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    gpointer y = e->y;
    gconstpointer a = e->a, b = e->b;
    SIMD_LOOP
    for (gsize i = begin; i < end; i++)
        simd_store(type, y, i, simd_load(type, a, i) + simd_load(type, b, i));
}
EACH_ROWS(add, 0, 0)

static void scale_reference(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    for (gsize i = begin; i < end; i++)
        simd_store(type, e->y, i, (float)((double)e->factor * simd_load(type, e->a, i)));
}

SIMD_BODY void scale_body(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    gpointer y = e->y;
    gconstpointer a = e->a;
    float factor = e->factor;
    SIMD_LOOP
    for (gsize i = begin; i < end; i++)
        simd_store(type, y, i, factor * simd_load(type, a, i));
}
EACH_ROWS(scale, 0, 0)

SIMD_BODY void fill_body(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    gpointer y = e->y;
    float value = e->factor;
    SIMD_LOOP
    for (gsize i = begin; i < end; i++)
        simd_store(type, y, i, value);
}
#define fill_reference fill_body
EACH_ROWS(fill, 0, 0)

/* y is f32 whatever the type of x. */
static void axpy_reference(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    float *y = e->y;
    for (gsize i = begin; i < end; i++)
        y[i] = (float)(y[i] + (double)e->factor * simd_load(type, e->a, i));
}

SIMD_BODY void axpy_body(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    float *y = e->y, factor = e->factor;
    gconstpointer a = e->a;
    SIMD_LOOP
    for (gsize i = begin; i < end; i++)
        y[i] = simd_fma(factor, simd_load(type, a, i), y[i]);
}
EACH_ROWS(axpy, 1e-14, 1e-14)

void kernel_add(NetType type, gpointer y, gconstpointer a, gconstpointer b, gsize n)
{
    KernelEach e = {.y = y, .a = a, .b = b};
    kernel_each(SIMD_FIND_TYPE(KernelEachFn, type, "add"), &e, n);
}

void kernel_scale(NetType type, gpointer y, gconstpointer x, float factor, gsize n)
{
    KernelEach e = {.y = y, .a = x, .factor = factor};
    kernel_each(SIMD_FIND_TYPE(KernelEachFn, type, "scale"), &e, n);
}

void kernel_fill(NetType type, gpointer y, float value, gsize n)
{
    KernelEach e = {.y = y, .factor = value};
    kernel_each(SIMD_FIND_TYPE(KernelEachFn, type, "fill"), &e, n);
}

void kernel_axpy(float *y, float factor, NetType type, gconstpointer x, gsize n)
{
    KernelEach e = {.y = y, .a = x, .factor = factor};
    kernel_each(SIMD_FIND_TYPE(KernelEachFn, type, "axpy"), &e, n);
}

typedef struct {
    char *dst;
    const char *src;
    NetType dst_type, src_type;
    gsize overflows;
} Cast;

static void cast_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    Cast *c = data;
    gsize overflows = net_convert(c->dst + net_type_bytes(c->dst_type, begin), c->dst_type,
                                  c->src + net_type_bytes(c->src_type, begin), c->src_type, end - begin);
    if (overflows)
        __atomic_fetch_add(&c->overflows, overflows, __ATOMIC_RELAXED);
}

gsize kernel_cast(gpointer dst, NetType dst_type, gconstpointer src, NetType src_type, gsize n)
{
    Cast c = {dst, src, dst_type, src_type, 0};
    net_parallel_for(n, 65536, cast_chunk, &c);
    return c.overflows;
}
