/* The cache that a lookup and a store node share: RAM tier, disk tier, keys in flight. */
#ifndef CACHE_CACHE_H
#define CACHE_CACHE_H
#include "core/cache/disk.h"
#include "core/cache/ram.h"
#include "core/flow/stage.h"

G_BEGIN_DECLS

typedef struct Cache Cache;

typedef struct {
    guint64 ram; /* bytes; 0 holds nothing */
    CachePolicy policy;
    const char *admit; /* admit.h */
    const char *disk;  /* folder; NULL = no disk tier */
    gboolean full;     /* keep f32 where half precision is the rule */
} CacheOptions;

/* Travels from a lookup to its store: for each stored field hi and lo of its key, and the outcome. */
#define CACHE_KEYS_FIELD                                                                                     \
    {                                                                                                        \
        "cache_keys", "n 3", "keys of what the cache stores", NET_I64, FLOW_FIELD_NOKEY                      \
    }

/* A field that is stored, and what its key is made of. */
typedef struct {
    FlowField field;
    guint8 recipe[16];     /* how it is made */
    FlowFieldSet by_value; /* fields of the item that it depends on */
} CacheField;

enum { CACHE_FIELDS = 16 };

/* Checks the options; writes nothing. [graph] */
Cache *cache_new(const CacheOptions *options, GError **error);
void cache_free(Cache *cache); /* NULL is fine */
/* The store says what it keeps; before cache_start. At most CACHE_FIELDS. [graph] */
void cache_set_fields(Cache *cache, const CacheField *fields, guint n);
const CacheField *cache_fields(const Cache *cache, guint *n); /* [any] */
gboolean cache_keeps_full(const Cache *cache);                /* [any] */
/* Opens the disk tier, once. [any] */
gboolean cache_start(Cache *cache, GError **error);

typedef enum {
    CACHE_FOUND,
    CACHE_PROMISED, /* the same owner is making it: cache_await() has it behind the store */
    CACHE_MISSING,  /* the caller is to make it, and then to cache_store() it */
} CacheOutcome;

/* Admission of an item, named by one of its keys; cache_ask() counts a request for it. [any] */
void cache_ask(Cache *cache, CacheKey item);
gboolean cache_admits(Cache *cache, CacheKey item, double complexity);
/* Gives a reference in *value when found. What the disk has goes into RAM if `admitted`. `owner` names the
 * picture (flight.h). [one thread: the lookup] */
CacheOutcome cache_find(Cache *cache, CacheKey key, guint64 owner, gboolean admitted, FlowValue **value);
/* [one thread: the store] */
void cache_store(Cache *cache, CacheKey key, FlowValue *value, gboolean admitted);
/* A new reference, or NULL if the first use came to nothing. [one thread: the store] */
FlowValue *cache_await(Cache *cache, CacheKey key);
/* Writes what waits to be written. [any] */
void cache_sync(Cache *cache);
/* Foresight (ram.h); read-ahead from the disk for keys that RAM does not have. [one thread: the lookup] */
gboolean cache_looks_ahead(const Cache *cache);
gboolean cache_expect(Cache *cache, const CacheKey *keys, gsize n);
void cache_pass(Cache *cache, const CacheKey *keys, gsize n);
void cache_read_ahead(Cache *cache, const CacheKey *keys, gsize n);
/* Next message for the user, new, or NULL. [any] */
char *cache_message(Cache *cache);
/* Messages as warnings and figures as counters of `node`, the lookup. [any] */
void cache_report(Cache *cache, FlowNode *node);
/* disk is all zero without a disk tier. [any] */
void cache_stats(Cache *cache, CacheRamStats *ram, CacheDiskStats *disk);
/* Bytes that wait to be written to the disk, at most. */
gsize cache_buffer_bytes(void);
/* What the lookup's plan() tells the store's: bytes of the largest complete sample, 0 = unknown. [graph] */
void cache_set_item_bytes(Cache *cache, gsize nbytes);
gsize cache_item_bytes(const Cache *cache);
/* "8GiB", "25%" (of what this process may use: memory of the machine or of its control group), "0". */
gboolean cache_parse_size(const char *text, guint64 *bytes, GError **error);

G_END_DECLS
#endif
