/* A TIFF structure is a byte order mark, the offset of a directory, and directories of 12-byte
 * entries. Orientation is entry 0x0112 of the first one.
 *
 * Own lines and not libexif: that parses every tag, the maker notes and the thumbnail, with an allocation
 * each, to answer one question about each of 100 000 pictures. Every read here is checked against n, and a
 * directory that does not fit as a whole counts as damage. */
#include "core/image/exif.h"

enum { ORIENTATION = 0x0112, SHORT = 3, LONG = 4, ENTRY = 12 };

typedef struct {
    const guint8 *data;
    gsize n;
    gboolean big;
} Tiff;

/* Callers have checked that the bytes are there. */
static guint32 get16(const Tiff *t, gsize at)
{
    const guint8 *p = t->data + at;
    return t->big ? (guint32)p[0] << 8 | p[1] : (guint32)p[1] << 8 | p[0];
}

static guint32 get32(const Tiff *t, gsize at)
{
    return t->big ? get16(t, at) << 16 | get16(t, at + 2) : get16(t, at + 2) << 16 | get16(t, at);
}

int image_exif_orientation(const guint8 *tiff, gsize n)
{
    Tiff t = {tiff, n, FALSE};

    if (n < 8 || tiff[0] != tiff[1] || (tiff[0] != 'I' && tiff[0] != 'M'))
        return 1;
    t.big = tiff[0] == 'M';
    gsize at = get32(&t, 4);
    if (get16(&t, 2) != 42 || at > n - 2)
        return 1;
    gsize entries = get16(&t, at);
    at += 2;
    if (entries > (n - at) / ENTRY)
        return 1;
    for (; entries > 0; entries--, at += ENTRY) {
        guint32 type = get16(&t, at + 2);
        if (get16(&t, at) != ORIENTATION)
            continue;
        if ((type != SHORT && type != LONG) || get32(&t, at + 4) < 1)
            return 1;
        guint32 value = type == SHORT ? get16(&t, at + 8) : get32(&t, at + 8);
        return value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}
