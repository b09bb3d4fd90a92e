/* Writes safetensors files, byte for byte as the reference writer does.
 *
 * Tensors are ordered by dtype, widest first, then by name; JSON is compact with __metadata__ in front; the
 * header is padded with blanks to a multiple of 8. The data is converted and written piece by piece, so
 * saving takes a buffer and not a second copy of the adapters.
 *
 * A reader never sees half a file: everything goes to PATH.tmp, which is synced and then renamed over PATH.
 * The name of the temporary is fixed, so a killed run leaves at most one, which the next save reuses; a lock
 * on it refuses two programs that save to the same path at the same moment. */
#include "core/model/safe_file.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEADER_LIMIT = 100 * 1000 * 1000,
    PIECE = 1 << 16, /* elements converted at a time */
    LEGACY_BEGIN = 0x100000,
    LEGACY_BYTES = 0x10000
};

/* Names of what can be written, and the place in the reference writer's order. */
static const struct {
    const char *name;
    int order;
} dtypes[NET_TYPE_COUNT] = {
    [NET_U8] = {"U8", 1},   [NET_I8] = {"I8", 2},   [NET_F16] = {"F16", 3}, [NET_BF16] = {"BF16", 4},
    [NET_I32] = {"I32", 5}, [NET_F32] = {"F32", 6}, [NET_I64] = {"I64", 7},
};

/* Where bytes go. */
typedef struct Sink Sink;
struct Sink {
    gboolean (*put)(Sink *sink, const void *data, gsize n, GError **error);
    const char *path;
    int fd;
    GChecksum *data, *legacy;
    guint64 at, header; /* bytes so far; length of everything before the data */
};

static gboolean is_float(NetType type)
{
    return type == NET_F32 || type == NET_BF16 || type == NET_F16;
}

static gsize elements(const SafeEntry *e)
{
    gsize n = 1;
    for (guint i = 0; i < e->ndim; i++)
        n *= (gsize)e->shape[i];
    return n;
}

/* -- header ---------------------------------------------------------------------------------- */

static int by_order(const void *a, const void *b)
{
    const SafeEntry *x = *(const SafeEntry *const *)a, *y = *(const SafeEntry *const *)b;
    if (x->type != y->type)
        return dtypes[y->type].order - dtypes[x->type].order;
    return strcmp(x->name, y->name);
}

static gboolean check_entry(const char *path, const SafeEntry *e, GError **error)
{
    if (!e->name || !g_utf8_validate(e->name, -1, NULL))
        return safe__fail(error, path, MODEL_ERROR_FORMAT, "a tensor name is not valid UTF-8");
    g_autofree char *name = safe__shown(e->name);
    if (!strcmp(e->name, "__metadata__"))
        return safe__fail(error, path, MODEL_ERROR_FORMAT, "a tensor cannot be called %s", name);
    if (!dtypes[e->type].name || (e->source != e->type && !(is_float(e->source) && is_float(e->type))))
        return safe__fail(error, path, MODEL_ERROR_UNSUPPORTED, "tensor %s cannot be written as %s from %s",
                          name, net_type_name(e->type), net_type_name(e->source));
    if (e->ndim > G_N_ELEMENTS(e->shape))
        return safe__fail(error, path, MODEL_ERROR_SHAPE, "tensor %s has %u dimensions (limit 8)", name,
                          e->ndim);
    gsize n = net_type_bytes(e->type, 1);
    for (guint i = 0; i < e->ndim; i++)
        if (e->shape[i] < 0 || !g_size_checked_mul(&n, n, (gsize)e->shape[i]))
            return safe__fail(error, path, MODEL_ERROR_SHAPE, "tensor %s is too large", name);
    return TRUE;
}

/* Entries in the order of the file. */
static const SafeEntry **sorted(const char *path, const SafeEntry *entries, guint n, GError **error)
{
    g_autofree const SafeEntry **order = g_new(const SafeEntry *, n + 1);
    g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);
    for (guint i = 0; i < n; i++) {
        if (!check_entry(path, &entries[i], error))
            return NULL;
        if (!g_hash_table_add(seen, (gpointer)entries[i].name)) {
            g_autofree char *name = safe__shown(entries[i].name);
            safe__fail(error, path, MODEL_ERROR_FORMAT, "duplicate tensor name %s", name);
            return NULL;
        }
        order[i] = &entries[i];
    }
    if (n)
        qsort(order, n, sizeof *order, by_order);
    return g_steal_pointer(&order);
}

static void put_string(GString *out, const char *text)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    g_string_append_c(out, '"');
    for (const char *p = text; *p; p++) {
        const char *short_form = strchr(plain, *p);
        if (short_form)
            g_string_append_printf(out, "\\%c", letter[short_form - plain]);
        else if ((guchar)*p < 0x20)
            g_string_append_printf(out, "\\u%04x", *p);
        else
            g_string_append_c(out, *p);
    }
    g_string_append_c(out, '"');
}

