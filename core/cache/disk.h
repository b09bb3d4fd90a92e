/* The disk tier: values in an LMDB file that several processes and runs share. */
#ifndef CACHE_DISK_H
#define CACHE_DISK_H
#include "core/cache/key.h"
#include "core/flow/item.h"

G_BEGIN_DECLS

typedef struct CacheDisk CacheDisk;

typedef struct {
    guint64 reads, writes;             /* values */
    guint64 read_bytes, written_bytes; /* of their data */
    guint64 damaged;                   /* values that were there and could not be used */
    gboolean full;                     /* nothing is written any more */
} CacheDiskStats;

/* Can `folder` hold a cache: is it, or the nearest folder above it that exists, writable? Creates nothing.
 * [any] */
gboolean cache_disk_check(const char *folder, GError **error);
/* Creates the folder and the file in it; a file that is damaged as a whole is replaced,
 * with a warning. Opening one folder several times in a process gives one object with a count. Values
 * wait in memory until `batch_bytes` are there, then one transaction writes them. [any] */
CacheDisk *cache_disk_open(const char *folder, gsize batch_bytes, GError **error);
void cache_disk_close(CacheDisk *disk); /* writes what waits; NULL is fine. [any] */
/* Returns a new value, or NULL: not there, or damaged (counted). Sees what waits to be written. [any] */
FlowValue *cache_disk_get(CacheDisk *disk, CacheKey key);
/* Never fails: when the disk is full it warns once and goes on without. [any] */
void cache_disk_put(CacheDisk *disk, CacheKey key, FlowValue *value);
/* Writes what waits. [any] */
void cache_disk_sync(CacheDisk *disk);
/* Asks the system to read these from the disk in the background. [any] */
void cache_disk_read_ahead(CacheDisk *disk, const CacheKey *keys, gsize n);
/* Next message for the user that came up since the last call; returns new, or NULL. [any] */
char *cache_disk_message(CacheDisk *disk);
void cache_disk_stats(CacheDisk *disk, CacheDiskStats *stats);

G_END_DECLS
#endif
