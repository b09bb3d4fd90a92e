/* The order in which keys will be needed, as far as it is known. */
#ifndef CACHE_FUTURE_H
#define CACHE_FUTURE_H
#include "core/cache/key.h"

G_BEGIN_DECLS

#define CACHE_NEVER G_MAXUINT64 /* no known use */

typedef struct CacheFuture CacheFuture;
CacheFuture *cache_future_new(void);
void cache_future_free(CacheFuture *future);
/* `key` is needed after everything that was expected before. Returns the time of that use. */
guint64 cache_future_expect(CacheFuture *future, CacheKey key);
/* The earliest expected use of `key` is over; nothing happens if none was expected. */
void cache_future_pass(CacheFuture *future, CacheKey key);
/* Time of the next use, CACHE_NEVER if none is known. */
guint64 cache_future_next(const CacheFuture *future, CacheKey key);
/* Most bytes that one more expected use takes. */
gsize cache_future_cost(void);
/* Bytes of all expected uses. */
gsize cache_future_bytes(const CacheFuture *future);

G_END_DECLS
#endif
