/* Between the caches of this process and the file: one object a folder (LMDB must not open a file twice in
 * a process), values that wait to be written, damage and a full disk turned into messages.
 *
 * Values are written in batches, each a short transaction: one that stays open while an encoder works
 * would keep the other processes from writing, and one for each value would cost a disk flush each.
 * What waits is found like what is written. */
#include "core/cache/disk.h"
#include "core/cache/entry.h"
#include "core/cache/file.h"
#include "core/flow/status.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DISK_PAGE = 4096, DISK_BATCH_VALUES = 256 };

typedef struct {
    CacheKey key;
    FlowValue *value;
} Waiting;

struct CacheDisk {
    char *folder;
    dev_t dev; /* of the folder: its name in the registry */
    ino_t ino;
    guint opened; /* under registry_lock */
    CacheDisk *next;
    CacheFile *file;
    gsize batch_bytes;

    pthread_mutex_t lock; /* the rest; never held during a transaction */
    GArray *waiting;      /* Waiting; to be written */
    GArray *writing;      /* being written by one thread, still to be found */
    gsize waiting_bytes;
    gboolean warned_damage;
    GQueue messages;
    CacheDiskStats stats;
};

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static CacheDisk *registry;

static void disk_say(CacheDisk *d, const char *format, ...) G_GNUC_PRINTF(2, 3);
static void disk_say(CacheDisk *d, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = g_strdup_vprintf(format, args);
    va_end(args);
    pthread_mutex_lock(&d->lock);
    g_queue_push_tail(&d->messages, text);
    pthread_mutex_unlock(&d->lock);
}

char *cache_disk_message(CacheDisk *d)
{
    pthread_mutex_lock(&d->lock);
    char *text = g_queue_pop_head(&d->messages);
    pthread_mutex_unlock(&d->lock);
    return text;
}

void cache_disk_stats(CacheDisk *d, CacheDiskStats *stats)
{
    pthread_mutex_lock(&d->lock);
    *stats = d->stats;
    pthread_mutex_unlock(&d->lock);
}

/* -- opening ---------------------------------------------------------------------- */

static gboolean disk_folder_error(GError **error, const char *folder, const char *what)
{
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM, "cache folder '%s': %s", folder, what);
    return FALSE;
}

gboolean cache_disk_check(const char *folder, GError **error)
{
    struct stat st;
    g_autofree char *tested = g_strdup(folder);
    /* what does not exist yet is made below the nearest folder that does */
    while (stat(tested, &st) != 0) {
        if (errno != ENOENT || g_str_equal(tested, "/") || g_str_equal(tested, "."))
            return disk_folder_error(error, folder, g_strerror(errno));
        char *parent = g_path_get_dirname(tested);
        g_free(tested);
        tested = parent;
    }
    if (!S_ISDIR(st.st_mode))
        return disk_folder_error(error, tested, "is a file, not a folder");
    if (faccessat(AT_FDCWD, tested, R_OK | W_OK | X_OK, AT_EACCESS) != 0)
        return disk_folder_error(error, tested, g_strerror(errno));
    return TRUE;
}

static CacheDisk *disk_new(const char *folder, gsize batch_bytes)
{
    CacheDisk *d = g_new0(CacheDisk, 1);
    d->folder = g_strdup(folder);
    d->batch_bytes = batch_bytes;
    d->opened = 1;
    d->waiting = g_array_new(FALSE, FALSE, sizeof(Waiting));
    d->writing = g_array_new(FALSE, FALSE, sizeof(Waiting));
    g_queue_init(&d->messages);
    pthread_mutex_init(&d->lock, NULL);
    return d;
}

static void disk_free(CacheDisk *d)
{
    cache_file_close(d->file);
    pthread_mutex_destroy(&d->lock);
    g_array_unref(d->waiting);
    g_array_unref(d->writing);
    g_queue_clear_full(&d->messages, g_free);
    g_free(d->folder);
    g_free(d);
}

static CacheDisk *disk_registered(const struct stat *folder)
{
    for (CacheDisk *d = registry; d; d = d->next)
        if (d->dev == folder->st_dev && d->ino == folder->st_ino)
            return d;
    return NULL;
}

