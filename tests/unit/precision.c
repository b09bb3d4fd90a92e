/* Dynamic precision: the schedule, and latents packed in halves and bands.
 * @label short
 */
#include "core/cache/pack.h"
#include "core/flow/random.h"
#include "kernels/haar.h"
#include <math.h>
#include <string.h>

#define DEFAULT "1000: 0.3 half, full; 5000: 0.2 half, 0.6 mixed, full; full"

static CacheSchedule schedule_of(const char *text)
{
    g_autoptr(GError) error = NULL;
    CacheSchedule s;
    cache_schedule_parse(text, &s, &error);
    g_assert_no_error(error);
    return s;
}

/* The table of the specification, at and beside each of its borders. */
static void test_schedule(void)
{
    CacheSchedule s = schedule_of(DEFAULT);
    const struct {
        gint64 step;
        double complexity;
        CachePrecision want;
    } rows[] = {
        {0, 0, CACHE_HALF},
        {0, 0.299, CACHE_HALF},
        {0, 0.3, CACHE_FULL},
        {999, 0.1, CACHE_HALF},
        {999, 1, CACHE_FULL},
        {1000, 0.19, CACHE_HALF},
        {1000, 0.2, CACHE_MIXED},
        {1000, 0.59, CACHE_MIXED},
        {1000, 0.6, CACHE_FULL},
        {4999, 0, CACHE_HALF},
        {4999, 0.3, CACHE_MIXED},
        {5000, 0, CACHE_FULL},
        {G_MAXINT64 - 1, 0, CACHE_FULL},
        {0, NAN, CACHE_FULL}, /* unknown complexity: the careful choice */
    };
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++)
        g_assert_cmpint(cache_schedule_choose(&s, rows[i].step, rows[i].complexity, CACHE_FULL), ==,
                        rows[i].want);
    /* the ceiling lowers, it never raises */
    g_assert_cmpint(cache_schedule_choose(&s, 9000, 1, CACHE_HALF), ==, CACHE_HALF);
    g_assert_cmpint(cache_schedule_choose(&s, 0, 0.1, CACHE_MIXED), ==, CACHE_HALF);
    g_assert_cmpint(cache_schedule_choose(&s, 0, 0.9, CACHE_MIXED), ==, CACHE_MIXED);

    s = schedule_of(" half ");
    g_assert_cmpint(cache_schedule_choose(&s, 7, 1, CACHE_FULL), ==, CACHE_HALF);
    s = schedule_of("4k:full;0.5 mixed,half");
    g_assert_cmpint(cache_schedule_choose(&s, 3999, 0, CACHE_FULL), ==, CACHE_FULL);
    g_assert_cmpint(cache_schedule_choose(&s, 4000, 0.6, CACHE_FULL), ==, CACHE_HALF);
}

static void test_schedule_faults(void)
{
    const char *bad[][2] = {
        {"", "empty"},
        {"quarter", "'quarter' is none of full, mixed, half"},
        {"full;", "needs a step"},
        {"full; half", "needs a step before it"},
        {"1000: full", "last part without a step"},
        {"0: half; full", "not a number from 1"},
        {"x: half; full", "not a number from 1"},
        {"100: half; 100: full; full", "steps must rise"},
        {"0.3 half", "cannot be last"},
        {"half, full", "needs a complexity"},
        {"0.3 half, 0.3 mixed, full", "must rise"},
        {"1.5 half, full", "not a number in 0..1"},
        {"nan half, full", "not a number in 0..1"},
        {"0.3 fast, full", "'fast' is none of"},
        {"full,", "needs a complexity"},
        {"0.1 half, 0.2 half, 0.3 half, 0.4 half, 0.5 half, 0.6 half, 0.7 half, 0.8 half, full", "at most 8"},
    };
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        CacheSchedule s;
        if (cache_schedule_parse(bad[i][0], &s, &error))
            g_error("'%s' was accepted", bad[i][0]);
        if (!strstr(error->message, bad[i][1]))
            g_error("'%s': '%s' does not say '%s'", bad[i][0], error->message, bad[i][1]);
    }
}

