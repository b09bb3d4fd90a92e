/* Tokenizer: the ids of transformers' CLIPTokenizer for every golden caption, broken folders, long captions,
 * several threads.
 *
 * @label unit short
 */
#include "core/model/tokenizer.h"
#include "core/model/safetensors.h"
#include "core/model/words.h"
#include <glib/gstdio.h>
#include <jansson.h>
#include <pthread.h>
#include <string.h>

static Tokenizer *open_good(const char *folder)
{
    g_autoptr(GError) error = NULL;
    Tokenizer *t = tokenizer_open(folder, &error);
    g_assert_no_error(error);
    return t;
}

static guint compare(const char *model, const char *folder, const char *key)
{
    Tokenizer *t = open_good(folder);
    json_t *golden = json_load_file("tests/fixtures/golden.json", 0, NULL), *caption;
    json_t *all = json_object_get(json_object_get(golden, "tokenizer"), model);
    size_t i;
    guint n = 0;
    g_assert_cmpint(tokenizer_size(t), ==, json_integer_value(json_object_get(all, "vocab_size")));
    g_assert_cmpint(tokenizer_eos(t), ==, json_integer_value(json_object_get(all, "eos")));
    json_array_foreach(json_object_get(all, "captions"), i, caption)
    {
        gint32 ids[TOKENIZER_LENGTH];
        const char *text = json_string_value(json_object_get(caption, "text"));
        gint content = tokenizer_encode(t, text, ids);
        json_t *want = json_object_get(caption, key);
        g_assert_cmpint(json_array_size(want), ==, TOKENIZER_LENGTH);
        for (guint k = 0; k < TOKENIZER_LENGTH; k++)
            if (ids[k] != json_integer_value(json_array_get(want, k)))
                g_error("%s, id %u: %d, not %" JSON_INTEGER_FORMAT, text, k, ids[k],
                        json_integer_value(json_array_get(want, k)));
        if (strcmp(key, "ids_2")) /* the count was taken with the first tokenizer */
            g_assert_cmpint(content, ==, json_integer_value(json_object_get(caption, "content_ids")));
        n++;
    }
    json_decref(golden);
    tokenizer_free(t);
    return n;
}

static void test_golden(void)
{
    g_assert_cmpuint(compare("tiny-sd", "tests/fixtures/tiny-sd/tokenizer", "ids"), ==, 47);
    g_assert_cmpuint(compare("tiny-sdxl", "tests/fixtures/tiny-sdxl/tokenizer", "ids_1"), ==, 47);
    g_assert_cmpuint(compare("tiny-sdxl", "tests/fixtures/tiny-sdxl/tokenizer_2", "ids_2"), ==, 47);
}

/* The demo's tokenizer; ids from transformers 5.24. */
static void test_demo(void)
{
    static const struct {
        const char *text;
        gint32 ids[16];
    } cases[] = {
        {"emoji of red apple", {516, 512, 765, 2004}},
        {"3d emoji of WOMAN FIREFIGHTER!", {274, 323, 516, 512, 550, 1484, 256}},
        {"line icon of a café, 2 cups", {523, 524, 512, 320, 562, 69, 127, 358, 267, 273, 66, 774, 338}},
        {"<|endoftext|> <|ENDOFTEXT|>", {2013, 27, 347, 567, 579, 69, 638, 87, 339, 91, 285}},
        {"it's 👍🏽", {856, 6, 338, 172, 253, 239, 235, 172, 253, 237, 377}},
    };
    Tokenizer *t = open_good("demo/base/tokenizer");
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        gint32 ids[TOKENIZER_LENGTH];
        gint n = tokenizer_encode(t, cases[i].text, ids);
        g_assert_cmpint(ids[0], ==, 2012);
        g_assert_cmpmem(ids + 1, (gsize)n * 4, cases[i].ids, (gsize)n * 4);
        g_assert_cmpint(cases[i].ids[n], ==, 0);
        for (gint k = n + 1; k < TOKENIZER_LENGTH; k++)
            g_assert_cmpint(ids[k], ==, 2013);
    }
    tokenizer_free(t);
}

