/* Philox known answers, keys, and the distribution and order-independence of draws.
 * @label short
 */
#include "core/flow/random.h"
#include "kernels/philox.h"
#include <math.h>
#include <string.h>

/* The generator's published test vectors (counter, key, output). */
static void test_known_answers(void)
{
    static const struct {
        guint64 key, stream, counter;
        guint32 out[4];
    } cases[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {G_MAXUINT64, G_MAXUINT64, G_MAXUINT64, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x0370734413198a2e,
         0x85a308d3243f6a88,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        guint32 out[4];
        philox_block(cases[i].key, cases[i].stream, cases[i].counter, out);
        g_assert_cmpmem(out, sizeof out, cases[i].out, sizeof out);
    }
    guint32 out[4];
    flow_random_block(0, 0, out);
    g_assert_cmphex(out[0], ==, 0x6627e8d5);
}

static void test_keys(void)
{
    gint64 one[] = {1, 2}, two[] = {2, 1}, wide[] = {1, 2, 0};
    guint64 keys[] = {
        flow_random_key(0, NULL, NULL, 0),        flow_random_key(1, NULL, NULL, 0),
        flow_random_key(0, "a", NULL, 0),         flow_random_key(0, "b", NULL, 0),
        flow_random_key(0, "shuffled", NULL, 0),  flow_random_key(0, "shufflee", NULL, 0),
        flow_random_key(0, "shuffled1", NULL, 0), flow_random_key(0, NULL, one, 1),
        flow_random_key(0, NULL, one, 2),         flow_random_key(0, NULL, two, 2),
        flow_random_key(0, NULL, wide, 3),        flow_random_key(0, "a", one, 2),
    };
    for (guint i = 0; i < G_N_ELEMENTS(keys); i++)
        for (guint j = 0; j < i; j++)
            g_assert_cmphex(keys[i], !=, keys[j]);
    g_assert_cmphex(flow_random_key(7, "noise", one, 2), ==, flow_random_key(7, "noise", one, 2));
    /* Files made by one version are resumed by the next: the value itself must not change. */
    g_assert_cmphex(flow_random_key(42, "noise", one, 2), ==, G_GUINT64_CONSTANT(0x1798c1aade9351c5));
}

static void test_below(void)
{
    guint count[7] = {0};
    for (guint i = 0; i < 70000; i++) {
        guint64 v = flow_random_below(5, i, 7);
        g_assert_cmpuint(v, <, 7);
        count[v]++;
        double u = flow_random_uniform(6, i);
        g_assert_true(u >= 0 && u < 1);
        g_assert_cmpuint(flow_random_below(8, i, 1), ==, 0);
    }
    for (guint i = 0; i < 7; i++) /* 5 standard deviations */
        g_assert_cmpfloat(fabs(count[i] - 10000.0), <, 5 * sqrt(10000 * 6 / 7.0));
}

static void test_shuffle(void)
{
    enum { N = 6 };
    guint at[N][N] = {{0}};
    for (guint64 key = 0; key < 6000; key++) {
        gint64 order[N];
        guint seen = 0;
        flow_random_shuffle(key, order, N);
        for (guint i = 0; i < N; i++) {
            seen |= 1u << order[i];
            at[i][order[i]]++;
        }
        g_assert_cmphex(seen, ==, (1u << N) - 1);
    }
    for (guint i = 0; i < N; i++)
        for (guint j = 0; j < N; j++)
            g_assert_cmpfloat(fabs(at[i][j] - 1000.0), <, 5 * sqrt(6000 / 6.0 * 5 / 6));
    flow_random_shuffle(1, NULL, 0);
}

/* Moments, tails, and no correlation between the two halves of a pair. */
static void test_normal(void)
{
    enum { N = 1 << 20 };
    g_autofree float *x = g_new(float, N);
    flow_random_normal(3, 0, x, N);
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, pair = 0;
    guint beyond = 0;
    for (guint i = 0; i < N; i++) {
        double v = x[i];
        g_assert_true(fabs(v) < 7);
        m1 += v;
        m2 += v * v;
        m3 += v * v * v;
        m4 += v * v * v * v;
        beyond += fabs(v) > 3;
        if (i % 2)
            pair += v * x[i - 1];
    }
    double s = sqrt(N);
    g_assert_cmpfloat(fabs(m1 / s), <, 4);
    g_assert_cmpfloat(fabs(m2 - N) / (s * sqrt(2)), <, 4);
    g_assert_cmpfloat(fabs(m3) / (s * sqrt(15)), <, 4);
    g_assert_cmpfloat(fabs(m4 - 3.0 * N) / (s * sqrt(96)), <, 4);
    g_assert_cmpfloat(fabs(pair) / sqrt(N / 2.0), <, 4);
    g_assert_cmpfloat(fabs(beyond - N * 0.0026998) / sqrt(N * 0.0027), <, 4);
}

/* The polynomials against libm, through the words themselves. */
static void test_normal_values(void)
{
    double worst = 0;
    for (guint64 block = 0; block < 200000; block++) {
        guint32 w[4];
        float x[4];
        philox_block(9, 1, block, w);
        philox_normal(9, 1, 4 * block, x, 4);
        for (guint i = 0; i < 4; i += 2) {
            double r = sqrt(-2 * log((double)((float)w[i] * 0x1p-32f + 0x1p-33f)));
            double angle = 2 * G_PI * w[i + 1] / 0x1p32;
            worst = MAX(worst, fabs(x[i] - r * cos(angle)));
            worst = MAX(worst, fabs(x[i + 1] - r * sin(angle)));
        }
    }
    g_assert_cmpfloat(worst, <, 1e-6);
}

/* A number depends on key, stream and place, not on the call that makes it. */
static void test_place(void)
{
    float all[100], part[100];
    philox_normal(11, 2, 1000, all, 100);
    for (guint first = 0; first < 9; first++)
        for (guint n = 0; n < 12; n++) {
            part[n] = 777;
            philox_normal(11, 2, 1000 + first, part, n);
            g_assert_cmpmem(part, n * sizeof *part, all + first, n * sizeof *all);
            g_assert_cmpfloat(part[n], ==, 777);
        }
    philox_normal(11, 3, 1000, part, 100);
    g_assert_cmpfloat(part[0], !=, all[0]);
    philox_uniform(11, 2, 1003, part, 50);
    philox_uniform(11, 2, 1000, all, 60);
    g_assert_cmpmem(part, 50 * sizeof *part, all + 3, 50 * sizeof *all);
    for (guint i = 0; i < 60; i++)
        g_assert_true(all[i] >= 0 && all[i] < 1);
    /* The bits themselves: a resumed run must draw what the interrupted one would have. */
    static const guint32 golden[4] = {0x40082c16, 0x400a53f4, 0xbed108e0, 0xbfd472ca};
    philox_normal(42, 1, 0, part, 4);
    g_assert_cmpmem(part, 16, golden, 16);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/random/known-answers", test_known_answers);
    g_test_add_func("/random/keys", test_keys);
    g_test_add_func("/random/below", test_below);
    g_test_add_func("/random/shuffle", test_shuffle);
    g_test_add_func("/random/normal", test_normal);
    g_test_add_func("/random/normal-values", test_normal_values);
    g_test_add_func("/random/place", test_place);
    return g_test_run();
}
