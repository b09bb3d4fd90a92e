/* Keys, entries, promises, and the lookup and store sides of one cache.
 * @label short
 */
#include "core/cache/cache.h"
#include "core/cache/entry.h"
#include "core/cache/flight.h"
#include <glib/gstdio.h>
#include <pthread.h>
#include <string.h>

static FlowValue *value_f16(gint64 n, guint16 fill)
{
    FlowValue *value = flow_value_new(NET_F16, 2, (gint64[]){n, 3});
    for (gint64 i = 0; i < 3 * n; i++)
        ((guint16 *)value->data)[i] = (guint16)(fill + i);
    return value;
}

static void same_value(const FlowValue *a, const FlowValue *b)
{
    g_assert_nonnull(a);
    g_assert_cmpint(a->type, ==, b->type);
    g_assert_cmpuint(a->ndim, ==, b->ndim);
    for (guint i = 0; i < a->ndim; i++)
        g_assert_cmpint(a->shape[i], ==, b->shape[i]);
    g_assert_cmpmem(a->data, a->nbytes, b->data, b->nbytes);
}

/* -- keys ------------------------------------------------------------------------- */

static CacheKey key_of(const char *a, const char *b)
{
    CacheHasher *h = cache_hasher_new();
    cache_hasher_add(h, "left over", 9);
    cache_hasher_reset(h);
    cache_hasher_add(h, a, strlen(a));
    cache_hasher_add(h, b, strlen(b));
    CacheKey key = cache_hasher_key(h);
    cache_hasher_free(h);
    return key;
}

static void test_key(void)
{
    g_assert_true(cache_key_equal(key_of("ab", "c"), key_of("ab", "c")));
    g_assert_false(cache_key_equal(key_of("ab", "c"), key_of("a", "bc")));
    g_assert_false(cache_key_equal(key_of("", "abc"), key_of("abc", "")));
    g_assert_false(cache_key_equal(key_of("a", "b"), key_of("b", "a")));
}

static void test_hash_file(void)
{
    g_autofree char *folder = g_dir_make_tmp("loraflow-XXXXXX", NULL);
    g_autofree char *file = g_build_filename(folder, "x", NULL);
    g_autoptr(GError) error = NULL;
    CacheKey a, b, c;
    g_assert_false(cache_hash_file(file, &a, &error));
    g_assert_nonnull(strstr(error->message, file));
    g_assert_true(g_file_set_contents(file, "content", -1, NULL));
    g_assert_true(cache_hash_file(file, &a, NULL));
    g_assert_true(cache_hash_file(file, &b, NULL));
    g_assert_true(cache_key_equal(a, b));
    g_assert_true(g_file_set_contents(file, "Content", -1, NULL));
    g_assert_true(cache_hash_file(file, &c, NULL));
    g_assert_false(cache_key_equal(a, c));
    g_unlink(file);
    g_rmdir(folder);
}

/* -- entries ---------------------------------------------------------------------- */

static void test_entry(void)
{
    g_autoptr(FlowValue) value = value_f16(5, 100);
    gsize n = cache_entry_size(value);
    const char *reason = NULL;
    char *bytes = g_malloc(n + 1);
    for (int shift = 0; shift < 2; shift++) { /* a file gives any alignment */
        cache_entry_pack(value, bytes + shift);
        g_assert_null(cache_entry_fault(bytes + shift, n));
        g_autoptr(FlowValue) back = cache_entry_unpack(bytes + shift, n, &reason);
        same_value(back, value);
    }
    g_autoptr(FlowValue) scalar = flow_value_new(NET_I64, 0, NULL);
    *(gint64 *)scalar->data = 42;
    cache_entry_pack(scalar, bytes);
    g_autoptr(FlowValue) back = cache_entry_unpack(bytes, cache_entry_size(scalar), &reason);
    same_value(back, scalar);
    g_free(bytes);
}