/* The savings that the documentation states. */
static void test_bytes(void)
{
    const gsize full = 4 * 64 * 64 * 4;
    const struct {
        CachePrecision precision;
        gint32 levels;
        CacheMixed mixed;
        double share;
    } rows[] = {
        {CACHE_FULL, 2, CACHE_LOW_HALF, 1},           {CACHE_HALF, 2, CACHE_LOW_HALF, 0.5},
        {CACHE_MIXED, 1, CACHE_LOW_HALF, 1 - 0.125},  {CACHE_MIXED, 2, CACHE_LOW_HALF, 1 - 0.03125},
        {CACHE_MIXED, 1, CACHE_HIGH_HALF, 1 - 0.375}, {CACHE_MIXED, 2, CACHE_HIGH_HALF, 1 - 0.46875},
    };
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++)
        g_assert_cmpfloat(
            (double)cache_pack_bytes(64, 64, 4, rows[i].precision, rows[i].levels, rows[i].mixed), ==,
            (double)full * rows[i].share);
}

static FlowValue *latents_of(gint64 n, gint64 h, gint64 w, gint64 c)
{
    FlowValue *value = flow_value_new(NET_F32, 4, (gint64[]){n, h, w, c});
    flow_random_normal(17, 0, value->data, flow_value_count(value));
    return value;
}

static double error_norm(const float *a, const float *b, gsize n)
{
    double sum = 0;
    for (gsize i = 0; i < n; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum);
}

/* Distance between the bands and their rounding to half, for the low-low corner or the rest. */
static double rounding_norm(const float *bands, gint64 h, gint64 w, gint64 c, gint32 levels, gboolean low)
{
    double sum = 0;
    for (gint64 y = 0; y < h; y++)
        for (gint64 x = 0; x < w * c; x++) {
            float v = bands[y * w * c + x], r = net_f16_to_f32(net_f32_to_f16(v));
            if ((y < h >> levels && x < (w >> levels) * c) == low)
                sum += ((double)v - (double)r) * ((double)v - (double)r);
        }
    return sqrt(sum);
}

static void test_round_trip(void)
{
    enum { N = 5, H = 12, W = 20, C = 3, ONE = H * W * C };
    /* every class in one batch; an odd number of channels makes f32 runs start at odd places */
    const gint32 packed[2 * N] = {CACHE_FULL, 0,           CACHE_HALF, 0,           CACHE_MIXED,
                                  1,          CACHE_MIXED, 2,          CACHE_MIXED, 0};
    g_autoptr(FlowValue) latents = latents_of(N, H, W, C);
    CachePackScratch scratch = {0};
    for (int mixed = CACHE_LOW_HALF; mixed <= CACHE_HIGH_HALF; mixed++) {
        gsize overflows = 0;
        g_autoptr(GError) error = NULL;
        g_autoptr(FlowValue) bytes = cache_pack(latents, packed, (CacheMixed)mixed, &scratch, &overflows);
        gsize want = sizeof(CachePackHead);
        for (int i = 0; i < N; i++)
            want += cache_pack_bytes(H, W, C, (CachePrecision)packed[2 * i], packed[2 * i + 1],
                                     (CacheMixed)mixed);
        g_assert_cmpuint(bytes->nbytes, ==, want);
        g_assert_cmpuint(overflows, ==, 0);

        gint64 shape[4];
        float out[N * ONE], bands[ONE], spare[ONE];
        g_assert_true(cache_pack_shape(bytes, packed, N, shape, &error));
        g_assert_cmpint(shape[0] * shape[1] * shape[2] * shape[3], ==, N * ONE);
        g_assert_cmpint(shape[1], ==, H);
        cache_unpack(bytes, packed, N, out, &scratch);
        const float *x = latents->data;
        g_assert_cmpmem(out, ONE * sizeof *x, x, ONE * sizeof *x);
        for (int i = ONE; i < 2 * ONE; i++)
            g_assert_cmpfloat(out[i], ==, net_f16_to_f32(net_f32_to_f16(x[i])));
        for (int s = 2; s < N; s++) {
            memcpy(bands, x + s * ONE, sizeof bands);
            kernel_haar(bands, spare, H, W, C, (guint)packed[2 * s + 1]);
            double expected = rounding_norm(bands, H, W, C, packed[2 * s + 1], mixed == CACHE_LOW_HALF);
            double found = error_norm(out + s * ONE, x + s * ONE, ONE);
            /* orthonormal: the same up to the rounding of the transforms themselves, 1e-7 of the norm */
            g_assert_cmpfloat(fabs(found - expected), <, 1e-7 * sqrt(ONE) * 4);
        }
    }
    cache_pack_clear(&scratch);
}

