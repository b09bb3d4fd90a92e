/* RAM tier: the byte limit, the policies against their closed forms, admission.
 * @label short
 */
#include "core/cache/admit.h"
#include "core/cache/future.h"
#include "core/cache/ram.h"
#include <math.h>
#include <string.h>

static FlowValue *value_of(gsize nbytes)
{
    FlowValue *value = flow_value_new(NET_U8, 1, (gint64[]){(gint64)nbytes});
    memset(value->data, 7, nbytes);
    return value;
}

static CacheKey key_of(guint64 n)
{
    /* spread like a hash, so that chains and draws behave as in use */
    guint64 mixed = (n + 1) * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 31)) * 0xbf58476d1ce4e5b9u;
    return (CacheKey){mixed ^ (mixed >> 29), mixed};
}

static gboolean put(CacheRam *ram, guint64 n, gsize nbytes)
{
    g_autoptr(FlowValue) value = value_of(nbytes);
    return cache_ram_put(ram, key_of(n), value);
}

static gboolean get(CacheRam *ram, guint64 n)
{
    g_autoptr(FlowValue) value = cache_ram_get(ram, key_of(n));
    return value != NULL;
}

static gboolean expect(CacheRam *ram, guint64 n)
{
    CacheKey key = key_of(n);
    return cache_ram_expect(ram, &key, 1);
}

static gsize used(CacheRam *ram)
{
    CacheRamStats s;
    cache_ram_stats(ram, &s);
    return s.bytes;
}

/* Room for exactly `n` values of `nbytes`. */
static gsize limit_for(guint n, gsize nbytes)
{
    CacheRam *ram = cache_ram_new(n * cache_ram_cost(nbytes), CACHE_STATIC);
    gsize table = used(ram);
    cache_ram_free(ram);
    return table + n * cache_ram_cost(nbytes);
}

/* Sizes from 1 byte to larger than the cache, every policy, with look-ahead: never a byte over. */
static void test_limit_holds(void)
{
    GRand *rand = g_rand_new_with_seed(3);
    for (int policy = CACHE_STATIC; policy <= CACHE_FORESIGHT; policy++) {
        gint64 live = flow_item_live();
        CacheRam *ram = cache_ram_new(60000, (CachePolicy)policy);
        CacheRamStats s;
        for (int i = 0; i < 20000; i++) {
            guint64 n = (guint64)g_rand_int_range(rand, 0, 400);
            int what = g_rand_int_range(rand, 0, 4);
            if (what == 0)
                expect(ram, n);
            else if (what == 1)
                cache_ram_pass(ram, key_of(n));
            else if (!get(ram, n))
                put(ram, n, (gsize)exp(g_rand_double_range(rand, 0, 11.3)));
            cache_ram_stats(ram, &s);
            g_assert_cmpuint(s.bytes, <=, s.limit);
        }
        /* C-09 */
        g_assert_cmpuint(s.peak, <=, s.limit);
        g_assert_cmpuint(s.peak, >, s.limit / 2);
        g_assert_cmpuint(s.entries, >, 0);
        if (policy == CACHE_STATIC)
            g_assert_cmpuint(s.evictions, ==, 0);
        else
            g_assert_cmpuint(s.evictions, >, 0);
        cache_ram_free(ram);
        g_assert_cmpint(flow_item_live(), ==, live);
    }
    g_rand_free(rand);
}

static void test_nothing_fits(void)
{
    for (int policy = CACHE_STATIC; policy <= CACHE_FORESIGHT; policy++) {
        CacheRam *off = cache_ram_new(0, (CachePolicy)policy);
        g_assert_false(put(off, 1, 1));
        g_assert_false(get(off, 1));
        g_assert_false(cache_ram_charge(off, 1));
        g_assert_cmpuint(used(off), ==, 0);
        cache_ram_free(off);

        /* C-09 */
        /* below one entry: what is there stays, the large one is turned away */
        CacheRam *small = cache_ram_new(limit_for(2, 100), (CachePolicy)policy);
        g_assert_true(put(small, 1, 100));
        g_assert_false(put(small, 2, 5000));
        g_assert_true(get(small, 1));
        cache_ram_free(small);
    }
}

static void test_same_key_once(void)
{
    CacheRam *ram = cache_ram_new(100000, CACHE_LRU);
    g_assert_true(put(ram, 1, 1000));
    gsize bytes = used(ram);
    g_assert_true(put(ram, 1, 1000));
    g_assert_cmpuint(used(ram), ==, bytes);
    cache_ram_free(ram);
}

