/* An LMDB file of entries, made safe against what LMDB leaves to its user. Used by disk.c alone.
 *
 * Functions that return int give 0, an errno value or an MDB_* code; mdb_strerror() names all of them. */
#ifndef CACHE_FILE_H
#define CACHE_FILE_H
#include "core/cache/key.h"
#include <lmdb.h>

G_BEGIN_DECLS

typedef struct CacheFile CacheFile;

/* Opens or makes the file in `folder`. A file that is damaged as a whole is replaced by an empty one and
 * *damage (static text) says why; NULL otherwise. The caller makes sure that nobody else in this process
 * has it open. */
int cache_file_open(const char *folder, CacheFile **file, const char **damage);
void cache_file_close(CacheFile *file); /* NULL is fine */

/* A transaction; one at a time a thread, any number of readers beside one writer. [any] */
int cache_file_begin(CacheFile *file, gboolean write, MDB_txn **txn);
void cache_file_abort(CacheFile *file, MDB_txn *txn);
int cache_file_commit(CacheFile *file, MDB_txn *txn);
/* Bytes of an entry, valid until the transaction ends; MDB_NOTFOUND. */
int cache_file_get(CacheFile *file, MDB_txn *txn, CacheKey key, MDB_val *entry);
/* Room for `size` bytes that the caller fills before the next call. */
int cache_file_put(CacheFile *file, MDB_txn *txn, CacheKey key, gsize size, void **room);
/* After MDB_MAP_FULL, with no transaction of this thread open: at least `need` bytes more. */
int cache_file_grow(CacheFile *file, gsize need);
/* 0, or ENOSPC if the file system of the folder has less than `need` bytes to spare. */
int cache_file_space(const char *folder, gsize need);

G_END_DECLS
#endif
