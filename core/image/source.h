/* Where the bytes of a picture come from: memory, or an open file of which only the header is read. */
#ifndef IMAGE_SOURCE_H
#define IMAGE_SOURCE_H
#include <glib.h>

G_BEGIN_DECLS

typedef struct {
    const guint8 *data; /* borrowed; NULL = read from fd */
    int fd;
    guint64 size;
} ImageSource;

/* Copies up to n bytes from `offset`; returns how many there were (0 past the end or when reading fails: a
 * picture on a broken disk is a picture that ends early). [any] */
gsize image_source_read(const ImageSource *source, guint64 offset, void *buffer, gsize n);

G_END_DECLS
#endif
