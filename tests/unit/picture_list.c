/* Walking a data set: what counts as a picture, odd names and files, captions, order.
 * @label short
 * @link libjpeg zlib
 */
#include "core/image/list.h"
#include "core/image/picture.h"
#include "pictures.h"
#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char *dir;
static GByteArray *jpeg, *png;

static char *at(const char *name)
{
    return g_strconcat(dir, "/", name, NULL);
}

static void file(const char *name, const void *bytes, gsize n)
{
    g_autofree char *path = at(name), *parent = g_path_get_dirname(path);
    g_assert_cmpint(g_mkdir_with_parents(parent, 0777), ==, 0);
    FILE *f = fopen(path, "w"); /* not g_file_set_contents: its temporary name is longer */
    g_assert_nonnull(f);
    g_assert_cmpuint(fwrite(bytes, 1, n, f), ==, n);
    fclose(f);
}

static void text(const char *name, const char *content)
{
    file(name, content, strlen(content));
}

static void picture(const char *name)
{
    g_autofree char *lower = g_ascii_strdown(name, -1);
    GByteArray *bytes = g_str_has_suffix(lower, ".png") ? png : jpeg;
    file(name, bytes->data, bytes->len);
}

static void link_to(const char *target, const char *name)
{
    g_autofree char *path = at(name);
    g_assert_cmpint(symlink(target, path), ==, 0);
}

static void start(void)
{
    dir = g_dir_make_tmp("list-XXXXXX", NULL);
}

static void end(void)
{
    char *argv[] = {"rm", "-rf", dir, NULL};
    g_assert_true(g_spawn_sync(NULL, argv, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, NULL, NULL, NULL, NULL));
    g_clear_pointer(&dir, g_free);
}

static ImageList *list(void)
{
    static char *extensions[] = {".txt", "caption", NULL};
    g_autoptr(GError) error = NULL;
    ImageListRules rules = {.caption_ext = extensions, .max_pixels = 1000000};
    ImageList *l = image_list_new(dir, &rules, &error);
    g_assert_no_error(error);
    return l;
}

/* "name|name": the pictures of the list in order. */
static void expect(const ImageList *l, const char *want)
{
    GString *got = g_string_new(NULL);
    for (guint i = 0; i < l->entries->len; i++)
        g_string_append_printf(got, "%s%s", i ? "|" : "", ((ImageEntry *)l->entries->pdata[i])->name);
    g_assert_cmpstr(got->str, ==, want);
    g_string_free(got, TRUE);
}

static void expect_bad(const ImageList *l, guint i, const char *name, const char *what)
{
    g_assert_cmpuint(i, <, l->bad->len);
    const ImageBad *bad = l->bad->pdata[i];
    g_autofree char *tail = g_strconcat(name, what, NULL);
    if (!strstr(bad->error->message, tail))
        g_error("'%s' lacks '%s'", bad->error->message, tail);
}

static const ImageEntry *entry(const ImageList *l, guint i)
{
    g_assert_cmpuint(i, <, l->entries->len);
    return l->entries->pdata[i];
}

