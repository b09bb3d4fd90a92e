/* A data set is other people's: names may be pipes, devices, links to nowhere, or deeper than PATH_MAX,
 * and files may change while they are used. Every open goes through here. */
#include "core/image/file.h"

#include "core/flow/status.h"
#include "core/image/picture.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY };

/* Component by component from the root (or the working folder). */
static int open_deep(const char *path, int flags)
{
    g_auto(GStrv) parts = g_strsplit(path, "/", -1);
    int at = open(path[0] == '/' ? "/" : ".", FLAGS | O_DIRECTORY);

    for (guint i = 0; at >= 0 && parts[i]; i++) {
        if (!*parts[i])
            continue;
        gboolean last = !parts[i + 1];
        int next = openat(at, parts[i], FLAGS | (last ? flags : O_DIRECTORY));
        int kept = errno;
        close(at);
        errno = kept;
        at = next;
    }
    return at;
}

int image_file_open_raw(const char *path, int flags)
{
    int fd = open(path, FLAGS | flags);
    if (fd < 0 && errno == ENAMETOOLONG && strlen(path) > NAME_MAX)
        fd = open_deep(path, flags);
    return fd;
}

static int refuse(int fd, const char *path, GError **error, const char *format, ...) G_GNUC_PRINTF(4, 5);
static int refuse(int fd, const char *path, GError **error, const char *format, ...)
{
    g_autofree char *name = image_printable(path);
    va_list args;

    va_start(args, format);
    g_autofree char *what = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, "%s %s", name, what);
    if (fd >= 0)
        close(fd);
    return -1;
}

int image_file_open(const char *path, struct stat *st, GError **error)
{
    int fd = image_file_open_raw(path, 0);

    if (fd < 0)
        return refuse(-1, path, error, "cannot be opened: %s", g_strerror(errno));
    if (fstat(fd, st) < 0)
        return refuse(fd, path, error, "cannot be read: %s", g_strerror(errno));
    if (!S_ISREG(st->st_mode))
        return refuse(fd, path, error, "is not a regular file");
    return fd;
}

void image_file_id(const struct stat *st, gint64 id[IMAGE_ID])
{
    id[0] = (gint64)st->st_dev;
    id[1] = (gint64)st->st_ino;
    id[2] = (gint64)st->st_size;
    id[3] = (gint64)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
    id[4] = (gint64)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec;
}

int image_file_open_listed(const char *path, const gint64 *id, guint64 max_bytes, struct stat *st,
                           GError **error)
{
    int fd = image_file_open(path, st, error);
    gint64 now[IMAGE_ID];

    if (fd < 0)
        return -1;
    image_file_id(st, now);
    if (id && memcmp(id, now, sizeof now) != 0)
        return refuse(fd, path, error, "has changed since the pictures were listed");
    if ((guint64)st->st_size > max_bytes)
        return refuse(fd, path, error,
                      "has %" G_GINT64_FORMAT " bytes, more than max_bytes = %" G_GUINT64_FORMAT,
                      (gint64)st->st_size, max_bytes);
    return fd;
}

gboolean image_file_read(int fd, const char *path, void *buffer, gsize n, GError **error)
{
    gsize got = 0;

    while (got < n) {
        ssize_t r = pread(fd, (guint8 *)buffer + got, n - got, (off_t)got);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0) {
            refuse(-1, path, error, "cannot be read: %s", g_strerror(errno));
            return FALSE;
        }
        if (r == 0) {
            refuse(-1, path, error,
                   "ended after %" G_GSIZE_FORMAT " of %" G_GSIZE_FORMAT " bytes: it has changed", got, n);
            return FALSE;
        }
        got += (gsize)r;
    }
    return TRUE;
}
