/* JPEG: every coding that libjpeg writes, ink, orientation, what is harmless, what is not, and bombs.
 * @label short
 * @link libjpeg zlib
 */
#include "core/image/picture.h"
#include "pictures.h"
#include <unistd.h>

typedef struct {
    GByteArray *pixels;
    int polls, stop_at;
} Sink;

static guint8 *allocate(gpointer data, gint32 height, gint32 width)
{
    Sink *sink = data;
    g_byte_array_set_size(sink->pixels, (guint)(height * width * 3));
    return sink->pixels->data;
}

static gboolean cancelled(gpointer data)
{
    Sink *sink = data;
    return ++sink->polls == sink->stop_at;
}

static Sink sink;
static ImagePicture picture;

/* From a copy of exactly the right length: an overread is seen by the address sanitizer. */
static FlowStatus decode_with(const GByteArray *jpeg, const ImageRequest *more, GError **error)
{
    g_autofree guint8 *exact = g_memdup2(jpeg->data, jpeg->len);
    ImageSource source = {exact, -1, jpeg->len};
    ImageRequest request = *more;
    request.allocate = allocate;
    request.cancelled = sink.stop_at ? cancelled : NULL;
    request.data = &sink;
    if (!request.max_pixels)
        request.max_pixels = IMAGE_MAX_PIXELS;
    if (sink.pixels)
        g_byte_array_set_size(sink.pixels, 0);
    else
        sink.pixels = g_byte_array_new();
    g_free(picture.warning);
    return image_decode(&source, "a.jpg", &request, &picture, error);
}

static void decode(const GByteArray *jpeg)
{
    g_autoptr(GError) error = NULL;
    FlowStatus status = decode_with(jpeg, &(ImageRequest){0}, &error);
    g_assert_no_error(error);
    g_assert_cmpint(status, ==, FLOW_OK);
}

static void refuse(const GByteArray *jpeg, const char *text)
{
    g_autoptr(GError) error = NULL;
    FlowStatus status = decode_with(jpeg, &(ImageRequest){0}, &error);
    g_assert_cmpint(status, ==, FLOW_SKIP);
    if (!strstr(error->message, text) || !strstr(error->message, "a.jpg"))
        g_error("'%s' lacks '%s'", error->message, text);
}

static void refuse_and_free(GByteArray *jpeg, const char *text)
{
    refuse(jpeg, text);
    g_byte_array_unref(jpeg);
}

static void expect_pixel(int y, int x, int r, int g, int b, int tolerance)
{
    const guint8 *p = sink.pixels->data + (y * picture.width + x) * 3;
    if (abs(p[0] - r) > tolerance || abs(p[1] - g) > tolerance || abs(p[2] - b) > tolerance)
        g_error("pixel %d,%d is %d,%d,%d, not %d,%d,%d", y, x, p[0], p[1], p[2], r, g, b);
}

static void expect_all(int r, int g, int b, int tolerance)
{
    for (int y = 0; y < picture.height; y++)
        for (int x = 0; x < picture.width; x++)
            expect_pixel(y, x, r, g, b, tolerance);
}

static GByteArray *solid(int w, int h, JpegMake make, guint8 r, guint8 g, guint8 b)
{
    return make_jpeg(w, h, &make, paint_solid, (guint8[]){r, g, b, 0});
}

static GByteArray *noise(JpegMake make)
{
    return make_jpeg(64, 64, &make, paint_noise, NULL);
}

/* Stored ink in per cent, as a program for printing would write it. */
static GByteArray *ink(char kind, int c, int m, int y, int k)
{
    int v[4] = {c, m, y, k};
    guint8 stored[4];
    for (int i = 0; i < 4; i++)
        stored[i] = (guint8)(kind == 'n' ? v[i] * 255 / 100 : 255 - v[i] * 255 / 100);
    return make_jpeg(16, 16, &(JpegMake){.ink = kind, .quality = 100}, paint_solid, stored);
}