/* Every single flipped bit and every cut is found. */
static void test_entry_damage(void)
{
    g_autoptr(FlowValue) value = value_f16(2, 7);
    gsize n = cache_entry_size(value);
    g_autofree guint8 *bytes = g_malloc(n);
    const char *reason = NULL;
    cache_entry_pack(value, bytes);
    for (gsize bit = 0; bit < 8 * n; bit++) {
        bytes[bit / 8] ^= (guint8)(1 << bit % 8);
        g_assert_null(cache_entry_unpack(bytes, n, &reason));
        g_assert_nonnull(reason);
        g_assert_nonnull(cache_entry_fault(bytes, n));
        bytes[bit / 8] ^= (guint8)(1 << bit % 8);
    }
    for (gsize cut = 0; cut < n; cut++) {
        g_autofree guint8 *part = g_memdup2(bytes, cut); /* of exactly this size, so that a sanitizer sees */
        g_assert_null(cache_entry_unpack(part, cut, &reason));
    }
    g_assert_null(cache_entry_fault(bytes, n));
}

/* -- promises --------------------------------------------------------------------- */

static void test_flight(void)
{
    gint64 live = flow_item_live();
    CacheFlight *flight = cache_flight_new();
    CacheKey k = key_of("k", "");
    g_autoptr(FlowValue) value = value_f16(1, 1);

    g_assert_false(cache_flight_join(flight, k, 1)); /* nobody is at it */
    cache_flight_begin(flight, k, 1);
    g_assert_false(cache_flight_join(flight, k, 2)); /* another picture's fate is not ours */
    g_assert_true(cache_flight_join(flight, k, 1));
    g_assert_true(cache_flight_join(flight, k, 1));
    cache_flight_land(flight, k, value);
    for (int i = 0; i < 2; i++) {
        g_autoptr(FlowValue) got = cache_flight_take(flight, k);
        same_value(got, value);
    }
    g_assert_cmpuint(cache_flight_count(flight), ==, 0);

    cache_flight_begin(flight, k, 1); /* nobody joined: nothing is kept */
    cache_flight_land(flight, k, value);
    g_assert_cmpuint(cache_flight_count(flight), ==, 0);

    cache_flight_begin(flight, k, 1); /* the first fails: all that follow do */
    g_assert_true(cache_flight_join(flight, k, 1));
    g_assert_null(cache_flight_take(flight, k));
    g_assert_true(cache_flight_join(flight, k, 1));
    g_assert_null(cache_flight_take(flight, k));
    cache_flight_free(flight);
    g_assert_cmpint(flow_item_live(), ==, live + 1);
}

/* -- the whole -------------------------------------------------------------------- */

static Cache *cache_with(guint64 ram, const char *admit, const char *disk)
{
    g_autoptr(GError) error = NULL;
    Cache *cache = cache_new(&(CacheOptions){ram, CACHE_LRU, admit, disk, FALSE}, &error);
    g_assert_no_error(error);
    g_assert_true(cache_start(cache, &error));
    g_assert_true(cache_start(cache, &error)); /* the store starts it, too */
    return cache;
}

static void expect_outcome(Cache *cache, CacheKey key, guint64 owner, CacheOutcome want)
{
    g_autoptr(FlowValue) value = NULL;
    g_assert_cmpint(cache_find(cache, key, owner, TRUE, &value), ==, want);
    g_assert_true((value != NULL) == (want == CACHE_FOUND));
}

static void test_find_and_store(void)
{
    gint64 live = flow_item_live();
    Cache *cache = cache_with(1 << 20, "all", NULL);
    CacheKey k = key_of("k", "");
    FlowValue *value = value_f16(4, 1);
    expect_outcome(cache, k, 1, CACHE_MISSING);
    expect_outcome(cache, k, 1, CACHE_PROMISED);
    expect_outcome(cache, k, 2, CACHE_MISSING);
    cache_store(cache, k, value, TRUE);
    FlowValue *got = cache_await(cache, k);
    same_value(got, value);
    flow_value_unref(got);
    expect_outcome(cache, k, 1, CACHE_FOUND);
    cache_free(cache);

    /* holding nothing: promises are kept all the same */
    cache = cache_with(0, "all", NULL);
    expect_outcome(cache, k, 1, CACHE_MISSING);
    expect_outcome(cache, k, 1, CACHE_PROMISED);
    cache_store(cache, k, value, TRUE);
    got = cache_await(cache, k);
    same_value(got, value);
    flow_value_unref(got);
    expect_outcome(cache, k, 1, CACHE_MISSING);
    cache_free(cache);
    flow_value_unref(value);
    g_assert_cmpint(flow_item_live(), ==, live);
}

static void test_frequent(void)
{
    Cache *cache = cache_with(1 << 20, "frequent:2", NULL);
    CacheKey k = key_of("k", "");
    cache_ask(cache, k);
    g_assert_false(cache_admits(cache, k, 1));
    cache_ask(cache, k);
    g_assert_true(cache_admits(cache, k, 0));
    cache_free(cache);
}