static void test_names(void)
{
    GString *longest = g_string_new(NULL);
    while (longest->len < 251)
        g_string_append_c(longest, 'n');
    g_string_append(longest, ".jpg");
    static const char *const names[] = {"IMG_1.JPG",    "b.Jpeg",        "c.JPEG",
                                        "d.PNG",        "my cat.jpg",    "tr\303\244nade/\303\274.jpg",
                                        "日本.png",     "-rf.jpg",       "100%s%n.jpg",
                                        "a;b #c.jpg",   "new\nline.jpg", "x\377.jpg",
                                        "no_extension", "odd.dat"};
    start();
    for (guint i = 0; i < G_N_ELEMENTS(names); i++)
        picture(names[i]);
    picture(longest->str);
    text("IMG_1.TXT", "one");
    text("b.txt", "b");
    text("c.caption", "c");
    text("d.txt", "from txt");
    text("d.caption", "from caption");
    text("my cat.jpg.txt", "not mine");
    text("notes.md", "not a picture");
    g_autoptr(ImageList) l = list();
    g_autofree char *want = g_strconcat(
        "-rf.jpg|100%s%n.jpg|IMG_1.JPG|a;b #c.jpg|b.Jpeg|c.JPEG|d.PNG|my cat.jpg|"
        "new\nline.jpg|",
        longest->str, "|no_extension|odd.dat|tr\303\244nade/\303\274.jpg|x\377.jpg|日本.png", NULL);
    /* B-11, B-12 */
    expect(l, want);
    g_assert_cmpuint(l->bad->len, ==, 0);
    g_assert_cmpstr(entry(l, 2)->caption, ==, "one");
    g_assert_cmpstr(entry(l, 4)->caption, ==, "b");
    g_assert_cmpstr(entry(l, 5)->caption, ==, "c");
    g_assert_cmpstr(entry(l, 6)->caption, ==, "from txt");
    g_assert_null(entry(l, 7)->caption);
    g_assert_cmpuint(l->missing, ==, 11);
    for (guint i = 0; i < l->entries->len; i++) {
        g_assert_cmpint(entry(l, i)->size.height, ==, 12);
        g_assert_cmpint(entry(l, i)->size.width, ==, 20);
        g_assert_cmpint(entry(l, i)->repeats, ==, 1);
    }
    g_string_free(longest, TRUE);
    end();
}

static void test_hidden(void)
{
    start();
    picture("a.jpg");
    text("._a.jpg", "\5\26\7\2Mac OS X");
    text("__MACOSX/._a.jpg", "\5\26\7\2Mac OS X");
    text(".DS_Store", "");
    text("Thumbs.db", "");
    picture(".hidden/b.jpg");
    g_autoptr(ImageList) l = list();
    expect(l, "a.jpg");
    g_assert_cmpuint(l->bad->len, ==, 0);
    /* B-08 */
    g_assert_cmpuint(l->hidden, ==, 4);
    end();
}

static void test_links(void)
{
    start();
    picture("d/a.png");
    link_to(".", "d/self");
    link_to("../d", "d/up");
    link_to("/nonexistent", "d/x.png");
    link_to("d", "e");
    g_autoptr(ImageList) l = list();
    expect(l, "d/a.png");
    g_assert_cmpuint(l->warnings->len, ==, 1);
    /* B-09 */
    g_assert_nonnull(strstr(l->warnings->pdata[0], "d/x.png: a link to nowhere"));
    end();
}

static void test_not_regular(void)
{
    start();
    picture("good.jpg");
    g_autofree char *pipe = at("p.jpg"), *other = at("some_pipe");
    g_assert_cmpint(mkfifo(pipe, 0600), ==, 0);
    g_assert_cmpint(mkfifo(other, 0600), ==, 0); /* does not call itself a picture */
    link_to("/dev/zero", "z.jpg");
    link_to("/proc/self/mem", "m.png");
    g_autofree char *folder = at("dir.jpg");
    g_assert_cmpint(g_mkdir(folder, 0700), ==, 0);
    picture("dir.jpg/inside.jpg");
    g_autoptr(ImageList) l = list();
    expect(l, "dir.jpg/inside.jpg|good.jpg"); /* a folder is a folder */
    g_assert_cmpuint(l->bad->len, ==, 3);
    /* B-22 */
    expect_bad(l, 0, "m.png", " is an empty file");
    expect_bad(l, 1, "p.jpg", " is not a regular file");
    expect_bad(l, 2, "z.jpg", " is not a regular file");
    end();
}