static void test_codings(void)
{
    static const JpegMake makes[] = {
        {0},
        {.progressive = TRUE},
        {.restart = 1},
        {.arithmetic = TRUE},
        {.arithmetic = TRUE, .progressive = TRUE},
        {.h2 = 2, .v2 = 1},
        {.h2 = 2, .v2 = 2},
        {.h2 = 2, .v2 = 2, .progressive = TRUE},
        {.h2 = 1, .v2 = 2},
    };
    static const int sizes[][2] = {{64, 64}, {17, 33}, {1, 1}};
    for (guint i = 0; i < G_N_ELEMENTS(makes); i++)
        for (guint j = 0; j < G_N_ELEMENTS(sizes); j++) {
            g_autoptr(GByteArray) jpeg = solid(sizes[j][0], sizes[j][1], makes[i], 10, 200, 30);
            decode(jpeg);
            g_assert_cmpint(picture.width, ==, sizes[j][0]);
            g_assert_cmpint(picture.height, ==, sizes[j][1]);
            /* */
            expect_all(10, 200, 30, 2);
            g_assert_null(picture.warning);
        }
    g_autoptr(GByteArray) grey = solid(17, 33, (JpegMake){.grey = TRUE}, 77, 77, 77);
    decode(grey);
    expect_all(77, 77, 77, 1);
    g_autoptr(GByteArray) rgb = solid(16, 16, (JpegMake){.rgb = TRUE}, 255, 0, 0);
    /* */
    decode(rgb); /* no colour transform: exact */
    expect_all(255, 0, 0, 0);
}

static void test_ink(void)
{
    static const struct {
        char kind;
        int ink[4], rgb[3];
    } cases[] = {{'a', {0, 100, 100, 0}, {255, 0, 0}},  {'y', {0, 100, 100, 0}, {255, 0, 0}},
                 {'n', {0, 100, 100, 0}, {255, 0, 0}},  {'a', {0, 0, 0, 100}, {0, 0, 0}},
                 {'n', {0, 0, 0, 0}, {255, 255, 255}},  {'a', {100, 0, 0, 50}, {0, 128, 128}},
                 {'y', {100, 0, 0, 50}, {0, 128, 128}}, {'n', {100, 0, 0, 50}, {0, 128, 128}}};
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        const int *v = cases[i].ink, *c = cases[i].rgb;
        g_autoptr(GByteArray) jpeg = ink(cases[i].kind, v[0], v[1], v[2], v[3]);
        /* */
        decode(jpeg);
        expect_all(c[0], c[1], c[2], 2);
    }
}

static void test_orientation(void)
{
    /* the colours seen at top left, top right, bottom left of the quad picture for each orientation */
    static const char *seen[] = {"", "RGB", "GRW", "WBG", "BWR", "RBG", "BRW", "WGB", "GWR"};
    static const struct {
        char name;
        int rgb[3];
    } colours[] = {{'R', {255, 0, 0}}, {'G', {0, 255, 0}}, {'B', {0, 0, 255}}, {'W', {255, 255, 255}}};
    g_autoptr(GByteArray) quad = make_jpeg(64, 32, &(JpegMake){0}, paint_quad, NULL);

    for (int o = 1; o <= 8; o++)
        for (int little = 0; little < 2; little++) {
            g_autoptr(GByteArray) jpeg = with_orientation(quad, (guint8)o, little);
            decode(jpeg);
            g_assert_cmpint(picture.height, ==, o >= 5 ? 64 : 32);
            g_assert_cmpint(picture.width, ==, o >= 5 ? 32 : 64);
            g_assert_cmpint(picture.info.height, ==, picture.height);
            int at[3][2] = {{3, 3}, {3, picture.width - 4}, {picture.height - 4, 3}};
            for (int k = 0; k < 3; k++)
                for (guint i = 0; i < G_N_ELEMENTS(colours); i++)
                    if (colours[i].name == seen[o][k])
                        expect_pixel(at[k][0], at[k][1], colours[i].rgb[0], colours[i].rgb[1],
                                     colours[i].rgb[2], 8);
        }
    /* */
    static const guint8 odd[] = {0, 9, 255};
    for (guint i = 0; i < G_N_ELEMENTS(odd); i++) {
        g_autoptr(GByteArray) jpeg = with_orientation(quad, odd[i], FALSE);
        decode(jpeg);
        g_assert_cmpint(picture.width, ==, 64);
    }
    g_autoptr(GByteArray) turned = with_orientation(quad, 6, FALSE);
    static const char xmp[] = "http://ns.adobe.com/xap/1.0/\0<x/>";
    g_autoptr(GByteArray) after_xmp = with_segment(turned, 0xe1, xmp, sizeof xmp);
    decode(after_xmp);
    g_assert_cmpint(picture.width, ==, 32);
    g_autoptr(GByteArray) stub = with_segment(quad, 0xe1, "Exif\0", 6);
    decode(stub);
    g_assert_cmpint(picture.width, ==, 64);
    g_autoptr(GByteArray) tiny = with_segment(quad, 0xe1, "E", 1);
    decode(tiny);
}

