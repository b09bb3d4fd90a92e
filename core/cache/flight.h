/* Keys that are being made right now, so that the same thing is not made twice at the same time. */
#ifndef CACHE_FLIGHT_H
#define CACHE_FLIGHT_H
#include "core/cache/key.h"
#include "core/flow/item.h"

G_BEGIN_DECLS

typedef struct CacheFlight CacheFlight;

/* One thread at a time (cache.c holds a lock around it). */
CacheFlight *cache_flight_new(void);
void cache_flight_free(CacheFlight *flight);
/* `owner` is going to make the key. Nothing changes if somebody is at it already. */
void cache_flight_begin(CacheFlight *flight, CacheKey key, guint64 owner);
/* TRUE if the same owner is making the key: the caller will take it with cache_flight_take(). */
gboolean cache_flight_join(CacheFlight *flight, CacheKey key, guint64 owner);
/* The key is made. Kept (a new reference) as long as somebody who joined has not taken it. */
void cache_flight_land(CacheFlight *flight, CacheKey key, FlowValue *value);
/* For one that joined: a new reference, or NULL if the first one came to nothing. */
FlowValue *cache_flight_take(CacheFlight *flight, CacheKey key);
/* Keys in the table. */
guint cache_flight_count(const CacheFlight *flight);

G_END_DECLS
#endif
