/* LMDB never overwrites a page that a reader or the last commit needs, so a process that is killed at
 * any moment leaves the last commit behind; it locks out other writers and recovers the lock of one
 * that died. What it leaves to its user:
 *
 *  - The map has a fixed size. It starts small and doubles when it is full, or follows when another
 *    process has made it larger. No transaction of this process may be open meanwhile, so
 *    transactions hold `map` shared and a change holds it exclusively. (One huge map instead would
 *    fail wherever address space is limited.)
 *  - A write to a full disk fails late, and touching a page that the file system cannot provide kills
 *    the process: the free space is looked at before every batch, with something to spare.
 *  - It believes what the file says. The file must be as long as its pages claim, or reading would end in a
 *    bus error; entries have checksums. Damage in the pages of the tree itself, a small share of the
 *    file, is found only where LMDB finds it. */
#include "core/cache/file.h"
#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FILE_NAME "loraflow.mdb"
#define FILE_LOCK FILE_NAME "-lock"

enum {
    FILE_FIRST_MAP = 16 << 20,
    FILE_SPARE = 256 << 10, /* free space that stays: lock file, pages of the tree */
};

struct CacheFile {
    MDB_env *env;
    MDB_dbi dbi;
    int fd; /* LMDB's */
    pthread_rwlock_t map;
    gboolean dead; /* under `map`: there is no map any more */
};

int cache_file_space(const char *folder, gsize need)
{
    struct statvfs fs;
    if (statvfs(folder, &fs) != 0)
        return errno;
    return (guint64)fs.f_bavail * fs.f_frsize < (guint64)need + FILE_SPARE ? ENOSPC : 0;
}

/* Is the file at least as long as the pages that its last commit uses? */
static gboolean file_whole(const CacheFile *f)
{
    MDB_envinfo info;
    MDB_stat page;
    struct stat st;
    return mdb_env_info(f->env, &info) == 0 && mdb_env_stat(f->env, &page) == 0 && fstat(f->fd, &st) == 0 &&
           (guint64)st.st_size >= (guint64)(info.me_last_pgno + 1) * page.ms_psize;
}

/* -- opening ---------------------------------------------------------------------- */

static int file_open_env(CacheFile *f, const char *path)
{
    MDB_txn *txn = NULL;
    int rc = mdb_env_create(&f->env);
    if (rc != 0)
        return rc;
    rc = mdb_env_set_mapsize(f->env, FILE_FIRST_MAP);
    /* NOTLS: readers belong to transactions, not to threads that come and go. NOMETASYNC: a power cut may
     * cost the last batch, never the file. */
    if (rc == 0)
        rc = mdb_env_open(f->env, path, MDB_NOSUBDIR | MDB_NOTLS | MDB_NOMETASYNC, 0666);
    if (rc == 0)
        rc = mdb_env_get_fd(f->env, &f->fd);
    if (rc == 0 && !file_whole(f))
        rc = MDB_CORRUPTED;
    if (rc == 0)
        rc = mdb_txn_begin(f->env, NULL, MDB_RDONLY, &txn);
    if (rc == MDB_MAP_RESIZED) { /* larger than our first map */
        rc = mdb_env_set_mapsize(f->env, 0);
        if (rc == 0)
            rc = mdb_txn_begin(f->env, NULL, MDB_RDONLY, &txn);
    }
    if (rc == 0) {
        rc = mdb_dbi_open(txn, NULL, 0, &f->dbi);
        mdb_txn_abort(txn);
    }
    if (rc != 0) {
        mdb_env_close(f->env);
        return rc;
    }
    int dead = 0; /* readers that were killed hold on to old pages */
    mdb_reader_check(f->env, &dead);
    return 0;
}

static gboolean file_damaged(int rc)
{
    return rc == MDB_INVALID || rc == MDB_CORRUPTED || rc == MDB_VERSION_MISMATCH ||
           rc == MDB_PAGE_NOTFOUND || rc == MDB_INCOMPATIBLE || rc == MDB_PANIC;
}

