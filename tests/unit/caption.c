/* What is made of caption files, and tags in another order.
 * @label short
 */
#include "core/image/caption.h"

#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

static void expect(const char *bytes, gsize n, const char *want)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *exact = g_memdup2(bytes, n);
    g_autofree char *got = image_caption_clean(exact ? exact : "", n, "a.txt", &error);
    g_assert_no_error(error);
    g_assert_cmpstr(got, ==, want);
}
#define EXPECT(bytes, want) expect(bytes, sizeof(bytes) - 1, want)

static void refuse(const char *bytes, gsize n, const char *text)
{
    g_autoptr(GError) error = NULL;
    g_assert_null(image_caption_clean(bytes, n, "a.txt", &error));
    g_assert_cmpstr(error->message, ==, text);
}
#define REFUSE(bytes, text) refuse(bytes, sizeof(bytes) - 1, text)

static void test_clean(void)
{
    /* B-01 */
    EXPECT("\357\273\277a cat", "a cat");
    EXPECT("a cat", "a cat");
    /* B-02 */
    EXPECT("a cat\r\n", "a cat");
    EXPECT("a cat \n\n", "a cat");
    EXPECT("line1\nline2\n", "line1 line2");
    EXPECT("  line1 \r\n\r\n\tline2\r", "line1 line2");
    EXPECT("a\tb\001c", "a b c");
    EXPECT("a  b", "a  b");
    EXPECT("", "");
    EXPECT(" \n", "");
    EXPECT("\357\273\277", "");
    EXPECT("日本, caf\303\251", "日本, café");
}

static void test_refused(void)
{
    /* B-05 */
    REFUSE("caf\351", "caption a.txt is not UTF-8: byte 3 is 0xe9");
    REFUSE("a\0b", "caption a.txt has a NUL at byte 1; it is not text");
    REFUSE("\377\376a\0", "caption a.txt is UTF-16; save it as UTF-8");
    REFUSE("\376\377\0a", "caption a.txt is UTF-16; save it as UTF-8");
}

static void test_file(void)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *dir = g_dir_make_tmp(NULL, NULL), *path = g_build_filename(dir, "a.txt", NULL);
    g_assert_true(g_file_set_contents(path, "a cat\n", -1, NULL));
    g_autofree char *text = image_caption_read(path, &error);
    g_assert_cmpstr(text, ==, "a cat");
    g_autofree char *big = g_malloc(IMAGE_CAPTION_MAX + 1);
    memset(big, 'a', IMAGE_CAPTION_MAX + 1);
    g_assert_true(g_file_set_contents(path, big, IMAGE_CAPTION_MAX + 1, NULL));
    g_assert_null(image_caption_read(path, &error));
    g_assert_nonnull(strstr(error->message, "more than max_bytes = 1048576"));
    g_clear_error(&error);
    g_unlink(path);
    g_assert_null(image_caption_read(path, &error));
    g_assert_nonnull(strstr(error->message, "a.txt cannot be opened"));
    g_rmdir(dir);
}

static int compare(gconstpointer a, gconstpointer b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Same tags, same separator; the first `keep` in place. */
static void check_shuffle(const char *caption, const char *split, guint keep, guint64 key, char **out)
{
    *out = image_caption_shuffle(caption, split, keep, key);
    g_auto(GStrv) before = g_strsplit(caption, split, -1), after = g_strsplit(*out, split, -1);
    guint n = g_strv_length(before);
    g_assert_cmpuint(strlen(*out), ==, strlen(caption));
    g_assert_cmpuint(g_strv_length(after), ==, n);
    for (guint i = 0; i < MIN(keep, n); i++)
        g_assert_cmpstr(before[i], ==, after[i]);
    for (guint i = 0; i < n; i++) {
        g_strstrip(before[i]);
        g_strstrip(after[i]);
    }
    qsort(before, n, sizeof *before, compare);
    qsort(after, n, sizeof *after, compare);
    for (guint i = 0; i < n; i++)
        g_assert_cmpstr(before[i], ==, after[i]);
}

static void test_shuffle(void)
{
    guint changed = 0;
    for (guint64 key = 0; key < 50; key++) {
        g_autofree char *a = NULL, *b = NULL, *c = NULL, *again = NULL;
        check_shuffle("one, two, three, four, five", ",", 1, key, &a);
        /* B-07 */
        check_shuffle("a|b, c|d", "|", 1, key, &b);
        check_shuffle("x;y;z", ";", 9, key, &c);
        g_assert_cmpstr(c, ==, "x;y;z");
        again = image_caption_shuffle("one, two, three, four, five", ",", 1, key);
        g_assert_cmpstr(a, ==, again);
        changed += strcmp(a, "one, two, three, four, five") != 0;
    }
    g_assert_cmpuint(changed, >, 40); /* 1 in 24 orders is the same */
    g_autofree char *none = image_caption_shuffle("no tags here", ",", 0, 1);
    g_assert_cmpstr(none, ==, "no tags here");
    g_autofree char *empty = image_caption_shuffle("", ",", 0, 1);
    g_assert_cmpstr(empty, ==, "");
}

static void test_words(void)
{
    g_assert_cmpuint(image_caption_words(""), ==, 0);
    g_assert_cmpuint(image_caption_words(" , . "), ==, 0);
    g_assert_cmpuint(image_caption_words("a cat, sitting (on) a mat."), ==, 6);
    g_assert_cmpuint(image_caption_words("caf\303\251 1girl"), ==, 2);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/caption/clean", test_clean);
    g_test_add_func("/caption/refused", test_refused);
    g_test_add_func("/caption/file", test_file);
    g_test_add_func("/caption/shuffle", test_shuffle);
    g_test_add_func("/caption/words", test_words);
    return g_test_run();
}
