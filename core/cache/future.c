/* For every key with a known use: a queue of the times at which it is needed. Times count uses, not
 * seconds, so a run and its repetition decide alike. */
#include "core/cache/future.h"

typedef struct Use Use;
struct Use {
    guint64 at;
    Use *next;
};

typedef struct {
    CacheKey key; /* first: the hash table's key */
    Use *first, *last;
} Expected;

struct CacheFuture {
    GHashTable *expected; /* Expected by its key */
    guint64 time;
    gsize uses;
};

enum { TABLE_SLOT = 3 * sizeof(gpointer), MALLOC_HEADER = 16 };

static void expected_free(gpointer data)
{
    Expected *e = data;
    while (e->first) {
        Use *use = e->first;
        e->first = use->next;
        g_free(use);
    }
    g_free(e);
}

CacheFuture *cache_future_new(void)
{
    CacheFuture *f = g_new0(CacheFuture, 1);
    f->expected = g_hash_table_new_full(cache_key_ghash, cache_key_gequal, NULL, expected_free);
    return f;
}

void cache_future_free(CacheFuture *f)
{
    if (!f)
        return;
    g_hash_table_unref(f->expected);
    g_free(f);
}

guint64 cache_future_expect(CacheFuture *f, CacheKey key)
{
    Expected *e = g_hash_table_lookup(f->expected, &key);
    if (!e) {
        e = g_new0(Expected, 1);
        e->key = key;
        g_hash_table_insert(f->expected, &e->key, e);
    }
    Use *use = g_new0(Use, 1);
    use->at = f->time++;
    if (e->last)
        e->last->next = use;
    else
        e->first = use;
    e->last = use;
    f->uses++;
    return use->at;
}

void cache_future_pass(CacheFuture *f, CacheKey key)
{
    Expected *e = g_hash_table_lookup(f->expected, &key);
    if (!e)
        return;
    Use *use = e->first;
    e->first = use->next;
    g_free(use);
    f->uses--;
    if (!e->first)
        g_hash_table_remove(f->expected, &key);
}

guint64 cache_future_next(const CacheFuture *f, CacheKey key)
{
    const Expected *e = g_hash_table_lookup(f->expected, &key);
    return e ? e->first->at : CACHE_NEVER;
}

gsize cache_future_cost(void)
{
    /* a table is at least a third full after it has grown */
    return sizeof(Use) + sizeof(Expected) + 2 * MALLOC_HEADER + 3 * TABLE_SLOT;
}

gsize cache_future_bytes(const CacheFuture *f)
{
    return f->uses * cache_future_cost();
}