static int by_text(gconstpointer a, gconstpointer b)
{
    return strcmp(a, b);
}

static gboolean put_metadata(GString *out, const char *path, GHashTable *metadata, GError **error)
{
    if (!metadata || !g_hash_table_size(metadata))
        return TRUE;
    GList *keys = g_list_sort(g_hash_table_get_keys(metadata), by_text);
    gboolean ok = TRUE;
    g_string_append(out, "\"__metadata__\":{");
    for (GList *l = keys; l && ok; l = l->next) {
        const char *value = g_hash_table_lookup(metadata, l->data);
        ok = g_utf8_validate(l->data, -1, NULL) && value && g_utf8_validate(value, -1, NULL);
        if (!ok)
            break;
        g_string_append(out, l == keys ? "" : ",");
        put_string(out, l->data);
        g_string_append_c(out, ':');
        put_string(out, value);
    }
    g_list_free(keys);
    g_string_append_c(out, '}');
    return ok || safe__fail(error, path, MODEL_ERROR_FORMAT, "a metadata value is not valid UTF-8");
}

/* Length and JSON, padded. */
static GString *header(const char *path, const SafeEntry **order, guint n, GHashTable *metadata,
                       GError **error)
{
    GString *out = g_string_new("00000000{");
    guint64 at = 0;
    if (!put_metadata(out, path, metadata, error))
        goto failed;
    for (guint i = 0; i < n; i++) {
        const SafeEntry *e = order[i];
        guint64 end = at + net_type_bytes(e->type, elements(e));
        g_string_append(out, out->str[out->len - 1] == '{' ? "" : ",");
        put_string(out, e->name);
        g_string_append_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtypes[e->type].name);
        for (guint d = 0; d < e->ndim; d++)
            g_string_append_printf(out, d ? ",%" G_GINT64_FORMAT : "%" G_GINT64_FORMAT, e->shape[d]);
        g_string_append_printf(out, "],\"data_offsets\":[%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT "]}", at,
                               end);
        at = end;
    }
    g_string_append_c(out, '}');
    while (out->len % 8)
        g_string_append_c(out, ' ');
    guint64 length = out->len - 8;
    if (length > HEADER_LIMIT) {
        safe__fail(error, path, MODEL_ERROR_FORMAT, "header of %" G_GUINT64_FORMAT " bytes (limit %d)",
                   length, HEADER_LIMIT);
        goto failed;
    }
    memcpy(out->str, &length, 8);
    return out;
failed:
    g_string_free(out, TRUE);
    return NULL;
}

/* -- data ---------------------------------------------------------------------------------------- */

static void count(const void *src, NetType source, const void *dst, NetType type, gsize n, float *f,
                  SafeStats *stats)
{
    const float *x = src;
    if (source != NET_F32) {
        net_convert(f, NET_F32, src, source, n);
        x = f;
    }
    for (gsize i = 0; i < n; i++) {
        if (x[i] == 0)
            continue;
        gboolean zero =
            type == NET_F32 ? ((const float *)dst)[i] == 0 : !(((const guint16 *)dst)[i] & 0x7fff);
        stats->nonzero++;
        stats->flushed += zero;
    }
}

/* A finite value that became infinite is stored as the largest number of its type: an infinity would spoil
 * every picture, and the caller reports the count. */
static void saturate(const void *src, NetType source, void *dst, NetType type, gsize n)
{
    const guint16 infinite = type == NET_F16 ? 0x7c00 : 0x7f80;
    guint16 *y = dst;
    for (gsize i = 0; i < n; i++) {
        float x;
        if ((y[i] & 0x7fff) != infinite)
            continue;
        net_convert(&x, NET_F32, (const char *)src + i * net_type_bytes(source, 1), source, 1);
        if (isfinite(x))
            y[i] = (y[i] & 0x8000) | (infinite - 1);
    }
}

static gboolean put_tensor(Sink *sink, const SafeEntry *e, SafeStats *stats, GError **error)
{
    gsize n = elements(e), from = net_type_bytes(e->source, 1), to = net_type_bytes(e->type, 1);
    if (!is_float(e->type))
        return sink->put(sink, e->data, n * to, error);
    g_autofree guint8 *out = g_malloc(MIN(n + 1, PIECE) * sizeof(float));
    g_autofree float *f = g_new(float, MIN(n + 1, PIECE));
    for (gsize i = 0; i < n; i += PIECE) {
        gsize now = MIN(PIECE, n - i);
        const char *src = (const char *)e->data + i * from;
        gsize overflowed = net_convert(out, e->type, src, e->source, now);
        if (overflowed)
            saturate(src, e->source, out, e->type, now);
        if (stats) {
            stats->overflowed += overflowed;
            count(src, e->source, out, e->type, now, f, stats);
        }
        if (!sink->put(sink, out, now * to, error))
            return FALSE;
    }
    return TRUE;
}