static void test_order_of_eviction(void)
{
    CacheRam *lru = cache_ram_new(limit_for(3, 1000), CACHE_LRU);
    for (guint64 n = 1; n <= 3; n++)
        put(lru, n, 1000);
    get(lru, 1);
    put(lru, 4, 1000);
    g_assert_false(get(lru, 2)); /* used longest ago */
    g_assert_true(get(lru, 1) && get(lru, 3) && get(lru, 4));
    cache_ram_free(lru);

    CacheRam *k = cache_ram_new(limit_for(3, 1000), CACHE_LRU_K);
    for (guint64 n = 1; n <= 3; n++)
        put(k, n, 1000);
    for (int i = 0; i < 9; i++)
        get(k, 1); /* often, but longest ago */
    get(k, 2);
    get(k, 3);
    get(k, 3); /* ages 3 2 1... scores: 1: 3/10, 2: 2/2, 3: 0/3 */
    put(k, 4, 1000);
    g_assert_false(get(k, 2));
    g_assert_true(get(k, 1) && get(k, 3));
    cache_ram_free(k);
}

static void test_foresight_knows(void)
{
    CacheRam *ram = cache_ram_new((limit_for(2, 100000) + 50000) * 8 / 7, CACHE_FORESIGHT);
    const guint64 order[] = {1, 2, 3, 1, 3, 2};
    for (gsize i = 0; i < G_N_ELEMENTS(order); i++)
        g_assert_true(expect(ram, order[i]));
    for (guint64 n = 1; n <= 3; n++) {
        cache_ram_pass(ram, key_of(n));
        g_assert_true(put(ram, n, 100000));
    }
    /* when 3 came, of 1 and 2 the one that is needed later went */
    g_assert_true(cache_ram_has(ram, key_of(1)) && !cache_ram_has(ram, key_of(2)));
    /* what has no known use displaces nothing */
    g_assert_false(put(ram, 9, 100000));
    g_assert_true(cache_ram_has(ram, key_of(1)) && cache_ram_has(ram, key_of(3)));
    cache_ram_free(ram);
}

static void shuffle(GRand *rand, guint *order, guint n)
{
    for (guint i = n; i > 1; i--) {
        guint j = (guint)g_rand_int_range(rand, 0, (gint32)i);
        guint t = order[i - 1];
        order[i - 1] = order[j];
        order[j] = t;
    }
}

/* Hit rate over epochs in which every item is used `repeats` times, in random order; foresight sees one
 * epoch ahead. The values claim 1 GiB each and have no memory, so that bookkeeping does not count. */
static double hit_rate(CachePolicy policy, double fraction, guint n, guint repeats)
{
    enum { EPOCHS = 12, WARM = 4 };
    const gint64 size = 1 << 30;
    GRand *rand = g_rand_new_with_seed(11);
    guint uses = n * repeats, hits = 0;
    g_autofree guint *order = g_new(guint, 2 * uses); /* this epoch and the next */
    CacheRam *ram = cache_ram_new(
        (gsize)((fraction * n + 0.5) * (double)size * (policy == CACHE_FORESIGHT ? 8.0 / 7 : 1)), policy);
    g_autoptr(FlowValue) value = flow_value_wrap(NET_U8, 1, &size, NULL, NULL, NULL);
    for (guint i = 0; i < 2 * uses; i++)
        order[i] = i % n;
    for (guint e = 0; e <= EPOCHS; e++) {
        shuffle(rand, order + uses, uses);
        for (guint i = 0; i < uses; i++)
            expect(ram, order[uses + i]);
        for (guint i = 0; i < uses && e > 0; i++) {
            cache_ram_pass(ram, key_of(order[i]));
            gboolean hit = get(ram, order[i]);
            hits += hit && e > WARM;
            if (!hit)
                cache_ram_put(ram, key_of(order[i]), value);
        }
        memcpy(order, order + uses, uses * sizeof *order);
    }
    cache_ram_free(ram);
    g_rand_free(rand);
    return (double)hits / (uses * (EPOCHS - WARM));
}

static void near(double got, double want, double tolerance)
{
    if (fabs(got - want) > tolerance)
        g_error("hit rate %.4f, expected %.3f +- %.3f", got, want, tolerance);
}