/* A lookup and a store as two threads; every request ends up with the right bytes. */
enum { REQUESTS = 20000, KEYS = 97, INFLIGHT = 16 };
typedef struct {
    Cache *cache;
    _Atomic(guint) found, sent, done;
    _Atomic(int) outcome[REQUESTS];
} Race;

static guint race_key(guint i)
{
    return i * 2654435761u >> 7 & 0xffff;
}

static CacheKey race_cache_key(guint i)
{
    guint n = race_key(i) % KEYS;
    return (CacheKey){n, n};
}

static gpointer race_store(gpointer data)
{
    Race *r = data;
    for (guint i = 0; i < REQUESTS; i++) {
        while (r->sent <= i)
            g_thread_yield();
        guint16 fill = (guint16)(race_key(i) % KEYS);
        g_autoptr(FlowValue) want = value_f16(40, fill);
        if (r->outcome[i] == CACHE_MISSING)
            cache_store(r->cache, race_cache_key(i), want, TRUE);
        if (r->outcome[i] == CACHE_PROMISED) {
            g_autoptr(FlowValue) got = cache_await(r->cache, race_cache_key(i));
            same_value(got, want);
        }
        r->done = i + 1;
    }
    return NULL;
}

static void test_race(void)
{
    Race *r = g_new0(Race, 1);
    pthread_t store;
    g_autofree char *folder = g_dir_make_tmp("loraflow-XXXXXX", NULL);
    r->cache = cache_with(20000, "all", folder); /* far too small for all */
    g_assert_cmpint(pthread_create(&store, NULL, race_store, r), ==, 0);
    for (guint i = 0; i < REQUESTS; i++) {
        while (i - r->done >= INFLIGHT)
            g_thread_yield();
        g_autoptr(FlowValue) got = NULL;
        CacheKey key = race_cache_key(i);
        r->outcome[i] = cache_find(r->cache, key, key.lo, TRUE, &got);
        if (got) {
            g_autoptr(FlowValue) want = value_f16(40, (guint16)(race_key(i) % KEYS));
            same_value(got, want);
            r->found++;
        }
        r->sent = i + 1;
    }
    pthread_join(store, NULL);
    CacheRamStats ram;
    CacheDiskStats disk;
    cache_stats(r->cache, &ram, &disk);
    g_assert_cmpuint(ram.peak, <=, 20000);
    g_assert_cmpuint(ram.evictions, >, 0);
    g_assert_cmpuint(r->found, >, REQUESTS / 2); /* the disk has all of them */
    g_assert_cmpuint(disk.damaged, ==, 0);
    cache_free(r->cache);
    g_free(r);
    g_autofree char *command = g_strdup_printf("rm -r '%s'", folder);
    g_assert_true(g_spawn_command_line_sync(command, NULL, NULL, NULL, NULL));
}

static void test_sizes(void)
{
    guint64 all = 0, half = 0, bytes = 1;
    g_assert_true(cache_parse_size("100%", &all, NULL));
    g_assert_true(cache_parse_size("50 %", &half, NULL));
    g_assert_cmpuint(all, >, 64 << 20);
    g_assert_cmpuint(half, <=, all / 2 + 1);
    g_assert_cmpuint(half, >=, all / 2 - 1);
    g_assert_true(cache_parse_size("0", &bytes, NULL));
    g_assert_cmpuint(bytes, ==, 0);
    g_assert_true(cache_parse_size("8GiB", &bytes, NULL));
    g_assert_cmpuint(bytes, ==, (guint64)8 << 30);
    const char *bad[] = {"", "%", "101%", "-1%", "x%", "nan%", "8 apples", "-1"};
    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        g_assert_false(cache_parse_size(bad[i], &bytes, &error));
        g_assert_nonnull(error);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/key", test_key);
    g_test_add_func("/key/file", test_hash_file);
    g_test_add_func("/entry", test_entry);
    g_test_add_func("/entry/damage", test_entry_damage);
    g_test_add_func("/flight", test_flight);
    g_test_add_func("/cache", test_find_and_store);
    g_test_add_func("/cache/frequent", test_frequent);
    g_test_add_func("/cache/race", test_race);
    g_test_add_func("/size", test_sizes);
    return g_test_run();
}
