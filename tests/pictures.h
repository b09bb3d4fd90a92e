/* Pictures made in memory for tests: PNG chunk by chunk (also wrong ones), JPEG through libjpeg with the
 * rare codings. Tests that include this link libjpeg and zlib. */
#ifndef TESTS_PICTURES_H
#define TESTS_PICTURES_H
#include <glib.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <zlib.h>

/* -- bytes ------------------------------------------------------------------------- */

static inline void put32(GByteArray *out, guint32 v)
{
    guint8 b[4] = {(guint8)(v >> 24), (guint8)(v >> 16), (guint8)(v >> 8), (guint8)v};
    g_byte_array_append(out, b, 4);
}

static inline GByteArray *from_hex(const char *hex)
{
    GByteArray *out = g_byte_array_new();
    for (; hex[0] && hex[1]; hex += 2) {
        guint8 b = (guint8)(g_ascii_xdigit_value(hex[0]) << 4 | g_ascii_xdigit_value(hex[1]));
        g_byte_array_append(out, &b, 1);
    }
    return out;
}

/* A copy of the first n bytes, or of all but the last -n. */
static inline GByteArray *cut(const GByteArray *in, gssize n)
{
    GByteArray *out = g_byte_array_new();
    g_byte_array_append(out, in->data, n >= 0 ? MIN((guint)n, in->len) : in->len - (guint)-n);
    return out;
}

static inline GByteArray *with_tail(const GByteArray *in, const void *tail, guint n)
{
    GByteArray *out = cut(in, in->len);
    g_byte_array_append(out, tail, n);
    return out;
}

/* Position of a byte string, from the start; -1 if absent. */
static inline gssize find_bytes(const GByteArray *in, const char *bytes, guint n)
{
    const guint8 *p = memmem(in->data, in->len, bytes, n);
    return p ? p - in->data : -1;
}

/* -- PNG --------------------------------------------------------------------------- */

static inline void png_chunk(GByteArray *out, const char *type, const guint8 *data, guint n)
{
    put32(out, n);
    guint start = out->len;
    g_byte_array_append(out, (const guint8 *)type, 4);
    if (n)
        g_byte_array_append(out, data, n);
    put32(out, (guint32)crc32(0, out->data + start, 4 + n));
}

static inline void png_bit_row(GByteArray *raw, const GByteArray *pixels, guint bits, guint y, guint w,
                               guint x0, guint dx)
{
    guint64 all = (guint64)pixels->len * 8 / bits;
    guint8 zero = 0, acc = 0;
    guint filled = 0;

    g_byte_array_append(raw, &zero, 1);
    for (guint x = x0; x < w; x += dx)
        for (guint b = 0; b < bits; b++) {
            guint64 at = ((guint64)y * w + x) % all * bits + b;
            acc = (guint8)(acc << 1 | (pixels->data[at / 8] >> (7 - at % 8) & 1));
            if (++filled == 8) {
                g_byte_array_append(raw, &acc, 1);
                filled = 0, acc = 0;
            }
        }
    if (filled) {
        acc = (guint8)(acc << (8 - filled));
        g_byte_array_append(raw, &acc, 1);
    }
}