/* One use an epoch: static and foresight reach h = f, LRU h = f + (1-f) ln(1-f). 2000 items and 8 epochs
 * give a standard error below 0.004. */
static void test_closed_forms(void)
{
    for (double f = 0.25; f < 1; f += 0.25) {
        near(hit_rate(CACHE_STATIC, f, 2000, 1), f, 1e-9);
        near(hit_rate(CACHE_LRU, f, 2000, 1), f + (1 - f) * log(1 - f), 0.012);
    }
    near(hit_rate(CACHE_FORESIGHT, 0.5, 500, 1), 0.5, 0.01);
}

/* Repeats: knowing the order pays (0.575 for f = 0.25 and 5 repeats, exact optimum; static 0.25). */
static void test_repeats(void)
{
    near(hit_rate(CACHE_FORESIGHT, 0.25, 2000, 5), 0.575, 0.012);
    near(hit_rate(CACHE_STATIC, 0.25, 400, 5), 0.25, 1e-9);
}

/* A scan a bit longer than the cache, always in the same order: LRU never hits, static does. */
static void test_scan(void)
{
    for (int policy = CACHE_STATIC; policy <= CACHE_LRU; policy++) {
        CacheRam *ram = cache_ram_new(limit_for(90, 1000), (CachePolicy)policy);
        guint hits = 0;
        for (guint e = 0; e < 3; e++)
            for (guint64 n = 0; n < 100; n++) {
                gboolean hit = get(ram, n);
                hits += hit;
                if (!hit)
                    put(ram, n, 1000);
            }
        /* C-11 */
        g_assert_cmpuint(hits, ==, policy == CACHE_STATIC ? 180 : 0);
        cache_ram_free(ram);
    }
}

static void refused(const char *text, const char *says)
{
    g_autoptr(GError) error = NULL;
    CacheAdmit admit;
    g_assert_false(cache_admit_parse(text, &admit, &error));
    if (!strstr(error->message, says))
        g_error("'%s': '%s' does not say '%s'", text, error->message, says);
}

static void test_admission(void)
{
    CacheAdmit admit;
    g_assert_true(cache_admit_parse("all", &admit, NULL));
    g_assert_true(cache_admit(&admit, key_of(1), 0, 0));

    g_assert_true(cache_admit_parse("complex", &admit, NULL));
    g_assert_cmpfloat(admit.threshold, ==, 0.7);
    g_assert_cmpfloat(admit.chance, ==, 0.3);
    g_assert_true(cache_admit_parse("complex:0.5:0.1", &admit, NULL));
    guint in = 0;
    for (guint64 n = 0; n < 10000; n++) {
        gboolean first = cache_admit(&admit, key_of(n), 0.5, 1);
        in += first;
        g_assert_true(first == cache_admit(&admit, key_of(n), 0.2, 9)); /* the same draw every time */
        g_assert_true(cache_admit(&admit, key_of(n), 0.51, 1));
    }
    g_assert_cmpuint(in, >, 900); /* 1000 +- 3.3 standard deviations of 30 */
    g_assert_cmpuint(in, <, 1100);

    g_assert_true(cache_admit_parse("frequent:3", &admit, NULL));
    g_assert_false(cache_admit(&admit, key_of(1), 1, 2));
    g_assert_true(cache_admit(&admit, key_of(1), 1, 3));

    refused("", "none of: all, complex:THRESHOLD:CHANCE, frequent:COUNT");
    refused("everything", "none of");
    refused("all:1", "none of");
    refused("complex:1.5", "outside 0..1");
    refused("complex:0.5:x", "chance of 'complex'");
    refused("complex:0.1:0.1:0.1", "none of");
    refused("frequent:0", "below 1");
    refused("frequent:two", "count of 'frequent'");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/ram/limit", test_limit_holds);
    g_test_add_func("/ram/nothing-fits", test_nothing_fits);
    g_test_add_func("/ram/same-key", test_same_key_once);
    g_test_add_func("/ram/order", test_order_of_eviction);
    g_test_add_func("/ram/foresight", test_foresight_knows);
    g_test_add_func("/ram/closed-forms", test_closed_forms);
    g_test_add_func("/ram/repeats", test_repeats);
    g_test_add_func("/ram/scan", test_scan);
    g_test_add_func("/admit", test_admission);
    return g_test_run();
}