/* With registry_lock, and holding the folder's own lock so that two processes do not rebuild one file. */
static CacheDisk *disk_open_locked(const char *folder, gsize batch_bytes, GError **error)
{
    CacheDisk *d = NULL;
    struct stat st;
    const char *damage = NULL;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || flock(fd, LOCK_EX) != 0) {
        disk_folder_error(error, folder, g_strerror(errno));
        goto out;
    }
    d = disk_registered(&st);
    if (d) {
        d->opened++;
        goto out;
    }
    d = disk_new(folder, batch_bytes);
    d->dev = st.st_dev;
    d->ino = st.st_ino;
    int rc = cache_file_open(folder, &d->file, &damage);
    if (rc != 0) {
        disk_folder_error(error, folder, mdb_strerror(rc));
        g_clear_pointer(&d, disk_free);
        goto out;
    }
    if (damage)
        disk_say(d, "the cache in '%s' is damaged (%s): it starts again from nothing", folder, damage);
    d->next = registry;
    registry = d;
out:
    if (fd >= 0)
        close(fd);
    return d;
}

CacheDisk *cache_disk_open(const char *folder, gsize batch_bytes, GError **error)
{
    if (!cache_disk_check(folder, error))
        return NULL;
    if (g_mkdir_with_parents(folder, 0777) != 0) {
        disk_folder_error(error, folder, g_strerror(errno));
        return NULL;
    }
    pthread_mutex_lock(&registry_lock);
    CacheDisk *d = disk_open_locked(folder, batch_bytes, error);
    pthread_mutex_unlock(&registry_lock);
    return d;
}

void cache_disk_close(CacheDisk *d)
{
    if (!d)
        return;
    cache_disk_sync(d);
    pthread_mutex_lock(&registry_lock);
    if (--d->opened == 0) {
        CacheDisk **link = &registry;
        while (*link != d)
            link = &(*link)->next;
        *link = d->next;
        disk_free(d);
    }
    pthread_mutex_unlock(&registry_lock);
}

/* -- reading ---------------------------------------------------------------------- */

static void disk_note_damage(CacheDisk *d, const char *reason)
{
    pthread_mutex_lock(&d->lock);
    gboolean first = !d->warned_damage;
    d->warned_damage = TRUE;
    d->stats.damaged++;
    pthread_mutex_unlock(&d->lock);
    if (first)
        disk_say(d, "an entry of the cache in '%s' is damaged: %s; damaged entries are made anew", d->folder,
                 reason);
}

static FlowValue *disk_find_in(GArray *list, CacheKey key)
{
    for (guint i = 0; i < list->len; i++) {
        Waiting *w = &g_array_index(list, Waiting, i);
        if (cache_key_equal(w->key, key))
            return flow_value_ref(w->value);
    }
    return NULL;
}

FlowValue *cache_disk_get(CacheDisk *d, CacheKey key)
{
    pthread_mutex_lock(&d->lock);
    FlowValue *value = disk_find_in(d->waiting, key);
    if (!value)
        value = disk_find_in(d->writing, key);
    pthread_mutex_unlock(&d->lock);
    if (value)
        return value;

    MDB_txn *txn = NULL;
    MDB_val entry;
    const char *reason = NULL;
    int rc = cache_file_begin(d->file, FALSE, &txn);
    if (rc == 0) {
        rc = cache_file_get(d->file, txn, key, &entry);
        if (rc == 0)
            value = cache_entry_unpack(entry.mv_data, entry.mv_size, &reason);
        cache_file_abort(d->file, txn);
    }
    if (rc != 0 && rc != MDB_NOTFOUND)
        reason = mdb_strerror(rc);
    if (reason)
        disk_note_damage(d, reason);
    if (value) {
        pthread_mutex_lock(&d->lock);
        d->stats.reads++;
        d->stats.read_bytes += value->nbytes;
        pthread_mutex_unlock(&d->lock);
    }
    return value;
}

void cache_disk_read_ahead(CacheDisk *d, const CacheKey *keys, gsize n)
{
    MDB_txn *txn = NULL;
    if (n == 0 || cache_file_begin(d->file, FALSE, &txn) != 0)
        return;
    for (gsize i = 0; i < n; i++) {
        MDB_val entry;
        if (cache_file_get(d->file, txn, keys[i], &entry) != 0)
            continue;
        gsize data = (gsize)entry.mv_data, begin = data / DISK_PAGE * DISK_PAGE;
        /* advice only: if it is refused, the read just takes longer */
        (void)madvise((void *)begin, data + entry.mv_size - begin, MADV_WILLNEED);
    }
    cache_file_abort(d->file, txn);
}