static void test_harmless(void)
{
    g_autoptr(GByteArray) jpeg = noise((JpegMake){.quality = 90});
    decode(jpeg);
    g_autoptr(GByteArray) want = cut(sink.pixels, sink.pixels->len);
    g_autoptr(GByteArray) body = cut(jpeg, -2);
    /* */
    GByteArray *variants[] = {cut(jpeg, -2), with_tail(jpeg, "junk", 4),
                              with_tail(body, "\0\0\0\0\377\331", 6)};
    for (guint i = 0; i < G_N_ELEMENTS(variants); i++) {
        decode(variants[i]);
        g_assert_cmpmem(sink.pixels->data, sink.pixels->len, want->data, want->len);
        g_byte_array_unref(variants[i]);
    }
    /* Samsung phones: spectral selection end of a sequential scan is not 63 */
    g_autoptr(GByteArray) samsung = cut(jpeg, jpeg->len);
    gssize sos = find_bytes(samsung, "\377\332", 2);
    samsung->data[sos + 4 + 1 + 2 * 3 + 1] = 0;
    decode(samsung);
    g_assert_cmpmem(sink.pixels->data, sink.pixels->len, want->data, want->len);
    g_assert_nonnull(strstr(picture.warning, "a.jpg"));
    /* without an end marker, in every coding */
    static const JpegMake makes[] = {
        {.progressive = TRUE}, {.restart = 1}, {.grey = TRUE}, {.arithmetic = TRUE}};
    for (guint i = 0; i < G_N_ELEMENTS(makes); i++) {
        g_autoptr(GByteArray) full = noise(makes[i]), open_end = cut(full, -2);
        decode(open_end);
    }
    g_autoptr(GByteArray) flat = solid(512, 512, (JpegMake){0}, 1, 2, 3), flat_cut = cut(flat, -2);
    decode(flat_cut); /* many rows in the last bytes */
}

static void test_damage(void)
{
    static const JpegMake makes[] = {{.quality = 90},
                                     {.progressive = TRUE},
                                     {.restart = 1},
                                     {.arithmetic = TRUE},
                                     {.arithmetic = TRUE, .progressive = TRUE}};
    for (guint i = 0; i < G_N_ELEMENTS(makes); i++) {
        g_autoptr(GByteArray) jpeg = noise(makes[i]), half = cut(jpeg, (gssize)jpeg->len / 2);
        refuse(half, "cut short");
        g_autoptr(GError) error = NULL;
        FlowStatus status = decode_with(half, &(ImageRequest){.truncated = TRUE}, &error);
        g_assert_no_error(error);
        g_assert_cmpint(status, ==, FLOW_OK);
        g_assert_nonnull(strstr(picture.warning, "a.jpg: the file is cut short"));
    }
    g_autoptr(GByteArray) plain = noise((JpegMake){.quality = 90});
    for (guint n = 0; n + 3 < plain->len; n += 7) /* no place to cut is a crash or a silent success */
        refuse_and_free(cut(plain, n), "a.jpg");
    /* a scan of a progressive picture is missing as a whole, the end marker is there */
    g_autoptr(GByteArray) progressive = noise((JpegMake){.progressive = TRUE});
    gssize first = find_bytes(progressive, "\377\332", 2);
    g_autoptr(GByteArray) head = cut(progressive, first);
    refuse(head, "the file ends before the picture begins");
    /* rubbish in the middle of the picture data */
    g_autoptr(GByteArray) rubbish = cut(plain, plain->len);
    for (guint k = 0; k < 64; k++)
        rubbish->data[plain->len / 2 + k] = (guint8)(k % 2 ? 0xd9 : 0xff);
    refuse(rubbish, "a.jpg");
}

static GByteArray *patched(const GByteArray *jpeg, guint at, const void *bytes, guint n)
{
    GByteArray *out = cut(jpeg, jpeg->len);
    memcpy(out->data + find_bytes(out, "\377\300", 2) + at, bytes, n);
    return out;
}

static void test_refused(void)
{
    g_autoptr(GByteArray) red = solid(16, 16, (JpegMake){0}, 255, 0, 0);
    /* */
    refuse_and_free(patched(red, 4, "\14", 1), "Unsupported JPEG data precision 12");
    refuse_and_free(patched(red, 0, "\377\303", 2), "SOF type 0xc3");
    /* */
    refuse_and_free(patched(red, 5, "\377\334\377\334", 4), "more than max_pixels = 128000000");
    refuse_and_free(patched(red, 5, "\377\377\377\377", 4), "Maximum supported image dimension is 65500");
    refuse_and_free(patched(red, 5, "\0\0", 2), "Empty JPEG image (DNL not supported)");
    g_assert_cmpuint(sink.pixels->len, ==, 0); /* nothing was asked for */
    /* */
    refuse_and_free(cut(red, 3), "the file ends before the picture begins");
    refuse_and_free(cut(red, 1), "is not JPEG or PNG: it has only 1 bytes");
    refuse_and_free(cut(red, 0), "is an empty file");
}