static void test_content(void)
{
    start();
    file("x.jpg", png->data, png->len);
    file("y.png", jpeg->data, jpeg->len);
    file("really.webp", jpeg->data, jpeg->len);
    file("z.jpg", "RIFF\034\0\0\0WEBPVP8L", 16);
    file("w.webp", "RIFF\034\0\0\0WEBPVP8L", 16);
    file("v.webp", "RIFF\034\0\0\0WEBPVP8L", 16);
    text("page.jpg", "<!DOCTYPE html><html></html>");
    text("0.jpg", "");
    file("8.png", "\211PNG\r\n\032\n", 8);
    g_autoptr(GByteArray) wide = make_png(1000001, 1, 1, 0, "ff", FALSE, NULL);
    file("wide.png", wide->data, wide->len);
    g_autoptr(ImageList) l = list();
    expect(l, "really.webp|x.jpg|y.png");
    g_assert_cmpuint(l->bad->len, ==, 5);
    /* */
    expect_bad(l, 0, "0.jpg", " is an empty file");
    expect_bad(l, 1, "8.png", ": the file ends in its header");
    expect_bad(l, 2, "page.jpg", " is HTML, not JPEG or PNG");
    expect_bad(l, 3, "wide.png", " is 1000001x1 = 1000001 pixels, more than max_pixels = 1000000");
    expect_bad(l, 4, "z.jpg", " is WebP, not JPEG or PNG");
    g_assert_cmpuint(GPOINTER_TO_UINT(g_hash_table_lookup(l->others, "WebP")), ==, 2);
    end();
}

static void test_captions(void)
{
    start();
    for (int i = 0; i < 6; i++) {
        g_autofree char *name = g_strdup_printf("%d.png", i);
        picture(name);
    }
    text("0.txt", "");
    text("1.txt", " \n");
    text("2.txt", "\357\273\277a cat\r\n");
    text("3.txt", "caf\351");
    file("4.txt", "a\0b", 3);
    g_autoptr(ImageList) l = list();
    expect(l, "0.png|1.png|2.png|5.png");
    g_assert_cmpstr(entry(l, 0)->caption, ==, "");
    g_assert_cmpstr(entry(l, 2)->caption, ==, "a cat");
    /* B-03 */
    g_assert_cmpuint(l->empty, ==, 2);
    g_assert_cmpuint(l->missing, ==, 1);
    /* B-05 */
    expect_bad(l, 0, "3.txt", " is not UTF-8: byte 3 is 0xe9");
    expect_bad(l, 1, "4.txt", " has a NUL at byte 1");
    end();
}

static void test_repeats(void)
{
    start();
    picture("10_cat girl/a.jpg");
    picture("10_cat girl/deeper/2_b.jpg");
    picture("3_/c.jpg");
    picture("0_off/d.jpg");
    picture("2024_holiday/e.jpg");
    picture("plain/5_f/g.jpg");
    picture("12345/h.jpg");
    g_autoptr(ImageList) l = list();
    expect(l, "10_cat girl/a.jpg|10_cat "
              "girl/deeper/2_b.jpg|12345/h.jpg|2024_holiday/e.jpg|3_/c.jpg|plain/5_f/g.jpg");
    static const gint64 repeats[] = {10, 10, 1, 1, 3, 1};
    static const char *const folders[] = {"cat girl", "cat girl", NULL, NULL, "", NULL};
    for (guint i = 0; i < 6; i++) {
        g_assert_cmpint(entry(l, i)->repeats, ==, repeats[i]);
        g_assert_cmpstr(entry(l, i)->folder, ==, folders[i]);
    }
    g_assert_cmpuint(l->warnings->len, ==, 2);
    g_assert_nonnull(strstr(l->warnings->pdata[0], "0_off: left out"));
    g_assert_nonnull(strstr(l->warnings->pdata[1], "2024_holiday: the number is above 1000"));
    end();
}

/* Deeper than a path may be long: the walk and the reader get there, component by component. */
static void test_deep(void)
{
    start();
    g_autofree char *name = g_strnfill(200, 'd');
    GString *deep = g_string_new(dir);
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < 30; i++) {
        g_assert_cmpint(mkdirat(fd, name, 0700), ==, 0);
        int next = openat(fd, name, O_RDONLY | O_DIRECTORY);
        close(fd);
        fd = next;
        g_string_append_printf(deep, "/%s", name);
    }
    int out = openat(fd, "a.jpg", O_WRONLY | O_CREAT, 0600);
    g_assert_cmpint(write(out, jpeg->data, jpeg->len), ==, jpeg->len);
    close(out);
    close(fd);
    g_autoptr(ImageList) l = list();
    g_assert_cmpuint(l->entries->len, ==, 1);
    /* B-12 */
    g_assert_cmpuint(strlen(entry(l, 0)->path), >, 4096);
    struct stat st;
    g_autoptr(GError) error = NULL;
    fd = image_file_open_listed(entry(l, 0)->path, entry(l, 0)->id, 1000000, &st, &error);
    g_assert_no_error(error);
    close(fd);
    g_string_free(deep, TRUE);
    end();
}