static void test_lower_case(void)
{
    static const char *const cases[][2] = {
        {"ΣΑΣ", "σασ"}, {"İ", "i\u0307"}, {"ẞ", "ß"},       {"ǅ", "ǆ"},
        {"I", "i"},     {"ⅧⒶ", "ⅷⓐ"},     {"e\u0301", "é"}, {"a \v\xc2\x85\u3000 b", "a b"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = words_normalise(cases[i][0], strlen(cases[i][0]));
        g_assert_cmpstr(text, ==, cases[i][1]);
    }
}

/* One word of a megabyte, a megabyte of words, of apostrophes, of combining marks that have to be sorted:
 * each takes far below the test's time limit, where any step that is quadratic takes minutes. */
static void test_long(void)
{
    static const char *const units[] = {"a", "cat ",         "'",   "e\u0301\u0323", "\u0301\u0323", "猫",
                                        "!", "<|endoftext|", "\377"};
    Tokenizer *t = open_good("tests/fixtures/tiny-sdxl/tokenizer_2");
    for (guint i = 0; i < G_N_ELEMENTS(units); i++) {
        GString *text = g_string_new(NULL);
        gint32 ids[TOKENIZER_LENGTH];
        while (text->len < 1 << 20)
            g_string_append(text, units[i]);
        gint n = tokenizer_encode(t, text->str, ids);
        g_assert_cmpint(n, >, 1000);
        /* B-06 */
        g_assert_cmpint(ids[TOKENIZER_LENGTH - 1], ==, tokenizer_eos(t));
        g_string_free(text, TRUE);
    }
    tokenizer_free(t);
}

/* Cutting long texts for normalisation changes nothing. */
static void test_long_equals_short(void)
{
    GString *text = g_string_new(NULL);
    while (text->len < 20000)
        g_string_append_printf(text, "cafe\u0301 %d ", (int)text->len);
    g_autofree char *cut = words_normalise(text->str, text->len);
    g_autofree char *whole = g_utf8_normalize(text->str, -1, G_NORMALIZE_NFC);
    g_assert_cmpstr(cut, ==, whole); /* all lower case, single blanks */
    g_string_free(text, TRUE);
}

static void *encode_many(void *data)
{
    static const char *const texts[] = {"a photo of a cat", "supercalifragilisticexpialidocious",
                                        "日本語のテキスト"};
    Tokenizer *t = data;
    gint32 first[3][TOKENIZER_LENGTH], ids[TOKENIZER_LENGTH];
    for (guint i = 0; i < 3; i++)
        tokenizer_encode(t, texts[i], first[i]);
    for (guint i = 0; i < 300; i++) {
        tokenizer_encode(t, texts[i % 3], ids);
        g_assert_cmpmem(ids, sizeof ids, first[i % 3], sizeof ids);
    }
    return NULL;
}

static void test_threads(void)
{
    Tokenizer *t = open_good("tests/fixtures/tiny-sd/tokenizer");
    pthread_t thread[4];
    for (guint i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, encode_many, t);
    for (guint i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    tokenizer_free(t);
}

/* -- folders that are not right ------------------------------------------------------------- */

static void copy(const char *folder, const char *name)
{
    g_autofree char *text = NULL, *from = g_build_filename("tests/fixtures/tiny-sd/tokenizer", name, NULL);
    g_autofree char *to = g_build_filename(folder, name, NULL);
    gsize n;
    g_assert_true(g_file_get_contents(from, &text, &n, NULL));
    g_assert_true(g_file_set_contents(to, text, (gssize)n, NULL));
}

static void expect_refused(const char *folder, const char *text)
{
    g_autoptr(GError) error = NULL;
    g_assert_null(tokenizer_open(folder, &error));
    g_assert_nonnull(error);
    if (!strstr(error->message, text))
        g_error("'%s' does not say '%s'", error->message, text);
}

static void test_broken(void)
{
    g_autofree char *folder = g_dir_make_tmp("loraflow-XXXXXX", NULL);
    static const char *const names[] = {"vocab.json", "merges.txt", "tokenizer_config.json",
                                        "special_tokens_map.json"};
    static const struct {
        const char *name, *content, *text;
    } cases[] = {
        {"vocab.json", "{\"a\":0}", "no token for byte 0x00"},
        {"vocab.json", "{\"a\":-1}", "token 'a' has no id"},
        {"vocab.json", "[1]", "no JSON object"},
        {"vocab.json", "{", "vocab.json:1: "},
        {"merges.txt", "#version: 0.2\nt h e\n", "merges.txt:2: expected two tokens, found 't h e'"},
        {"merges.txt", "t h\nq zz\n", "merges.txt:2: 'zz' is not in the vocabulary"},
        {"tokenizer_config.json", "{\"pad_token\":\"<none>\"}",
         "pad_token '<none>' is not in the vocabulary"},
        {"tokenizer_config.json", "[]", "no JSON object"},
        {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"y\"}}}",
         "added token 'x'"},
    };
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *path = g_build_filename(folder, cases[i].name, NULL);
        for (guint k = 0; k < G_N_ELEMENTS(names); k++)
            copy(folder, names[k]);
        g_assert_true(g_file_set_contents(path, cases[i].content, -1, NULL));
        expect_refused(folder, cases[i].text);
    }
    for (guint k = 0; k < G_N_ELEMENTS(names); k++) {
        g_autofree char *path = g_build_filename(folder, names[k], NULL);
        g_unlink(path);
    }
    expect_refused(folder, "no vocab.json");
    copy(folder, "vocab.json");
    expect_refused(folder, "no merges.txt");
    copy(folder, "merges.txt");
    Tokenizer *t = open_good(folder); /* without the two configurations: CLIP's usual tokens */
    gint32 ids[TOKENIZER_LENGTH];
    tokenizer_encode(t, "", ids);
    g_assert_cmpint(ids[0], ==, 1012);
    g_assert_cmpint(ids[1], ==, 1013);
    g_assert_cmpint(ids[76], ==, 1013);
    tokenizer_free(t);
    for (guint k = 0; k < 2; k++) {
        g_autofree char *path = g_build_filename(folder, names[k], NULL);
        g_unlink(path);
    }
    g_rmdir(folder);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/tokenizer/golden", test_golden);
    g_test_add_func("/tokenizer/demo", test_demo);
    g_test_add_func("/tokenizer/lower-case", test_lower_case);
    g_test_add_func("/tokenizer/long", test_long);
    g_test_add_func("/tokenizer/long-equals-short", test_long_equals_short);
    g_test_add_func("/tokenizer/threads", test_threads);
    g_test_add_func("/tokenizer/broken", test_broken);
    return g_test_run();
}
