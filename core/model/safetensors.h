/* safetensors files (spec: huggingface/safetensors README): mapped reader with every check, atomic writer. */
#ifndef MODEL_SAFETENSORS_H
#define MODEL_SAFETENSORS_H
#include "kernels/type.h"

G_BEGIN_DECLS

#define MODEL_ERROR model_error_quark()
GQuark model_error_quark(void);
enum { MODEL_ERROR_FORMAT, MODEL_ERROR_MISSING, MODEL_ERROR_SHAPE, MODEL_ERROR_IO, MODEL_ERROR_UNSUPPORTED };

typedef struct {
    char *name;
    char *dtype; /* as in the file: "F16", "F8_E4M3", ... */
    int type;    /* NetType, or -1 where we cannot read it */
    guint ndim;
    gint64 shape[8];
    guint64 offset; /* from the start of the file */
    guint64 nbytes;
    gint64 count; /* elements */
} SafeTensor;

typedef struct SafeFile SafeFile;

/* Maps and checks the whole header (lengths, JSON, duplicates, offsets without holes or overlap, shapes,
 * overflow, end of file). The error says what the file is where that can be told (HTML page, Git LFS
 * pointer, pickle, empty, cut short). */
SafeFile *safe_open(const char *path, GError **error);
void safe_close(SafeFile *file); /* NULL is fine */
const char *safe_path(const SafeFile *file);
/* Tensors in order of their place in the file; borrowed. */
const SafeTensor *safe_tensors(const SafeFile *file, guint *n);
const SafeTensor *safe_find(const SafeFile *file, const char *name);
/* The string map `__metadata__`: borrowed, may be empty. */
GHashTable *safe_metadata(const SafeFile *file);
/* Mapped bytes: may be unaligned. Touching them after the file was cut short would be SIGBUS, so
 * safe_read() is the way to copy. */
const void *safe_data(const SafeFile *file, const SafeTensor *tensor);
/* Copies and converts to f32, bf16 or f16 with pread (nothing stays mapped in memory);
 * `dst` has room for count elements. */
gboolean safe_read(SafeFile *file, const SafeTensor *tensor, void *dst, NetType type, GError **error);

/* The same for `count` elements from element `first` on. */
gboolean safe_read_range(SafeFile *file, const SafeTensor *tensor, gint64 first, gint64 count, void *dst,
                         NetType type, GError **error);
/* n bytes as they are, from byte `at` of the tensor on. */
gboolean safe_read_bytes(const SafeFile *file, const SafeTensor *tensor, guint64 at, void *dst, gsize n,
                         GError **error);

typedef struct {
    const char *name;
    NetType type; /* what is written */
    guint ndim;
    gint64 shape[8];
    const void *data; /* of `source` type */
    NetType source;
} SafeEntry;

typedef struct {
    guint64 overflowed; /* finite values beyond the type's range, stored as its largest number */
    guint64 flushed;    /* non-zero that became 0 */
    guint64 nonzero;    /* non-zero in all */
} SafeStats;

/* Order, padding and JSON as the reference writer; temporary file, fsync, rename, fsync of the folder.
 * metadata: string -> string, may be NULL; its order is sorted by key. stats may be NULL, else is set. */
gboolean safe_write(const char *path, const SafeEntry *entries, guint n, GHashTable *metadata,
                    SafeStats *stats, GError **error);
/* SHA-256 (hex, new) of the data part that safe_write would write, and of the bytes at 0x100000..0x10FFFF
 * (first 8). */
gboolean safe_hashes(const SafeEntry *entries, guint n, GHashTable *metadata, char **data_sha256,
                     char **legacy, GError **error);

G_END_DECLS
#endif
