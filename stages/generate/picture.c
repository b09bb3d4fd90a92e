/* Pictures that cost about what photographs cost: smooth gradients, edges, and noise that JPEG has to keep.
 */
#include "stages/generate/values.h"
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

enum { QUALITY = 90, NOISE = 24 };

guint8 *generate_picture(gint64 width, gint64 height, guint64 key)
{
    guint8 *rgb = g_malloc((gsize)(width * height) * 3);
    guint32 r[4], noise[4];
    flow_random_block(key, 0, r);
    gint64 edge_x = r[0] % width, edge_y = r[1] % height;
    for (gint64 y = 0; y < height; y++)
        for (gint64 x = 0; x < width; x++) {
            guint8 *p = rgb + (y * width + x) * 3;
            if (x % 4 == 0)
                flow_random_block(key, (guint64)(1 + (y * width + x) / 4), noise);
            gint64 grain = noise[x % 4] % NOISE, side = (x > edge_x) != (y > edge_y) ? 60 : 0;
            p[0] = (guint8)(side + x * 160 / width + grain);
            p[1] = (guint8)(side + y * 160 / height + grain);
            p[2] = (guint8)(side + (x + y) * 160 / (width + height) + grain);
        }
    return rgb;
}

/* libjpeg's own handler leaves the program. Writing to memory has no error but a lack of it. */
static void failed(j_common_ptr c)
{
    char text[JMSG_LENGTH_MAX];
    c->err->format_message(c, text);
    g_error("making a JPEG file: %s", text);
}

GBytes *generate_jpeg(const guint8 *rgb, gint64 width, gint64 height)
{
    struct jpeg_compress_struct c = {0};
    struct jpeg_error_mgr errors;
    guchar *data = NULL;
    gulong len = 0;
    c.err = jpeg_std_error(&errors);
    errors.error_exit = failed;
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &data, &len);
    c.image_width = (JDIMENSION)width;
    c.image_height = (JDIMENSION)height;
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, QUALITY, TRUE);
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < c.image_height) {
        JSAMPROW row = (JSAMPROW)(rgb + (gsize)c.next_scanline * (gsize)width * 3);
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    return g_bytes_new_with_free_func(data, len, free, data);
}