/* Pixels cycle through `hex`. `chunks` are "TYPE:HEX" texts that go before IDAT, ended by NULL. */
static inline GByteArray *make_png(guint w, guint h, guint depth, guint type, const char *hex,
                                   gboolean interlace, ...)
{
    static const guint channels[] = {1, 0, 3, 1, 2, 0, 4};
    static const guint adam7[7][4] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                      {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
    static const guint whole[1][4] = {{0, 0, 1, 1}};
    GByteArray *out = g_byte_array_new(), *raw = g_byte_array_new(), *pixels = from_hex(hex);
    guint8 head[5] = {(guint8)depth, (guint8)type, 0, 0, (guint8)interlace};
    GByteArray *ihdr = g_byte_array_new();

    g_byte_array_append(out, (const guint8 *)"\211PNG\r\n\032\n", 8);
    put32(ihdr, w);
    put32(ihdr, h);
    g_byte_array_append(ihdr, head, 5);
    png_chunk(out, "IHDR", ihdr->data, ihdr->len);
    va_list args;
    va_start(args, interlace);
    for (const char *c; (c = va_arg(args, const char *));) {
        GByteArray *data = from_hex(c + 5);
        char name[5] = {c[0], c[1], c[2], c[3], 0};
        png_chunk(out, name, data->data, data->len);
        g_byte_array_unref(data);
    }
    va_end(args);
    const guint(*pass)[4] = interlace ? adam7 : whole;
    for (int p = 0; p < (interlace ? 7 : 1); p++)
        for (guint y = pass[p][1]; y < h; y += pass[p][3])
            if (pass[p][0] < w)
                png_bit_row(raw, pixels, channels[type] * depth, y, w, pass[p][0], pass[p][2]);
    uLongf n = compressBound(raw->len);
    guint8 *z = g_malloc(n);
    compress2(z, &n, raw->data, raw->len, 9);
    png_chunk(out, "IDAT", z, (guint)n);
    png_chunk(out, "IEND", NULL, 0);
    g_free(z);
    g_byte_array_unref(raw);
    g_byte_array_unref(pixels);
    g_byte_array_unref(ihdr);
    return out;
}

/* -- JPEG -------------------------------------------------------------------------- */

typedef struct {
    gboolean progressive, arithmetic, grey, rgb;
    int restart; /* rows of blocks */
    int h2, v2;  /* 2 = chroma at half width, height */
    char ink;    /* 'a' CMYK with Adobe marker, 'y' YCCK with it, 'n' CMYK without */
    int quality; /* 0 = 95 */
} JpegMake;

/* `paint` gives the colour of (y, x): 3 bytes, or 4 as stored for ink. */
typedef void (*Paint)(int y, int x, int h, int w, const guint8 *colour, guint8 *out);

static inline void paint_solid(int y G_GNUC_UNUSED, int x G_GNUC_UNUSED, int h G_GNUC_UNUSED,
                               int w G_GNUC_UNUSED, const guint8 *colour, guint8 *out)
{
    memcpy(out, colour, 4);
}

/* Corners: red, green; blue, white. */
static inline void paint_quad(int y, int x, int h, int w, const guint8 *colour G_GNUC_UNUSED, guint8 *out)
{
    static const guint8 c[4][4] = {{255, 0, 0, 0}, {0, 255, 0, 0}, {0, 0, 255, 0}, {255, 255, 255, 0}};
    memcpy(out, c[(y >= h / 2) * 2 + (x >= w / 2)], 4);
}

/* The same incompressible picture every time. */
static inline void paint_noise(int y, int x, int h G_GNUC_UNUSED, int w, const guint8 *colour G_GNUC_UNUSED,
                               guint8 *out)
{
    guint32 v = ((guint32)y * (guint32)w + (guint32)x) * 2654435761u;
    v ^= v >> 15, v *= 2246822519u, v ^= v >> 13;
    out[0] = (guint8)v, out[1] = (guint8)(v >> 8), out[2] = (guint8)(v >> 16), out[3] = (guint8)(v >> 24);
}

static inline void paint_smooth(int y, int x, int h, int w, const guint8 *colour G_GNUC_UNUSED, guint8 *out)
{
    out[0] = (guint8)(255 * x / w), out[1] = (guint8)(255 * y / h),
    out[2] = (guint8)(128 + 100 * (x + y) / (w + h));
    out[3] = 0;
}

static inline GByteArray *make_jpeg(int w, int h, const JpegMake *make, Paint paint, const guint8 colour[4])
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    unsigned char *mem = NULL;
    unsigned long n = 0;
    guint8 *row = g_malloc((gsize)w * 4);
    int channels = make->ink ? 4 : 3;

    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &mem, &n);
    c.image_width = (JDIMENSION)w;
    c.image_height = (JDIMENSION)h;
    c.input_components = channels;
    c.in_color_space = make->ink ? JCS_CMYK : JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, make->quality ? make->quality : 95, TRUE);
    if (make->ink == 'y')
        jpeg_set_colorspace(&c, JCS_YCCK);
    if (make->rgb)
        jpeg_set_colorspace(&c, JCS_RGB);
    if (make->grey)
        jpeg_set_colorspace(&c, JCS_GRAYSCALE);
    for (int i = 0; i < c.num_components; i++)
        c.comp_info[i].h_samp_factor = c.comp_info[i].v_samp_factor = 1;
    if (!make->rgb && !make->ink && !make->grey) {
        c.comp_info[0].h_samp_factor = MAX(make->h2, 1);
        c.comp_info[0].v_samp_factor = MAX(make->v2, 1);
    }
    if (make->ink == 'n')
        c.write_Adobe_marker = FALSE;
    c.arith_code = make->arithmetic;
    c.restart_in_rows = make->restart;
    if (make->progressive)
        jpeg_simple_progression(&c);
    jpeg_start_compress(&c, TRUE);
    for (int y = 0; y < h; y++) {
        for (int x = 0; x < w; x++) {
            guint8 p[4];
            paint(y, x, h, w, colour, p);
            memcpy(row + x * channels, p, (gsize)channels);
        }
        JSAMPROW r = row;
        jpeg_write_scanlines(&c, &r, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    GByteArray *out = g_byte_array_new();
    g_byte_array_append(out, mem, (guint)n);
    free(mem);
    g_free(row);
    return out;
}

/* Puts a marker segment after SOI. */
static inline GByteArray *with_segment(const GByteArray *jpeg, guint8 marker, const void *data, guint n)
{
    guint8 head[4] = {0xff, marker, (guint8)((n + 2) >> 8), (guint8)(n + 2)};
    GByteArray *out = cut(jpeg, 2);
    g_byte_array_append(out, head, 4);
    g_byte_array_append(out, data, n);
    g_byte_array_append(out, jpeg->data + 2, jpeg->len - 2);
    return out;
}

/* An APP1 with nothing but an orientation; `little` = Intel byte order. */
static inline GByteArray *with_orientation(const GByteArray *jpeg, guint8 orientation, gboolean little)
{
    guint8 big_endian[32] = "Exif\0\0MM\0*\0\0\0\10\0\1\1\22\0\3\0\0\0\1\0";
    guint8 little_endian[32] = "Exif\0\0II*\0\10\0\0\0\1\0\22\1\3\0\1\0\0\0";
    big_endian[25] = orientation;
    little_endian[24] = orientation;
    return with_segment(jpeg, 0xe1, little ? little_endian : big_endian, 32);
}

#endif
