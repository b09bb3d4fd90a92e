/* score: values against their definitions, ranks, holding, memory between epochs, workers.
 * @label short
 * @link libjpeg zlib
 */
#include "core/image/score.h"
#include "core/model/tokenizer.h"
#include "picture_lab.h"
#include <math.h>

#define SOURCE "[pictures]\nstage = image_folder\npath = %s\nmissing = empty\nshuffle = no\n%s"
#define SCORE "[score]\nstage = score\nin = pictures\n%s[catch]\nstage = t_catch\nin = score\n"

static float complexity(guint i)
{
    return *flow_item_f32(lab_item_at(i), FLOW_F_COMPLEXITY);
}

static const float *scores(guint i)
{
    return flow_item_f32(lab_item_at(i), FLOW_F_SCORES);
}

/* Picture k has 2^k grey levels in equal parts: entropy k / 8 exactly. */
static void levels(const char *name, int k, const char *caption)
{
    GString *hex = g_string_new(NULL);
    for (int i = 0; i < 1 << k; i++)
        g_string_append_printf(hex, "%02x", i * (256 >> k));
    g_autofree char *png = g_strconcat(name, ".png", NULL), *txt = g_strconcat(name, ".txt", NULL);
    lab_bytes(png, make_png(256, 16, 8, 0, hex->str, FALSE, NULL));
    if (caption)
        lab_text(txt, caption);
    g_string_free(hex, TRUE);
}

static void test_numbers(void)
{
    static const struct {
        guint8 rgb[3];
        float lab[3];
    } colours[] = {{{255, 255, 255}, {100, 0, 0}}, /* CIELAB of sRGB primaries as tables give them */
                   {{0, 0, 0}, {0, 0, 0}},
                   {{255, 0, 0}, {53.24f, 80.09f, 67.20f}},
                   {{0, 255, 0}, {87.73f, -86.18f, 83.18f}},
                   {{0, 0, 255}, {32.30f, 79.19f, -107.86f}},
                   {{119, 119, 119}, {50.03f, 0, 0}}};
    for (guint i = 0; i < G_N_ELEMENTS(colours); i++) {
        ImageScore s;
        guint8 two[6];
        memcpy(two, colours[i].rgb, 3);
        memcpy(two + 3, colours[i].rgb, 3);
        image_score(two, 1, 2, &s);
        g_assert_cmpfloat(s.entropy, ==, 0);
        for (int c = 0; c < 3; c++) /* the tables have two digits */
            g_assert_cmpfloat_with_epsilon(s.lab[c] * 100, colours[i].lab[c], 0.02);
    }
    ImageScore s; /* half black, half white: one bit of eight, and half the light */
    image_score((const guint8[]){0, 0, 0, 255, 255, 255}, 2, 1, &s);
    g_assert_cmpfloat_with_epsilon(s.entropy, 0.125, 1e-7);
    g_assert_cmpfloat_with_epsilon(s.lab[0] * 100, 76.07, 0.02);
}

static void test_raw(void)
{
    lab_dir_make();
    levels("0", 0, "");
    levels("1", 4, "one two three four, five six seven eight");
    levels("2", 8,
           "w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w w");
    LAB_RUN(SOURCE SCORE, lab_dir, "epochs = 1\n", "normalise = none\n");
    g_assert_cmpfloat(complexity(0), ==, 0);
    g_assert_cmpfloat_with_epsilon(complexity(1), 0.7 * 0.5 + 0.3 * 8 / 40, 1e-6);
    g_assert_cmpfloat_with_epsilon(complexity(2), 1, 1e-6); /* 45 words count as 40 */
    g_assert_cmpfloat_with_epsilon(scores(1)[0], 0.5, 1e-6);
    g_assert_cmpfloat_with_epsilon(scores(1)[1], 0.2, 1e-6);
    LAB_RUN(SOURCE SCORE, lab_dir, "epochs = 1\n", "normalise = none\nimage_weight = 0\ntext_weight = 0.5\n");
    g_assert_cmpfloat_with_epsilon(complexity(1), 0.2, 1e-6);
    lab_dir_remove();
}

/* With ten pictures, c < 0.3 parts off exactly the three simplest; equal ones are equal. */
static void test_rank(void)
{
    lab_dir_make();
    for (int i = 0; i < 10; i++) {
        g_autofree char *name = g_strdup_printf("%d", i), *words = g_strnfill((gsize)(9 - i) * 2, 'w');
        for (char *p = words; *p; p += 2)
            p[1] = ' ';
        levels(name, 3, words); /* 0 has the longest caption */
    }
    LAB_RUN(SOURCE SCORE, lab_dir, "epochs = 2\n", "");
    LAB_STORY("0 1 2 3 4 5 6 7 8 9 | 0 1 2 3 4 5 6 7 8 9 |");
    guint below = 0;
    for (guint i = 0; i < 10; i++) {
        g_assert_cmpfloat_with_epsilon(complexity(i), 0.95 - 0.1 * i, 1e-6);
        g_assert_cmpfloat(complexity(i), ==, complexity(i + 10)); /* remembered */
        below += complexity(i) < 0.3f;
    }
    g_assert_cmpuint(below, ==, 3);
    lab_picture("a", 10, 10, "ff0000", "");
    lab_picture("b", 10, 10, "ff0000", "");
    LAB_RUN(SOURCE SCORE, lab_dir, "epochs = 1\nprefill = yes\n", "workers = 4\n");
    for (guint i = 0; i < 24; i++)
        if (lab_item_at(i)->cursor.epoch >= 0 && *flow_item_i64(lab_item_at(i), FLOW_F_SAMPLE) >= 10)
            g_assert_cmpfloat_with_epsilon(complexity(i), 1.0 / 12,
                                           1e-6); /* two of twelve share the lowest ranks */
    lab_dir_remove();
}

