/* Text to the words that CLIP's tokenizer encodes one by one. */
#ifndef MODEL_WORDS_H
#define MODEL_WORDS_H
#include <glib.h>

G_BEGIN_DECLS

/* NFC, every run of white space one blank, lower case character by character. n bytes of valid UTF-8.
 * Returns new. */
char *words_normalise(const char *text, gsize n);
/* Calls word() for every word of normalised text: a contraction ('s, 't, ...), a run of letters, one number
 * character, or a run of others; white space separates and is dropped. */
void words_split(const char *text, gsize n, void (*word)(const char *word, gsize n, gpointer data),
                 gpointer data);

G_END_DECLS
#endif