static gboolean put_all(Sink *sink, const char *path, const SafeEntry *entries, guint n, GHashTable *metadata,
                        SafeStats *stats, GError **error)
{
    g_autofree const SafeEntry **order = sorted(path, entries, n, error);
    if (!order)
        return FALSE;
    GString *head = header(path, order, n, metadata, error);
    if (!head)
        return FALSE;
    sink->header = head->len;
    gboolean ok = sink->put(sink, head->str, head->len, error);
    g_string_free(head, TRUE);
    for (guint i = 0; i < n && ok; i++)
        ok = put_tensor(sink, order[i], stats, error);
    return ok;
}

/* -- files ---------------------------------------------------------------------------------------- */

static gboolean put_file(Sink *sink, const void *data, gsize n, GError **error)
{
    for (gsize done = 0; done < n;) {
        gssize put = write(sink->fd, (const char *)data + done, n - done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return safe__fail(error, sink->path, MODEL_ERROR_IO, "cannot write: %s", g_strerror(errno));
        done += (gsize)put;
    }
    return TRUE;
}

/* Opens the temporary and locks it; -1 with an error. Another writer may rename or remove it between our open
 * and our lock: then the lock is on the wrong file and the next try finds the right one. */
static int open_temporary(const char *path, const char *temporary, GError **error)
{
    for (;;) {
        struct stat ours, there;
        int fd = open(temporary, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0) {
            safe__fail(error, path, MODEL_ERROR_IO, "cannot create %s: %s", temporary, g_strerror(errno));
            return -1;
        }
        if (flock(fd, LOCK_EX | LOCK_NB)) {
            safe__fail(error, path, MODEL_ERROR_IO, "cannot lock %s: %s", temporary,
                       errno == EWOULDBLOCK ? "another program is writing this file" : g_strerror(errno));
            close(fd);
            return -1;
        }
        if (!fstat(fd, &ours) && !stat(temporary, &there) && ours.st_ino == there.st_ino &&
            ours.st_dev == there.st_dev)
            return fd;
        close(fd);
    }
}

static gboolean sync_folder(const char *path, GError **error)
{
    g_autofree char *folder = g_path_get_dirname(path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot sync a folder and say EINVAL: nothing more can be done there. */
    gboolean ok = fd >= 0 && (!fsync(fd) || errno == EINVAL);
    if (!ok)
        safe__fail(error, path, MODEL_ERROR_IO, "cannot sync folder %s: %s", folder, g_strerror(errno));
    if (fd >= 0)
        close(fd);
    return ok;
}

gboolean safe_write(const char *path, const SafeEntry *entries, guint n, GHashTable *metadata,
                    SafeStats *stats, GError **error)
{
    struct stat st;
    g_autofree char *temporary = g_strconcat(path, ".tmp", NULL);
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return safe__fail(error, path, MODEL_ERROR_IO, "exists and is not a file");
    int fd = open_temporary(path, temporary, error);
    if (fd < 0)
        return FALSE;
    Sink sink = {.put = put_file, .path = path, .fd = fd};
    if (stats)
        *stats = (SafeStats){0};
    if (ftruncate(fd, 0)) {
        safe__fail(error, path, MODEL_ERROR_IO, "cannot empty %s: %s", temporary, g_strerror(errno));
        goto failed;
    }
    if (!put_all(&sink, path, entries, n, metadata, stats, error))
        goto failed;
    if (fsync(fd) || rename(temporary, path)) {
        safe__fail(error, path, MODEL_ERROR_IO, "cannot finish: %s", g_strerror(errno));
        goto failed;
    }
    close(fd);
    return sync_folder(path, error);
failed:
    unlink(temporary);
    close(fd);
    return FALSE;
}

/* -- hashes ------------------------------------------------------------------------------------------ */

static gboolean put_hash(Sink *sink, const void *data, gsize n, GError **error)
{
    (void)error;
    guint64 begin = MAX(sink->at, LEGACY_BEGIN), end = MIN(sink->at + n, LEGACY_BEGIN + LEGACY_BYTES);
    if (begin < end)
        g_checksum_update(sink->legacy, (const guchar *)data + (begin - sink->at), (gssize)(end - begin));
    if (sink->at >= sink->header && n)
        g_checksum_update(sink->data, data, (gssize)n);
    sink->at += n;
    return TRUE;
}

gboolean safe_hashes(const SafeEntry *entries, guint n, GHashTable *metadata, char **data_sha256,
                     char **legacy, GError **error)
{
    g_autoptr(GChecksum) data = g_checksum_new(G_CHECKSUM_SHA256), window = g_checksum_new(G_CHECKSUM_SHA256);
    Sink sink = {.put = put_hash, .data = data, .legacy = window};
    if (!put_all(&sink, "(hash)", entries, n, metadata, NULL, error))
        return FALSE;
    *data_sha256 = g_strdup(g_checksum_get_string(data));
    *legacy = g_strndup(g_checksum_get_string(window), 8);
    return TRUE;
}
