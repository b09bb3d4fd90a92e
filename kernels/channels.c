/* Concatenation, splitting, upsampling and layout changes: memory is moved, a run of bytes at a time. */
#include "kernels/channels.h"
#include "kernels/parallel.h"
#include "kernels/rows.h"
#include "kernels/simd.h"

typedef struct {
    char *a, *b;
    const char *y;
    gsize a_bytes, b_bytes;
} Rows;

static void split_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Rows *r = data;
    for (gsize i = begin; i < end; i++) {
        const char *y = r->y + i * (r->a_bytes + r->b_bytes);
        if (r->a)
            memcpy(r->a + i * r->a_bytes, y, r->a_bytes);
        if (r->b)
            memcpy(r->b + i * r->b_bytes, y + r->a_bytes, r->b_bytes);
    }
}

void kernel_split(NetType type, gpointer a, gsize ca, gpointer b, gsize cb, gconstpointer y, gsize rows)
{
    Rows r = {a, b, y, net_type_bytes(type, ca), net_type_bytes(type, cb)};
    net_parallel_for(rows, MAX(1, 32768 / MAX(ca + cb, 1)), split_chunk, &r);
}

typedef struct {
    const char *a, *b;
    char *y;
    gsize a_bytes, b_bytes;
} Concat;

static void concat_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Concat *r = data;
    for (gsize i = begin; i < end; i++) {
        char *y = r->y + i * (r->a_bytes + r->b_bytes);
        memcpy(y, r->a + i * r->a_bytes, r->a_bytes);
        memcpy(y + r->a_bytes, r->b + i * r->b_bytes, r->b_bytes);
    }
}

void kernel_concat(NetType type, gpointer y, gconstpointer a, gsize ca, gconstpointer b, gsize cb, gsize rows)
{
    Concat r = {a, b, y, net_type_bytes(type, ca), net_type_bytes(type, cb)};
    net_parallel_for(rows, MAX(1, 32768 / MAX(ca + cb, 1)), concat_chunk, &r);
}

typedef struct {
    char *y;
    const char *x;
    gsize w, pixel; /* pixel: bytes */
} Upsample;

/* One input row makes two output rows. */
static void upsample_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Upsample *u = data;
    gsize line = 2 * u->w * u->pixel;
    for (gsize i = begin; i < end; i++) {
        char *y = u->y + 2 * i * line;
        const char *x = u->x + i * u->w * u->pixel;
        for (gsize j = 0; j < u->w; j++) {
            memcpy(y + 2 * j * u->pixel, x + j * u->pixel, u->pixel);
            memcpy(y + (2 * j + 1) * u->pixel, x + j * u->pixel, u->pixel);
        }
        memcpy(y + line, y, line);
    }
}

static gsize lines_grain(gsize w, gsize c)
{
    return MAX(1, 16384 / MAX(w * c, 1));
}

void kernel_upsample(NetType type, gpointer y, gconstpointer x, gsize n, gsize h, gsize w, gsize c)
{
    Upsample u = {y, x, w, net_type_bytes(type, c)};
    net_parallel_for(n * h, lines_grain(w, c), upsample_chunk, &u);
}

static void upsample_backward_reference(NetType type, gpointer dx, gconstpointer dy, gsize w, gsize c)
{
    for (gsize i = 0; i < w * c; i++) {
        gsize at = i / c * 2 * c + i % c, below = at + 2 * w * c;
        double sum = (double)simd_load(type, dy, at) + simd_load(type, dy, at + c) +
                     simd_load(type, dy, below) + simd_load(type, dy, below + c);
        simd_store(type, dx, i, (float)sum);
    }
}

SIMD_BODY void upsample_backward_body(NetType type, gpointer dx, gconstpointer dy, gsize w, gsize c)
{
    for (gsize j = 0; j < w; j++) {
        gpointer to = simd_at(type, dx, j * c);
        gconstpointer up = simd_at_const(type, dy, 2 * j * c),
                      down = simd_at_const(type, dy, 2 * (w + j) * c);
        SIMD_LOOP
        for (gsize i = 0; i < c; i++)
            simd_store(type, to, i,
                       (simd_load(type, up, i) + simd_load(type, up, i + c)) +
                           (simd_load(type, down, i) + simd_load(type, down, i + c)));
    }
}

