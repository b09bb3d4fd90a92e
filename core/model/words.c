/* Text to words, as the tokenizers library does it for CLIP:
 *
 *   normalise: NFC, \s+ to one blank, lower case
 *   split:     <\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+
 *
 * Lower case is taken character by character (a final capital sigma becomes the ordinary one) and without
 * regard to the locale, which rules out g_utf8_strdown. The classes are GLib's, except that its isspace
 * leaves out the line tabulation and U+0085. */
#include "core/model/words.h"
#include <string.h>

static gboolean is_blank(gunichar c)
{
    GUnicodeType type = g_unichar_type(c);
    return (c >= '\t' && c <= '\r') || c == 0x85 || type == G_UNICODE_SPACE_SEPARATOR ||
           type == G_UNICODE_LINE_SEPARATOR || type == G_UNICODE_PARAGRAPH_SEPARATOR;
}

static gboolean is_letter(gunichar c)
{
    GUnicodeType type = g_unichar_type(c);
    return type == G_UNICODE_LOWERCASE_LETTER || type == G_UNICODE_UPPERCASE_LETTER ||
           type == G_UNICODE_OTHER_LETTER || type == G_UNICODE_MODIFIER_LETTER ||
           type == G_UNICODE_TITLECASE_LETTER;
}

static gboolean is_number(gunichar c)
{
    GUnicodeType type = g_unichar_type(c);
    return type == G_UNICODE_DECIMAL_NUMBER || type == G_UNICODE_LETTER_NUMBER ||
           type == G_UNICODE_OTHER_NUMBER;
}

/* GLib's knows letters only, and one character at a time. */
static void put_lower(GString *out, gunichar c)
{
    if (c >= 0x2160 && c <= 0x216f) /* Roman numerals */
        c += 0x10;
    else if (c >= 0x24b6 && c <= 0x24cf) /* circled letters */
        c += 0x1a;
    g_string_append_unichar(out, g_unichar_tolower(c));
    if (c == 0x130) /* the one character whose lower case is two: i and a dot above */
        g_string_append_unichar(out, 0x307);
}

/* Bytes to normalise at a time. Before an ASCII character nothing can combine with what went before, so long
 * texts are cut there. Normalising sorts each run of combining marks by insertion, which takes the square
 * of its length: no real text has 256 in a row, so there a cut is made in any case. */
static gsize part(const char *text, gsize n)
{
    enum { ENOUGH = 4096, MARKS = 256 };
    guint marks = 0;
    const char *p = text, *end = text + n;
    while (p < end) {
        gunichar c = g_utf8_get_char(p);
        marks = g_unichar_combining_class(c) ? marks + 1 : 0;
        if (p > text && ((c < 0x80 && p - text >= ENOUGH) || marks >= MARKS))
            break;
        p = g_utf8_next_char(p);
    }
    return (gsize)(p - text);
}

char *words_normalise(const char *text, gsize n)
{
    GString *out = g_string_sized_new(n);
    gboolean blank = FALSE;
    for (gsize i = 0, now; i < n; i += now) {
        now = part(text + i, n - i);
        g_autofree char *composed = g_utf8_normalize(text + i, (gssize)now, G_NORMALIZE_NFC);
        for (const char *p = composed; p && *p; p = g_utf8_next_char(p)) {
            gunichar c = g_utf8_get_char(p);
            if (is_blank(c)) {
                if (!blank)
                    g_string_append_c(out, ' ');
                blank = TRUE;
                continue;
            }
            blank = FALSE;
            put_lower(out, c);
        }
    }
    return g_string_free(out, FALSE);
}

/* Bytes of the first of the strings that stands at p, or 0. */
static gsize starts(const char *p, const char *end, const char *const *strings)
{
    for (; *strings; strings++) {
        gsize n = strlen(*strings);
        if ((gsize)(end - p) >= n && !memcmp(p, *strings, n))
            return n;
    }
    return 0;
}

static gboolean is_other(gunichar c)
{
    return !is_blank(c) && !is_letter(c) && !is_number(c);
}

static const char *run(const char *p, const char *end, gboolean (*in)(gunichar))
{
    while (p < end && in(g_utf8_get_char(p)))
        p = g_utf8_next_char(p);
    return p;
}

void words_split(const char *text, gsize n, void (*word)(const char *word, gsize n, gpointer data),
                 gpointer data)
{
    static const char *const contractions[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d", NULL};
    /* What looks like a special token and is none: a word of its own, then split once more into three. */
    static const char *const marks[] = {"<|startoftext|>", "<|endoftext|>", NULL};
    const char *end = text + n;
    for (const char *p = text, *next; p < end; p = next) {
        gunichar c = g_utf8_get_char(p);
        gsize mark = starts(p, end, marks), fixed = starts(p, end, contractions);
        if (mark) {
            next = p + mark;
            word(p, 2, data);
            word(p + 2, mark - 4, data);
            word(next - 2, 2, data);
            continue;
        }
        next = fixed          ? p + fixed
               : is_letter(c) ? run(p, end, is_letter)
               : is_other(c)  ? run(p, end, is_other)
                              : g_utf8_next_char(p);
        if (!is_blank(c))
            word(p, (gsize)(next - p), data);
    }
}
