/* CLIP's byte-level BPE tokenizer (spec/sd.md 4.4; equal to transformers' CLIPTokenizer). */
#ifndef MODEL_TOKENIZER_H
#define MODEL_TOKENIZER_H
#include <glib.h>

G_BEGIN_DECLS

#define TOKENIZER_LENGTH 77

typedef struct Tokenizer Tokenizer;

/* From a folder with vocab.json, merges.txt and tokenizer_config.json / special_tokens_map.json (pad token;
 * a pad token that is a special token such as "!" is cut out of the text as diffusers does). */
Tokenizer *tokenizer_open(const char *folder, GError **error);
void tokenizer_free(Tokenizer *tokenizer);
/* BOS, content, EOS, pads: 77 ids. Returns the number of content ids before cutting. Thread-safe. */
gint tokenizer_encode(const Tokenizer *tokenizer, const char *text, gint32 ids[TOKENIZER_LENGTH]);
gint tokenizer_eos(const Tokenizer *tokenizer);
gint tokenizer_size(const Tokenizer *tokenizer); /* vocabulary */

G_END_DECLS
#endif