int cache_file_open(const char *folder, CacheFile **file, const char **damage)
{
    g_autofree char *path = g_build_filename(folder, FILE_NAME, NULL);
    g_autofree char *lock = g_build_filename(folder, FILE_LOCK, NULL);
    CacheFile *f = g_new0(CacheFile, 1);
    pthread_rwlock_init(&f->map, NULL);
    *damage = NULL;
    int rc = cache_file_space(folder, 0);
    if (rc == 0)
        rc = file_open_env(f, path);
    if (file_damaged(rc)) {
        *damage = mdb_strerror(rc);
        /* both: a new lock file keeps processes that still have the old pair apart from the new one */
        unlink(path);
        unlink(lock);
        rc = file_open_env(f, path);
    }
    if (rc != 0) {
        pthread_rwlock_destroy(&f->map);
        g_clear_pointer(&f, g_free);
    }
    *file = f;
    return rc;
}

void cache_file_close(CacheFile *f)
{
    if (!f)
        return;
    mdb_env_close(f->env);
    pthread_rwlock_destroy(&f->map);
    g_free(f);
}

/* -- the map ---------------------------------------------------------------------- */

/* To `want` bytes, or (0) to the size that another process has set. A failed change leaves LMDB without a
 * map: then the old size, which was there a moment ago, is taken again. */
static int file_remap(CacheFile *f, gsize want)
{
    MDB_envinfo info;
    pthread_rwlock_wrlock(&f->map);
    int rc = f->dead ? EIO : mdb_env_info(f->env, &info);
    if (rc == 0 && (want == 0 || want > info.me_mapsize)) {
        rc = mdb_env_set_mapsize(f->env, want);
        if (rc != 0 && mdb_env_set_mapsize(f->env, info.me_mapsize) != 0)
            f->dead = TRUE;
    }
    pthread_rwlock_unlock(&f->map);
    return rc;
}

int cache_file_grow(CacheFile *f, gsize need)
{
    MDB_envinfo info;
    pthread_rwlock_rdlock(&f->map);
    int rc = f->dead ? EIO : mdb_env_info(f->env, &info);
    pthread_rwlock_unlock(&f->map);
    return rc != 0 ? rc : file_remap(f, MAX(info.me_mapsize, need) * 2);
}

/* -- transactions ------------------------------------------------------------------- */

int cache_file_begin(CacheFile *f, gboolean write, MDB_txn **txn)
{
    for (int tries = 0;; tries++) {
        int rc = EIO;
        pthread_rwlock_rdlock(&f->map);
        if (!f->dead)
            rc = file_whole(f) ? mdb_txn_begin(f->env, NULL, write ? 0 : MDB_RDONLY, txn) : MDB_CORRUPTED;
        if (rc == 0)
            return 0;
        pthread_rwlock_unlock(&f->map);
        if (rc != MDB_MAP_RESIZED || tries == 10)
            return rc;
        rc = file_remap(f, 0);
        if (rc != 0)
            return rc;
    }
}

void cache_file_abort(CacheFile *f, MDB_txn *txn)
{
    mdb_txn_abort(txn);
    pthread_rwlock_unlock(&f->map);
}

int cache_file_commit(CacheFile *f, MDB_txn *txn)
{
    int rc = mdb_txn_commit(txn);
    pthread_rwlock_unlock(&f->map);
    return rc;
}

int cache_file_get(CacheFile *f, MDB_txn *txn, CacheKey key, MDB_val *entry)
{
    MDB_val k = {sizeof key, &key};
    struct stat st;
    int rc = mdb_get(txn, f->dbi, &k, entry);
    if (rc == 0 && (fstat(f->fd, &st) != 0 || entry->mv_size > (gsize)st.st_size))
        rc = MDB_CORRUPTED;
    return rc;
}

int cache_file_put(CacheFile *f, MDB_txn *txn, CacheKey key, gsize size, void **room)
{
    MDB_val k = {sizeof key, &key}, v = {size, NULL};
    int rc = mdb_put(txn, f->dbi, &k, &v, MDB_RESERVE);
    *room = v.mv_data;
    return rc;
}
