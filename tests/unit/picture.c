/* Telling formats apart by content, colours, printable names, and that bad pictures leave nothing behind.
 * @label short
 * @link libjpeg zlib
 */
#include "core/image/picture.h"
#include "pictures.h"
#include <pthread.h>
#include <sys/resource.h>

static void expect_refused(const void *bytes, gsize n, const char *text)
{
    g_autoptr(GError) error = NULL;
    ImageInfo info;
    g_autofree guint8 *exact = g_memdup2(bytes, n);
    g_assert_false(
        image_probe(&(ImageSource){exact ? exact : (guint8 *)"", -1, n}, "z.jpg", 1000, &info, &error));
    g_assert_cmpstr(error->message, ==, text);
}

static void test_formats(void)
{
    /* */
    expect_refused("RIFF\034\0\0\0WEBPVP8L", 16, "z.jpg is WebP, not JPEG or PNG");
    expect_refused("GIF89a\1\0\1\0", 10, "z.jpg is GIF, not JPEG or PNG");
    expect_refused("\0\0\0\030ftypheic", 12, "z.jpg is HEIC, not JPEG or PNG");
    expect_refused("\0\0\0\030ftypavif", 12, "z.jpg is AVIF, not JPEG or PNG");
    expect_refused("BM\0\0\0\0\0\0", 8, "z.jpg is BMP, not JPEG or PNG");
    expect_refused("<!DOCTYPE html><html>", 21, "z.jpg is HTML, not JPEG or PNG");
    expect_refused("\377\12\0\0\0\0\0\0", 8, "z.jpg is JPEG XL, not JPEG or PNG");
    expect_refused("II*\0\0\0\0\0", 8, "z.jpg is TIFF, not JPEG or PNG");
    expect_refused("hello world", 11, "z.jpg is not JPEG or PNG: it starts with 68 65 6c 6c");
    expect_refused("\377", 1, "z.jpg is not JPEG or PNG: it has only 1 bytes");
    /* */
    expect_refused("", 0, "z.jpg is an empty file");
    expect_refused("\377\330\377", 3, "z.jpg: the file ends before the picture begins");
    expect_refused("\211PNG\r\n\032\n", 8, "z.jpg: the file ends in its header or the header is damaged");
}

static void test_colours(void)
{
    static const struct {
        const char *text;
        int rgb[3];
    } good[] = {{"white", {255, 255, 255}}, {"Black", {0, 0, 0}},          {"#01fF80", {1, 255, 128}},
                {"1,2,3", {1, 2, 3}},       {"255, 0,128", {255, 0, 128}}, {"grey", {128, 128, 128}}};
    static const char *const bad[] = {"",        "purple",  "#12345", "#1234567", "1,2",
                                      "1,2,3,4", "256,0,0", "-1,0,0", "#+1+1+1"};
    guint8 rgb[3];
    for (guint i = 0; i < G_N_ELEMENTS(good); i++) {
        g_assert_true(image_parse_colour(good[i].text, rgb, NULL));
        for (int j = 0; j < 3; j++)
            g_assert_cmpint(rgb[j], ==, good[i].rgb[j]);
    }
    for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        if (image_parse_colour(bad[i], rgb, &error))
            g_error("'%s' was taken for a colour", bad[i]);
        g_assert_nonnull(strstr(error->message, "#rrggbb"));
    }
}

static void test_names(void)
{
    static const char *const names[][2] = {{"my cat.jpg", "my cat.jpg"},
                                           {"日本.png", "日本.png"},
                                           {"100%s%n.jpg", "100%s%n.jpg"},
                                           {"a\nb.jpg", "a\\x0ab.jpg"},
                                           {"x\377.jpg", "x\\xff.jpg"},
                                           {"\033[2J", "\\x1b[2J"},
                                           {"\303", "\\xc3"},
                                           {"", ""}};
    for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *out = image_printable(names[i][0]);
        g_assert_cmpstr(out, ==, names[i][1]);
    }
}

static guint8 *give_free(gpointer data, gint32 height, gint32 width)
{
    guint8 **slot = data;
    g_free(*slot);
    return *slot = g_malloc((gsize)height * (gsize)width * 3);
}

