/* What the two halves of the safetensors reader share: header parsing and file access. */
#ifndef MODEL_SAFE_FILE_H
#define MODEL_SAFE_FILE_H
#include "core/model/safetensors.h"

G_BEGIN_DECLS

struct SafeFile {
    char *path;
    int fd;
    guint64 size;
    guint8 *map;         /* whole file, NULL if it could not be mapped */
    SafeTensor *tensors; /* in order of their place in the file */
    guint n;
    GHashTable *index;    /* name -> SafeTensor */
    GHashTable *metadata; /* name -> value */
};

/* Fills size, tensors, index and metadata from fd, or tells what is wrong. */
gboolean safe__read_header(SafeFile *file, GError **error);
/* All n bytes or FALSE; then errno is 0 where the file ends too early. */
gboolean safe__read_at(int fd, void *dst, gsize n, guint64 offset);
/* A name for a message: printable, and short enough to be read. Returns new. */
char *safe__shown(const char *name);
/* Sets "path: message". Returns FALSE. */
gboolean safe__fail(GError **error, const char *path, int code, const char *format, ...) G_GNUC_PRINTF(4, 5);

G_END_DECLS
#endif