/* -- writing ---------------------------------------------------------------------- */

static gsize disk_batch_need(const GArray *batch)
{
    gsize pages = 16; /* of the tree, copied on write */
    for (guint i = 0; i < batch->len; i++)
        pages += cache_entry_size(g_array_index(batch, Waiting, i).value) / DISK_PAGE + 2;
    return pages * DISK_PAGE;
}

static int disk_put_all(CacheDisk *d, MDB_txn *txn, const GArray *batch, CacheDiskStats *done)
{
    for (guint i = 0; i < batch->len; i++) {
        const Waiting *w = &g_array_index(batch, Waiting, i);
        MDB_val old;
        void *room = NULL;
        /* another process may have been faster; what is damaged is replaced */
        if (cache_file_get(d->file, txn, w->key, &old) == 0 && !cache_entry_fault(old.mv_data, old.mv_size))
            continue;
        int rc = cache_file_put(d->file, txn, w->key, cache_entry_size(w->value), &room);
        if (rc != 0)
            return rc;
        cache_entry_pack(w->value, room);
        done->writes++;
        done->written_bytes += w->value->nbytes;
    }
    return 0;
}

/* One transaction, again each time the map had to grow. */
static int disk_write(CacheDisk *d, const GArray *batch, gsize need)
{
    for (;;) {
        MDB_txn *txn = NULL;
        CacheDiskStats done = {0};
        int rc = cache_file_begin(d->file, TRUE, &txn);
        if (rc != 0)
            return rc;
        rc = disk_put_all(d, txn, batch, &done);
        if (rc == 0)
            rc = cache_file_commit(d->file, txn);
        else
            cache_file_abort(d->file, txn);
        if (rc == 0) {
            pthread_mutex_lock(&d->lock);
            d->stats.writes += done.writes;
            d->stats.written_bytes += done.written_bytes;
            pthread_mutex_unlock(&d->lock);
            return 0;
        }
        if (rc == MDB_MAP_FULL)
            rc = cache_file_grow(d->file, need);
        if (rc != 0)
            return rc;
    }
}

static void disk_stop_writing(CacheDisk *d, int rc, gsize need)
{
    pthread_mutex_lock(&d->lock);
    d->stats.full = TRUE;
    pthread_mutex_unlock(&d->lock);
    /* LMDB reports a write that was cut short, the first sign of a full disk, as EIO */
    const char *why = rc == ENOSPC || rc == EFBIG || rc == EDQUOT ? "no space left"
                      : rc == EIO                                 ? "no space left, or its disk fails"
                                                                  : mdb_strerror(rc);
    disk_say(d,
             "cannot write %" G_GSIZE_FORMAT " bytes to cache folder '%s': %s; nothing more is written there",
             need, d->folder, why);
}

void cache_disk_sync(CacheDisk *d)
{
    pthread_mutex_lock(&d->lock);
    if (d->waiting->len == 0 || d->writing->len > 0) { /* another thread's batch is on its way */
        pthread_mutex_unlock(&d->lock);
        return;
    }
    GArray *batch = d->waiting;
    d->waiting = d->writing;
    d->writing = batch;
    d->waiting_bytes = 0;
    gboolean full = d->stats.full;
    pthread_mutex_unlock(&d->lock);

    if (!full) {
        gsize need = disk_batch_need(batch);
        int rc = cache_file_space(d->folder, need);
        if (rc == 0)
            rc = disk_write(d, batch, need);
        if (rc != 0)
            disk_stop_writing(d, rc, need);
    }
    pthread_mutex_lock(&d->lock);
    for (guint i = 0; i < batch->len; i++)
        flow_value_unref(g_array_index(batch, Waiting, i).value);
    g_array_set_size(batch, 0);
    pthread_mutex_unlock(&d->lock);
}

void cache_disk_put(CacheDisk *d, CacheKey key, FlowValue *value)
{
    gboolean due = FALSE;
    pthread_mutex_lock(&d->lock);
    if (!d->stats.full) {
        Waiting w = {key, flow_value_ref(value)};
        g_array_append_val(d->waiting, w);
        d->waiting_bytes += value->nbytes;
        due = d->waiting_bytes >= d->batch_bytes || d->waiting->len >= DISK_BATCH_VALUES;
    }
    pthread_mutex_unlock(&d->lock);
    if (due)
        cache_disk_sync(d);
}
