/* Values in memory under a limit in bytes that is never exceeded. */
#ifndef CACHE_RAM_H
#define CACHE_RAM_H
#include "core/cache/key.h"
#include "core/flow/item.h"

G_BEGIN_DECLS

typedef enum {
    CACHE_STATIC,    /* fill once, never evict */
    CACHE_LRU,       /* evict what was used longest ago */
    CACHE_LRU_K,     /* evict the largest age / (uses + 1) */
    CACHE_FORESIGHT, /* evict what is needed last */
} CachePolicy;

typedef struct {
    gsize limit, bytes, peak; /* data and bookkeeping together */
    guint64 entries, evictions, rejected;
} CacheRamStats;

typedef struct CacheRam CacheRam;

/* One thread at a time (cache.c holds a lock around it). limit 0 holds nothing. */
CacheRam *cache_ram_new(gsize limit, CachePolicy policy);
void cache_ram_free(CacheRam *ram);
/* Returns a new reference, or NULL. Counts as a use. */
FlowValue *cache_ram_get(CacheRam *ram, CacheKey key);
gboolean cache_ram_has(const CacheRam *ram, CacheKey key);
/* Makes room, then keeps a reference of `value`. FALSE if the policy keeps what it has. */
gboolean cache_ram_put(CacheRam *ram, CacheKey key, FlowValue *value);
/* Counts bytes of somebody's bookkeeping against the limit, for good, and makes room for them. FALSE if they
 * do not fit. */
gboolean cache_ram_charge(CacheRam *ram, gsize nbytes);
/* Foresight: these keys are needed, together, after all that are expected so far. FALSE, and nothing is
 * remembered, if the policy does not look ahead or if the look-ahead would take more than an eighth of the
 * limit. */
gboolean cache_ram_expect(CacheRam *ram, const CacheKey *keys, gsize n);
/* Foresight: the first expected use of the key is now. */
void cache_ram_pass(CacheRam *ram, CacheKey key);
/* Bytes that a value of `nbytes` takes. */
gsize cache_ram_cost(gsize nbytes);
void cache_ram_stats(const CacheRam *ram, CacheRamStats *stats);

G_END_DECLS
#endif
