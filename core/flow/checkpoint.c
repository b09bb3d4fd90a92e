/* Writing and reading the file of a checkpoint; the format is in checkpoint.h.
 *
 * Parts go to the file as they come, so no second copy of an optimizer's state is held. The header is
 * written last, before the sync; until the rename nobody sees the file under its name. Reading believes no
 * length before it has been held against the file's size. */
#include "core/flow/checkpoint.h"
#include "core/flow/status.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

gboolean flow__fault(const char *what);

static const char magic[8] = "LORACKPT";
enum { VERSION = 1, HEADER = 40, MAX_NAME = 256, ALIGN = 64 };

static gboolean fault(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);
static gboolean fault(GError **error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (error)
        *error = g_error_new_valist(FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_FAILED, format, args);
    va_end(args);
    return FALSE;
}

static void put_u32(guint8 *p, guint32 v)
{
    v = GUINT32_TO_LE(v);
    memcpy(p, &v, sizeof v);
}

static void put_u64(guint8 *p, guint64 v)
{
    v = GUINT64_TO_LE(v);
    memcpy(p, &v, sizeof v);
}

static guint32 get_u32(const guint8 *p)
{
    guint32 v;
    memcpy(&v, p, sizeof v);
    return GUINT32_FROM_LE(v);
}

static guint64 get_u64(const guint8 *p)
{
    guint64 v;
    memcpy(&v, p, sizeof v);
    return GUINT64_FROM_LE(v);
}

/* -- writing ------------------------------------------------------------------------ */

struct FlowCheckpointWriter {
    char *path, *temporary;
    int fd;
    guint32 parts;
    guint64 length;
    XXH3_state_t *hash;
};

static gboolean write_all(FlowCheckpointWriter *writer, gconstpointer data, gsize n, off_t at, GError **error)
{
    const guint8 *p = data;
    while (n > 0) {
        ssize_t done = flow__fault("write") ? -1 : pwrite(writer->fd, p, MIN(n, (gsize)1 << 30), at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return fault(error, "cannot write %s: %s", writer->temporary,
                         g_strerror(done < 0 ? errno : ENOSPC));
        p += done;
        n -= (gsize)done;
        at += done;
    }
    return TRUE;
}

static gboolean append(FlowCheckpointWriter *writer, gconstpointer data, gsize n, GError **error)
{
    if (!write_all(writer, data, n, (off_t)(HEADER + writer->length), error))
        return FALSE;
    XXH3_128bits_update(writer->hash, data, n);
    writer->length += n;
    return TRUE;
}

void flow_checkpoint_writer_drop(FlowCheckpointWriter *writer)
{
    if (!writer)
        return;
    if (writer->fd >= 0) {
        unlink(writer->temporary);
        close(writer->fd);
    }
    XXH3_freeState(writer->hash);
    g_free(writer->temporary);
    g_free(writer->path);
    g_free(writer);
}

FlowCheckpointWriter *flow_checkpoint_writer_new(const char *path, GError **error)
{
    FlowCheckpointWriter *writer = g_new0(FlowCheckpointWriter, 1);
    struct stat st;
    writer->path = g_strdup(path);
    writer->temporary = g_strconcat(path, ".tmp", NULL);
    writer->hash = XXH3_createState();
    XXH3_128bits_reset(writer->hash);
    writer->fd = -1;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        fault(error, "cannot write %s: it exists and is not a file", path);
    } else if ((writer->fd = open(writer->temporary, O_RDWR | O_CREAT | O_CLOEXEC, 0644)) < 0) {
        fault(error, "cannot write %s: %s", writer->temporary, g_strerror(errno));
    } else if (flock(writer->fd, LOCK_EX | LOCK_NB)) {
        fault(error, "cannot write %s: another run writes it", path);
        close(writer->fd);
        writer->fd = -1;
    } else if (ftruncate(writer->fd, 0)) {
        fault(error, "cannot write %s: %s", writer->temporary, g_strerror(errno));
    } else {
        return writer;
    }
    flow_checkpoint_writer_drop(writer);
    return NULL;
}

static gsize padding(guint64 at)
{
    return (ALIGN - at % ALIGN) % ALIGN;
}

gboolean flow_checkpoint_writer_add(FlowCheckpointWriter *writer, const char *name, gconstpointer data,
                                    gsize n, GError **error)
{
    static const guint8 zeros[ALIGN];
    guint8 head[12];
    gsize length = strlen(name);
    g_assert(length > 0 && length < MAX_NAME);
    put_u32(head, (guint32)length);
    put_u64(head + 4, n);
    writer->parts++;
    return append(writer, head, sizeof head, error) && append(writer, name, length, error) &&
           append(writer, zeros, padding(HEADER + writer->length), error) && append(writer, data, n, error);
}

static gboolean finish_file(FlowCheckpointWriter *writer, GError **error)
{
    guint8 header[HEADER];
    XXH128_canonical_t hash;
    XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(writer->hash));
    memcpy(header, magic, 8);
    put_u32(header + 8, VERSION);
    put_u32(header + 12, writer->parts);
    put_u64(header + 16, writer->length);
    memcpy(header + 24, hash.digest, 16);
    if (!write_all(writer, header, sizeof header, 0, error))
        return FALSE;
    if (fsync(writer->fd))
        return fault(error, "cannot write %s: %s", writer->temporary, g_strerror(errno));
    return TRUE;
}

static char *older_name(const char *path, guint i)
{
    return i ? g_strdup_printf("%s.%u", path, i) : g_strdup(path);
}

