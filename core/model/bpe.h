/* Byte-level byte-pair encoding: pieces of text to token ids. */
#ifndef MODEL_BPE_H
#define MODEL_BPE_H
#include <glib.h>

G_BEGIN_DECLS

typedef struct Bpe Bpe;

/* From vocab.json (token -> id) and merges.txt ("left right" a line, best first). */
Bpe *bpe_open(const char *vocab_path, const char *merges_path, GError **error);
void bpe_free(Bpe *bpe); /* NULL is fine */
/* Largest id + 1. */
gint32 bpe_size(const Bpe *bpe);
/* Id of a token as vocab.json spells it, -1 if absent. */
gint32 bpe_id(const Bpe *bpe, const char *token);

/* Where ids go: the first `room` are kept, all are counted. */
typedef struct {
    gint32 *ids;
    gsize room, count;
} BpeOut;
void bpe_put(BpeOut *out, gint32 id);
/* Ids of one piece (a word) of n >= 1 bytes. Time n log n. Thread-safe. */
void bpe_piece(const Bpe *bpe, const char *piece, gsize n, BpeOut *out);

G_END_DECLS
#endif
