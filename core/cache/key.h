/* 128-bit keys of cached values: XXH3 over everything a value depends on. */
#ifndef CACHE_KEY_H
#define CACHE_KEY_H
#include <glib.h>

G_BEGIN_DECLS

typedef struct {
    guint64 hi, lo;
} CacheKey;

/* Collects the parts of one key; reusable, so that a key costs no allocation. One thread at a time. */
typedef struct CacheHasher CacheHasher;
CacheHasher *cache_hasher_new(void);
void cache_hasher_free(CacheHasher *hasher);
void cache_hasher_reset(CacheHasher *hasher);
/* Appends bytes with their length in front, so that ("ab", "c") and ("a", "bc") differ. */
void cache_hasher_add(CacheHasher *hasher, gconstpointer data, gsize nbytes);
CacheKey cache_hasher_key(const CacheHasher *hasher);
/* The key of a whole file's bytes. FALSE with error if it cannot be read. */
gboolean cache_hash_file(const char *path, CacheKey *out, GError **error);

static inline gboolean cache_key_equal(CacheKey a, CacheKey b)
{
    return a.hi == b.hi && a.lo == b.lo;
}
/* For GHashTable; the table holds pointers to CacheKey. */
guint cache_key_ghash(gconstpointer key);
gboolean cache_key_gequal(gconstpointer a, gconstpointer b);

G_END_DECLS
#endif