static FlowStatus decode(const GByteArray *file, const char *name, guint8 **pixels, char **message)
{
    g_autoptr(GError) error = NULL;
    ImagePicture picture;
    ImageRequest request = {.max_pixels = IMAGE_MAX_PIXELS, .allocate = give_free, .data = pixels};
    FlowStatus status =
        image_decode(&(ImageSource){file->data, -1, file->len}, name, &request, &picture, &error);
    g_free(picture.warning);
    if (message)
        *message = error ? g_strdup(error->message) : NULL;
    return status;
}

/* Each bad picture leaves by a jump out of the library: 3 kinds, a thousand times. */
static void test_no_leak(void)
{
    g_autoptr(GByteArray) jpeg = make_jpeg(128, 128, &(JpegMake){0}, paint_noise, NULL);
    g_autoptr(GByteArray) progressive =
        make_jpeg(128, 128, &(JpegMake){.progressive = TRUE}, paint_noise, NULL);
    g_autoptr(GByteArray) cut_jpeg = cut(jpeg, jpeg->len / 2),
                          cut_progressive = cut(progressive, progressive->len / 2);
    g_autoptr(GByteArray) p12 = cut(jpeg, jpeg->len);
    p12->data[find_bytes(p12, "\377\300", 2) + 4] = 12;
    g_autoptr(GByteArray) crc = make_png(64, 64, 8, 6, "ff0000ff00", TRUE, NULL);
    crc->data[crc->len - 16] ^= 1;
    GByteArray *bad[] = {cut_jpeg, cut_progressive, p12, crc};
    guint8 *pixels = NULL;
    struct rusage warm, end;
    for (int i = 0; i < 1000; i++) {
        if (i == 50)
            getrusage(RUSAGE_SELF, &warm);
        for (guint k = 0; k < G_N_ELEMENTS(bad); k++)
            g_assert_cmpint(decode(bad[k], "x", &pixels, NULL), ==, FLOW_SKIP);
    }
    getrusage(RUSAGE_SELF, &end);
    g_free(pixels);
    /* */
    const char *sanitizer = g_getenv("LORAFLOW_SANITIZE");
    if (!sanitizer || !*sanitizer) /* a sanitizer keeps freed memory back, and finds leaks by itself */
        g_assert_cmpint(end.ru_maxrss - warm.ru_maxrss, <, 4096); /* one row buffer each would be more */
}

/* Many threads at once: each message names its own file, and only bad files have one. */
typedef struct {
    const GByteArray *good, *bad;
    int first, wrong;
} Work;

static gpointer work(gpointer data)
{
    Work *w = data;
    guint8 *pixels = NULL;
    for (int i = w->first; i < w->first + 50; i++) {
        g_autofree char *name = g_strdup_printf("%d.jpg", i), *message = NULL;
        gboolean is_bad = i % 13 == 0;
        FlowStatus status = decode(is_bad ? w->bad : w->good, name, &pixels, &message);
        w->wrong += status != (is_bad ? FLOW_SKIP : FLOW_OK) || is_bad != (message != NULL);
        /* */
        w->wrong += message && (!g_str_has_prefix(message, name) || message[strlen(name)] != ':');
    }
    g_free(pixels);
    return NULL;
}

static void test_threads(void)
{
    g_autoptr(GByteArray) good = make_jpeg(48, 48, &(JpegMake){0}, paint_noise, NULL),
                          bad = cut(good, good->len / 2);
    pthread_t threads[16];
    Work works[16];
    for (int i = 0; i < 16; i++) {
        works[i] = (Work){good, bad, i * 50, 0};
        g_assert_cmpint(pthread_create(&threads[i], NULL, work, &works[i]), ==, 0);
    }
    for (int i = 0; i < 16; i++) {
        pthread_join(threads[i], NULL);
        g_assert_cmpint(works[i].wrong, ==, 0);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/picture/formats", test_formats);
    g_test_add_func("/picture/colours", test_colours);
    g_test_add_func("/picture/names", test_names);
    g_test_add_func("/picture/no_leak", test_no_leak);
    g_test_add_func("/picture/threads", test_threads);
    return g_test_run();
}
