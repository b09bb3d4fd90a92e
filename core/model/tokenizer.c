/* CLIP's tokenizer from the files of a diffusers folder, equal to transformers' CLIPTokenizer.
 *
 *   text -> tokens that stand for themselves | normalise -> such tokens again -> words -> byte-pair encoding
 *
 * Special tokens are cut out of the text before it is encoded, some before it is normalised and some after,
 * as their entry in tokenizer_config.json says. For SDXL's second tokenizer this cuts every "!" out, because
 * its pad token is "!": the model was trained without that, but diffusers does it, and so do we. */
#include "core/model/tokenizer.h"
#include "core/model/bpe.h"
#include "core/model/json_file.h"
#include "core/model/safetensors.h"
#include "core/model/words.h"
#include <string.h>

typedef struct {
    char *text;
    gsize n;
    gint32 id;
    gboolean raw; /* looked for in the text as it was written, else in normalised text */
} Special;

struct Tokenizer {
    Bpe *bpe;
    GArray *specials; /* Special */
    gint32 bos, eos, pad, size;
};

/* -- opening -------------------------------------------------------------------------------- */

static void clear_special(gpointer special)
{
    g_free(((Special *)special)->text);
}

static void add_special(Tokenizer *t, const char *text, gint32 id, gboolean raw)
{
    if (!*text)
        return;
    for (guint i = 0; i < t->specials->len; i++)
        if (!strcmp(g_array_index(t->specials, Special, i).text, text))
            return;
    Special special = {raw ? g_strdup(text) : words_normalise(text, strlen(text)), 0, id, raw};
    special.n = strlen(special.text);
    g_array_append_val(t->specials, special);
    t->size = MAX(t->size, id + 1);
}

/* NULL without an error if there is no such file. */
static json_t *load(const char *folder, const char *name, GError **error)
{
    g_autofree char *path = g_build_filename(folder, name, NULL);
    return g_file_test(path, G_FILE_TEST_EXISTS) ? json_file_read(path, error) : NULL;
}

/* {"49407": {"content": "<|endoftext|>", "normalized": true, ...}, ...} */
static gboolean read_added(Tokenizer *t, json_t *config, const char *folder, GError **error)
{
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        guint64 id;
        if (!content || !g_ascii_string_to_unsigned(key, 10, 0, G_MAXINT32 - 1, &id, NULL)) {
            g_set_error(error, MODEL_ERROR, MODEL_ERROR_FORMAT,
                        "%s: tokenizer_config.json: added token '%.100s' has no id or no content", folder,
                        key);
            return FALSE;
        }
        add_special(t, content, (gint32)id, !json_is_true(json_object_get(value, "normalized")));
    }
    return TRUE;
}

/* The id of "bos_token" and the like: a string, or an object with "content". */
static gboolean read_role(Tokenizer *t, json_t *config, json_t *map, const char *role, const char *usual,
                          const char *folder, gint32 *id, GError **error)
{
    json_t *entry =
        json_object_get(config, role) ? json_object_get(config, role) : json_object_get(map, role);
    json_t *content = json_is_object(entry) ? json_object_get(entry, "content") : entry;
    const char *text = json_is_string(content) ? json_string_value(content) : usual;
    *id = bpe_id(t->bpe, text);
    for (guint i = 0; *id < 0 && i < t->specials->len; i++) {
        const Special *s = &g_array_index(t->specials, Special, i);
        if (!strcmp(s->text, text))
            *id = s->id;
    }
    if (*id < 0) {
        g_set_error(error, MODEL_ERROR, MODEL_ERROR_MISSING, "%s: %s '%.100s' is not in the vocabulary",
                    folder, role, text);
        return FALSE;
    }
    add_special(t, text, *id, !json_is_true(json_object_get(entry, "normalized")));
    return TRUE;
}

static gboolean read_specials(Tokenizer *t, const char *folder, GError **error)
{
    GError *problem = NULL;
    json_t *config = load(folder, "tokenizer_config.json", &problem);
    json_t *map = problem ? NULL : load(folder, "special_tokens_map.json", &problem);
    gboolean ok = !problem;
    if (problem)
        g_propagate_error(error, problem);
    ok = ok && read_added(t, config, folder, error) &&
         read_role(t, config, map, "bos_token", "<|startoftext|>", folder, &t->bos, error) &&
         read_role(t, config, map, "eos_token", "<|endoftext|>", folder, &t->eos, error) &&
         read_role(t, config, map, "pad_token", "<|endoftext|>", folder, &t->pad, error);
    json_decref(config);
    json_decref(map);
    return ok;
}

