/* Keys of what the cache stores of an item. Private to the stage. */
#ifndef FP16_CACHE_KEYS_H
#define FP16_CACHE_KEYS_H
#include "core/cache/cache.h"

typedef struct Keys Keys;

/* `content`: a picture is known by its bytes, not by its file's identity. `full`: entries in f32 are other
 * entries than halves. One thread at a time. */
Keys *keys_new(gboolean content, gboolean full);
void keys_free(Keys *keys);
/* One key for each field that the store of `cache` keeps. FALSE with error if the file cannot be hashed. */
gboolean keys_of_item(Keys *keys, const Cache *cache, const FlowItem *item, CacheKey *out, GError **error);

#endif