/* Held until the set is complete, then in the order they came; held-back pictures are measured, not counted.
 */
static void test_hold(void)
{
    lab_dir_make();
    for (int i = 0; i < 8; i++) {
        g_autofree char *name = g_strdup_printf("%d", i), *held = g_strdup_printf("held/v%d", i);
        levels(name, i, "");
        if (i < 2)
            levels(held, i * 8, "");
    }
    g_autofree char *params = g_strdup_printf("validation = %s/held\nepochs = 1\n", lab_dir);
    LAB_RUN(SOURCE SCORE, lab_dir, params, "");
    LAB_STORY("p:v:v0 p:v:v1 0 1 2 3 4 5 6 7 |");
    g_assert_cmpfloat_with_epsilon(complexity(0), 0.5 / 8, 1e-6);
    g_assert_cmpfloat_with_epsilon(complexity(1), 1, 1e-6);
    g_assert_cmpfloat_with_epsilon(complexity(2), 0.5 / 8, 1e-6);
    g_autofree char *prefill = g_strconcat(params, "prefill = yes\n", NULL);
    LAB_RUN(SOURCE SCORE, lab_dir, prefill, "");
    LAB_STORY("p:0 p:1 p:2 p:3 p:4 p:5 p:6 p:7 p:v:v0 p:v:v1 <prefill_done> 0 1 2 3 4 5 6 7 |");
    /* every worker count gives the same */
    g_autofree float *one = g_new(float, 18);
    for (guint i = 0; i < 18; i++)
        one[i] = complexity(i);
    for (int workers = 2; workers <= 8; workers *= 2) {
        g_autofree char *w = g_strdup_printf("workers = %d\n", workers);
        LAB_RUN(SOURCE SCORE, lab_dir, prefill, w);
        LAB_STORY("p:0 p:1 p:2 p:3 p:4 p:5 p:6 p:7 p:v:v0 p:v:v1 <prefill_done> 0 1 2 3 4 5 6 7 |");
        for (guint i = 0; i < 18; i++)
            g_assert_cmpfloat(complexity(i), ==, one[i]);
    }
    lab_dir_remove();
}

/* Neither a dropped caption nor shuffled tags change a score. */
static void test_full_caption(void)
{
    lab_dir_make();
    for (int i = 0; i < 6; i++) {
        g_autofree char *name = g_strdup_printf("%d", i);
        levels(name, i, "style, one, two, three");
    }
    LAB_RUN(SOURCE SCORE, lab_dir, "epochs = 3\ncaption_dropout = 0.5\nshuffle_tags = yes\n", "");
    for (guint i = 0; i < 18; i++)
        g_assert_cmpfloat_with_epsilon(scores(i)[1], 0.1, 1e-6);
    lab_dir_remove();
}

static void test_tokens(void)
{
    lab_dir_make();
    levels("0", 1, "a photo of a cat");
    LAB_RUN(SOURCE SCORE, lab_dir, "epochs = 1\n", "base = tests/fixtures/tiny-sd\n");
    g_autoptr(GError) error = NULL;
    Tokenizer *t = tokenizer_open("tests/fixtures/tiny-sd/tokenizer", &error);
    g_assert_no_error(error);
    gint32 ids[TOKENIZER_LENGTH];
    int n = tokenizer_encode(t, "a photo of a cat", ids);
    tokenizer_free(t);
    g_assert_cmpfloat_with_epsilon(scores(0)[1], n / 75.0, 1e-6);
    lab_dir_remove();
}

static void test_large_and_bad(void)
{
    lab_dir_make();
    g_autoptr(GByteArray) large = make_jpeg(1500, 700, &(JpegMake){0}, paint_noise, NULL);
    lab_file("a.jpg", large->data, large->len);
    lab_file("b.jpg", large->data, 3000); /* the header is fine: damage is for decode_image to judge */
    lab_picture("c", 3000, 2, "ff0000", NULL);
    g_autoptr(GByteArray) crc = make_png(64, 64, 8, 2, "ff0000", FALSE, NULL);
    crc->data[find_bytes(crc, "IDAT", 4) + 5] ^= 0xff; /* nothing can be decoded */
    lab_file("d.png", crc->data, crc->len);
    LAB_RUN(SOURCE SCORE, lab_dir, "epochs = 1\n", "normalise = none\nmax_pixels = 2M\non_error = skip:1\n");
    LAB_STORY("a b c |");
    g_assert_cmpfloat(complexity(0), >, 0.3);
    LAB_FAIL("d.png", SOURCE SCORE, lab_dir, "epochs = 1\n", "");
    lab_dir_remove();
}

int main(int argc, char **argv)
{
    picture_lab_init(&argc, &argv);
    g_test_add_func("/score/numbers", test_numbers);
    g_test_add_func("/score/raw", test_raw);
    g_test_add_func("/score/rank", test_rank);
    g_test_add_func("/score/hold", test_hold);
    g_test_add_func("/score/full_caption", test_full_caption);
    g_test_add_func("/score/tokens", test_tokens);
    g_test_add_func("/score/large_and_bad", test_large_and_bad);
    int rc = g_test_run();
    picture_lab_done();
    return rc;
}