static void test_overflow(void)
{
    g_autoptr(FlowValue) latents = latents_of(1, 2, 2, 1);
    CachePackScratch scratch = {0};
    gsize overflows = 0;
    ((float *)latents->data)[1] = 65520;
    ((float *)latents->data)[2] = -1e9f;
    g_autoptr(FlowValue) bytes =
        cache_pack(latents, (gint32[]){CACHE_HALF, 0}, CACHE_LOW_HALF, &scratch, &overflows);
    g_assert_cmpuint(overflows, ==, 2);
    cache_pack_clear(&scratch);
}

/* Bytes from somewhere else: refused, never read past their end. */
static void test_foreign_bytes(void)
{
    g_autoptr(FlowValue) latents = latents_of(2, 4, 4, 4);
    CachePackScratch scratch = {0};
    const gint32 packed[] = {CACHE_MIXED, 1, CACHE_FULL, 0};
    g_autoptr(FlowValue) bytes = cache_pack(latents, packed, CACHE_LOW_HALF, &scratch, NULL);
    gint64 shape[4];
    g_assert_true(cache_pack_shape(bytes, packed, 2, shape, NULL));
    g_assert_false(cache_pack_shape(bytes, packed, 1, shape, NULL));
    g_assert_false(cache_pack_shape(bytes, (gint32[]){CACHE_MIXED, 1, CACHE_HALF, 0}, 2, shape, NULL));
    g_assert_false(cache_pack_shape(bytes, (gint32[]){CACHE_MIXED, 3, CACHE_FULL, 0}, 2, shape, NULL));
    g_assert_false(cache_pack_shape(bytes, (gint32[]){7, 1, CACHE_FULL, 0}, 2, shape, NULL));
    g_assert_false(cache_pack_shape(bytes, (gint32[]){CACHE_MIXED, -1, CACHE_FULL, 0}, 2, shape, NULL));
    CachePackHead heads[] = {
        {0, 4, 4, 0}, {4, -4, 4, 0}, {4, 4, 4, 2}, {G_MAXINT32, 4, 4, 0}, {65536, 65536, 65536, 0}};
    for (gsize i = 0; i < G_N_ELEMENTS(heads); i++) {
        memcpy(bytes->data, &heads[i], sizeof heads[i]);
        g_autoptr(GError) error = NULL;
        g_assert_false(cache_pack_shape(bytes, packed, 2, shape, &error));
        g_assert_nonnull(strstr(error->message, "do not fit"));
    }
    g_autoptr(FlowValue) empty = flow_value_new(NET_U8, 1, (gint64[]){3});
    g_assert_false(cache_pack_shape(empty, packed, 2, shape, NULL));
    cache_pack_clear(&scratch);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/precision/schedule", test_schedule);
    g_test_add_func("/precision/faults", test_schedule_faults);
    g_test_add_func("/precision/bytes", test_bytes);
    g_test_add_func("/precision/round-trip", test_round_trip);
    g_test_add_func("/precision/overflow", test_overflow);
    g_test_add_func("/precision/foreign-bytes", test_foreign_bytes);
    return g_test_run();
}
