/* Element types: names, sizes, conversions bit by bit (case C-15), vector rows against the scalar functions.
 * @label short
 */
#include "kernels/type.h"
#include "kernels/kernel.h"
#include <math.h>
#include <string.h>

static guint32 bits(float f)
{
    guint32 u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float from_bits(guint32 u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void test_names(void)
{
    g_assert_cmpstr(net_type_name(NET_F32), ==, "f32");
    g_assert_cmpstr(net_type_name(NET_BF16), ==, "bf16");
    g_assert_cmpstr(net_type_name(NET_NF4), ==, "nf4");
    g_assert_cmpstr(net_type_name((NetType)99), ==, "unknown");
    g_assert_cmpuint(net_type_bytes(NET_F16, 3), ==, 6);
    g_assert_cmpuint(net_type_bytes(NET_I64, 3), ==, 24);
    g_assert_cmpuint(net_type_bytes(NET_NF4, 5), ==, 3);
    g_assert_cmpuint(net_type_bytes(NET_NF4, 0), ==, 0);
}

static void test_f16_edges(void)
{
    static const struct {
        float from;
        guint16 to;
    } cases[] = {{65504, 0x7bff},          {65519.99f, 0x7bff}, {65520, 0x7c00},     {5.9604645e-8f, 0x0001},
                 {2.9802322e-8f, 0},       {2.9805e-8f, 1},     {2049, 0x6800},      {2051, 0x6802},
                 {0.1f, 0x2e66},           {-0.0f, 0x8000},     {1e-8f, 0},          {1.00048828125f, 0x3c00},
                 {6.103515625e-5f, 0x400}, {6.1e-5f, 0x3ff},    {-INFINITY, 0xfc00}, {-65520, 0xfc00}};
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++)
        g_assert_cmphex(net_f32_to_f16(cases[i].from), ==, cases[i].to);
    g_assert_cmphex(net_f32_to_f16(NAN) & 0x7e00, ==, 0x7e00);
    g_assert_cmphex(net_f32_to_f16(from_bits(0x7f800001)) & 0x7fff, >, 0x7c00);
    g_assert_cmphex(net_f32_to_f16(from_bits(0xffc00000)), ==, 0xfe00);
}

static void test_bf16_edges(void)
{
    g_assert_cmphex(net_f32_to_bf16(1.00390625f), ==, 0x3f80); /* a tie: to even */
    g_assert_cmphex(net_f32_to_bf16(1.01171875f), ==, 0x3f82);
    g_assert_cmphex(net_f32_to_bf16(from_bits(0x3f808001)), ==, 0x3f81);
    g_assert_cmphex(net_f32_to_bf16(3.4e38f), ==, 0x7f80);
    g_assert_cmphex(net_f32_to_bf16(from_bits(0x00008001)), ==, 0x0001); /* denormals are kept */
    g_assert_cmphex(net_f32_to_bf16(-INFINITY), ==, 0xff80);
    g_assert_true(isnan(net_bf16_to_f32(net_f32_to_bf16(from_bits(0x7f800001)))));
    g_assert_true(isnan(net_bf16_to_f32(net_f32_to_bf16(from_bits(0xffffffff)))));
}

/* Every 16-bit value survives a trip through f32; a NaN stays one. */
static void test_round_trip(void)
{
    for (guint32 i = 0; i < 65536; i++) {
        float h = net_f16_to_f32((guint16)i), b = net_bf16_to_f32((guint16)i);
        g_assert_cmphex(net_f32_to_f16(h), ==, isnan(h) ? (i | 0x200) : i);
        g_assert_cmphex(net_f32_to_bf16(b), ==, isnan(b) ? (i | 0x40) : i);
    }
}

/* Any f32 lies at least as close to its f16 as to the two neighbours: an independent check of the rounding.
 */
static void test_nearest(void)
{
    for (guint64 u = 0; u < 0x47800000; u += 4999) {
        double x = from_bits((guint32)u);
        guint16 h = net_f32_to_f16((float)x);
        if (h >= 0x7c00)
            continue;
        double here = fabs(net_f16_to_f32(h) - x);
        double up = h == 0x7bff ? 65536 : net_f16_to_f32((guint16)(h + 1));
        double down = h ? net_f16_to_f32((guint16)(h - 1)) : -1;
        g_assert_true(here < fabs(up - x) || (here == fabs(up - x) && !(h & 1)));
        g_assert_true(here < fabs(x - down) || (here == fabs(x - down) && !(h & 1)));
    }
}

/* net_convert (whatever row this machine takes) gives the bits and the count of the scalar functions, at any
 * alignment and length. */
static void test_rows(void)
{
    enum { N = 1500 };
    static guint8 source[4 * N + 8], there[4 * N + 8], back[4 * N + 8];
    static const NetType types[] = {NET_BF16, NET_F16};
    for (guint round = 0; round < 200; round++) {
        gsize n = (round * 37) % N, shift = round % 4, expected[2] = {0, 0};
        for (gsize i = 0; i < n; i++) {
            guint32 u = (guint32)(i + 1) * 2654435761u * (round + 1) + round;
            if (i % 7 == 0)
                u = (u & 0x807fffff) | ((u % 2) ? 0x7f800000 : 0); /* NaN, inf, denormal */
            if (i % 11 == 0)
                u = (u & 0x8000ffff) | (i % 2 ? 0x477f0000 : 0x7f7f0000); /* about the largest */
            memcpy(source + shift + 4 * i, &u, 4);
            float x = from_bits(u);
            expected[0] += isfinite(x) && isinf(net_bf16_to_f32(net_f32_to_bf16(x)));
            expected[1] += isfinite(x) && isinf(net_f16_to_f32(net_f32_to_f16(x)));
        }
        for (guint t = 0; t < 2; t++) {
            memset(there, 0xA5, sizeof there);
            g_assert_cmpuint(net_convert(there, types[t], source + shift, NET_F32, n), ==, expected[t]);
            g_assert_cmphex(there[2 * n], ==, 0xA5);
            g_assert_cmpuint(net_convert(back, NET_F32, there, types[t], n), ==, 0);
            for (gsize i = 0; i < n; i++) {
                guint32 u, w;
                guint16 h;
                memcpy(&u, source + shift + 4 * i, 4);
                memcpy(&h, there + 2 * i, 2);
                memcpy(&w, back + 4 * i, 4);
                g_assert_cmphex(h, ==, t ? net_f32_to_f16(from_bits(u)) : net_f32_to_bf16(from_bits(u)));
                g_assert_cmphex(w, ==, bits(t ? net_f16_to_f32(h) : net_bf16_to_f32(h)));
            }
        }
    }
}

static void test_between_halves(void)
{
    guint16 in[] = {0x4780, 0x477f, 0x3f80, 0x7f80, 0x7fc0, 0x8000},
            out[6]; /* 65536, 65280, 1, inf, NaN, -0 */
    g_assert_cmpuint(net_convert(out, NET_F16, in, NET_BF16, 6), ==, 1);
    static const guint16 f16[] = {0x7c00, 0x7bf8, 0x3c00, 0x7c00, 0x7e00, 0x8000};
    g_assert_cmpmem(out, sizeof out, f16, sizeof f16);
    g_assert_cmpuint(net_convert(in, NET_BF16, out, NET_F16, 6), ==, 0);
    g_assert_cmphex(in[1], ==, 0x477f);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/type/names", test_names);
    g_test_add_func("/type/f16-edges", test_f16_edges);
    g_test_add_func("/type/bf16-edges", test_bf16_edges);
    g_test_add_func("/type/round-trip", test_round_trip);
    g_test_add_func("/type/nearest", test_nearest);
    g_test_add_func("/type/rows", test_rows);
    g_test_add_func("/type/between-halves", test_between_halves);
    return g_test_run();
}
