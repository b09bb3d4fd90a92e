/* PNG: depths, colour types, transparency, interlacing, orientation, damage, and what metadata can do.
 * @label short
 * @link libjpeg zlib
 */
#include "core/image/picture.h"
#include "pictures.h"
#include <sys/resource.h>

static GByteArray *pixels;
static ImagePicture picture;

static guint8 *allocate(gpointer data G_GNUC_UNUSED, gint32 height, gint32 width)
{
    if (!pixels)
        pixels = g_byte_array_new();
    g_byte_array_set_size(pixels, (guint)(height * width * 3));
    return pixels->data;
}

static FlowStatus decode_with(const GByteArray *png, const ImageRequest *more, GError **error)
{
    g_autofree guint8 *exact = g_memdup2(png->data, png->len);
    ImageRequest request = *more;
    request.allocate = allocate;
    if (!request.max_pixels)
        request.max_pixels = IMAGE_MAX_PIXELS;
    g_free(picture.warning);
    return image_decode(&(ImageSource){exact, -1, png->len}, "a.png", &request, &picture, error);
}

/* Decodes over white, frees the file, and compares with the pixels written as hex. */
static void expect(GByteArray *png, const char *hex)
{
    g_autoptr(GError) error = NULL;
    FlowStatus status = decode_with(png, &(ImageRequest){.background = {255, 255, 255}}, &error);
    g_assert_no_error(error);
    g_assert_cmpint(status, ==, FLOW_OK);
    g_autoptr(GByteArray) want = from_hex(hex);
    g_assert_cmpmem(pixels->data, pixels->len, want->data, want->len);
    g_byte_array_unref(png);
}

static void expect_warning(const char *text)
{
    if (!picture.warning || !strstr(picture.warning, text) || !strstr(picture.warning, "a.png"))
        g_error("warning '%s' lacks '%s'", picture.warning, text);
}

static void refuse(GByteArray *png, const char *text)
{
    g_autoptr(GError) error = NULL;
    FlowStatus status = decode_with(png, &(ImageRequest){0}, &error);
    g_assert_cmpint(status, ==, FLOW_SKIP);
    if (!strstr(error->message, text) || !strstr(error->message, "a.png"))
        g_error("'%s' lacks '%s'", error->message, text);
    g_byte_array_unref(png);
}

static void test_types(void)
{
    expect(make_png(2, 1, 8, 2, "ff000000ff00", FALSE, NULL), "ff000000ff00");
    /* */
    expect(make_png(2, 1, 16, 0, "13f0feff", FALSE, NULL), "141414fefefe"); /* rounded, not cut */
    expect(make_png(2, 1, 16, 2, "13f0000000000000feffffff", FALSE, NULL), "14000000feff");
    /* */
    expect(make_png(8, 1, 1, 0, "aa", FALSE, NULL), "ffffff000000ffffff000000ffffff000000ffffff000000");
    expect(make_png(4, 1, 2, 0, "1b", FALSE, NULL), "000000555555aaaaaaffffff");
    expect(make_png(2, 1, 4, 0, "0f", FALSE, NULL), "000000ffffff");
    expect(make_png(3, 1, 4, 3, "0120", FALSE, "PLTE:ff000000ff000000ff", NULL), "ff000000ff000000ff");
    expect(make_png(1, 1, 8, 0, "40", FALSE, NULL), "404040");
}

static void test_transparency(void)
{
    /* */
    expect(make_png(2, 1, 8, 6, "ff00ff00ff000080", FALSE, NULL), "ffffffff7f7f");
    /* */
    expect(make_png(2, 1, 8, 4, "40ff8000", FALSE, NULL), "404040ffffff");
    expect(make_png(2, 1, 16, 6, "ffff0000ffff0000ffff00000000ffff", FALSE, NULL), "ffffffff0000");
    expect(make_png(2, 1, 8, 2, "ff000000ff00", FALSE, "tRNS:00ff00000000", NULL), "ffffff00ff00");
    expect(make_png(2, 1, 8, 0, "4080", FALSE, "tRNS:0040", NULL), "ffffff808080");
    expect(make_png(3, 1, 8, 3, "000102", FALSE, "PLTE:ff000000ff000000ff", "tRNS:ff00", NULL),
           "ff0000ffffff0000ff");
    /* another background; the file's own (bKGD) has no say */
    g_autoptr(GByteArray) png = make_png(2, 1, 8, 6, "ff00ff00ff000080", FALSE, "bKGD:00ff00ff00ff", NULL);
    decode_with(png, &(ImageRequest){0}, NULL);
    g_assert_cmpmem(pixels->data, 6, "\0\0\0\200\0\0", 6);
    decode_with(png, &(ImageRequest){.background = {10, 20, 30}}, NULL);
    g_assert_cmpmem(pixels->data, 6, "\12\24\36\205\12\17", 6);
}