/* PATH.1 becomes PATH.2 and so on; PATH itself gets a second name, so that it exists all the time. What
 * cannot be moved is not worth losing a checkpoint for. */
static void move_older(const char *path, guint keep)
{
    for (guint i = keep; i > 1; i--) {
        g_autofree char *from = older_name(path, i - 1), *to = older_name(path, i);
        if (rename(from, to) && errno != ENOENT)
            g_printerr("warning: cannot rename %s to %s: %s\n", from, to, g_strerror(errno));
    }
    if (!keep || access(path, F_OK))
        return;
    g_autofree char *first = older_name(path, 1);
    unlink(first);
    if (link(path, first) && rename(path, first))
        g_printerr("warning: cannot keep %s as %s: %s\n", path, first, g_strerror(errno));
}

/* Some file systems cannot sync a folder and say so; nothing more can be done there. */
static gboolean sync_folder(const char *path, GError **error)
{
    g_autofree char *folder = g_path_get_dirname(path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    gboolean ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    if (!ok)
        fault(error, "cannot sync the folder %s: %s", folder, g_strerror(errno));
    if (fd >= 0)
        close(fd);
    return ok;
}

gboolean flow_checkpoint_writer_close(FlowCheckpointWriter *writer, guint keep, GError **error)
{
    gboolean ok = finish_file(writer, error);
    if (ok) {
        move_older(writer->path, keep);
        ok = rename(writer->temporary, writer->path) == 0;
        if (!ok)
            fault(error, "cannot rename %s to %s: %s", writer->temporary, writer->path, g_strerror(errno));
    }
    if (ok) {
        close(writer->fd);
        writer->fd = -1;
        ok = sync_folder(writer->path, error);
    }
    flow_checkpoint_writer_drop(writer);
    return ok;
}

/* -- reading ------------------------------------------------------------------------ */

typedef struct {
    char *name;
    gsize offset, length;
} Part;

struct FlowCheckpointFile {
    GBytes *bytes;
    GArray *parts; /* Part */
};

static void part_clear(gpointer p)
{
    g_free(((Part *)p)->name);
}

static gboolean read_parts(FlowCheckpointFile *file, const guint8 *p, gsize size, guint32 n, GError **error)
{
    gsize at = HEADER;
    for (guint32 i = 0; i < n; i++) {
        if (size - at < 12)
            return fault(error, "damaged: part %u is missing", i);
        guint32 length = get_u32(p + at);
        guint64 bytes = get_u64(p + at + 4);
        at += 12;
        gsize begin = at + length + padding(at + length);
        if (length == 0 || length >= MAX_NAME || begin > size || bytes > size - begin)
            return fault(error, "damaged: part %u does not fit into the file", i);
        Part part = {g_strndup((const char *)p + at, length), begin, bytes};
        g_array_append_val(file->parts, part);
        at = begin + bytes;
    }
    return at == size || fault(error, "damaged: %zu bytes are left over", size - at);
}

static gboolean verify(FlowCheckpointFile *file, GError **error)
{
    gsize size;
    const guint8 *p = g_bytes_get_data(file->bytes, &size);
    XXH128_canonical_t hash;
    if (size < 8 || memcmp(p, magic, 8))
        return fault(error, "not a checkpoint of loraflow");
    if (size < HEADER)
        return fault(error, "damaged: it is cut short");
    if (get_u32(p + 8) != VERSION)
        return fault(error, "of format %u, this loraflow reads format %d", get_u32(p + 8), VERSION);
    if (get_u64(p + 16) != size - HEADER)
        return fault(error, "damaged: it should have %" G_GUINT64_FORMAT " bytes and has %zu",
                     get_u64(p + 16) + HEADER, size);
    XXH128_canonicalFromHash(&hash, XXH3_128bits(p + HEADER, size - HEADER));
    if (memcmp(hash.digest, p + 24, 16))
        return fault(error, "damaged: the checksum does not match");
    return read_parts(file, p, size, get_u32(p + 12), error);
}

void flow_checkpoint_file_free(FlowCheckpointFile *file)
{
    if (!file)
        return;
    g_bytes_unref(file->bytes);
    g_array_unref(file->parts);
    g_free(file);
}

FlowCheckpointFile *flow_checkpoint_file_open(const char *path, GError **error)
{
    g_autoptr(GMappedFile) mapped = NULL;
    if (g_file_test(path, G_FILE_TEST_IS_DIR)) {
        fault(error, "it is a folder");
        return NULL;
    }
    if (!(mapped = g_mapped_file_new(path, FALSE, error)))
        return NULL;
    FlowCheckpointFile *file = g_new0(FlowCheckpointFile, 1);
    file->bytes = g_mapped_file_get_bytes(mapped);
    file->parts = g_array_new(FALSE, TRUE, sizeof(Part));
    g_array_set_clear_func(file->parts, part_clear);
    if (!verify(file, error))
        g_clear_pointer(&file, flow_checkpoint_file_free);
    return file;
}

GBytes *flow_checkpoint_file_part(FlowCheckpointFile *file, const char *name)
{
    for (guint i = 0; i < file->parts->len; i++) {
        const Part *part = &g_array_index(file->parts, Part, i);
        if (g_str_equal(part->name, name))
            return g_bytes_new_from_bytes(file->bytes, part->offset, part->length);
    }
    return NULL;
}

guint flow_checkpoint_file_parts(const FlowCheckpointFile *file)
{
    return file->parts->len;
}

const char *flow_checkpoint_file_name(const FlowCheckpointFile *file, guint i)
{
    return g_array_index(file->parts, Part, i).name;
}