#define FOLD(suffix, type, variant, target, needs, body, nmse)                                               \
    target static void upsample_backward_##suffix##_##variant(gpointer dx, gconstpointer dy, gsize w,        \
                                                              gsize c)                                       \
    {                                                                                                        \
        upsample_backward_##body(type, dx, dy, w, c);                                                        \
    }                                                                                                        \
    FLOW_KERNEL(upsample_backward_##suffix, variant, needs, upsample_backward_##suffix##_##variant, nmse);

FOLD(f32, NET_F32, c, , 0, reference, 0)
FOLD(bf16, NET_BF16, c, , 0, reference, 0)
#if defined(__x86_64__)
FOLD(f32, NET_F32, avx2, SIMD_AVX2, FLOW_CPU_AVX2, body, 1e-13)
FOLD(f32, NET_F32, avx512, SIMD_AVX512, FLOW_CPU_AVX512, body, 1e-13)
FOLD(bf16, NET_BF16, avx2, SIMD_AVX2, FLOW_CPU_AVX2, body, 1e-8)
FOLD(bf16, NET_BF16, avx512, SIMD_AVX512, FLOW_CPU_AVX512, body, 1e-8)
#endif

typedef struct {
    KernelFoldFn fn;
    NetType type;
    gpointer dx;
    gconstpointer dy;
    gsize w, c;
} Fold;

static void fold_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Fold *f = data;
    for (gsize i = begin; i < end; i++)
        f->fn(simd_at(f->type, f->dx, i * f->w * f->c), simd_at_const(f->type, f->dy, 4 * i * f->w * f->c),
              f->w, f->c);
}

void kernel_upsample_backward(NetType type, gpointer dx, gconstpointer dy, gsize n, gsize h, gsize w, gsize c)
{
    Fold f = {SIMD_FIND_TYPE(KernelFoldFn, type, "upsample_backward"), type, dx, dy, w, c};
    net_parallel_for(n * h, lines_grain(w, c), fold_chunk, &f);
}

/* A matrix of `rows` x `cols` elements is transposed in squares that stay in L1. */
enum { SQUARE = 32 };
typedef struct {
    char *dst;
    const char *src;
    gsize size, rows, cols, strips; /* strips of SQUARE rows in one matrix */
} Transpose;

#define MOVE(T)                                                                                              \
    for (gsize c = c0; c < c1; c++)                                                                          \
        for (gsize r = r0; r < r1; r++)                                                                      \
    ((T *)dst)[c * t->rows + r] = ((const T *)src)[r * t->cols + c]

static void transpose_square(const Transpose *t, gsize matrix, gsize r0, gsize c0)
{
    gsize r1 = MIN(r0 + SQUARE, t->rows), c1 = MIN(c0 + SQUARE, t->cols);
    char *dst = t->dst + matrix * t->rows * t->cols * t->size;
    const char *src = t->src + matrix * t->rows * t->cols * t->size;
    if (t->size == 4)
        MOVE(guint32);
    else if (t->size == 2)
        MOVE(guint16);
    else
        MOVE(guint8);
}

static void transpose_chunk(gsize begin, gsize end, gsize chunk, gpointer data)
{
    (void)chunk;
    const Transpose *t = data;
    for (gsize i = begin; i < end; i++)
        for (gsize c = 0; c < t->cols; c += SQUARE)
            transpose_square(t, i / t->strips, i % t->strips * SQUARE, c);
}

static void transpose(gpointer dst, gconstpointer src, gsize size, gsize n, gsize rows, gsize cols)
{
    g_assert(size == 1 || size == 2 || size == 4);
    Transpose t = {dst, src, size, rows, cols, (rows + SQUARE - 1) / SQUARE};
    net_parallel_for(n * t.strips, MAX(1, 16384 / MAX(SQUARE * cols, 1)), transpose_chunk, &t);
}

void kernel_to_channels_last(gpointer dst, gconstpointer src, gsize size, gsize n, gsize c, gsize hw)
{
    transpose(dst, src, size, n, c, hw);
}

void kernel_to_channels_first(gpointer dst, gconstpointer src, gsize size, gsize n, gsize c, gsize hw)
{
    transpose(dst, src, size, n, hw, c);
}
