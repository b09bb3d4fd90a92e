/* SiLU, GELU (erf) and quick GELU, and their derivatives times an arriving gradient (a = dy, b = x). */
#include "kernels/each.h"
#include "kernels/elementwise.h"
#include "kernels/simd_math.h"
#include <math.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double phi(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

static void silu_reference(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    for (gsize i = begin; i < end; i++) {
        double x = simd_load(type, e->a, i);
        simd_store(type, e->y, i, (float)(x * sigmoid(x)));
    }
}

SIMD_BODY void silu_body(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    gpointer y = e->y;
    gconstpointer a = e->a;
    SIMD_LOOP
    for (gsize i = begin; i < end; i++) {
        float x = simd_load(type, a, i);
        simd_store(type, y, i, x / (1.0f + simd_exp(-x)));
    }
}
EACH_ROWS(silu, 1e-13, 1e-8)

static void silu_backward_reference(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    for (gsize i = begin; i < end; i++) {
        double x = simd_load(type, e->b, i), s = sigmoid(x);
        simd_store(type, e->y, i, (float)(simd_load(type, e->a, i) * (s * (1 + x * (1 - s)))));
    }
}

SIMD_BODY void silu_backward_body(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    gpointer y = e->y;
    gconstpointer a = e->a, b = e->b;
    SIMD_LOOP
    for (gsize i = begin; i < end; i++) {
        float x = simd_load(type, b, i), s = simd_sigmoid(x);
        simd_store(type, y, i, simd_load(type, a, i) * (s * simd_fma(x, 1.0f - s, 1.0f)));
    }
}
EACH_ROWS(silu_backward, 1e-13, 1e-8)

static void gelu_reference(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    for (gsize i = begin; i < end; i++) {
        double x = simd_load(type, e->a, i);
        simd_store(type, e->y, i, (float)(x * phi(x)));
    }
}

SIMD_BODY void gelu_body(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    gpointer y = e->y;
    gconstpointer a = e->a;
    SIMD_LOOP
    for (gsize i = begin; i < end; i++) {
        float density, x = simd_load(type, a, i);
        simd_store(type, y, i, x * simd_phi(x, &density));
    }
}
EACH_ROWS(gelu, 1e-13, 1e-8)

static void gelu_backward_reference(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    for (gsize i = begin; i < end; i++) {
        double x = simd_load(type, e->b, i);
        double slope = phi(x) + x * exp(-x * x / 2) * 0.3989422804014327;
        simd_store(type, e->y, i, (float)(simd_load(type, e->a, i) * slope));
    }
}

SIMD_BODY void gelu_backward_body(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    gpointer y = e->y;
    gconstpointer a = e->a, b = e->b;
    SIMD_LOOP
    for (gsize i = begin; i < end; i++) {
        float density, x = simd_load(type, b, i), p = simd_phi(x, &density);
        simd_store(type, y, i, simd_load(type, a, i) * simd_fma(x * 0.398942280f, density, p));
    }
}
EACH_ROWS(gelu_backward, 1e-13, 1e-8)

static void quick_gelu_reference(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    for (gsize i = begin; i < end; i++) {
        double x = simd_load(type, e->a, i);
        simd_store(type, e->y, i, (float)(x * sigmoid(1.702 * x)));
    }
}

SIMD_BODY void quick_gelu_body(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    gpointer y = e->y;
    gconstpointer a = e->a;
    SIMD_LOOP
    for (gsize i = begin; i < end; i++) {
        float x = simd_load(type, a, i);
        simd_store(type, y, i, x / (1.0f + simd_exp(-1.702f * x)));
    }
}
EACH_ROWS(quick_gelu, 1e-12, 1e-8)

static void quick_gelu_backward_reference(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    for (gsize i = begin; i < end; i++) {
        double x = 1.702 * simd_load(type, e->b, i), s = sigmoid(x);
        simd_store(type, e->y, i, (float)(simd_load(type, e->a, i) * (s * (1 + x * (1 - s)))));
    }
}

SIMD_BODY void quick_gelu_backward_body(NetType type, const KernelEach *e, gsize begin, gsize end)
{
    gpointer y = e->y;
    gconstpointer a = e->a, b = e->b;
    SIMD_LOOP
    for (gsize i = begin; i < end; i++) {
        float x = 1.702f * simd_load(type, b, i), s = simd_sigmoid(x);
        simd_store(type, y, i, simd_load(type, a, i) * (s * simd_fma(x, 1.0f - s, 1.0f)));
    }
}
EACH_ROWS(quick_gelu_backward, 1e-12, 1e-8)

void kernel_silu(NetType type, gpointer y, gconstpointer x, gsize n)
{
    KernelEach e = {.y = y, .a = x};
    kernel_each(SIMD_FIND_TYPE(KernelEachFn, type, "silu"), &e, n);
}

void kernel_gelu(NetType type, gpointer y, gconstpointer x, gsize n)
{
    KernelEach e = {.y = y, .a = x};
    kernel_each(SIMD_FIND_TYPE(KernelEachFn, type, "gelu"), &e, n);
}

void kernel_quick_gelu(NetType type, gpointer y, gconstpointer x, gsize n)
{
    KernelEach e = {.y = y, .a = x};
    kernel_each(SIMD_FIND_TYPE(KernelEachFn, type, "quick_gelu"), &e, n);
}

void kernel_silu_backward(NetType type, gpointer dx, gconstpointer dy, gconstpointer x, gsize n)
{
    KernelEach e = {.y = dx, .a = dy, .b = x};
    kernel_each(SIMD_FIND_TYPE(KernelEachFn, type, "silu_backward"), &e, n);
}

void kernel_gelu_backward(NetType type, gpointer dx, gconstpointer dy, gconstpointer x, gsize n)
{
    KernelEach e = {.y = dx, .a = dy, .b = x};
    kernel_each(SIMD_FIND_TYPE(KernelEachFn, type, "gelu_backward"), &e, n);
}

void kernel_quick_gelu_backward(NetType type, gpointer dx, gconstpointer dy, gconstpointer x, gsize n)
{
    KernelEach e = {.y = dx, .a = dy, .b = x};
    kernel_each(SIMD_FIND_TYPE(KernelEachFn, type, "quick_gelu_backward"), &e, n);
}
