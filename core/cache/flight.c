/* A lookup must never wait for a store (an encoder that collects a batch would wait for the lookup in
 * turn), so a second request for a key that is in flight is promised the value, and the store, which
 * sees items in order, hands it over when the second one arrives.
 *
 * Only uses of the same picture share a promise: if the first one fails, the second would have
 * failed as well. Two pictures with one caption each encode it; else a broken picture would take with
 * it every other one that happens to have the same caption.
 *
 * A key whose maker failed stays here, so that all later uses fail alike, whatever the timing. */
#include "core/cache/flight.h"

typedef struct {
    CacheKey key; /* first: the hash table's key */
    guint64 owner;
    guint joined;     /* promised and not yet taken */
    FlowValue *value; /* set when made and somebody waits */
} Flying;

struct CacheFlight {
    GHashTable *flying;
};

static void flying_free(gpointer data)
{
    Flying *f = data;
    flow_value_unref(f->value);
    g_free(f);
}

CacheFlight *cache_flight_new(void)
{
    CacheFlight *flight = g_new0(CacheFlight, 1);
    flight->flying = g_hash_table_new_full(cache_key_ghash, cache_key_gequal, NULL, flying_free);
    return flight;
}

void cache_flight_free(CacheFlight *flight)
{
    if (!flight)
        return;
    g_hash_table_unref(flight->flying);
    g_free(flight);
}

void cache_flight_begin(CacheFlight *flight, CacheKey key, guint64 owner)
{
    if (g_hash_table_contains(flight->flying, &key))
        return;
    Flying *f = g_new0(Flying, 1);
    f->key = key;
    f->owner = owner;
    g_hash_table_insert(flight->flying, &f->key, f);
}

gboolean cache_flight_join(CacheFlight *flight, CacheKey key, guint64 owner)
{
    Flying *f = g_hash_table_lookup(flight->flying, &key);
    if (!f || f->owner != owner)
        return FALSE;
    f->joined++;
    return TRUE;
}

void cache_flight_land(CacheFlight *flight, CacheKey key, FlowValue *value)
{
    Flying *f = g_hash_table_lookup(flight->flying, &key);
    if (!f)
        return;
    if (f->joined == 0)
        g_hash_table_remove(flight->flying, &key);
    else if (!f->value)
        f->value = flow_value_ref(value);
}

FlowValue *cache_flight_take(CacheFlight *flight, CacheKey key)
{
    Flying *f = g_hash_table_lookup(flight->flying, &key);
    if (!f)
        return NULL;
    FlowValue *value = f->value ? flow_value_ref(f->value) : NULL;
    f->joined -= f->joined > 0;
    if (f->value && f->joined == 0)
        g_hash_table_remove(flight->flying, &key);
    return value;
}

guint cache_flight_count(const CacheFlight *flight)
{
    return g_hash_table_size(flight->flying);
}
