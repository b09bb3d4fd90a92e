/* Any bytes as a caption: 77 ids of the vocabulary, BOS in front, EOS after the content, and what stands
 * before a blank is encoded as if it stood alone.
 *
 * @label short
 */
#include "core/model/tokenizer.h"
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static gint encode(const Tokenizer *t, const char *text)
{
    gint32 ids[TOKENIZER_LENGTH];
    gint n = tokenizer_encode(t, text, ids);
    g_assert_cmpint(n, >=, 0);
    for (guint i = 0; i < TOKENIZER_LENGTH; i++)
        g_assert_true(ids[i] >= 0 && ids[i] < tokenizer_size(t));
    g_assert_cmpint(ids[0], ==, tokenizer_eos(t) - 1); /* BOS is the one before in these vocabularies */
    g_assert_cmpint(ids[MIN(n, TOKENIZER_LENGTH - 2) + 1], ==, tokenizer_eos(t));
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static Tokenizer *t;
    if (!t) {
        const char *source = g_getenv("LORAFLOW_SOURCE");
        g_autofree char *folder =
            g_build_filename(source ? source : ".", "tests/fixtures/tiny-sdxl/tokenizer_2", NULL);
        t = tokenizer_open(folder, NULL);
        g_assert_nonnull(t);
    }
    g_autofree char *text = g_strndup((const char *)data, size);
    gint n = encode(t, text);
    char *blank = strchr(text, ' ');
    if (blank) {
        *blank = 0;
        g_assert_cmpint(encode(t, text) + encode(t, blank + 1), ==, n);
    }
    return 0;
}
