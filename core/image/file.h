/* Opening the files of a data set: regular files only, never for writing, paths of any length. */
#ifndef IMAGE_FILE_H
#define IMAGE_FILE_H
#include "core/image/source.h"
#include <sys/stat.h>

G_BEGIN_DECLS

enum { IMAGE_ID = 5 };

/* open(2) for reading, also where the path is longer than PATH_MAX. `flags` are added (O_DIRECTORY).
 * Returns -1 with errno. [any] */
int image_file_open_raw(const char *path, int flags);
/* A regular file, open for reading, and its status; never waits for a pipe. -1 with an error that names the
 * file. [any] */
int image_file_open(const char *path, struct stat *st, GError **error);
/* The field "file_id": device, inode, size, mtime ns, ctime ns. */
void image_file_id(const struct stat *st, gint64 id[IMAGE_ID]);
/* As image_file_open, and it must still be the file that was listed as `id` (NULL = any) and have at most
 * `max_bytes`. [any] */
int image_file_open_listed(const char *path, const gint64 *id, guint64 max_bytes, struct stat *st,
                           GError **error);
/* All n bytes from an open file; FALSE with an error that names it if there are fewer. [any] */
gboolean image_file_read(int fd, const char *path, void *buffer, gsize n, GError **error);

G_END_DECLS
#endif