/* The same files made in the opposite order, elsewhere: the same list. */
static void test_order(void)
{
    GString *lists[2] = {g_string_new(NULL), g_string_new(NULL)};
    for (int turn = 0; turn < 2; turn++) {
        start();
        for (int k = 0; k < 60; k++) {
            int i = turn ? 59 - k : k;
            g_autofree char *name = g_strdup_printf("%d/%d.jpg", i % 7, i * 7919 % 1000);
            picture(name);
        }
        link_to("0", "zero");
        g_autoptr(ImageList) l = list();
        for (guint i = 0; i < l->entries->len; i++)
            g_string_append_printf(lists[turn], "%s\n", entry(l, i)->name);
        g_assert_cmpuint(l->entries->len, ==, 60);
        end();
    }
    /* B-23 */
    g_assert_cmpstr(lists[0]->str, ==, lists[1]->str);
    g_string_free(lists[0], TRUE);
    g_string_free(lists[1], TRUE);
}

static void test_refused(void)
{
    g_autoptr(GError) error = NULL;
    ImageListRules rules = {.max_pixels = 1};
    g_assert_null(image_list_new("/nonexistent/folder", &rules, &error));
    g_assert_cmpstr(error->message, ==,
                    "folder /nonexistent/folder cannot be read: No such file or directory");
    g_clear_error(&error);
    start();
    text("file", "");
    g_autofree char *path = at("file");
    g_assert_null(image_list_new(path, &rules, &error));
    g_assert_nonnull(strstr(error->message, "Not a directory"));
    end();
}

static void test_changed(void)
{
    start();
    picture("a.jpg");
    g_autoptr(ImageList) l = list();
    const ImageEntry *e = entry(l, 0);
    g_autoptr(GError) error = NULL;
    struct stat st;
    g_assert_cmpint(image_file_open_listed(e->path, e->id, 10, &st, &error), ==, -1);
    g_assert_nonnull(strstr(error->message, "more than max_bytes = 10"));
    g_clear_error(&error);
    text("a.jpg", "other");
    g_assert_cmpint(image_file_open_listed(e->path, e->id, 1000000, &st, &error), ==, -1);
    /* B-13 */
    g_assert_nonnull(strstr(error->message, "a.jpg has changed since the pictures were listed"));
    g_clear_error(&error);
    g_unlink(e->path);
    g_assert_cmpint(image_file_open_listed(e->path, e->id, 1000000, &st, &error), ==, -1);
    g_assert_nonnull(strstr(error->message, "a.jpg cannot be opened: No such file"));
    end();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    jpeg = make_jpeg(20, 12, &(JpegMake){0}, paint_quad, NULL);
    png = make_png(20, 12, 8, 2, "ff0000", FALSE, NULL);
    g_test_add_func("/list/names", test_names);
    g_test_add_func("/list/hidden", test_hidden);
    g_test_add_func("/list/links", test_links);
    g_test_add_func("/list/not_regular", test_not_regular);
    g_test_add_func("/list/content", test_content);
    g_test_add_func("/list/captions", test_captions);
    g_test_add_func("/list/repeats", test_repeats);
    g_test_add_func("/list/deep", test_deep);
    g_test_add_func("/list/order", test_order);
    g_test_add_func("/list/refused", test_refused);
    g_test_add_func("/list/changed", test_changed);
    int rc = g_test_run();
    g_byte_array_unref(jpeg);
    g_byte_array_unref(png);
    return rc;
}
