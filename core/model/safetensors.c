/* Opens and reads safetensors files.
 *
 *   8 bytes N | N bytes of JSON | data: tensors back to back, no holes, to the end of the file
 *
 * Tensor data is copied with pread, not through the mapping: a file that is cut short while it is open then
 * gives an error and not SIGBUS, and nothing of a large checkpoint stays in our address space. The mapping
 * serves callers that look at a few bytes in place. */
#include "core/model/safe_file.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

G_DEFINE_QUARK(model - error - quark, model_error)
G_STATIC_ASSERT(G_BYTE_ORDER == G_LITTLE_ENDIAN);

enum { CHUNK = 1 << 18 };

SafeFile *safe_open(const char *path, GError **error)
{
    struct stat st;
    SafeFile *file = g_new0(SafeFile, 1);
    file->path = g_strdup(path);
    file->index = g_hash_table_new(g_str_hash, g_str_equal);
    file->metadata = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    /* Not blocking, so that a named pipe is refused and not waited for. */
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0 || fstat(file->fd, &st)) {
        safe__fail(error, path, errno == ENOENT ? MODEL_ERROR_MISSING : MODEL_ERROR_IO, "cannot open: %s",
                   g_strerror(errno));
        goto failed;
    }
    if (!S_ISREG(st.st_mode)) {
        safe__fail(error, path, MODEL_ERROR_IO, "%s, not a file",
                   S_ISDIR(st.st_mode) ? "a folder" : "a device or pipe");
        goto failed;
    }
    file->size = (guint64)st.st_size;
    if (!safe__read_header(file, error))
        goto failed;
    void *map = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, file->fd, 0);
    file->map = map == MAP_FAILED ? NULL : map;
    return file;
failed:
    safe_close(file);
    return NULL;
}

void safe_close(SafeFile *file)
{
    if (!file)
        return;
    if (file->map)
        munmap(file->map, file->size);
    if (file->fd >= 0)
        close(file->fd);
    for (guint i = 0; i < file->n; i++) {
        g_free(file->tensors[i].name);
        g_free(file->tensors[i].dtype);
    }
    g_free(file->tensors);
    g_hash_table_unref(file->index);
    g_hash_table_unref(file->metadata);
    g_free(file->path);
    g_free(file);
}

const char *safe_path(const SafeFile *file)
{
    return file->path;
}

const SafeTensor *safe_tensors(const SafeFile *file, guint *n)
{
    *n = file->n;
    return file->tensors;
}

const SafeTensor *safe_find(const SafeFile *file, const char *name)
{
    return g_hash_table_lookup(file->index, name);
}

GHashTable *safe_metadata(const SafeFile *file)
{
    return file->metadata;
}

const void *safe_data(const SafeFile *file, const SafeTensor *tensor)
{
    return file->map ? file->map + tensor->offset : NULL;
}

static gboolean is_float(int type)
{
    return type == NET_F32 || type == NET_BF16 || type == NET_F16;
}

static gboolean read_failed(const SafeFile *file, const SafeTensor *tensor, GError **error)
{
    const char *why = errno ? g_strerror(errno) : "the file was cut short";
    g_autofree char *name = safe__shown(tensor->name);
    return safe__fail(error, file->path, MODEL_ERROR_IO, "cannot read tensor %s: %s", name, why);
}

gboolean safe_read_bytes(const SafeFile *file, const SafeTensor *tensor, guint64 at, void *dst, gsize n,
                         GError **error)
{
    g_return_val_if_fail(at <= tensor->nbytes && n <= tensor->nbytes - at, FALSE);
    return safe__read_at(file->fd, dst, n, tensor->offset + at) || read_failed(file, tensor, error);
}

gboolean safe_read_range(SafeFile *file, const SafeTensor *tensor, gint64 first, gint64 count, void *dst,
                         NetType type, GError **error)
{
    g_return_val_if_fail(first >= 0 && count >= 0 && count <= tensor->count - first, FALSE);
    if (!is_float(tensor->type) || !is_float((int)type)) {
        g_autofree char *name = safe__shown(tensor->name);
        return safe__fail(error, file->path, MODEL_ERROR_UNSUPPORTED,
                          "dtype %s of tensor %s not supported here (F32, F16 or BF16 expected)",
                          tensor->dtype, name);
    }
    const gsize from = net_type_bytes((NetType)tensor->type, 1), to = net_type_bytes(type, 1);
    const gsize step = CHUNK / from, n = (gsize)count;
    const guint64 begin = tensor->offset + (guint64)first * from;
    const gboolean same = tensor->type == (int)type;
    g_autofree guint8 *buffer = same ? NULL : g_malloc(MIN(CHUNK, MAX(n, 1) * from));
    for (gsize i = 0; i < n; i += step) {
        gsize now = MIN(step, n - i);
        char *out = (char *)dst + i * to;
        if (!safe__read_at(file->fd, same ? (void *)out : buffer, now * from, begin + i * from))
            return read_failed(file, tensor, error);
        if (!same)
            net_convert(out, type, buffer, (NetType)tensor->type, now);
    }
    return TRUE;
}

gboolean safe_read(SafeFile *file, const SafeTensor *tensor, void *dst, NetType type, GError **error)
{
    return safe_read_range(file, tensor, 0, tensor->count, dst, type, error);
}
