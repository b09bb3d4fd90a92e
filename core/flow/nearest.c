/* "did you mean": the known name that a mistyped one was probably meant to be.
 *
 * Distance is the number of letters inserted, left out, changed or swapped with their neighbour
 * (restricted Damerau-Levenshtein), without regard to case and to '-' against '_'. A name that the
 * word starts with, or that starts with the word, counts as two mistakes, because people write
 * `batchsize` for `batch` and `resize` for `resize_crop`. What is further off than a third of the
 * word is not suggested: a wrong suggestion costs more than none. */
#include "core/flow/ini.h"
#include <string.h>

enum { LONGEST = 64 };

static char fold(char c)
{
    return c == '-' ? '_' : g_ascii_tolower(c);
}

static guint distance(const char *a, const char *b)
{
    guint row[3][LONGEST + 1];
    guint la = (guint)strlen(a), lb = (guint)strlen(b);
    guint *before = row[0], *last = row[1], *now = row[2];
    for (guint j = 0; j <= lb; j++)
        last[j] = j;
    for (guint i = 1; i <= la; i++) {
        now[0] = i;
        for (guint j = 1; j <= lb; j++) {
            gboolean same = fold(a[i - 1]) == fold(b[j - 1]);
            guint d = MIN(last[j], now[j - 1]) + 1;
            d = MIN(d, last[j - 1] + (same ? 0 : 1));
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1]))
                d = MIN(d, before[j - 2] + 1);
            now[j] = d;
        }
        guint *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[lb];
}

static gboolean starts_with(const char *text, const char *prefix)
{
    while (*prefix && fold(*text) == fold(*prefix))
        text++, prefix++;
    return !*prefix;
}

const char *flow_nearest(const char *word, const char *const *names)
{
    gsize len = strlen(word);
    if (len == 0 || len > LONGEST)
        return NULL;
    guint limit = MAX(1, (guint)len / 3), best = limit + 1;
    const char *nearest = NULL;
    for (; *names; names++) {
        gsize n = strlen(*names);
        if (n == 0 || n > LONGEST)
            continue;
        guint d = distance(word, *names);
        if (MIN(len, n) >= 3 && (starts_with(word, *names) || starts_with(*names, word)))
            d = MIN(d, MIN(2, limit));
        if (d < best) {
            best = d;
            nearest = *names;
        }
    }
    return nearest;
}
