/* Captions: text files beside pictures, and what may be done to the text.
 *
 * Rules: UTF-8, with or without a byte order mark; lines are trimmed and joined by one blank, so nothing is
 * dropped and Windows line ends do not matter; tabs and other control characters are blanks. An empty file is
 * an intended empty caption. Other encodings and NUL bytes are errors that say where. */
#ifndef IMAGE_CAPTION_H
#define IMAGE_CAPTION_H
#include <glib.h>

G_BEGIN_DECLS

enum { IMAGE_CAPTION_MAX = 1 << 20 }; /* bytes of a caption file */

/* The caption in a file. NULL with an error that names it. Returns new. [any] */
char *image_caption_read(const char *path, GError **error);
/* The caption in n bytes; `name` is for messages. Returns new. [any] */
char *image_caption_clean(const char *bytes, gsize n, const char *name, GError **error);
/* Tags (text between `separator`s, trimmed) in another order; the first `keep` stay where they are. Joined by
 * the separator, with a blank behind it where the caption has one behind the first. Returns new. [any] */
char *image_caption_shuffle(const char *caption, const char *separator, guint keep, guint64 key);
/* Words, for lack of a tokenizer. [any] */
guint image_caption_words(const char *caption);

G_END_DECLS
#endif