static void test_interlaced(void)
{
    GString *hex = g_string_new(NULL);
    for (guint i = 0; i < 64; i++)
        g_string_append_printf(hex, "%04x%04x%04x%04x", i * 977 % 65536, i * 3571 % 65536, i * 7919 % 65536,
                               i * 1201 % 65536);
    static const guint kinds[][2] = {{16, 2}, {16, 6}, {8, 2}, {8, 6}, {8, 0},
                                     {16, 0}, {4, 0},  {1, 0}, {16, 4}};
    static const guint sizes[][2] = {{8, 8}, {13, 5}, {1, 1}, {3, 9}};
    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++)
        for (guint j = 0; j < G_N_ELEMENTS(sizes); j++) {
            g_autoptr(GByteArray) plain =
                make_png(sizes[j][0], sizes[j][1], kinds[i][0], kinds[i][1], hex->str, FALSE, NULL);
            g_autoptr(GByteArray) adam7 =
                make_png(sizes[j][0], sizes[j][1], kinds[i][0], kinds[i][1], hex->str, TRUE, NULL);
            g_autoptr(GError) error = NULL;
            decode_with(plain, &(ImageRequest){0}, &error);
            g_assert_no_error(error);
            g_autoptr(GByteArray) want = cut(pixels, pixels->len);
            /* */
            decode_with(adam7, &(ImageRequest){0}, &error);
            g_assert_no_error(error);
            g_assert_cmpmem(pixels->data, pixels->len, want->data, want->len);
        }
    g_string_free(hex, TRUE);
}

static void test_orientation(void)
{
    static const char *exif6 = "eXIf:4d4d002a00000008000101120003000000010006000000000000";
    /* */
    expect(make_png(4, 1, 8, 2, "ff0000000000", FALSE, exif6, NULL), "ff0000000000ff0000000000");
    g_assert_cmpint(picture.height, ==, 4);
    g_assert_cmpint(picture.width, ==, 1);
    expect(make_png(2, 2, 8, 6, "ff0000ff00ff00ff0000ffffffffffff", FALSE, exif6, NULL),
           "0000ffff0000ffffff00ff00");
    expect(make_png(2, 2, 8, 6, "ff0000ff00ff00ff0000ffffffffffff", TRUE, exif6, NULL),
           "0000ffff0000ffffff00ff00");
    expect(make_png(2, 1, 8, 2, "ff000000ff00", FALSE, "eXIf:4d4d", NULL), "ff000000ff00");
}

static void test_metadata(void)
{
    /* */
    expect(make_png(1, 1, 8, 2, "808080", FALSE, "gAMA:000186a0", NULL), "808080");
    expect(make_png(1, 1, 8, 2, "808080", FALSE, "iCCP:780000789c030000000001", NULL), "808080");
    expect(make_png(1, 1, 8, 2, "808080", FALSE, "sRGB:ff", "cHRM:00", "pHYs:", NULL), "808080");
    g_assert_null(picture.warning);
    /* */
    expect(make_png(1, 1, 8, 2, "00ff00", FALSE, "acTL:0000000200000000",
                    "fcTL:00000000000000010000000100000000000000000001000a0000", NULL),
           "00ff00");

    /* a text of 50 MB in 50 KB */
    guint8 *zeros = g_malloc0(50000000);
    uLongf n = compressBound(50000000);
    guint8 *z = g_malloc(n);
    compress2(z, &n, zeros, 50000000, 9);
    g_free(zeros);
    GString *text = g_string_new("zTXt:6b0000");
    for (uLongf i = 0; i < n; i++)
        g_string_append_printf(text, "%02x", z[i]);
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    expect(make_png(1, 1, 8, 2, "ff0000", FALSE, text->str, NULL), "ff0000");
    getrusage(RUSAGE_SELF, &after);
    /* */
    g_assert_cmpint(after.ru_maxrss - before.ru_maxrss, <, 20000);
    g_string_free(text, TRUE);
    g_free(z);
}

