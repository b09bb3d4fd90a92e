/* The parts that both decoders share: telling formats apart, limits, names. */
#include "core/image/picture.h"

#include "core/image/codec.h"
#include "core/image/orient.h"
#include <stdio.h>
#include <string.h>

/* Signatures of what people keep in picture folders; bytes at an offset, the first that fits wins. */
static const struct {
    const char *name;
    guint offset;
    const char *bytes;
    guint n;
} signatures[] = {
    {"JPEG", 0, "\377\330\377", 3},
    {"PNG", 0, "\211PNG\r\n\032\n", 8},
    {"WebP", 8, "WEBP", 4},
    {"GIF", 0, "GIF8", 4},
    {"AVIF", 4, "ftypavif", 8},
    {"AVIF", 4, "ftypavis", 8},
    {"HEIC", 4, "ftyphei", 7},
    {"HEIC", 4, "ftyphev", 7},
    {"HEIC", 4, "ftypmif1", 8},
    {"HEIC", 4, "ftypmsf1", 8},
    {"video or HEIC", 4, "ftyp", 4},
    {"JPEG XL", 0, "\377\012", 2},
    {"JPEG XL", 0, "\0\0\0\014JXL \r\n\207\n", 12},
    {"JPEG 2000", 0, "\0\0\0\014jP  \r\n\207\n", 12},
    {"JPEG 2000", 0, "\377\117\377\121", 4},
    {"TIFF", 0, "II*\0", 4},
    {"TIFF", 0, "MM\0*", 4},
    {"BMP", 0, "BM", 2},
    {"Photoshop", 0, "8BPS", 4},
    {"PDF", 0, "%PDF-", 5},
    {"an icon", 0, "\0\0\1\0", 4},
    {"a zip archive", 0, "PK\3\4", 4},
    {"HTML", 0, "<!DOCTYPE", 9},
    {"HTML", 0, "<!doctype", 9},
    {"HTML", 0, "<html", 5},
    {"HTML", 0, "<HTML", 5},
    {"SVG", 0, "<svg", 4},
    {"XML", 0, "<?xml", 5},
    {"a Git LFS pointer (run git lfs pull)", 0, "version https://git-lfs", 23},
};

ImageFormat image_format(const guint8 *head, gsize n, const char **name)
{
    for (guint i = 0; i < G_N_ELEMENTS(signatures); i++)
        if (signatures[i].offset + signatures[i].n <= n &&
            memcmp(head + signatures[i].offset, signatures[i].bytes, signatures[i].n) == 0) {
            *name = signatures[i].name;
            return i == 0 ? IMAGE_JPEG : i == 1 ? IMAGE_PNG : IMAGE_OTHER;
        }
    *name = NULL;
    return IMAGE_OTHER;
}

static void not_a_picture(const char *name, const guint8 *head, gsize n, const char *format, GError **error)
{
    if (n == 0)
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, "%s is an empty file", name);
    else if (format)
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM, "%s is %s, not JPEG or PNG", name,
                    format);
    else if (n < 8)
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "%s is not JPEG or PNG: it has only %" G_GSIZE_FORMAT " bytes", name, n);
    else
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "%s is not JPEG or PNG: it starts with %02x %02x %02x %02x", name, head[0], head[1],
                    head[2], head[3]);
}

gboolean image_probe(const ImageSource *source, const char *name, guint64 max_pixels, ImageInfo *info,
                     GError **error)
{
    guint8 head[IMAGE_HEAD];
    const char *format;
    gsize n = image_source_read(source, 0, head, sizeof head);

    *info = (ImageInfo){.format = image_format(head, n, &format), .orientation = 1};
    if (info->format == IMAGE_OTHER) {
        not_a_picture(name, head, n, format, error);
        return FALSE;
    }
    if (!(info->format == IMAGE_JPEG ? image_jpeg_probe : image_png_probe)(source, name, info, error))
        return FALSE;
    guint64 pixels = (guint64)info->height * (guint64)info->width;
    if (pixels > max_pixels) {
        g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_ITEM,
                    "%s is %dx%d = %" G_GUINT64_FORMAT " pixels, more than max_pixels = %" G_GUINT64_FORMAT,
                    name, info->width, info->height, pixels, max_pixels);
        return FALSE;
    }
    if (image_orient_swaps(info->orientation)) {
        gint32 height = info->height;
        info->height = info->width;
        info->width = height;
    }
    return TRUE;
}

FlowStatus image_decode(const ImageSource *source, const char *name, const ImageRequest *request,
                        ImagePicture *picture, GError **error)
{
    *picture = (ImagePicture){.pixels = NULL};
    if (!image_probe(source, name, request->max_pixels, &picture->info, error))
        return FLOW_SKIP;
    return (picture->info.format == IMAGE_JPEG ? image_jpeg_decode : image_png_decode)(source, name, request,
                                                                                       picture, error);
}

gboolean image_parse_colour(const char *text, guint8 rgb[3], GError **error)
{
    static const struct {
        const char *name;
        guint8 value;
    } names[] = {{"white", 255}, {"black", 0}, {"grey", 128}, {"gray", 128}};
    unsigned r, g, b;
    int end = 0;

    for (guint i = 0; i < G_N_ELEMENTS(names); i++)
        if (g_ascii_strcasecmp(text, names[i].name) == 0) {
            memset(rgb, names[i].value, 3);
            return TRUE;
        }
    gboolean hex = strlen(text) == 7 && strspn(text + 1, "0123456789abcdefABCDEF") == 6 &&
                   sscanf(text, "#%2x%2x%2x%n", &r, &g, &b, &end) == 3;
    if (!hex)
        end = 0;
    if (hex || sscanf(text, "%3u , %3u , %3u%n", &r, &g, &b, &end) == 3)
        if (end > 0 && text[end] == '\0' && MAX(MAX(r, g), b) <= 255) {
            rgb[0] = (guint8)r, rgb[1] = (guint8)g, rgb[2] = (guint8)b;
            return TRUE;
        }
    g_set_error(error, FLOW_STAGE_ERROR, FLOW_STAGE_ERROR_PARAM,
                "'%s' is no colour: use white, black, grey, #rrggbb or r,g,b", text);
    return FALSE;
}

char *image_printable(const char *name)
{
    GString *out = g_string_new(NULL);
    const char *p = name;

    while (*p) {
        gunichar c = g_utf8_get_char_validated(p, -1);
        gboolean bad = c == (gunichar)-1 || c == (gunichar)-2;
        if (bad || g_unichar_iscntrl(c))
            g_string_append_printf(out, "\\x%02x", bad ? (guint8)*p : c);
        else
            g_string_append_unichar(out, c);
        p = bad ? p + 1 : g_utf8_next_char(p);
    }
    return g_string_free(out, FALSE);
}