static void test_scans(void)
{
    g_autoptr(GByteArray) base =
        solid(200, 200, (JpegMake){.grey = TRUE, .progressive = TRUE}, 128, 128, 128);
    guint last = 0;
    for (guint i = 0; i + 1 < base->len; i++)
        if (base->data[i] == 0xff && base->data[i + 1] == 0xda)
            last = i;
    g_autoptr(GByteArray) bomb = cut(base, -2);
    for (int i = 0; i < 50000; i++)
        g_byte_array_append(bomb, base->data + last, base->len - last - 2);
    g_byte_array_append(bomb, (const guint8 *)"\377\331", 2);
    gint64 start = g_get_monotonic_time();
    /* */
    refuse(bomb, "more than 500 scans");
    g_assert_cmpint(g_get_monotonic_time() - start, <, 20 * G_USEC_PER_SEC);
    sink.stop_at = 40; /* stopped while it decodes, not after */
    sink.polls = 0;
    g_autoptr(GError) error = NULL;
    FlowStatus status = decode_with(bomb, &(ImageRequest){0}, &error);
    sink.stop_at = 0;
    g_assert_cmpint(status, ==, FLOW_CANCELLED);
    g_assert_no_error(error);
}

static void test_reduction(void)
{
    static const int cases[][4] = {{0, 0, 400, 300},     {300, 400, 400, 300}, {150, 200, 200, 150},
                                   {151, 200, 400, 300}, {30, 40, 50, 38},     {1, 1, 50, 38}};
    g_autoptr(GByteArray) jpeg = make_jpeg(400, 300, &(JpegMake){.h2 = 2, .v2 = 2}, paint_smooth, NULL);
    g_autoptr(GByteArray) turned = with_orientation(jpeg, 6, FALSE);
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        ImageRequest fit = {.fit_height = cases[i][0], .fit_width = cases[i][1]};
        decode_with(jpeg, &fit, &error);
        g_assert_no_error(error);
        g_assert_cmpint(picture.width, ==, cases[i][2]);
        g_assert_cmpint(picture.height, ==, cases[i][3]);
        g_assert_cmpint(picture.info.width, ==, 400);
        expect_pixel(picture.height / 2, picture.width / 2, 127, 127, 178, 5);
        fit = (ImageRequest){.fit_height = cases[i][1], .fit_width = cases[i][0]};
        decode_with(turned, &fit, &error);
        g_assert_no_error(error);
        g_assert_cmpint(picture.height, ==, cases[i][2]);
        g_assert_cmpint(picture.width, ==, cases[i][3]);
    }
}

/* The header alone, from an open file, says the same as the decoder. */
static void test_probe_file(void)
{
    g_autoptr(GByteArray) plain = make_jpeg(400, 300, &(JpegMake){0}, paint_smooth, NULL);
    g_autoptr(GByteArray) jpeg = with_orientation(plain, 8, FALSE);
    g_autofree guint8 *pad = g_malloc0(65000);
    for (int i = 0; i < 20; i++) { /* a header longer than one window */
        GByteArray *longer = with_segment(jpeg, 0xe2, pad, 65000);
        g_byte_array_unref(jpeg);
        jpeg = longer;
    }
    g_autoptr(GError) error = NULL;
    g_autofree char *path = NULL;
    int fd = g_file_open_tmp(NULL, &path, &error);
    g_assert_no_error(error);
    g_assert_cmpint(write(fd, jpeg->data, jpeg->len), ==, jpeg->len);
    ImageInfo info;
    g_assert_true(image_probe(&(ImageSource){NULL, fd, jpeg->len}, path, IMAGE_MAX_PIXELS, &info, &error));
    g_assert_cmpint(info.height, ==, 400);
    g_assert_cmpint(info.width, ==, 300);
    g_assert_cmpint(info.orientation, ==, 8);
    g_assert_false(image_probe(&(ImageSource){NULL, fd, 70000}, path, IMAGE_MAX_PIXELS, &info, &error));
    g_assert_nonnull(strstr(error->message, "ends before the picture begins"));
    close(fd);
    unlink(path);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/jpeg/codings", test_codings);
    g_test_add_func("/jpeg/ink", test_ink);
    g_test_add_func("/jpeg/orientation", test_orientation);
    g_test_add_func("/jpeg/harmless", test_harmless);
    g_test_add_func("/jpeg/damage", test_damage);
    g_test_add_func("/jpeg/refused", test_refused);
    g_test_add_func("/jpeg/scans", test_scans);
    g_test_add_func("/jpeg/reduction", test_reduction);
    g_test_add_func("/jpeg/probe_file", test_probe_file);
    int rc = g_test_run();
    g_free(picture.warning);
    g_byte_array_unref(sink.pixels);
    return rc;
}