static void test_damage(void)
{
    GByteArray *ok = make_png(8, 8, 8, 2, "ff000000ff000000ff102030", FALSE, NULL);
    GByteArray *crc = cut(ok, ok->len);
    crc->data[crc->len - 16] ^= 1;
    /* */
    refuse(crc, "CRC error");
    /* */
    refuse(cut(ok, -24), "the file is cut short");
    for (guint n = 1; n + 16 < ok->len; n++)
        refuse(cut(ok, n), "a.png");
    expect(cut(ok, -12), "ff000000ff000000ff102030ff000000ff000000ff102030"
                         "ff000000ff000000ff102030ff000000ff000000ff102030"
                         "ff000000ff000000ff102030ff000000ff000000ff102030"
                         "ff000000ff000000ff102030ff000000ff000000ff102030"
                         "ff000000ff000000ff102030ff000000ff000000ff102030"
                         "ff000000ff000000ff102030ff000000ff000000ff102030"
                         "ff000000ff000000ff102030ff000000ff000000ff102030"
                         "ff000000ff000000ff102030ff000000ff000000ff102030");
    expect_warning("no end marker");
    g_byte_array_unref(ok);

    ok = make_png(1, 1, 8, 2, "0000ff", FALSE, "tEXt:6b0061", NULL);
    expect(with_tail(ok, "tail", 4), "0000ff");
    g_assert_null(picture.warning);
    GByteArray *text = cut(ok, ok->len);
    text->data[find_bytes(text, "tEXt", 4) + 5] ^= 1;
    expect(text, "0000ff"); /* only metadata is damaged */
    expect_warning("CRC error");
    g_byte_array_unref(ok);

    expect(make_png(3, 1, 8, 3, "000105", FALSE, "PLTE:ff000000ff00", NULL),
           "ff000000ff00000000"); /* 5 of 2 */
    refuse(make_png(3, 1, 8, 3, "000105", FALSE, NULL), "PLTE");
}

static void test_truncated(void)
{
    GString *hex = g_string_new(NULL);
    for (guint i = 0; i < 64 * 64; i++)
        g_string_append_printf(hex, "%06x", (i * 2654435761u) >> 8);
    g_autoptr(GByteArray) png = make_png(64, 64, 8, 2, hex->str, FALSE, NULL);
    g_autoptr(GByteArray) half = cut(png, png->len / 2);
    g_autoptr(GError) error = NULL;
    FlowStatus status =
        decode_with(half, &(ImageRequest){.truncated = TRUE, .background = {9, 8, 7}}, &error);
    g_assert_cmpint(status, ==, FLOW_OK);
    expect_warning("cut short");
    g_autoptr(GByteArray) want = from_hex(hex->str);
    g_assert_cmpmem(pixels->data, 64 * 3 * 20, want->data, 64 * 3 * 20);
    g_assert_cmpmem(pixels->data + 64 * 64 * 3 - 3, 3, "\11\10\7", 3);
    g_string_free(hex, TRUE);
}

static void patch_size(GByteArray *png, guint32 w, guint32 h)
{
    guint32 v[2] = {GUINT32_TO_BE(w), GUINT32_TO_BE(h)};
    memcpy(png->data + 16, v, 8);
    guint32 crc = GUINT32_TO_BE((guint32)crc32(0, png->data + 12, 17));
    memcpy(png->data + 29, &crc, 4);
}

static void test_refused(void)
{
    if (pixels)
        g_byte_array_set_size(pixels, 0);
    /* */
    refuse(make_png(0, 1, 8, 2, "ff0000", FALSE, NULL), "the header says 0x1 pixels");
    GByteArray *png = make_png(1, 1, 8, 2, "ff0000", FALSE, NULL);
    patch_size(png, G_MAXINT32, G_MAXINT32);
    refuse(png, "more than max_pixels");
    png = make_png(1, 1, 8, 2, "ff0000", FALSE, NULL);
    patch_size(png, 0x80000000u, 1);
    refuse(png, "outside 1..2147483647");
    png = make_png(1, 1, 8, 2, "ff0000", FALSE, NULL);
    patch_size(png, 20000, 20000);
    /* */
    refuse(png, "a.png is 20000x20000 = 400000000 pixels, more than max_pixels = 128000000");
    g_assert_cmpuint(pixels->len, ==, 0); /* nothing was asked for */
    png = make_png(1, 1, 8, 2, "ff0000", FALSE, NULL);
    png->data[24] = 3; /* depth */
    patch_size(png, 1, 1);
    refuse(png, "Invalid IHDR");
    GByteArray *bare = g_byte_array_new();
    g_byte_array_append(bare, (const guint8 *)"\211PNG\r\n\032\n", 8);
    refuse(bare, "header");
    /* chunks without end before the picture */
    GByteArray *many = make_png(1, 1, 8, 2, "ff0000", FALSE, NULL), *out = cut(many, 33);
    for (int i = 0; i < 5000; i++)
        png_chunk(out, "teSt", NULL, 0);
    g_byte_array_append(out, many->data + 33, many->len - 33);
    g_byte_array_unref(many);
    refuse(out, "more than 4096 chunks");
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/png/types", test_types);
    g_test_add_func("/png/transparency", test_transparency);
    g_test_add_func("/png/interlaced", test_interlaced);
    g_test_add_func("/png/orientation", test_orientation);
    g_test_add_func("/png/metadata", test_metadata);
    g_test_add_func("/png/damage", test_damage);
    g_test_add_func("/png/truncated", test_truncated);
    g_test_add_func("/png/refused", test_refused);
    int rc = g_test_run();
    g_free(picture.warning);
    g_byte_array_unref(pixels);
    return rc;
}