Tokenizer *tokenizer_open(const char *folder, GError **error)
{
    g_autofree char *vocab = g_build_filename(folder, "vocab.json", NULL);
    g_autofree char *merges = g_build_filename(folder, "merges.txt", NULL);
    const char *missing = !g_file_test(vocab, G_FILE_TEST_EXISTS)    ? "vocab.json"
                          : !g_file_test(merges, G_FILE_TEST_EXISTS) ? "merges.txt"
                                                                     : NULL;
    if (missing) {
        g_set_error(
            error, MODEL_ERROR, MODEL_ERROR_MISSING,
            "%s: no %s; a tokenizer needs vocab.json and merges.txt (tokenizer.json alone is not read)",
            folder, missing);
        return NULL;
    }
    Tokenizer *t = g_new0(Tokenizer, 1);
    t->specials = g_array_new(FALSE, FALSE, sizeof(Special));
    g_array_set_clear_func(t->specials, clear_special);
    t->bpe = bpe_open(vocab, merges, error);
    if (t->bpe)
        t->size = bpe_size(t->bpe);
    if (t->bpe && read_specials(t, folder, error))
        return t;
    tokenizer_free(t);
    return NULL;
}

void tokenizer_free(Tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    bpe_free(tokenizer->bpe);
    g_array_unref(tokenizer->specials);
    g_free(tokenizer);
}

gint tokenizer_eos(const Tokenizer *tokenizer)
{
    return tokenizer->eos;
}

gint tokenizer_size(const Tokenizer *tokenizer)
{
    return tokenizer->size;
}

/* -- encoding ---------------------------------------------------------------------------------- */

typedef struct {
    const Tokenizer *t;
    BpeOut *out;
} Job;

static void encode_word(const char *word, gsize n, gpointer data)
{
    const Job *job = data;
    bpe_piece(job->t->bpe, word, n, job->out);
}

/* The longest special token at p, or NULL. */
static const Special *special_at(const Tokenizer *t, const char *p, gsize n, gboolean raw)
{
    const Special *best = NULL;
    for (guint i = 0; i < t->specials->len; i++) {
        const Special *s = &g_array_index(t->specials, Special, i);
        if (s->raw == raw && s->n <= n && *p == *s->text && !memcmp(p, s->text, s->n) &&
            (!best || s->n > best->n))
            best = s;
    }
    return best;
}

static void encode_text(const Job *job, const char *text, gsize n, gboolean raw);

/* A stretch without (raw or normalised) special tokens. */
static void encode_plain(const Job *job, const char *text, gsize n, gboolean raw)
{
    if (!n)
        return;
    if (raw) {
        g_autofree char *normal = words_normalise(text, n);
        encode_text(job, normal, strlen(normal), FALSE);
    } else {
        words_split(text, n, encode_word, (gpointer)job);
    }
}

/* Cuts out the special tokens, first those in the raw text, then in each normalised stretch the others. */
static void encode_text(const Job *job, const char *text, gsize n, gboolean raw)
{
    gsize begin = 0;
    for (gsize i = 0; i < n;) {
        const Special *s = special_at(job->t, text + i, n - i, raw);
        if (!s) {
            i++;
            continue;
        }
        encode_plain(job, text + begin, i - begin, raw);
        bpe_put(job->out, s->id);
        begin = i += s->n;
    }
    encode_plain(job, text + begin, n - begin, raw);
}

gint tokenizer_encode(const Tokenizer *tokenizer, const char *text, gint32 ids[TOKENIZER_LENGTH])
{
    BpeOut out = {ids + 1, TOKENIZER_LENGTH - 2, 0};
    const Job job = {tokenizer, &out};
    g_autofree char *valid = g_utf8_validate(text, -1, NULL) ? NULL : g_utf8_make_valid(text, -1);
    const char *source = valid ? valid : text;
    encode_text(&job, source, strlen(source), TRUE);
    gsize used = MIN(out.count, out.room);
    ids[0] = tokenizer->bos;
    ids[1 + used] = tokenizer->eos;
    for (gsize i = used + 2; i < TOKENIZER_LENGTH; i++)
        ids[i] = tokenizer->pad;
    return (gint)out.count;
}
