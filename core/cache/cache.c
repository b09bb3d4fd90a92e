/* One lock guards what is in memory; it is never held while the disk is read or written. The lookup is one
 * thread and so is the store, and only the lookup puts keys into flight: a key that it found neither in
 * RAM nor in flight cannot be finished by the store before the lookup says that it will be made. */
#include "core/cache/cache.h"
#include "core/cache/admit.h"
#include "core/cache/flight.h"
#include <pthread.h>
#include <string.h>

enum {
    WRITE_BATCH = 4 << 20, /* bytes that wait for one transaction */
    ASKED_COST = 96,       /* a counted key: itself, the count, its place in the table */
};

typedef struct {
    CacheKey key; /* first: the hash table's key */
    guint64 times;
} Asked;

struct Cache {
    CacheAdmit admit;
    CachePolicy policy;
    char *folder; /* NULL = no disk tier */
    gboolean full;
    CacheField fields[CACHE_FIELDS];
    guint nfields;
    gsize item_bytes; /* planned */

    pthread_mutex_t lock;
    CacheRam *ram;
    CacheFlight *flight;
    GHashTable *asked; /* Asked by its key; NULL unless admission counts */
    CacheDisk *disk;   /* set once by cache_start */
    gboolean started;
};

Cache *cache_new(const CacheOptions *options, GError **error)
{
    CacheAdmit admit;
    if (!cache_admit_parse(options->admit, &admit, error))
        return NULL;
    if (options->disk && !cache_disk_check(options->disk, error))
        return NULL;
    Cache *c = g_new0(Cache, 1);
    c->admit = admit;
    c->policy = options->policy;
    c->folder = g_strdup(options->disk);
    c->full = options->full;
    c->ram = cache_ram_new(options->ram, options->policy);
    c->flight = cache_flight_new();
    if (admit.kind == CACHE_ADMIT_FREQUENT)
        c->asked = g_hash_table_new_full(cache_key_ghash, cache_key_gequal, NULL, g_free);
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

void cache_free(Cache *c)
{
    if (!c)
        return;
    cache_disk_close(c->disk);
    cache_flight_free(c->flight);
    cache_ram_free(c->ram);
    g_clear_pointer(&c->asked, g_hash_table_unref);
    pthread_mutex_destroy(&c->lock);
    g_free(c->folder);
    g_free(c);
}

void cache_set_fields(Cache *c, const CacheField *fields, guint n)
{
    g_assert(n <= CACHE_FIELDS);
    memcpy(c->fields, fields, n * sizeof *fields);
    c->nfields = n;
}

const CacheField *cache_fields(const Cache *c, guint *n)
{
    *n = c->nfields;
    return c->fields;
}

gboolean cache_keeps_full(const Cache *c)
{
    return c->full;
}

void cache_set_item_bytes(Cache *c, gsize nbytes)
{
    c->item_bytes = nbytes;
}

gsize cache_item_bytes(const Cache *c)
{
    return c->item_bytes;
}

gsize cache_buffer_bytes(void)
{
    return WRITE_BATCH;
}

gboolean cache_start(Cache *c, GError **error)
{
    gboolean ok = TRUE;
    pthread_mutex_lock(&c->lock);
    if (!c->started && c->folder) {
        c->disk = cache_disk_open(c->folder, WRITE_BATCH, error);
        ok = c->disk != NULL;
    }
    c->started = ok;
    pthread_mutex_unlock(&c->lock);
    return ok;
}

/* -- admission -------------------------------------------------------------------- */

void cache_ask(Cache *c, CacheKey item)
{
    if (!c->asked)
        return;
    pthread_mutex_lock(&c->lock);
    Asked *a = g_hash_table_lookup(c->asked, &item);
    if (!a && cache_ram_charge(c->ram, ASKED_COST)) {
        a = g_new0(Asked, 1);
        a->key = item;
        g_hash_table_insert(c->asked, &a->key, a);
    }
    if (a)
        a->times++;
    pthread_mutex_unlock(&c->lock);
}

gboolean cache_admits(Cache *c, CacheKey item, double complexity)
{
    guint64 times = 0;
    if (c->asked) {
        pthread_mutex_lock(&c->lock);
        const Asked *a = g_hash_table_lookup(c->asked, &item);
        times = a ? a->times : 0;
        pthread_mutex_unlock(&c->lock);
    }
    return cache_admit(&c->admit, item, complexity, times);
}

/* -- lookup ----------------------------------------------------------------------- */

CacheOutcome cache_find(Cache *c, CacheKey key, guint64 owner, gboolean admitted, FlowValue **value)
{
    pthread_mutex_lock(&c->lock);
    *value = cache_ram_get(c->ram, key);
    gboolean promised = !*value && cache_flight_join(c->flight, key, owner);
    pthread_mutex_unlock(&c->lock);
    if (*value || promised)
        return promised ? CACHE_PROMISED : CACHE_FOUND;

    if (c->disk)
        *value = cache_disk_get(c->disk, key);
    pthread_mutex_lock(&c->lock);
    if (!*value)
        cache_flight_begin(c->flight, key, owner);
    else if (admitted)
        cache_ram_put(c->ram, key, *value);
    pthread_mutex_unlock(&c->lock);
    return *value ? CACHE_FOUND : CACHE_MISSING;
}

gboolean cache_looks_ahead(const Cache *c)
{
    return c->policy == CACHE_FORESIGHT;
}

gboolean cache_expect(Cache *c, const CacheKey *keys, gsize n)
{
    pthread_mutex_lock(&c->lock);
    gboolean remembered = cache_ram_expect(c->ram, keys, n);
    pthread_mutex_unlock(&c->lock);
    return remembered;
}

void cache_pass(Cache *c, const CacheKey *keys, gsize n)
{
    pthread_mutex_lock(&c->lock);
    for (gsize i = 0; i < n; i++)
        cache_ram_pass(c->ram, keys[i]);
    pthread_mutex_unlock(&c->lock);
}

void cache_read_ahead(Cache *c, const CacheKey *keys, gsize n)
{
    CacheKey absent[CACHE_FIELDS];
    gsize nabsent = 0;
    if (!c->disk)
        return;
    pthread_mutex_lock(&c->lock);
    for (gsize i = 0; i < n && nabsent < CACHE_FIELDS; i++)
        if (!cache_ram_has(c->ram, keys[i]))
            absent[nabsent++] = keys[i];
    pthread_mutex_unlock(&c->lock);
    cache_disk_read_ahead(c->disk, absent, nabsent);
}

/* -- store ------------------------------------------------------------------------ */

void cache_store(Cache *c, CacheKey key, FlowValue *value, gboolean admitted)
{
    /* first to the disk's waiting list, so that from here on the lookup finds it in one place or the other */
    if (c->disk)
        cache_disk_put(c->disk, key, value);
    pthread_mutex_lock(&c->lock);
    if (admitted)
        cache_ram_put(c->ram, key, value);
    cache_flight_land(c->flight, key, value);
    pthread_mutex_unlock(&c->lock);
}

FlowValue *cache_await(Cache *c, CacheKey key)
{
    pthread_mutex_lock(&c->lock);
    FlowValue *value = cache_flight_take(c->flight, key);
    pthread_mutex_unlock(&c->lock);
    return value;
}

void cache_sync(Cache *c)
{
    if (c->disk)
        cache_disk_sync(c->disk);
}

/* -- what it did ------------------------------------------------------------------ */

char *cache_message(Cache *c)
{
    return c->disk ? cache_disk_message(c->disk) : NULL;
}

void cache_report(Cache *c, FlowNode *node)
{
    CacheRamStats ram;
    CacheDiskStats disk;
    for (char *text; (text = cache_message(c)); g_free(text))
        flow_node_warn(node, "%s", text);
    cache_stats(c, &ram, &disk);
    flow_node_gauge(node, "bytes", (double)ram.bytes);
    flow_node_gauge(node, "bytes_peak", (double)ram.peak);
    flow_node_gauge(node, "entries", (double)ram.entries);
    flow_node_gauge(node, "evictions", (double)ram.evictions);
    flow_node_gauge(node, "rejected", (double)ram.rejected);
    flow_node_gauge(node, "disk_reads", (double)disk.reads);
    flow_node_gauge(node, "disk_writes", (double)disk.writes);
    flow_node_gauge(node, "disk_read_bytes", (double)disk.read_bytes);
    flow_node_gauge(node, "disk_written_bytes", (double)disk.written_bytes);
    flow_node_gauge(node, "damaged", (double)disk.damaged);
}

void cache_stats(Cache *c, CacheRamStats *ram, CacheDiskStats *disk)
{
    pthread_mutex_lock(&c->lock);
    cache_ram_stats(c->ram, ram);
    pthread_mutex_unlock(&c->lock);
    *disk = (CacheDiskStats){0};
    if (c->disk)
        cache_disk_stats(c->disk, disk);
}
