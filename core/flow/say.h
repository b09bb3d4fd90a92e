/* Lines for people on stderr, and one live line below them that is drawn over. */
#ifndef FLOW_SAY_H
#define FLOW_SAY_H
#include <glib.h>

G_BEGIN_DECLS

/* Writes `text` (whole lines) in one piece; the live line makes room for it and is drawn again. [any] */
void flow_say(const char *text);
/* Draws the live line, in place of the one before; NULL takes it away. For terminals. [any] */
void flow_say_live(const char *text);

G_END_DECLS
#endif
